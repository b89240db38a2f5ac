"""Signing in, and everything that happens to tokens after that."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata
from starlette.responses import JSONResponse

from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.hub.auth.credentials import CredentialStorage, FileVault, KeyringVault, NeedsAuthMemory
from claude_code_mcp.hub.auth.stored_oauth import StoredOAuth
from claude_code_mcp.hub.config_entry import OAuthConfig
from claude_code_mcp.hub.hub import Hub
from tests.support.local_http import serving
from tests.support.ports import free_port
from tests.support.waiting import until_true

from .conftest import PATIENCE, MemoryKeyring, StartHub, disconnect, local, text_of
from .oauth import Authority, Person
from .remote import RemoteServer, http_server


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
        await disconnect(hub, "x")


async def test_server_that_needs_a_sign_in_is_reported_without_opening_a_browser(protected: Protected) -> None:
    with pytest.raises(UpstreamUnavailable, match="sign-in"):
        await protected.hub.call("x", "echo")
    assert protected.state == "needs-auth"
    assert protected.authority.clients == {}


async def test_needed_sign_in_is_reported_even_if_it_cannot_be_stored(
    protected: Protected, start_hub: StartHub, tmp_path: Path
) -> None:
    database = Database(tmp_path / "lost")
    hub = await start_hub({"x": {"type": "http", "url": protected.url}}, database=database)
    database.close()  # nothing can be read or written any more
    for _ in range(2):  # the second asks the server again
        with pytest.raises(UpstreamUnavailable, match="sign-in"):
            await asyncio.wait_for(hub.call("x", "echo"), PATIENCE)
        assert hub.status("x")[0].state == "needs-auth"


async def test_a_sign_in_that_cannot_be_forgotten_costs_no_connection(start_hub: StartHub, tmp_path: Path) -> None:
    database = Database(tmp_path / "stuck")
    hub: Hub = await start_hub({"x": local()}, database=database)
    key = hub._pools["x"].key
    await NeedsAuthMemory(Documents(database, "sign-in needed")).remember(key, "other tokens")
    refuse = "CREATE TRIGGER stuck BEFORE DELETE ON documents BEGIN SELECT RAISE(ABORT, 'the disk fails'); END"
    database.write(lambda db: db.execute(refuse))
    first = text_of(await hub.call("x", "pid"))
    # Kept by the owner of the connection, behind what cannot be forgotten.
    await until_true(lambda: (Documents(database, "server").read(key) or {}).get("offer"))
    assert hub.status("x")[0].state == "connected"
    assert text_of(await hub.call("x", "pid")).split()[0] == first.split()[0]
    assert await NeedsAuthMemory(Documents(database, "sign-in needed")).remembered(key) == "other tokens"


async def test_tokens_in_a_keyring_that_is_locked_are_no_reason_to_sign_in_again(
    protected: Protected, start_hub: StartHub, tmp_path: Path, ring: MemoryKeyring
) -> None:
    vault = KeyringVault(FileVault(tmp_path / "elsewhere"))
    hub: Hub = await start_hub({"x": {"type": "http", "url": protected.url}}, vault=vault)
    with pytest.raises(UpstreamUnavailable, match="sign-in"):
        await hub.call("x", "echo")
    await hub.authenticate("x", protected.person)
    hub.disable("x")
    hub.enable("x")
    ring.locked = True
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="keyring"):
            await asyncio.wait_for(hub.call("x", "echo"), PATIENCE)
    with pytest.raises(UpstreamUnavailable, match="keyring"):
        await hub.logout("x")
    ring.locked = False
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    assert len(protected.person.sent_to) == 1
    await disconnect(hub, "x")


async def test_a_server_that_wants_no_sign_in_works_while_the_keyring_does_not(
    start_hub: StartHub, tmp_path: Path, ring: MemoryKeyring
) -> None:
    ring.locked = True
    async with http_server(RemoteServer(), free_port()) as url:
        vault = KeyringVault(FileVault(tmp_path / "elsewhere"))
        hub: Hub = await start_hub({"x": {"type": "http", "url": url}}, vault=vault)
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        await disconnect(hub, "x")


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


async def test_expired_sign_in_is_reported_and_can_be_repeated(protected: Protected) -> None:
    await protected.sign_in()
    protected.authority.forget_everybody()
    with pytest.raises(MCPError, match="expired"):
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
    with pytest.raises(UpstreamUnavailable, match="recently"):
        await hub.call("x", "echo")
    await protected.sign_in()
    assert text_of(await hub.call("x", "echo")) == "echo {}"


async def test_sign_in_timeout_is_an_error_and_changes_nothing(protected: Protected) -> None:
    async def look_away(address: str) -> None:
        """The person has gone to lunch."""

    with pytest.raises(UpstreamUnavailable, match="1 s"):
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
        with pytest.raises(MCPError, match="Sign in again"):
            await hub.call("x", "change")
        assert hub.status("x")[0].state == "connected"
        assert (await hub.authenticate("x", person)).state == "connected"
        assert set(person.query["scope"].split()) == {"mcp", "admin"}
        assert text_of(await hub.call("x", "change")) == "change {}"
        await disconnect(hub, "x")


@pytest.mark.parametrize("status", [200, 400])
async def test_a_server_that_refuses_only_the_newest_protocol_can_be_signed_in_to(
    start_hub: StartHub, status: int
) -> None:
    """Some take a handshake from anybody, and those that know only the newest protocol do not understand one."""
    port, authority = free_port(), Authority()
    app = RemoteServer().server.streamable_http_app(**authority.options(port, "mcp"))

    async def judge(scope: Any, receive: Any, send: Any) -> None:
        is_handshake = scope.get("path") == "/mcp" and "mcp-method" not in {
            name.decode() for name, _ in scope["headers"]
        }
        await (JSONResponse({}, status) if is_handshake else app)(scope, receive, send)

    async with serving(judge, port) as base:
        hub = await start_hub({"x": {"type": "http", "url": f"{base}/mcp"}})
        assert (await hub.authenticate("x", Person())).state == "connected"
        assert authority.grants == ["code"]
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


# -- who we are to an authorization server -------------------------------------------------------------------------

DOCUMENT = "https://example.com/oauth/client.json"


class DocumentAuthority(Authority):
    """Knows a client by the address of a document, which it does not fetch."""

    redirect_uri: str | None = None

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if client_id != DOCUMENT:
            return await super().get_client(client_id)
        return OAuthClientInformationFull(
            client_id=DOCUMENT,
            redirect_uris=[self.redirect_uri] if self.redirect_uri else None,
            token_endpoint_auth_method="none",
            scope="mcp",
        )


async def test_a_client_metadata_document_comes_before_a_registration(start_hub: StartHub) -> None:
    port, authority, person = free_port(), DocumentAuthority(), Person()
    app = RemoteServer().server.streamable_http_app(**authority.options(port, "mcp"))
    callback = free_port()
    authority.redirect_uri = f"http://127.0.0.1:{callback}/callback"
    async with serving(_takes_documents(app), port) as base:
        entry = {"type": "http", "url": f"{base}/mcp", "oauth": {"callbackPort": callback}}
        registered = await start_hub({"x": entry})
        assert (await registered.authenticate("x", person)).state == "connected"
        assert len(authority.clients) == 1
        hub = await start_hub({"x": entry}, client_document=DOCUMENT)
        assert (await hub.authenticate("x", person)).state == "connected"
        assert person.query["client_id"] == DOCUMENT
        authority.expire()
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert authority.grants == ["code", "code", "refresh"]
        assert len(authority.clients) == 1
        for each in (registered, hub):
            await disconnect(each, "x")


def _takes_documents(app: Any) -> Any:
    """Adds to the authorization server's metadata that it knows clients by documents."""

    async def with_documents(scope: Any, receive: Any, send: Any) -> None:
        if not scope.get("path", "").startswith("/.well-known/oauth-authorization-server"):
            await app(scope, receive, send)
            return
        received: list[Any] = []

        async def keep(message: Any) -> None:
            received.append(message)

        await app(scope, receive, keep)
        body = b"".join(message.get("body", b"") for message in received)
        metadata = {**json.loads(body), "client_id_metadata_document_supported": True}
        await JSONResponse(metadata)(scope, receive, send)

    return with_documents


async def test_a_client_that_is_registered_already_shows_its_secret_in_the_header(start_hub: StartHub) -> None:
    port, authority, callback = free_port(), Authority(), free_port()
    authority.clients["known"] = OAuthClientInformationFull(
        client_id="known",
        client_secret="a-secret",
        redirect_uris=[f"http://127.0.0.1:{callback}/callback"],
        token_endpoint_auth_method="client_secret_basic",
        scope="mcp",
    )
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        oauth = {"clientId": "known", "clientSecret": "a-secret", "callbackPort": callback}
        hub = await start_hub({"x": {"type": "http", "url": url, "oauth": oauth}})
        assert (await hub.authenticate("x", Person())).state == "connected"
        authority.expire()
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert authority.grants == ["code", "refresh"]
        hub.disable("x")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("supported", "method"),
    [
        (None, "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["private_key_jwt"], "client_secret_basic"),
    ],
)
def test_a_secret_is_shown_as_the_authorization_server_takes_it(
    tmp_path: Path, supported: list[str] | None, method: str
) -> None:
    config = OAuthConfig.model_validate({"clientId": "known", "clientSecret": "a-secret"})
    storage = CredentialStorage(FileVault(tmp_path), "x")
    provider = StoredOAuth("https://example.com/mcp", config, storage, "http://127.0.0.1/callback")
    provider.context.client_info = OAuthClientInformationFull(client_id="known", client_secret="a-secret")
    provider.context.oauth_metadata = OAuthMetadata.model_validate(
        {
            "issuer": "https://example.com",
            "authorization_endpoint": "https://example.com/authorize",
            "token_endpoint": "https://example.com/token",
            "token_endpoint_auth_methods_supported": supported,
        }
    )
    provider.prepare_token_request()
    assert provider.context.client_info.token_endpoint_auth_method == method


async def test_the_metadata_of_the_authorization_server_can_be_configured(start_hub: StartHub) -> None:
    port, authority, person = free_port(), Authority(), Person()
    base = f"http://127.0.0.1:{port}"
    app = RemoteServer().server.streamable_http_app(**authority.options(port, "mcp"))
    async with serving(_without_discovery(app), port):
        entry = {"type": "http", "url": f"{base}/mcp"}
        lost = await start_hub({"lost": entry})
        with pytest.raises(UpstreamUnavailable, match="token"):  # nobody told the scope
            await lost.authenticate("lost", person)
        oauth = {"authServerMetadataUrl": f"{base}/elsewhere.json", "scopes": "mcp"}
        hub = await start_hub({"x": {**entry, "oauth": oauth}})
        assert (await hub.authenticate("x", person)).state == "connected"
        authority.expire()
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        assert authority.grants == ["code", "code", "refresh"]
        await disconnect(hub, "x")


def _without_discovery(app: Any) -> Any:
    """Has the authorization server's metadata, and what else would lead to it, at no well-known address."""

    async def hide(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if path.startswith("/.well-known/"):
            await JSONResponse({}, status_code=404)(scope, receive, send)
        elif path == "/elsewhere.json":
            await app({**scope, "path": "/.well-known/oauth-authorization-server"}, receive, send)
        else:
            await app(scope, receive, send)

    return hide
