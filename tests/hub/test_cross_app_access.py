"""Cross-app access, end to end: a person signs in at the organization's identity provider, and every server of the
organization takes its assertions."""

import asyncio
import base64
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from mcp import MCPError
from mcp.shared.auth import OAuthClientInformationFull
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.auth.identity_provider import IdentityProvider
from claude_code_mcp.hub.factory import make_hub
from claude_code_mcp.hub.hub import Hub
from tests.support.hub_config import parse_servers
from tests.support.local_http import serving
from tests.support.ports import free_port

from .conftest import StartHub, disconnect, text_of
from .oauth import Authority, Person
from .remote import RemoteServer, http_server

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"


@dataclass
class Provider:
    """An identity provider on loopback that knows one person."""

    base: str
    lifetime: float = 3600
    nonces: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, str]] = field(default_factory=list)
    good: set[str] = field(default_factory=set)
    """The id tokens that are taken."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._metadata),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    @property
    def grants(self) -> list[str]:
        return [request["grant_type"].rpartition(":")[2] for request in self.requests]

    async def _metadata(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.base,
                "authorization_endpoint": f"{self.base}/authorize",
                "token_endpoint": f"{self.base}/token",
                "response_types_supported": ["code"],
            }
        )

    async def _authorize(self, request: Request) -> Response:
        query, code = request.query_params, secrets.token_urlsafe()
        self.nonces[code] = query["nonce"]
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}")

    async def _token(self, request: Request) -> Response:
        form = {key: str(value) for key, value in (await request.form()).items()}
        self.requests.append(form)
        match form["grant_type"]:
            case "authorization_code":
                return self._signed_in(nonce=self.nonces.pop(form["code"]))
            case "refresh_token":
                return self._signed_in()
        if form["subject_token"] not in self.good:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        kind = "urn:ietf:params:oauth:token-type:id-jag"
        return JSONResponse({"access_token": "an-assertion", "token_type": "N_A", "issued_token_type": kind})

    def _signed_in(self, **claims: Any) -> Response:
        token = self.id_token(**claims)
        return JSONResponse({"id_token": token, "refresh_token": "again", "access_token": "x", "token_type": "Bearer"})

    def id_token(self, **claims: Any) -> str:
        payload = json.dumps(
            {"iss": self.base, "exp": time.time() + self.lifetime, "jti": secrets.token_hex(), **claims}
        )
        token = f"e30.{base64.urlsafe_b64encode(payload.encode()).decode().rstrip('=')}.signature"
        self.good.add(token)
        return token


@dataclass
class Organization:
    """A server that takes assertions, its authorization server, and the identity provider."""

    provider: Provider
    authority: Authority
    entry: dict[str, Any]
    remote: RemoteServer


@pytest.fixture
async def organization() -> AsyncIterator[Organization]:
    port, idp_port, authority, remote = free_port(), free_port(), Authority(), RemoteServer()
    authority.clients["app"] = OAuthClientInformationFull(
        client_id="app",
        client_secret="app-secret",
        grant_types=["urn:ietf:params:oauth:grant-type:jwt-bearer"],
        token_endpoint_auth_method="client_secret_post",
    )
    provider = Provider(f"http://127.0.0.1:{idp_port}")
    issuer = f"http://127.0.0.1:{port}"
    oauth = {"xaa": True, "clientId": "app", "clientSecret": "app-secret", "issuer": issuer, "scope": "mcp"}
    options = authority.options(port, "mcp", identity=True)
    async with http_server(remote, port, **options) as url, serving(provider.app(), idp_port):
        yield Organization(provider, authority, {"type": "http", "url": url, "oauth": oauth}, remote)


def hub_of(organization: Organization, root: Path, **settings: Any) -> Hub:
    """A hub that is made as the server makes its own, by its settings."""
    environment = {"HOME": str(root)}
    given = load_settings(
        {},
        state_dir=root / "state",
        identity_provider=organization.provider.base,
        identity_provider_client="hub",
        identity_provider_secret="hub-secret",
        **settings,
    )
    return make_hub(given, parse_servers({"x": organization.entry, "y": organization.entry}, environment), environment)


async def leave(hub: Hub) -> None:
    await disconnect(hub, *hub.servers)


@pytest.mark.usefixtures("no_keyring")
async def test_one_sign_in_at_the_identity_provider_is_good_for_every_server(
    organization: Organization, tmp_path: Path
) -> None:
    provider, authority, person = organization.provider, organization.authority, Person()
    async with hub_of(organization, tmp_path) as hub:
        with pytest.raises(UpstreamUnavailable, match="identity provider"):
            await hub.call("x", "echo")
        assert hub.status("x")[0].state == "needs-auth"
        assert (await hub.authenticate("x", person)).state == "connected"
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert text_of(await hub.call("y", "echo")) == "echo {}"
        await leave(hub)
    assert len(person.sent_to) == 1
    assert person.query["scope"] == "openid offline_access"
    assert authority.grants == ["assertion", "assertion"]
    assert authority.assertions[0].assertion == "an-assertion"
    exchanged = next(request for request in provider.requests if request["grant_type"] == EXCHANGE)
    assert exchanged["audience"] == organization.entry["oauth"]["issuer"]
    assert exchanged["resource"] == organization.entry["url"]
    assert (exchanged["client_id"], exchanged["client_secret"]) == ("hub", "hub-secret")
    async with hub_of(organization, tmp_path) as hub:  # after a restart nobody is bothered
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        await leave(hub)


@pytest.mark.usefixtures("no_keyring")
async def test_expired_id_token_and_refused_token_are_renewed(organization: Organization, tmp_path: Path) -> None:
    provider, authority = organization.provider, organization.authority
    provider.lifetime = 0
    async with hub_of(organization, tmp_path) as hub:
        await hub.authenticate("x", Person())
        assert provider.grants == ["authorization_code", "refresh_token", "token-exchange"]
        authority.expire()
        calls = await asyncio.gather(*(hub.call("x", "echo") for _ in range(3)))
        assert [text_of(result) for result in calls] == ["echo {}"] * 3
        assert authority.grants == ["assertion", "assertion"]
        await leave(hub)


@pytest.mark.usefixtures("no_keyring")
async def test_a_slow_call_holds_up_no_other(organization: Organization, tmp_path: Path) -> None:
    async with hub_of(organization, tmp_path) as hub:
        await hub.authenticate("x", Person())
        slow = asyncio.create_task(hub.call("x", "slow"))
        await organization.remote.started.wait()
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        organization.remote.release.set()
        await slow
        await leave(hub)


@pytest.mark.usefixtures("no_keyring")
async def test_signing_out_is_signing_out_at_the_identity_provider(organization: Organization, tmp_path: Path) -> None:
    async with hub_of(organization, tmp_path) as hub:
        await hub.authenticate("x", Person())
        organization.provider.good.clear()
        organization.authority.expire()
        with pytest.raises(MCPError, match=r"identity provider\b.*\bexpired"):
            await hub.call("x", "echo")
        await hub.logout("x")
        with pytest.raises(UpstreamUnavailable, match="identity provider"):
            await hub.call("x", "echo")
        await leave(hub)


async def test_an_id_token_can_come_from_a_file_that_something_else_renews(
    organization: Organization, start_hub: StartHub, tmp_path: Path
) -> None:
    file = tmp_path / "id-token"
    provider = IdentityProvider(organization.provider.base, "hub", FileVault(tmp_path / "idp"), id_token_file=file)
    hub = await start_hub({"x": organization.entry}, identity_provider=provider)
    with pytest.raises(UpstreamUnavailable, match="id-token"):
        await hub.call("x", "echo")
    file.write_text(f"{organization.provider.id_token()}\n")
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    with pytest.raises(UpstreamUnavailable, match="sign"):
        await hub.authenticate("x", Person())
    await leave(hub)


async def test_cross_app_access_without_an_identity_provider_says_so(start_hub: StartHub) -> None:
    hub = await start_hub({"x": {"type": "http", "url": "http://127.0.0.1:1/mcp", "oauth": {"xaa": True}}})
    with pytest.raises(UpstreamUnavailable, match="identity provider"):
        await hub.call("x", "echo")


async def test_an_assertion_goes_to_no_endpoint_away_from_the_issuer(
    organization: Organization, start_hub: StartHub, tmp_path: Path
) -> None:
    file = tmp_path / "id-token"
    file.write_text(organization.provider.id_token())
    provider = IdentityProvider(organization.provider.base, "hub", FileVault(tmp_path / "idp"), id_token_file=file)
    elsewhere = Provider("http://127.0.0.1:1")
    port = free_port()
    elsewhere.base = f"http://127.0.0.1:{port}"
    app = elsewhere.app()
    oauth = {**organization.entry["oauth"], "issuer": f"http://127.0.0.1:{port}"}
    async with serving(app, port):
        elsewhere_metadata = Provider(organization.provider.base)
        app.router.routes[0] = Route("/.well-known/openid-configuration", elsewhere_metadata._metadata)
        hub = await start_hub({"x": {**organization.entry, "oauth": oauth}}, identity_provider=provider)
        with pytest.raises(UpstreamUnavailable, match=re.escape(organization.provider.base)):
            await hub.call("x", "echo")
