"""Which access tokens count, whatever somebody makes of one, and who they let in."""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from starlette.responses import Response

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.errors import InvalidArgument, RateLimited, UpstreamUnavailable
from claude_code_mcp.plugins.team import access_tokens
from claude_code_mcp.plugins.team.access_tokens import AccessTokens, Grant, check_oauth_settings
from claude_code_mcp.plugins.team.authenticators import TokenAuthenticator, authenticators
from claude_code_mcp.server.transports import http
from tests.plugins.team.callers import nobody_objects
from tests.support.clock import settled

from .callers import TokenCallers
from .issuer import EC_KEY, OTHER_KEY, PUBLIC_PEM, RSA_KEY, Issuer, issuing, published, sign

RESOURCE = "https://claude.example.org/mcp"
TOKEN = "ann-5f0c9d2e7b41a86c3d90-and-more"


@pytest.fixture(scope="module")
def shared_issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture
def issuer(shared_issuer: Issuer) -> Iterator[Issuer]:
    """With what it publishes usually, whatever a test has made of it."""
    usual = dict(shared_issuer.answers)
    shared_issuer.asked.clear()
    yield shared_issuer
    shared_issuer.answers = usual
    shared_issuer.active.clear()


def settings(issuer: Issuer, **more: str) -> Settings:
    return load_settings({"CLAUDE_CODE_MCP_OAUTH_ISSUER": issuer.url, **more})


def tokens(issuer: Issuer, **more: str) -> AccessTokens:
    return AccessTokens(settings(issuer, **more), RESOURCE)


# -- one token --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        sign,
        lambda claims: sign(claims, typ="at+jwt"),
        lambda claims: sign(claims, EC_KEY, "ec", "ES256"),
        lambda claims: sign({**claims, "aud": ["https://other.example.org", RESOURCE]}),
    ],
    ids=["RSA", "by its type", "elliptic curve", "one of several audiences"],
)
async def test_a_token_of_the_issuer_for_this_server_names_its_person(
    issuer: Issuer, make: Callable[[dict[str, Any]], str]
) -> None:
    grant = await tokens(issuer).check(make(issuer.claims(RESOURCE, scope="read write")))
    assert grant is not None
    assert (grant.name, grant.subject, grant.scopes) == ("user-1", "user-1", ("read", "write"))


def unsigned(claims: dict[str, Any]) -> str:
    parts = [{"alg": "none", "typ": "JWT", "kid": "rsa"}, claims]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*encoded, ""])


def signed_with_the_public_key(claims: dict[str, Any]) -> str:
    """The old trick: what everybody can read is taken for a shared secret."""
    head, body, _ = unsigned(claims).split(".")
    head = (
        base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "rsa"}).encode())
        .rstrip(b"=")
        .decode()
    )
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signature = algorithm.sign(f"{head}.{body}".encode(), PUBLIC_PEM)
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def changed(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    body = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "admin"}).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


ATTACKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "another audience": lambda claims: sign({**claims, "aud": "https://other.example.org/mcp"}),
    "no audience": lambda claims: sign({name: value for name, value in claims.items() if name != "aud"}),
    "a part of the audience": lambda claims: sign({**claims, "aud": RESOURCE[:-1]}),
    "another issuer": lambda claims: sign({**claims, "iss": "https://evil.example.org"}),
    "no issuer": lambda claims: sign({name: value for name, value in claims.items() if name != "iss"}),
    "expired": lambda claims: sign({**claims, "exp": int(time.time()) - 120}),
    "no end": lambda claims: sign({name: value for name, value in claims.items() if name != "exp"}),
    "not yet": lambda claims: sign({**claims, "nbf": int(time.time()) + 3600}),
    "no subject": lambda claims: sign({name: value for name, value in claims.items() if name != "sub"}),
    "an empty subject": lambda claims: sign({**claims, "sub": ""}),
    "a key of somebody else": lambda claims: sign(claims, OTHER_KEY),
    "a key that is not published": lambda claims: sign(claims, OTHER_KEY, "other"),
    "no key named": lambda claims: sign(claims, key_id=None),
    "another algorithm of the same key": lambda claims: sign(claims, algorithm="PS256"),
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "changed after it was signed": lambda claims: changed(sign(claims)),
    "the token of a sign-out": lambda claims: sign(claims, typ="logout+jwt"),
    "an id token by its nonce": lambda claims: sign({**claims, "nonce": "n"}),
    "an id token by its hash": lambda claims: sign({**claims, "at_hash": "h", "scope": "read"}),
    "an id token by its type": lambda claims: sign({**claims, "typ": "ID"}),
    "a refresh token by its type": lambda claims: sign({**claims, "typ": "Refresh"}),
    "an id token by its use": lambda claims: sign({**claims, "token_use": "id"}),
    "a name of two words": lambda claims: sign({**claims, "sub": "two words"}),
    "a name that hides something": lambda claims: sign({**claims, "sub": "ann\u202e"}),
    "a long name": lambda claims: sign({**claims, "sub": "a" * 129}),
    "a long token": lambda claims: sign({**claims, "more": "a" * (16 << 10)}),
    "bound to a certificate": lambda claims: sign(
        {**claims, "cnf": {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"}}
    ),
    "bound to a key": lambda claims: sign({**claims, "cnf": {"jkt": "k"}}),
    "bound to a key and more": lambda claims: sign({**claims, "cnf": {"jkt": "k", "x5t#S256": "c"}}),
    "bound to no key": lambda claims: sign({**claims, "cnf": {"jkt": ""}}),
    "bound by no claim": lambda claims: sign({**claims, "cnf": "k"}),
    "half a token": lambda claims: sign(claims)[:-20],
    "no token": lambda _: "a.b.c",
    "nothing": lambda _: "",
    "other characters": lambda _: "\u00e9" * 20,
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_other_names_are_not_recognized(issuer: Issuer, attack: str) -> None:
    assert await tokens(issuer).check(ATTACKS[attack](issuer.claims(RESOURCE))) is None


@pytest.mark.parametrize("scopes", [None, "read,write"])
def test_the_metadata_names_the_needed_scopes_and_no_empty_list(issuer: Issuer, scopes: str | None) -> None:
    given = settings(issuer, **({"CLAUDE_CODE_MCP_OAUTH_SCOPES": scopes} if scopes else {}))
    challenge = TokenCallers(given, AccessTokens(given, RESOURCE), nobody_objects).challenge
    found = http._auth(challenge, http.Address("127.0.0.1", 8765)).required_scopes
    assert found == (["read", "write"] if scopes else None)


@pytest.mark.parametrize("verified", [True, False, "true", None], ids=str)
async def test_an_address_names_a_person_if_the_issuer_has_verified_it(issuer: Issuer, verified: Any) -> None:
    claims = issuer.claims(RESOURCE, email="ann@example.org", email_verified=verified)
    grant = await tokens(issuer, CLAUDE_CODE_MCP_OAUTH_CLAIM="email").check(sign(claims))
    assert (grant.name if grant is not None else None) == ("ann@example.org" if verified is True else None)


# -- the issuer's keys ------------------------------------------------------------------------------------------------


async def test_keys_are_read_once_and_again_for_a_key_that_is_new(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, claims = tokens(issuer), issuer.claims(RESOURCE)
    assert await checking.check(sign(claims)) is not None
    assert await checking.check(sign(claims)) is not None
    assert issuer.asked.count("/keys") == 1
    issuer.publish(published(OTHER_KEY, "new", "RS256"))
    # At once after a reading there is none: anybody can name keys that do not exist.
    assert await checking.check(sign(claims, OTHER_KEY, "new")) is None
    assert issuer.asked.count("/keys") == 1
    monkeypatch.setattr(access_tokens, "_PAUSE", 0.0)
    assert await checking.check(sign(claims, OTHER_KEY, "new")) is not None
    assert await checking.check(sign(claims)) is None, "its key was taken back"


async def test_an_issuer_that_cannot_be_reached_is_no_reason_to_call_a_token_wrong(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checking, token = tokens(issuer), sign(issuer.claims(RESOURCE))
    usual, issuer.answers = issuer.answers, {}
    for _ in range(2):  # the second time without asking again
        with pytest.raises(UpstreamUnavailable) as refused:
            await checking.check(token)
        assert issuer.url not in refused.value.message
    monkeypatch.setattr(access_tokens, "_PAUSE", 0.0)
    issuer.answers = usual
    assert await checking.check(token) is not None
    issuer.answers = {}
    monkeypatch.setattr(access_tokens, "_KEYS_FOR", 0.0)
    assert await checking.check(token) is not None, "the keys that were read count for a while"
    monkeypatch.setattr(access_tokens, "_KEYS_AT_MOST", 0.0)
    with pytest.raises(UpstreamUnavailable):
        await checking.check(token)


@pytest.mark.parametrize("lie", ["the metadata of another issuer", "a huge answer", "no JSON", "keys over plain HTTP"])
async def test_invalid_issuer_answers(issuer: Issuer, lie: str) -> None:
    metadata = "/.well-known/oauth-authorization-server"
    match lie:
        case "the metadata of another issuer":
            issuer.publish(published(RSA_KEY, "rsa", "RS256"), issuer="https://evil.example.org")
        case "a huge answer":
            issuer.answers["/keys"] = b" " * (2 << 20)
        case "no JSON":
            issuer.answers["/keys"] = b"<html>"
        case _:
            issuer.answers[metadata] = {"issuer": issuer.url, "jwks_uri": "http://keys.example.org/keys"}
    with pytest.raises(UpstreamUnavailable):
        await tokens(issuer).check(sign(issuer.claims(RESOURCE)))


async def test_a_shared_secret_among_the_keys_signs_nothing(issuer: Issuer) -> None:
    secret = base64.urlsafe_b64encode(b"k" * 32).rstrip(b"=").decode()
    issuer.publish({"kty": "oct", "k": secret, "kid": "shared", "alg": "HS256"}, published(RSA_KEY, "rsa", "RS256"))
    token = jwt.encode(issuer.claims(RESOURCE), b"k" * 32, "HS256", {"kid": "shared"})
    assert await tokens(issuer).check(token) is None


# -- introspection ----------------------------------------------------------------------------------------------------


def asking(issuer: Issuer) -> AccessTokens:
    return tokens(
        issuer, CLAUDE_CODE_MCP_OAUTH_INTROSPECTION=f"{issuer.url}/introspect", CLAUDE_CODE_MCP_OAUTH_CLIENT_ID="us"
    )


async def test_a_token_that_is_not_signed_is_asked_about_once_for_a_while(issuer: Issuer) -> None:
    issuer.active["opaque"] = {"active": True, **issuer.claims(RESOURCE, scope="read")}
    checking = asking(issuer)
    for _ in range(2):
        grant = await checking.check("opaque")
        assert grant is not None
        assert (grant.name, grant.scopes) == ("user-1", ("read",))
    assert issuer.asked.count("/introspect") == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"active": False},
        {"active": "true"},
        {"active": True, "aud": "https://other.example.org"},
        {"active": True, "aud": None},
        {"active": True, "iss": "https://evil.example.org"},
        {"active": True, "exp": 1},
        {"active": True, "sub": 7},
    ],
    ids=str,
)
async def test_anything_but_yes_is_no(issuer: Issuer, answer: dict[str, Any]) -> None:
    issuer.active["opaque"] = {**issuer.claims(RESOURCE), **answer}
    assert await asking(issuer).check("opaque") is None


async def test_inactive_tokens_are_cached_without_displacing_others(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.active["opaque"] = {"active": True, **issuer.claims(RESOURCE)}
    monkeypatch.setattr(access_tokens, "_MAX_INTROSPECTED", 5)
    checking = asking(issuer)
    assert await checking.check("opaque") is not None
    for number in [*range(8), 7]:
        assert await checking.check(f"made-up-{number}") is None
    assert issuer.asked.count("/introspect") == 9
    assert await checking.check("opaque") is not None
    assert issuer.asked.count("/introspect") == 9


async def test_an_address_that_makes_tokens_up_is_refused_and_a_good_token_from_it_is_taken(issuer: Issuer) -> None:
    issuer.active["opaque"] = {"active": True, **issuer.claims(RESOURCE)}
    callers = TokenCallers(settings(issuer), asking(issuer), nobody_objects)

    async def ask(address: str, token: str) -> tuple[int, str]:
        """What a request with this token is answered, and how long it is to wait."""
        sent: list[dict[str, Any]] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            identity = await callers.by_token(token)
            await Response(status_code=200 if identity is not None else 401)(scope, receive, send)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [], "client": (address, 1)}
        await callers.running.middleware(app)(scope, None, send)  # type: ignore[arg-type]
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers.get("retry-after", "")

    for number in range(60):
        assert await ask("192.0.2.1", f"made-up-{number}") == (401, "")
    status, wait = await ask("192.0.2.1", "made-up-60")
    assert status == 429
    assert 0 < int(wait) <= 61
    assert (await ask("192.0.2.2", "opaque"))[0] == 200, "others are not held up"
    assert (await ask("192.0.2.1", "opaque"))[0] == 200, "nor are those who have the same address"
    assert (await ask("192.0.2.1", "made-up-60"))[0] == 429
    asked = issuer.asked.count("/introspect")
    assert (await ask("192.0.2.1", "made-up-60"))[0] == 429
    assert issuer.asked.count("/introspect") == asked, "what the issuer has said counts for a while"


class SlowIssuer:
    """Says after a while that the tokens in `good` are, and remembers about how many it was asked at once."""

    issuer = "https://slow.example.org"
    resource = RESOURCE
    recheck_interval = 1e9

    def __init__(self, *good: str) -> None:
        self.good = good
        self.at_once = self.most_at_once = 0
        self.answers = asyncio.Event()

    def must_ask(self, token: str) -> bool:
        return not token.startswith("signed")

    async def check(self, token: str) -> Grant | None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.answers.wait()
        self.at_once -= 1
        return Grant("ann", "1", 2_000_000_000, (), frozenset(), 0.0) if token in self.good else None


async def test_invented_tokens_of_an_address_are_introspected_one_at_a_time(issuer: Issuer) -> None:
    way, slow = TokenAuthenticator(settings(issuer), ()), SlowIssuer("new", "signed-good")
    slow.answers.set()
    for _ in range(60):
        assert await way._check("made-up", slow) is None
    slow.answers.clear()
    flood = [asyncio.ensure_future(way._check(f"made-up-{number}", slow)) for number in range(20)]
    fresh = asyncio.ensure_future(way._check("new", slow))
    signed = asyncio.ensure_future(way._check("signed-good", slow))
    await settled()
    assert slow.at_once == 2, "one that the issuer is asked about, and one that needs nobody"
    slow.answers.set()
    assert await signed is not None
    assert await fresh is not None, "it got its turn"
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {RateLimited}
    assert slow.most_at_once == 2


# -- kinds of tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "head", "counts"),
    [
        ({}, {}, False),
        ({"azp": "us"}, {}, False),
        ({"scope": "read"}, {}, True),
        ({"scp": ["read"]}, {}, True),
        ({}, {"typ": "at+jwt"}, True),
        ({"nonce": "n"}, {"typ": "at+jwt"}, True),
        ({"nonce": "n", "scope": "read"}, {}, False),
    ],
    ids=str,
)
async def test_where_the_audience_is_a_client_an_id_token_of_it_is_no_access_token(
    issuer: Issuer, claims: dict[str, Any], head: dict[str, str], counts: bool
) -> None:
    named = {"CLAUDE_CODE_MCP_OAUTH_AUDIENCE": "us", "CLAUDE_CODE_MCP_OAUTH_CLIENT_ID": "us"}
    token = sign(issuer.claims("us", **claims), **head)
    assert (await tokens(issuer, **named).check(token) is not None) == counts
    # For a provider that has nothing else.
    assert await tokens(issuer, CLAUDE_CODE_MCP_OAUTH_ID_TOKENS="1", **named).check(token) is not None


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OAUTH_ISSUER", "http://idp.example.org"),
        ("OAUTH_ISSUER", "https://idp.example.org?x=1"),
        ("OAUTH_ISSUER", "idp.example.org"),
        ("OAUTH_INTROSPECTION", "http://idp.example.org/introspect"),
        ("OAUTH_INTROSPECTION", "https://idp.example.org/introspect"),  # without the id of a client
        ("PRINCIPAL_SIGN_IN", "1"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(name: str, value: str) -> None:
    given = {"CLAUDE_CODE_MCP_OAUTH_ISSUER": "https://idp.example.org", f"CLAUDE_CODE_MCP_{name}": value}
    with pytest.raises(InvalidArgument):
        check_oauth_settings(load_settings(given))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ISSUER", "https://idp.example.org"),
        ("AUDIENCE", "https://claude.example.org/mcp"),
        ("SCOPES", "claude"),
        ("ID_TOKENS", "true"),
        ("INTROSPECTION", "https://idp.example.org/introspect"),
        ("CLIENT_ID", "us"),
    ],
)
def test_issuer_settings_are_refused_with_the_built_in_authorization_server(name: str, value: str) -> None:
    given = {"CLAUDE_CODE_MCP_OAUTH": "true"}
    assert len(authenticators(load_settings(given))) == 1
    with pytest.raises(InvalidArgument, match=f"OAUTH_{name} "):
        authenticators(load_settings({**given, f"CLAUDE_CODE_MCP_OAUTH_{name}": value}))


# -- callers ----------------------------------------------------------------------------------------------------------


async def test_person_cannot_take_the_name_of_a_token_caller(issuer: Issuer) -> None:
    callers = TokenCallers(settings(issuer, CLAUDE_CODE_MCP_TOKEN=TOKEN), tokens(issuer), nobody_objects)
    assert callers.required
    person = await callers.by_token(sign(issuer.claims(RESOURCE)))
    assert person is not None
    assert await callers.stands(person)
    assert callers.knows("user-1")
    for taken in ("default", "local"):
        assert await callers.by_token(sign(issuer.claims(RESOURCE, sub=taken))) is None
    other = await callers.by_token(TOKEN)
    assert other is not None
    assert other.principal == "default"
    assert issuer.asked.count("/keys") == 1


async def test_reassigned_name_is_refused(issuer: Issuer) -> None:
    checked = tokens(issuer, CLAUDE_CODE_MCP_OAUTH_CLAIM="name")
    callers = TokenCallers(settings(issuer), checked, nobody_objects)
    assert await callers.by_token(sign(issuer.claims(RESOURCE, name="ann"))) is not None
    assert await callers.by_token(sign(issuer.claims(RESOURCE, name="ann", sub="user-2"))) is None


async def test_streams_end_with_their_access_token(issuer: Issuer) -> None:
    callers = TokenCallers(settings(issuer), tokens(issuer), nobody_objects)
    person = await callers.by_token(sign(issuer.claims(RESOURCE, exp=int(time.time()) - 5)))
    assert person is not None, "the clocks may differ a little"
    assert not await callers.stands(person)
