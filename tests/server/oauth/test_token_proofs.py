"""A token that is bound to a key is worth nothing without it, and bearer tokens go on working."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import jwt
import pytest
from mcp.server.auth.settings import AuthSettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from claude_code_mcp.errors import RateLimited
from claude_code_mcp.server.transports import token_proofs
from claude_code_mcp.server.transports.access_tokens import ALGORITHMS, Grant
from claude_code_mcp.server.transports.token_proofs import TokenProofs, thumbprint

from .client_key import ClientKey, hash_of

RESOURCE = "https://claude.example.org/mcp"
TOKEN = "a-good-access-token"
START = time.time()
KEY, OTHER = ClientKey(lambda: START), ClientKey(lambda: START)
RSA_OF_THE_STANDARD = {
    "kty": "RSA",
    "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3o"
    "knjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvR"
    "L5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
    "e": "AQAB",
    "alg": "RS256",
    "kid": "2011-04-29",
}


@dataclass
class Clock:
    """The time of a server, which goes on when a test says so."""

    now: float = START

    def __call__(self) -> float:
        return self.now


class Server:
    """A server at which one token is good, and whoever may use it is let in."""

    def __init__(
        self, key: str | None, subject: str = "user-1", times: int = 1, scopes: Sequence[str] = ("read",), **how: Any
    ) -> None:
        """`times` is how often a request asks who its caller is."""
        self.proofs = TokenProofs(RESOURCE, **{"clock": Clock(), **how})
        self._grant = Grant("ann", subject, int(START) + 600, (), frozenset(), 0.0, key)
        self._times = times
        app = Starlette(routes=[Route("/mcp", self._answer, methods=["GET", "POST"])])
        auth = {"issuer_url": "https://id.example.org", "resource_server_url": RESOURCE, "required_scopes": [*scopes]}
        self.proofs.serve(app, AuthSettings.model_validate({**auth, "validate_token_resource": False}))
        self._http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://10.0.0.7:8765")

    async def _answer(self, request: Request) -> Response:
        # As the MCP SDK reads it.
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        good = scheme == "Bearer" and token == TOKEN
        if good and all(self.proofs.accept(token, self._grant) for _ in range(self._times)):
            return PlainTextResponse("let in")
        return PlainTextResponse("refused", 401, {"WWW-Authenticate": 'Bearer error="invalid_token"'})

    async def post(self, headers: dict[str, str] | list[tuple[str, str]]) -> httpx2.Response:
        return await self._http.post("/mcp?more=1", headers=headers)

    async def metadata(self) -> dict[str, Any]:
        return dict((await self._http.get("/.well-known/oauth-protected-resource/mcp")).json())


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_whoever_has_the_key_uses_the_token_with_a_proof_for_each_request() -> None:
    server = Server(KEY.thumbprint)
    for _ in range(3):
        assert (await server.post(KEY.headers(RESOURCE, TOKEN))).status_code == 200


async def test_a_bearer_token_goes_on_working() -> None:
    assert (await Server(None).post(bearer())).status_code == 200


async def test_where_all_tokens_must_be_bound_a_bearer_token_is_refused() -> None:
    server = Server(None, required=True)
    assert (await server.post(bearer())).status_code == 401
    assert (await server.metadata())["dpop_bound_access_tokens_required"] is True
    assert (await Server(KEY.thumbprint, required=True).post(KEY.headers(RESOURCE, TOKEN))).status_code == 200


def signed(**changed: Any) -> dict[str, str]:
    return KEY.headers(RESOURCE, TOKEN, **changed)


def headed(**head: Any) -> dict[str, str]:
    claims = KEY.claims(RESOURCE, token=TOKEN)
    return {"authorization": f"DPoP {TOKEN}", "dpop": KEY.sign(claims, **head)}


def with_proof(proof: str) -> dict[str, str]:
    return {"authorization": f"DPoP {TOKEN}", "dpop": proof}


def by_a_shared_secret() -> dict[str, str]:
    """The public key, which everybody has, as if it were a secret."""
    claims = KEY.claims(RESOURCE, token=TOKEN)
    secret = {"kty": "oct", "k": KEY.public["x"]}
    return with_proof(jwt.encode(claims, KEY.public["x"] * 2, "HS256", {"typ": "dpop+jwt", "jwk": secret}))


def tampered() -> dict[str, str]:
    head, _, signature = KEY.proof(RESOURCE, token=TOKEN, htm="GET").split(".")
    return with_proof(".".join([head, KEY.proof(RESOURCE, token=TOKEN).split(".")[1], signature]))


ATTACKS: dict[str, Callable[[], dict[str, str] | list[tuple[str, str]]]] = {
    "stolen, as a bearer token": bearer,
    "stolen, as a bearer token with a proof": lambda: {**signed(), **bearer()},
    "stolen, without a proof": lambda: {"authorization": f"DPoP {TOKEN}"},
    "stolen, with a proof by another key": lambda: OTHER.headers(RESOURCE, TOKEN),
    "the right key named, another used": lambda: with_proof(
        OTHER.sign(OTHER.claims(RESOURCE, token=TOKEN), jwk=KEY.public)
    ),
    "for another method": lambda: signed(htm="GET"),
    "for another server": lambda: signed(htu="https://evil.example.org/mcp"),
    "for another path": lambda: signed(htu="https://claude.example.org/metrics"),
    "for where the request says that it is": lambda: signed(htu="http://10.0.0.7:8765/mcp"),
    "for another port": lambda: signed(htu="https://claude.example.org:8443/mcp"),
    "with a name before the host": lambda: signed(htu="https://claude.example.org@evil.example.org/mcp"),
    "no address": lambda: signed(htu="https://[/mcp"),
    "for another token": lambda: signed(ath=hash_of("another")),
    "for no token": lambda: signed(ath=None),
    "too old": lambda: signed(iat=int(START) - 200),
    "of the future": lambda: signed(iat=int(START) + 200),
    "without a time": lambda: signed(iat=None),
    "a time that is none": lambda: signed(iat=True),
    "a time that is no number": lambda: signed(iat=float("nan")),
    "a time without an end": lambda: signed(iat=float("inf")),
    "without an id": lambda: signed(jti=None),
    "with an empty id": lambda: signed(jti=""),
    "with a long id": lambda: signed(jti="a" * 600),
    "an access token in its place": lambda: headed(typ="at+jwt"),
    "without a key": lambda: headed(jwk=None),
    "with its private key": lambda: headed(jwk=KEY.private),
    "by a shared secret": by_a_shared_secret,
    "changed after it was signed": tampered,
    "two proofs": lambda: [*signed().items(), ("dpop", KEY.proof(RESOURCE, token=TOKEN))],
    "too long": lambda: signed(more="a" * 9000),
    "no token at all": lambda: with_proof("a.b.c"),
    "other characters": lambda: with_proof("\u00e9.\u00e9.\u00e9"),
    "the scheme without a token": lambda: {"authorization": "DPoP", "dpop": KEY.proof(RESOURCE, token=TOKEN)},
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_else_counts(attack: str) -> None:
    headers = ATTACKS[attack]()
    pairs = [*headers.items()] if isinstance(headers, dict) else headers
    sent: Any = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    refused = await Server(KEY.thumbprint).post(sent)
    assert refused.status_code == 401
    bearer_challenge, dpop_challenge = refused.headers.get_list("www-authenticate")
    assert bearer_challenge.startswith("Bearer ")
    assert dpop_challenge.startswith("DPoP ")


async def test_a_token_that_is_not_bound_is_no_bound_one() -> None:
    assert (await Server(None).post(KEY.headers(RESOURCE, TOKEN))).status_code == 401


async def test_a_proof_counts_once_however_often_its_request_asks_who_its_caller_is() -> None:
    server, headers = Server(KEY.thumbprint, times=3), KEY.headers(RESOURCE, TOKEN)
    assert (await server.post(headers)).status_code == 200
    again = await server.post(headers)
    assert again.status_code == 401
    assert 'DPoP error="invalid_dpop_proof"' in again.headers["www-authenticate"]


async def test_a_proof_is_remembered_for_as_long_as_it_would_count() -> None:
    clock = Clock()
    server = Server(KEY.thumbprint, clock=clock)
    # Of a client whose clock is fast: this one counts the longest.
    headers = KEY.headers(RESOURCE, TOKEN, iat=int(clock()) + 29)
    assert (await server.post(headers)).status_code == 200
    for _ in range(16):
        clock.now += 10
        assert (await server.post(headers)).status_code == 401


async def test_nobody_pushes_out_what_others_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_proofs, "_MOST_PROOFS", 3)
    server = Server(KEY.thumbprint)
    shown = [KEY.headers(RESOURCE, TOKEN) for _ in range(3)]
    for headers in shown:
        assert (await server.post(headers)).status_code == 200
    with pytest.raises(RateLimited):
        await server.post(KEY.headers(RESOURCE, TOKEN))
    for headers in shown:
        assert (await server.post(headers)).status_code == 401


async def test_nothing_is_kept_of_people_whose_proofs_count_no_more() -> None:
    clock = Clock()
    proofs = TokenProofs(RESOURCE, clock=clock)

    def use(subject: str) -> None:
        grant = Grant("ann", subject, int(START) + 600, (), frozenset(), 0.0, KEY.thumbprint)
        proofs._use(grant, {"jti": f"{subject} {clock()}"})

    for number in range(10):
        use(f"user-{number}")
    clock.now += 100
    use("user-3")
    assert len(proofs._used) == 10
    clock.now += 100
    use("user-5")
    # Of the one who was silent for the shorter time a proof would still count.
    assert [*proofs._used] == ["user-3", "user-5"]


async def test_with_nonces_a_proof_must_have_been_made_for_this_server_a_moment_ago() -> None:
    clock = Clock()
    server = Server(KEY.thumbprint, required=True, nonces=True, clock=clock)
    first = await server.post(KEY.headers(RESOURCE, TOKEN, nonce="made up"))
    assert first.status_code == 401
    assert 'DPoP error="use_dpop_nonce"' in first.headers["www-authenticate"]
    nonce = first.headers["dpop-nonce"]
    let_in = await server.post(KEY.headers(RESOURCE, TOKEN, nonce=nonce))
    assert (let_in.status_code, let_in.headers["dpop-nonce"]) == (200, nonce)
    clock.now += 900
    assert (await server.post(KEY.headers(RESOURCE, TOKEN, nonce=nonce, iat=int(clock())))).status_code == 401


async def test_the_metadata_says_which_proofs_are_taken() -> None:
    metadata = await Server(None).metadata()
    assert metadata["dpop_signing_alg_values_supported"] == [*ALGORITHMS]
    assert metadata["resource"] == RESOURCE
    assert metadata["authorization_servers"] == ["https://id.example.org"]
    assert metadata["scopes_supported"] == ["read"]
    assert "dpop_bound_access_tokens_required" not in metadata
    assert "scopes_supported" not in await Server(None, scopes=()).metadata()


@pytest.mark.parametrize(
    "address",
    ["https://claude.example.org/mcp", "https://CLAUDE.example.org:443/mcp", "https://claude.example.org/mcp?x=1#y"],
)
async def test_an_address_is_compared_as_addresses_are(address: str) -> None:
    assert (await Server(KEY.thumbprint).post(KEY.headers(address, TOKEN))).status_code == 200


def test_a_thumbprint_is_that_of_the_standard() -> None:
    assert thumbprint(RSA_OF_THE_STANDARD) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"
