"""What strangers, foreign pages and clients of others try at the embedded authorization server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from claude_code_mcp.core.state.database import Database
from claude_code_mcp.plugins.team.authorization.clients import ClientDocuments, client_from, is_at, redirect_origin
from claude_code_mcp.plugins.team.authorization.passkeys import SealedRequests
from claude_code_mcp.plugins.team.invited_people import InvitedPeople
from claude_code_mcp.plugins.team.oauth_grants import Consent, NewTokens, OAuthGrants, Reused
from tests.support.local_http import Handler, site

from .embedded import Embedded, PlainClient
from .passkey_device import USER_PRESENT, Device, Passkey, form_of
from .test_embedded_server import hello
from .test_sign_in import CALLBACK

HOSTILE = '"><script>alert(1)</script><b onload=x>&amp;\u202etxt'


@pytest.fixture(scope="module")
def ann_passkey(served: Embedded) -> Passkey:
    async def make() -> Passkey:
        async with await served.person("ann") as device:
            return device.passkey

    return asyncio.run(make())


@pytest.fixture
async def ann(served: Embedded, ann_passkey: Passkey) -> AsyncIterator[Device]:
    """A new browser of Ann's."""
    async with Device(served.origin, ann_passkey) as device:
        yield device


def query_of(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


# -- the request of a client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "redirect",
    [
        "https://evil.example.org/callback",
        "http://127.0.0.1:9/callback/../evil",
        "http://127.0.0.1:9/callback?next=https://evil.example.org",
        "http://127.0.0.1:9@evil.example.org/callback",
        "http://localhost:9/other",
        "http://[::1]:9/callback?more",
        "http://127.0.0.2:9/callback",
        "http://localhost.evil.example.org:9/callback",
        "http://127.0.0.1.evil.example.org:9/callback",
        "https://127.0.0.1:9/callback",
        "javascript:alert(1)",
        "//evil.example.org",
        "",
    ],
)
async def test_redirect_only_to_registered_addresses(served: Embedded, ann: Device, redirect: str) -> None:
    client = await PlainClient.registered(served)
    for changed in ({}, {"code_challenge": None}, {"response_type": "token"}, {"scope": "x", "resource": "y"}):
        answer = await ann.http.get(client.address(redirect_uri=redirect, **changed))
        assert answer.status_code == 400
        assert "location" not in answer.headers


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@pytest.mark.parametrize("used", LOOPBACK)
@pytest.mark.parametrize("named", LOOPBACK)
async def test_on_loopback_any_port_and_every_name_of_the_machine_count(
    served: Embedded, ann: Device, named: str, used: str
) -> None:
    client = await PlainClient.registered(served, f"http://{named}/callback")
    redirect = f"http://{used}:51234/callback"
    sent = await ann.allow(client.address(redirect_uri=redirect))
    assert sent.startswith(f"{redirect}?code=")
    code = query_of(sent)["code"]
    assert (await client.redeem(code)).status_code == 400, "the very address is compared again"
    assert (await client.redeem(code, redirect_uri=redirect)).status_code == 200


async def test_a_client_without_a_loopback_address_gets_none(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served, "https://client.example.org/callback")
    for name in LOOPBACK:
        answer = await ann.http.get(client.address(redirect_uri=f"http://{name}/callback"))
        assert (answer.status_code, "location" in answer.headers) == (400, False)


@pytest.mark.parametrize("name", [*LOOPBACK, "LOCALHOST"])
async def test_no_client_is_at_this_server_however_its_address_is_spelled(
    served: Embedded, ann: Device, name: str
) -> None:
    client = await PlainClient.registered(served, f"http://{name}/sign-in")
    assert (await ann.http.get(client.address(redirect_uri=f"http://{name}:51234/sign-in"))).status_code == 302
    own = f"http://{name}:{served.port}/sign-in"
    for changed in ({}, {"resource": "https://other.example.org/mcp"}):
        answer = await ann.http.get(client.address(redirect_uri=own, **changed))
        assert (answer.status_code, "location" in answer.headers) == (400, False)
    refused = await ann.http.post("/register", json={"redirect_uris": [own]})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_redirect_uri")


@pytest.mark.parametrize(
    "address", ["https://HOST.example.org/a", "https://host.example.org:443/a", "https://host.example.org./a"]
)
def test_an_address_is_at_this_server_however_its_host_is_spelled(address: str) -> None:
    assert is_at(address, "https://host.example.org")


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"resource": "https://other.example.org/mcp"}, "invalid_target"),
    ],
)
async def test_a_request_without_pkce_or_for_another_resource_is_refused(
    served: Embedded, ann: Device, changed: dict[str, str | None], error: str
) -> None:
    client = await PlainClient.registered(served)
    answer = await ann.http.get(client.address(**changed))
    assert answer.headers["location"].startswith(f"{CALLBACK}?")
    sent = query_of(answer.headers["location"])
    assert sent["error"] == error
    assert sent["state"] == "a-state"
    assert sent["iss"] == served.origin, "a refusal says whose it is, too"
    assert "code" not in sent


async def test_no_automatic_redirect_to_another_site(served: Embedded, ann: Device) -> None:
    """Anybody can register an address: a link to this server must not be one to wherever somebody likes."""
    for redirect in ("https://evil.example.org/landing", "org.example.evil-program://landing"):
        client = await PlainClient.registered(served, redirect)
        for changed in ({"resource": "https://other.example.org/mcp"}, {"response_type": "token"}):
            answer = await ann.http.get(client.address(**changed))
            assert answer.status_code == 400
            assert "location" not in answer.headers
            assert f'href="{redirect}?error=' in answer.text, "a person can go on to it"


async def test_a_request_that_names_something_twice_is_refused(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    answer = await ann.http.get(client.address() + "&" + urlencode({"redirect_uri": "https://evil.example.org"}))
    assert answer.status_code == 400
    body = urlencode({"grant_type": "authorization_code", "client_id": client.client_id, "code": "x"}) + "&code=y"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert (await ann.http.post("/token", content=body, headers=headers)).json()["error"] == "invalid_request"


@pytest.mark.parametrize(
    "redirect",
    [
        "javascript:alert(1)//x",
        "data:text/html,x",
        "vbscript:x",
        "file:///etc/passwd",
        "http://evil.example.org/callback",
        "https://name:password@example.org/callback",
        "https://example.org/callback#fragment",
        "blob:https://example.org/1",
        "intent://x#Intent;end",
        "some-program://callback",
        "OWN/sign-in",
    ],
)
async def test_a_client_cannot_register_an_address_that_browsers_act_on(served: Embedded, redirect: str) -> None:
    body = {"redirect_uris": [redirect.replace("OWN", served.origin)], "client_name": "x"}
    async with httpx2.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{served.origin}/register", json=body)
    assert answer.status_code == 400, answer.text


def test_programs_have_schemes_of_their_own() -> None:
    assert redirect_origin("cursor://anysphere.cursor-mcp/oauth/callback") == "cursor:"
    assert redirect_origin("https://claude.ai/api/mcp/auth_callback") == "https://claude.ai"
    assert redirect_origin("com.example.app:/oauth2redirect") == "com.example.app:"
    assert redirect_origin("Com.Example.App://callback?x=1") == "com.example.app:"
    for wrong in (
        "program://callback",
        "ms-settings:privacy",
        "x-apple.systempreferences:com.apple.preference",
        "com.://callback",
        "com..example://callback",
        "com.example-://callback",
        "c.example://callback",
        "https://",
        "http://example.org/",
        "no address",
        "https://a b/",
        "https://a;script-src/",
        "https://ä/",
    ):
        with pytest.raises(ValueError, match=r"\w"):
            redirect_origin(wrong)


# -- codes ------------------------------------------------------------------------------------------------------------


async def test_a_code_that_comes_again_ends_everything_that_came_of_it(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    code = await client.code(ann)
    tokens = (await client.redeem(code)).json()
    assert (await hello(served, tokens["access_token"])).status_code == 200
    assert (await client.redeem(code)).json()["error"] == "invalid_grant"
    assert (await hello(served, tokens["access_token"])).status_code == 401
    assert (await client.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
    await served.until_audited("grant_stolen")


async def test_a_code_is_good_for_its_client_with_its_verifier_alone(served: Embedded, ann: Device) -> None:
    client, other = await PlainClient.registered(served), await PlainClient.registered(served)
    code = await client.code(ann)
    other.verifier = client.verifier
    assert (await other.redeem(code)).json()["error"] == "invalid_grant"
    for changed in (
        {"code_verifier": "x" * 64},
        {"code_verifier": client.challenge},
        {"code_verifier": None},
        {"redirect_uri": "http://127.0.0.1:10/callback"},
        {"redirect_uri": None},
        {"resource": "https://other.example.org/mcp"},
        {"grant_type": "client_credentials"},
        {"client_id": "nobody"},
    ):
        answer = await client.redeem(code, **changed)
        assert answer.status_code in (400, 401), changed
        assert "access_token" not in answer.json()
    # None of that was the client itself: its code is still good.
    assert (await client.redeem(code)).status_code == 200


async def test_concurrent_redemption_of_a_code_revokes_the_tokens(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    code = await client.code(ann)
    answers = await asyncio.gather(*(client.redeem(code) for _ in range(8)))
    good = [answer.json() for answer in answers if answer.status_code == 200]
    assert len(good) == 1
    assert (await hello(served, good[0]["access_token"])).status_code == 401


# -- refresh tokens ---------------------------------------------------------------------------------------------------


async def test_a_refresh_token_that_comes_again_ends_its_family(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    first = await client.tokens(ann)
    second = (await client.refresh(first["refresh_token"])).json()
    third = (await client.refresh(second["refresh_token"])).json()
    assert (await hello(served, third["access_token"])).status_code == 200
    assert (await client.refresh(first["refresh_token"])).json()["error"] == "invalid_grant"
    for tokens in (first, second, third):
        assert (await hello(served, tokens["access_token"])).status_code == 401
    assert (await client.refresh(third["refresh_token"])).json()["error"] == "invalid_grant"


async def test_a_refresh_token_is_its_clients_and_grants_no_more_than_before(served: Embedded, ann: Device) -> None:
    client, other = await PlainClient.registered(served), await PlainClient.registered(served)
    tokens = await client.tokens(ann)
    assert (await other.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
    assert (await client.refresh(tokens["refresh_token"], scope="admin")).json()["error"] == "invalid_scope"
    wrong = await client.refresh(tokens["refresh_token"], resource="https://other.example.org/mcp")
    assert wrong.json()["error"] == "invalid_target"
    assert (await hello(served, tokens["refresh_token"])).status_code == 401, "it is not an access token"
    assert (await client.refresh(tokens["access_token"])).json()["error"] == "invalid_grant"
    assert (await client.refresh(tokens["refresh_token"])).status_code == 200


# -- the page of consent ----------------------------------------------------------------------------------------------


async def test_an_access_token_makes_no_sign_in_that_would_outlast_it(served: Embedded, ann: Device) -> None:
    tokens = await (await PlainClient.registered(served)).tokens(ann)
    bearer = {"authorization": f"Bearer {tokens['access_token']}"}
    assert (await ann.http.get("/api/me", headers=bearer)).json()["principal"] == "ann"
    refused = await ann.http.post("/api/sign-in", json={"token": tokens["access_token"]})
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
    assert (await ann.http.post("/api/tickets", json={}, headers=bearer)).status_code == 403


async def test_a_scope_is_granted_once_however_often_it_is_asked_for(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    tokens = await client.tokens(ann)
    answer = await client.refresh(tokens["refresh_token"], scope=" ".join(["claude-code"] * 1000))
    assert answer.json()["scope"] == "claude-code"


async def test_page_of_another_site_cannot_answer_questions(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    form = form_of(await ann.consent_page(client.address()))
    signed = ann.signed(form)
    for headers in (
        {"origin": "https://evil.example.org"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": f"{served.origin}.evil.example.org"},
    ):
        assert (await ann.post(form.action, signed, **headers)).status_code == 403
    async with httpx2.AsyncClient(timeout=60, cookies=ann.http.cookies) as without_origin:
        assert (await without_origin.post(f"{served.origin}{form.action}", data=signed)).status_code == 403
    # The same answer of the passkey in another browser, whose cookie an attacker may know.
    async with Device(served.origin, ann.passkey) as other:
        assert (await other.post(form.action, signed)).status_code == 403
        await other.consent_page(client.address())
        assert (await other.post(form.action, signed)).status_code == 403
    for name in ("secret", "request"):
        assert (await ann.post(form.action, {**signed, name: ""})).status_code in (400, 403)
        assert (await ann.post(form.action, {**signed, name: signed[name] + "x"})).status_code in (400, 403)
    assert (await ann.post(form.action, signed)).status_code == 303


async def test_a_decision_counts_once(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    form = form_of(await ann.consent_page(client.address()))
    signed = ann.signed(form)
    answers = await asyncio.gather(*(ann.post(form.action, signed) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers)[0] == 303
    assert sum(answer.status_code == 303 for answer in answers) == 1
    assert (await ann.post(form.action, ann.signed(form))).status_code == 400


def test_what_strangers_deny_makes_no_decision_count_again() -> None:
    requests = SealedRequests("https://claude.example.org")
    decided = requests.seal({"purpose": "consent"})
    assert requests.use(decided)
    for _ in range(1100):
        assert requests.deny(requests.seal({"purpose": "consent"}))
    assert requests.open(decided) is None
    assert not requests.use(decided)


async def test_an_answer_for_one_client_allows_no_other(served: Embedded, ann: Device) -> None:
    mine, theirs = await PlainClient.registered(served), await PlainClient.registered(served, name="Another")
    form, other = form_of(await ann.consent_page(mine.address())), form_of(await ann.consent_page(theirs.address()))
    swapped = {**other.fields, "credential": ann.signed(form)["credential"], "decision": "allow"}
    assert (await ann.post(form.action, swapped)).status_code == 403
    # Nor does a sign-in to the console.
    console = form_of(await ann.http.get("/sign-in"))
    assert (await ann.post(form.action, ann.signed(console))).status_code == 400
    assert (await ann.post(console.action, ann.signed(form))).status_code == 400


async def test_to_deny_takes_no_passkey_and_is_said_to_the_client(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    form = form_of(await ann.consent_page(client.address()))
    sent = await ann.post(form.action, {**form.fields, "choice": "deny"})
    assert sent.status_code == 303
    assert query_of(sent.headers["location"]) == {"error": "access_denied", "state": "a-state", "iss": served.origin}
    assert (await ann.post(form.action, ann.signed(form))).status_code == 400, "it is decided"


async def test_client_metadata_is_shown_as_text(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served, name=HOSTILE)
    page = await ann.consent_page(client.address())
    assert "<script>alert" not in page.text
    assert "<b onload" not in page.text
    assert "\u202e" not in page.text
    assert escape(CALLBACK) in page.text
    assert "claude-code" in page.text
    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "form-action 'self' http://127.0.0.1:9;" in policy
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-frame-options"] == "DENY"


async def test_a_passkey_must_be_known_verified_and_of_this_origin(served: Embedded, ann: Device) -> None:
    client = await PlainClient.registered(served)
    form = form_of(await ann.consent_page(client.address()))
    stranger, careless = Passkey(), ann.passkey
    stranger.handle = ann.passkey.handle
    careless_flags, careless.flags = careless.flags, USER_PRESENT
    unverified = careless.get(form.options, served.origin)
    careless.flags = careless_flags
    stolen = Passkey(credential_id=ann.passkey.credential_id, handle=ann.passkey.handle)
    for credential in (
        stranger.get(form.options, served.origin),
        stolen.get(form.options, served.origin),
        ann.passkey.get(form.options, "https://evil.example.org"),
        ann.passkey.get({**form.options, "challenge": "AAAA"}, served.origin),
        ann.passkey.get({**form.options, "rpId": "evil.example.org"}, served.origin),
        unverified,
        "",
        "{}",
        "[]",
        "x" * 40_000,
    ):
        answer = await ann.post(form.action, {**form.fields, "credential": credential, "decision": "allow"})
        assert answer.status_code in (403, 429)
        assert "location" not in answer.headers


# -- invitations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "credential", ["[" * 16_000, '{"rawId":' * 1700, "null", '"x"', "1e999", '{"rawId": "\\ud800"}']
)
async def test_invalid_credential_is_an_unknown_passkey(served: Embedded, ann: Device, credential: str) -> None:
    form = form_of(await ann.consent_page((await PlainClient.registered(served)).address()))
    sent = {**form.fields, "credential": credential, "decision": "allow"}
    assert (await ann.post(form.action, sent)).status_code == 403
    link = urlsplit(served.command("link", "ann")["url"]).fragment
    form = form_of(await ann.post("/invite", {"invite": link}))
    sent = {**form.fields, "credential": credential, "decision": "allow"}
    assert (await ann.post(form.action, sent)).status_code == 400


async def test_a_link_counts_once_and_looking_at_it_uses_nothing_up(served: Embedded) -> None:
    link = served.invite("joe")
    async with served.device() as first, served.device() as second:
        for _ in range(3):
            assert (await first.http.get("/invite")).status_code == 200
        page = await second.post("/invite", {"invite": urlsplit(link).fragment})
        assert (await first.accept(link)).status_code == 200
        assert (await second.accept(link)).status_code == 410
        # Also for somebody who has the page open from before.
        form = form_of(page)
        late = {**form.fields, "credential": second.passkey.create(form.options, served.origin), "decision": "allow"}
        assert (await second.post(form.action, late)).status_code == 400
        assert (await second.sign_in()).status_code == 403


async def test_a_link_that_was_not_given_or_is_too_old_makes_no_passkey(tmp_path: Path) -> None:
    now = [1000.0]
    people = InvitedPeople(Database(tmp_path), clock=lambda: now[0])
    secret = people.invite("kim", lasts=60)
    assert people.by_invite("x") is None
    assert people.by_invite(secret) is not None
    now[0] += 60
    assert people.by_invite(secret) is None
    assert people.add_passkey(secret, b"id", b"key", 0) is None
    fresh = people.new_link("kim", lasts=60)
    assert people.add_passkey(fresh, b"id", b"key", 0) is not None
    assert people.add_passkey(people.new_link("kim"), b"id", b"other", 0) is None, "a passkey is one person's"


async def test_codes_tokens_and_unused_clients_end_in_time(tmp_path: Path) -> None:
    now = [1000.0]
    database = Database(tmp_path)
    people, grants = InvitedPeople(database, lambda: now[0]), OAuthGrants(database, lambda: now[0])
    people.invite("kim")
    (subject,) = people.names()
    consent = Consent(subject, "client", ("claude-code",), "https://a/mcp", CALLBACK, True, "challenge")
    grants.register("client", "{}")
    late, code = grants.allow(consent), grants.allow(consent)
    assert late is not None
    assert code is not None
    made = grants.redeem(code)
    assert isinstance(made, NewTokens)
    now[0] += 61
    assert grants.redeem(late) is None, "a code counts for a minute"
    assert isinstance(grants.redeem(code), Reused), "and is known for as long as its tokens are"
    assert grants.access_token(made.access) is None
    made = grants.redeem(grants.allow(consent) or "")
    assert isinstance(made, NewTokens)
    now[0] += 601
    assert grants.access_token(made.access) is None
    renewed = grants.rotate(made.refresh, ("claude-code",))
    assert isinstance(renewed, NewTokens)
    now[0] += 31 * 86_400
    assert grants.rotate(renewed.refresh, ()) is None
    grants.register("never-used", "{}")
    now[0] += 3601
    assert grants.client("never-used") is None
    assert grants.client("client") is not None
    for number in range(1100):
        now[0] += 0.01
        grants.register(f"flood-{number}", "{}")
    assert grants.client("flood-0") is None
    assert grants.client("flood-1099") is not None
    (count,) = database.read(lambda db: db.execute("SELECT count(*) FROM oauth_clients").fetchone())
    assert count <= 1001, "a thousand that have nothing, and the one that was used"


# -- where this server is ---------------------------------------------------------------------------------------------


async def test_no_header_says_where_this_server_is(served: Embedded, ann: Device) -> None:
    forged = {
        "x-forwarded-host": "evil.example.org",
        "x-forwarded-proto": "https",
        "x-forwarded-for": "203.0.113.7",
        "forwarded": "host=evil.example.org;proto=https",
        "x-forwarded-user": "ann",
    }
    before = (await ann.http.get("/.well-known/oauth-authorization-server")).text
    assert (await ann.http.get("/.well-known/oauth-authorization-server", headers=forged)).text == before
    client = await PlainClient.registered(served)
    sent = await ann.http.get(client.address(), headers=forged)
    assert sent.headers["location"].startswith(f"{served.origin}/authorize/consent?")
    for path in ("/sign-in", "/invite"):
        moved = await ann.http.get(path, headers={"host": "evil.example.org"})
        assert moved.headers["location"] == f"{served.origin}{path}"
    async with httpx2.AsyncClient(timeout=60) as http:
        assert (await http.post(served.url, json={}, headers=forged)).status_code == 401


async def test_an_answer_says_which_server_it_is_from(served: Embedded, ann: Device) -> None:
    """Mix-up: a client that works with several servers must be able to tell whose code it has got."""
    client = await PlainClient.registered(served)
    assert query_of(await ann.allow(client.address()))["iss"] == served.origin


# -- documents of clients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client_id",
    [
        "https://127.0.0.1/client.json",
        "https://localhost/client.json",
        "https://[::1]/client.json",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/client.json",
        "https://[::ffff:127.0.0.1]/client.json",
        "https://0x7f000001/client.json",
        "https://example.org/",
        "https://example.org",
        "https://name:password@example.org/client.json",
        "https://example.org/a/../client.json",
    ],
)
async def test_a_client_id_leads_this_server_to_no_private_address(
    served: Embedded, ann: Device, client_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = PlainClient(served, client_id)
    answer = await ann.http.get(client.address())
    assert answer.status_code == 400
    assert client_id not in answer.text
    connected: list[Any] = []

    async def connect(*arguments: Any, **_: Any) -> None:
        connected.append(arguments)
        raise OSError

    monkeypatch.setattr("claude_code_mcp.plugins.team.authorization.clients._get", connect)
    assert await ClientDocuments(served.origin).read(client_id) is None
    assert connected == []


@contextmanager
def documents() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """A server of documents, by path; and what was asked for."""
    found: dict[str, Any] = {}
    asked: list[str] = []

    class Documents(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            document = found.get(self.path)
            if isinstance(document, str):
                self.answer(302, headers={"Location": document})
                return
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.answer(200 if document is not None else 404, body)

    with site(Documents) as url:
        yield url, found, asked


async def test_client_document_is_valid_only_for_its_own_address() -> None:
    with documents() as (base, found, asked):
        reader = ClientDocuments("https://claude.example.org", private=True)
        good = {"client_id": f"{base}/good", "client_name": "Good", "redirect_uris": [CALLBACK]}
        found["/good"] = good
        client = await reader.read(f"{base}/good")
        assert client is not None
        assert client.client_name == "Good"
        assert await reader.read(f"{base}/good") is client
        assert asked == ["/good"], "it is kept"
        for path, document in {
            "/other": good,
            "/secret": {**good, "client_id": f"{base}/secret", "client_secret": "x"},
            "/key": {**good, "client_id": f"{base}/key", "token_endpoint_auth_method": "private_key_jwt"},
            "/none": {"client_id": f"{base}/none"},
            "/script": {"client_id": f"{base}/script", "redirect_uris": ["javascript:alert(1)"]},
            "/own": {"client_id": f"{base}/own", "redirect_uris": ["https://claude.example.org/sign-in"]},
            "/text": b"<html>",
            "/long": {**good, "client_id": f"{base}/long", "x": "x" * 20_000},
            "/moved": f"{base}/good",
            "/list": [good],
        }.items():
            found[path] = document
            assert await reader.read(f"{base}{path}") is None, path
        assert asked.count("/good") == 1, "no redirection is followed"


async def test_documents_that_are_none_push_out_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("claude_code_mcp.plugins.team.authorization.clients._MAX_KEPT", 3)
    with documents() as (base, found, asked):
        reader = ClientDocuments("https://claude.example.org", private=True)
        found["/good"] = {"client_id": f"{base}/good", "redirect_uris": [CALLBACK]}
        assert await reader.read(f"{base}/good") is not None
        for number in range(5):
            assert await reader.read(f"{base}/none-{number}") is None
        assert await reader.read(f"{base}/good") is not None
        assert asked.count("/good") == 1


async def test_an_address_has_a_limited_number_of_documents_read_and_no_more(served: Embedded) -> None:
    """Each is a request to somewhere else, and a place that everybody else waits for."""
    client = await PlainClient.registered(served)
    async with client.http() as http:
        addresses = [client.address(client_id=f"https://127.0.0.1/{number}.json") for number in range(70)]
        answers = [await http.get(address) for address in addresses]
        assert {answer.status_code for answer in answers} == {400, 429}
        assert answers[-1].status_code == 429
        assert (await client.token(client_id="https://127.0.0.1/more.json", grant_type="x")).status_code == 429
        assert (await http.get(client.address())).status_code == 302, "who has registered goes on"


def test_client_identity_comes_from_the_connection_not_its_claims() -> None:
    said = {"redirect_uris": [CALLBACK], "client_name": "x" * 500, "scope": "admin", "grant_types": ["implicit"]}
    client = client_from({**said, "token_endpoint_auth_method": "client_secret_post"}, "id", "https://a.example.org")
    assert client.scope == "claude-code"
    assert client.grant_types == ["authorization_code", "refresh_token"]
    assert client.token_endpoint_auth_method == "none"
    assert len(client.client_name or "") < 120
