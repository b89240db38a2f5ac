"""A sign-in at the provider, while strangers begin many of their own, and the cookie that it rests on."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.plugins.team.access_tokens import AccessTokens
from claude_code_mcp.plugins.team.authenticators import IssuerAuthenticator
from claude_code_mcp.plugins.team.people import People
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.identity import Identity
from tests.plugins.team.callers import nobody_objects

from .issuer import Issuer, issuing, sign

FAILED = "#sign-in-failed"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        issuer.answers["/.well-known/oauth-authorization-server"] |= {
            "authorization_endpoint": f"{issuer.url}/authorize",
            "token_endpoint": f"{issuer.url}/token",
        }
        yield issuer


class Page:
    """A page where people sign in."""

    def __init__(self, url: str) -> None:
        self.url = url

    def check_host(self, request: Request) -> str:
        return request.headers["host"]

    async def link_for(self, identity: Identity) -> str:
        return f"/#ticket={identity.principal}"

    def refused(self) -> None:
        pass


def provider_at(given: Settings, url: str) -> tuple[Callers, IssuerAuthenticator, Starlette]:
    """A server that is reached at this address, and what it serves for sign-ins."""
    way, issued = IssuerAuthenticator(given), AccessTokens(given, f"{url}mcp")
    callers = Callers(given, authenticators=[way])
    way.take(issued, People(issued.issuer, nobody_objects, None, None, callers.is_taken))
    way._issued = issued
    return callers, way, Starlette(routes=callers.routes(Page(url)))


@asynccontextmanager
async def browsing(
    issuer: Issuer, url: str = "http://claude.example.org/", scopes: str = ""
) -> AsyncIterator[httpx2.AsyncClient]:
    """A browser at a server that is reached at this address, and wants these scopes."""
    named = {"CLAUDE_CODE_MCP_OAUTH_ISSUER": issuer.url, "CLAUDE_CODE_MCP_OAUTH_CLIENT_ID": "console"}
    given = load_settings({**named, **({"CLAUDE_CODE_MCP_OAUTH_SCOPES": scopes} if scopes else {})})
    _, _, app = provider_at(given, url)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url=url) as browser:
        yield browser


def allowed(issuer: Issuer, location: str, code: str = "a-code", **changed: str) -> str:
    """Where the provider sends the browser whose person has signed in as user-1."""
    asked = parse_qs(urlsplit(location).query)
    claims = issuer.claims("console", nonce=asked["nonce"][0], **changed)
    issuer.codes[code] = {"id_token": sign(claims)}
    return f"/sign-in/callback?code={code}&state={asked['state'][0]}"


async def test_many_anonymous_sign_ins_do_not_displace_others(issuer: Issuer) -> None:
    async with browsing(issuer) as browser:
        begun = await browser.get("/sign-in")
        mine = dict(browser.cookies)
        for _ in range(1100):
            assert (await browser.get("/sign-in")).status_code == 303
        browser.cookies.clear()
        back = allowed(issuer, begun.headers["location"])
        came = await browser.get(back, headers={"cookie": "; ".join(f"{name}={mine[name]}" for name in mine)})
        assert came.headers["location"] == "/#ticket=user-1"
    assert issuer.asked.count("/.well-known/oauth-authorization-server") <= 3, "the provider is not asked for each"


async def test_what_was_not_begun_by_this_browser_counts_for_nothing(issuer: Issuer) -> None:
    async with browsing(issuer) as browser:
        begun = (await browser.get("/sign-in")).headers["location"]
        other = (await browser.get("/sign-in")).headers["location"]  # the cookie is that of this one from now on
        for back in (
            allowed(issuer, begun),
            allowed(issuer, other).replace("state=", "state=9"),
            allowed(issuer, other) + "x",
            allowed(issuer, other).split("&")[0],
            allowed(issuer, other).split("&")[0] + "&state=.",
            allowed(issuer, other).split("&")[0] + "&state=%ff%00",
        ):
            assert (await browser.get(back)).headers["location"].endswith(FAILED)
        for wrong in (
            {"nonce": "another"},
            {"aud": "another"},
            {"azp": "another"},
            {"iss": "https://evil.example.org"},
        ):
            started = (await browser.get("/sign-in")).headers["location"]
            back = allowed(issuer, started)
            asked = parse_qs(urlsplit(started).query)
            claims = {**issuer.claims("console", nonce=asked["nonce"][0]), **wrong}
            issuer.codes["a-code"] = {"id_token": sign(claims)}
            assert (await browser.get(back)).headers["location"].endswith(FAILED), wrong
        last = allowed(issuer, (await browser.get("/sign-in")).headers["location"])
        assert (await browser.get(last)).headers["location"] == "/#ticket=user-1"
        assert (await browser.get(last)).headers["location"].endswith(FAILED), "it counts once"


async def test_no_other_host_of_the_domain_can_set_the_cookie(issuer: Issuer) -> None:
    async with browsing(issuer, "https://claude.example.org/") as browser:
        begun = await browser.get("/sign-in")
        cookie = begun.headers["set-cookie"]
        # Browsers take this name only with all of these, and without a domain.
        assert cookie.startswith("__Host-")
        assert {"Path=/", "Secure", "HttpOnly"} <= {part.strip() for part in cookie.split(";")}
        assert "domain=" not in cookie.casefold()
        came = await browser.get(allowed(issuer, begun.headers["location"]))
        assert came.headers["location"] == "/#ticket=user-1"


@pytest.mark.parametrize("endpoint", ["http://login.example.org/authorize", "javascript:alert(1)", "", None, 7])
async def test_people_are_sent_to_no_address_that_others_can_read(issuer: Issuer, endpoint: object) -> None:
    issuer.answers["/.well-known/oauth-authorization-server"]["authorization_endpoint"] = endpoint
    async with browsing(issuer) as browser:
        assert (await browser.get("/sign-in")).headers["location"].endswith(FAILED)


@pytest.mark.parametrize(
    ("answer", "let_in"),
    [({"scope": "openid claude"}, True), ({}, True), ({"scope": "openid profile"}, False), ({"scope": 7}, False)],
    ids=str,
)
async def test_console_sign_in_requires_the_configured_scopes(
    issuer: Issuer, answer: dict[str, object], let_in: bool
) -> None:
    async with browsing(issuer, scopes="claude") as browser:
        begun = (await browser.get("/sign-in")).headers["location"]
        assert "claude" in parse_qs(urlsplit(begun).query)["scope"][0].split()
        back = allowed(issuer, begun)
        issuer.codes["a-code"] |= answer
        assert ((await browser.get(back)).headers["location"] == "/#ticket=user-1") == let_in


async def test_signing_out_leads_to_the_page_of_the_provider_for_those_who_came_from_there(issuer: Issuer) -> None:
    given = load_settings({"CLAUDE_CODE_MCP_OAUTH_ISSUER": issuer.url, "CLAUDE_CODE_MCP_OAUTH_CLIENT_ID": "console"})
    url = "https://claude.example.org/"
    callers, provider, _ = provider_at(given, url)
    person = await callers.by_token(sign(issuer.claims(f"{url}mcp")))
    assert person is not None
    assert await provider.sign_out_address(person) is None, "the provider has no such page"
    metadata = "/.well-known/oauth-authorization-server"
    issuer.answers[metadata] |= {"end_session_endpoint": f"{issuer.url}/logout?x=1"}
    callers, provider, _ = provider_at(given, url)
    assert await provider.sign_out_address(person) is None, "nobody of this name has come since"
    assert await callers.by_token(sign(issuer.claims(f"{url}mcp"))) == person
    address = await provider.sign_out_address(person)
    assert address is not None
    assert address.startswith(f"{issuer.url}/logout?x=1&")
    asked = parse_qs(urlsplit(address).query)
    assert (asked["client_id"], asked["post_logout_redirect_uri"]) == (["console"], [url])
    assert await provider.sign_out_address(Identity("user-1", "token:x")) is None
    issuer.answers[metadata] |= {"end_session_endpoint": "http://elsewhere.example.org/logout"}
    callers, provider, _ = provider_at(given, url)
    assert await callers.by_token(sign(issuer.claims(f"{url}mcp"))) == person
    assert await provider.sign_out_address(person) is None, "people are sent to no page in the clear"
