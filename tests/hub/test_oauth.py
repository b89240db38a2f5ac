"""Signing in, and everything that happens to tokens after that."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.auth import OAuthClientInformationFull
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from claude_code_mcp.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.hub.auth.cross_app_access import IdentityProvider
from claude_code_mcp.hub.hub import Hub

from .conftest import StartHub, local, text_of
from .oauth import Authority, Person
from .remote import RemoteServer, free_port, http_server, serving


@dataclass
class Protected:
    hub: Hub
    url: str
    authority: Authority
    remote: RemoteServer
    person: Person
    start_hub: StartHub

    @property
    def state(self) -> str:
        return self.hub.status("x")[0].state

    async def sign_in(self) -> str:
        return (await self.hub.authenticate("x", self.person)).state

    async def another_hub(self) -> Hub:
        """A hub that begins with what the first has stored."""
        hub = await self.start_hub({"x": {"type": "http", "url": self.url}})
        assert isinstance(hub, Hub)
        return hub


@pytest.fixture
async def protected(start_hub: StartHub) -> AsyncIterator[Protected]:
    port, authority, remote = free_port(), Authority(), RemoteServer()
    async with http_server(remote, port, **authority.options(port, "mcp")) as url:
        hub = await start_hub({"x": {"type": "http", "url": url}})
        yield Protected(hub, url, authority, remote, Person(), start_hub)
        hub.disable("x")
        await asyncio.sleep(0.05)


async def test_a_server_that_wants_a_sign_in_says_so_and_nobody_is_bothered(protected: Protected) -> None:
    with pytest.raises(UpstreamUnavailable, match="sign in"):
        await protected.hub.call("x", "echo")
    assert protected.state == "needs-auth"
    assert protected.authority.clients == {}


async def test_signing_in_registers_proves_possession_and_connects(protected: Protected) -> None:
    assert await protected.sign_in() == "connected"
    assert text_of(await protected.hub.call("x", "echo")) == "echo {}"
    query = protected.person.query
    assert query["code_challenge_method"] == "S256"
    assert query["resource"] == protected.url
    assert query["scope"] == "mcp"
    assert [client.client_name for client in protected.authority.clients.values()] == ["claude-code-mcp"]


async def test_tokens_are_kept_where_only_their_owner_can_read_them(protected: Protected, tmp_path: Path) -> None:
    await protected.sign_in()
    [file] = (tmp_path / "vault").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert next(iter(protected.authority.access)) in file.read_text()


async def test_another_hub_uses_what_is_stored(protected: Protected) -> None:
    await protected.sign_in()
    hub = await protected.another_hub()
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    assert protected.authority.grants == ["code"]


async def test_a_token_that_expires_in_mid_session_is_refreshed(protected: Protected) -> None:
    await protected.sign_in()
    await protected.hub.call("x", "echo")
    protected.authority.expire()
    results = await asyncio.gather(*(protected.hub.call("x", "echo") for _ in range(5)))
    assert [text_of(result) for result in results] == ["echo {}"] * 5
    assert protected.authority.grants == ["code", "refresh"]
    assert len(protected.person.sent_to) == 1


async def test_a_token_that_expired_meanwhile_is_refreshed_before_it_is_shown(protected: Protected) -> None:
    protected.authority.lifetime = -10
    await protected.sign_in()
    protected.authority.lifetime = 3600
    protected.authority.grants.clear()
    hub = await protected.another_hub()
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    assert protected.authority.grants.count("refresh") == 1


async def test_a_sign_in_that_is_no_longer_good_is_told_and_can_be_made_again(protected: Protected) -> None:
    await protected.sign_in()
    protected.authority.forget_everybody()
    with pytest.raises(Exception, match="sign-in has expired"):
        await protected.hub.call("x", "echo")
    with pytest.raises(UpstreamUnavailable):
        await protected.hub.call("x", "echo")
    assert protected.state == "needs-auth"
    assert await protected.sign_in() == "connected"
    assert text_of(await protected.hub.call("x", "echo")) == "echo {}"
    assert len(protected.authority.clients) == 1


async def test_signing_out_forgets_the_tokens_and_the_connection(protected: Protected, tmp_path: Path) -> None:
    await protected.sign_in()
    assert (await protected.hub.logout("x")).state == "pending"
    assert list((tmp_path / "vault").iterdir()) == []
    with pytest.raises(UpstreamUnavailable):
        await protected.hub.call("x", "echo")
    assert protected.state == "needs-auth"


async def test_that_a_sign_in_is_needed_is_remembered_by_other_hubs(protected: Protected) -> None:
    with pytest.raises(UpstreamUnavailable):
        await protected.hub.call("x", "echo")
    hub = await protected.another_hub()
    with pytest.raises(UpstreamUnavailable, match="a short while ago"):
        await hub.call("x", "echo")
    await protected.sign_in()
    assert text_of(await hub.call("x", "echo")) == "echo {}"


async def test_nobody_signing_in_in_time_is_an_error_and_changes_nothing(protected: Protected) -> None:
    async def look_away(address: str) -> None:
        """The person has gone to lunch."""

    with pytest.raises(UpstreamUnavailable, match="nobody signed in within"):
        await protected.hub.authenticate("x", look_away, timeout=1)
    assert protected.authority.grants == []


async def test_a_server_without_accounts_cannot_be_signed_in_to(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    with pytest.raises(InvalidArgument):
        await hub.authenticate("x", Person())


async def test_more_permission_is_asked_for_when_the_server_wants_it(start_hub: StartHub) -> None:
    port, authority, person = free_port(), Authority(), Person()
    options = authority.options(port, "mcp")
    remote = RemoteServer()
    app = remote.server.streamable_http_app(**options)
    async with serving(_wants_more(app, authority), port) as base:
        hub = await start_hub({"x": {"type": "http", "url": f"{base}/mcp"}})
        await hub.authenticate("x", person)
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        with pytest.raises(Exception, match="sign-in for more"):
            await hub.call("x", "change")
        assert hub.status("x")[0].state == "connected"
        assert (await hub.authenticate("x", person)).state == "connected"
        assert set(person.query["scope"].split()) == {"mcp", "admin"}
        assert text_of(await hub.call("x", "change")) == "change {}"
        hub.disable("x")
        await asyncio.sleep(0.05)


def _wants_more(app: Any, authority: Authority) -> Any:
    """Refuses the tool `change` to tokens without the scope `admin`."""

    async def judge(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        token = authority.access.get(headers.get("authorization", "").removeprefix("Bearer "))
        if headers.get("mcp-name") == "change" and token and "admin" not in token.scopes:
            challenge = b'Bearer error="insufficient_scope", scope="admin"'
            await send({"type": "http.response.start", "status": 403, "headers": [(b"www-authenticate", challenge)]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return judge


async def test_an_assertion_of_the_identity_provider_takes_the_place_of_a_person(start_hub: StartHub) -> None:
    port, authority = free_port(), Authority()
    authority.clients["app"] = OAuthClientInformationFull(
        client_id="app",
        client_secret="app-secret",
        grant_types=["urn:ietf:params:oauth:grant-type:jwt-bearer"],
        token_endpoint_auth_method="client_secret_post",
    )
    base = f"http://127.0.0.1:{port}"
    oauth = {"xaa": True, "clientId": "app", "clientSecret": "app-secret", "issuer": base, "scope": "mcp"}
    options = authority.options(port, "mcp", identity=True)
    async with http_server(RemoteServer(), port, **options) as url, _identity_provider() as (idp, exchanges):
        hub = await start_hub({"x": {"type": "http", "url": url, "oauth": oauth}}, get_assertion=idp.assertion)
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert exchanges[0]["audience"] == base
        assert exchanges[0]["resource"] == url
        assert exchanges[0]["subject_token"] == "who-i-am"
        assert authority.assertions[0].assertion == "an-assertion"
        assert authority.grants == ["assertion"]
        hub.disable("x")
        await asyncio.sleep(0.05)


async def test_cross_app_access_without_an_identity_provider_says_so(start_hub: StartHub) -> None:
    hub = await start_hub({"x": {"type": "http", "url": "http://127.0.0.1:1/mcp", "oauth": {"xaa": True}}})
    with pytest.raises(UpstreamUnavailable, match="no identity provider"):
        await hub.call("x", "echo")


@asynccontextmanager
async def _identity_provider() -> AsyncIterator[tuple[IdentityProvider, list[dict[str, str]]]]:
    """A token endpoint that exchanges any id token for an assertion."""
    exchanges: list[dict[str, str]] = []

    async def exchange(request: Request) -> JSONResponse:
        exchanges.append({key: str(value) for key, value in (await request.form()).items()})
        return JSONResponse({"access_token": "an-assertion", "token_type": "N_A"})

    async with serving(Starlette(routes=[Route("/token", exchange, methods=["POST"])]), free_port()) as base:
        yield IdentityProvider(token_endpoint=f"{base}/token", client_id="hub", id_token="who-i-am"), exchanges
