"""Sign-in to a remote server, interactively with a browser.

`sign_in` opens the listener, sends requests until one needs a token (which starts the flow), opens the authorization
server for the person, and stores the tokens. Everything ends within one timeout.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import mcp_types as types
from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from ..config_entry import OAuthServerConfig, SseConfig
from ..transports.http_client import tls_context
from .credentials import CredentialStorage
from .interactive_oauth import InteractiveOAuth
from .stored_oauth import CLIENT_NAME, FORGOTTEN_CLIENT, ForgottenClient, ShowAddress

_PATH = "/callback"
_REQUEST_TIMEOUT = 20.0
_DONE = "You are signed in. You can close this window."
_NOT_DONE = "Signing in failed. Close this window; the program that asked you to sign in shows the reason."


async def sign_in(
    config: OAuthServerConfig,
    storage: CredentialStorage,
    show: ShowAddress,
    timeout: float,
    document: str | None = None,
) -> bool:
    """Sign in and store the tokens; False if the server needs none. Raises OAuthFlowError if it fails or takes too
    long.

    `document` is the address of our Client ID Metadata Document, if there is one. A forgotten registration is
    recreated, once; then the person gets a new URL.
    """
    try:
        with anyio.fail_after(timeout):
            try:
                return await _sign_in_once(config, storage, show, document)
            except ForgottenClient:
                if config.oauth.client_id is not None:
                    raise
            await storage.update(client=None)
            return await _sign_in_once(config, storage, show, document)
    except TimeoutError:
        raise OAuthFlowError(f"no sign-in within {timeout:g} s") from None
    except httpx2.TransportError as error:
        raise OAuthFlowError(f"the server cannot be reached: {error}") from None


async def _sign_in_once(
    config: OAuthServerConfig, storage: CredentialStorage, show: ShowAddress, document: str | None
) -> bool:
    async with listen(await _callback_port(config, storage)) as callback:
        # The authorization server would refuse to redirect here with a registration for another port.
        client = (await storage.load()).client
        if client is not None and callback.redirect_uri not in [str(uri) for uri in client.redirect_uris or ()]:
            await storage.update(client=None)
        tls = tls_context(config.tls)
        async with httpx2.AsyncClient(verify=tls, timeout=_REQUEST_TIMEOUT) as plain_client:
            provider = InteractiveOAuth(
                config.url,
                config.oauth,
                storage,
                callback.redirect_uri,
                plain_client.send,
                show,
                callback_handler=callback.wait,
                client_metadata_url=document,
            )
            async with httpx2.AsyncClient(auth=provider, verify=tls, headers=config.headers) as signing_in:
                for request in _first_requests(config):
                    async with signing_in.stream(**request) as response:
                        if response.status_code in {401, 403}:
                            raise OAuthFlowError(f"the server refused the new token with HTTP {response.status_code}")
                    if provider.context.current_tokens is not None:
                        return True
            return False


async def deliver_redirect(shown: str, pasted: str) -> bool:
    """Request the redirect address on this machine on behalf of a browser on another machine, which cannot reach it.

    `shown` is the URL that the person opened, `pasted` the one at which their browser ended. False if the second is not
    the redirect of the first.
    """
    [redirect] = parse_qs(urlsplit(shown).query).get("redirect_uri") or [""]
    if not redirect or not pasted.strip().startswith(f"{redirect}?"):
        return False
    try:
        async with httpx2.AsyncClient(trust_env=False) as browser:
            await browser.get(pasted.strip())
    except httpx2.TransportError:
        return False  # the listener is closed
    return True


def _first_requests(config: OAuthServerConfig) -> list[dict[str, Any]]:
    """Requests of which a server with sign-in refuses at least one. Some servers accept `initialize` without a token,
    and servers that support only the newest protocol do not know it, so both kinds are tried."""
    if isinstance(config, SseConfig):
        return [{"method": "GET", "url": config.url, "headers": {"Accept": "text/event-stream"}}]
    client = {"name": CLIENT_NAME, "version": "1"}
    handshake = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": client}
    envelope = {
        types.PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
        types.CLIENT_CAPABILITIES_META_KEY: {},
        types.CLIENT_INFO_META_KEY: client,
    }
    modern = {MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION, MCP_METHOD_HEADER: "server/discover"}
    return [
        _post(config.url, "initialize", handshake, {}),
        _post(config.url, "server/discover", {"_meta": envelope}, modern),
    ]


def _post(url: str, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    return {
        "method": "POST",
        "url": url,
        "headers": {"Accept": "application/json, text/event-stream", **headers},
        "json": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params},
    }


async def _callback_port(config: OAuthServerConfig, storage: CredentialStorage) -> int | None:
    """The configured port, or that of an earlier registration, so that it can be used again; None for any."""
    if config.oauth.callback_port is not None:
        return config.oauth.callback_port
    client = (await storage.load()).client
    port = client.redirect_uris[0].port if client and client.redirect_uris else None
    return port if port is not None and await _is_free(port) else None


async def _is_free(port: int) -> bool:
    try:
        async with listen(port):
            return True
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Callback:
    """The listener's redirect URI, and the answer that arrives there."""

    port: int
    _answer: asyncio.Future[AuthorizationCodeResult]

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self.port}{_PATH}"

    async def wait(self) -> AuthorizationCodeResult:
        """Wait for the answer of the authorization server. Raises OAuthFlowError if it refused."""
        return await self._answer


@asynccontextmanager
async def listen(port: int | None) -> AsyncIterator[Callback]:
    """Context with a listener on the loopback interface, on this port or a free one, for one redirect of the
    browser."""
    answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = (await reader.readline()).decode("latin-1").split(" ")[1]
            status, text = _take_redirect(target, answer)
            body = f"<!doctype html><meta charset=utf-8><title>claude-code-mcp</title><p>{text}"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
            await writer.drain()
        except (OSError, IndexError, ValueError):
            pass  # not a browser
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port or 0)
    async with server:
        try:
            yield Callback(server.sockets[0].getsockname()[1], answer)
        finally:
            # Tell the waiter for the browser that the listener is closed.
            answer.cancel()


def _take_redirect(target: str, answer: "asyncio.Future[AuthorizationCodeResult]") -> tuple[str, str]:
    """Extract the answer from the first redirect; return the status and text for the browser."""
    parts = urlsplit(target)
    if parts.path != _PATH or answer.done():
        return "404 Not Found", _NOT_DONE
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if "code" not in query:
        reason = query.get("error_description") or query.get("error") or "no code"
        kind = ForgottenClient if query.get("error") in FORGOTTEN_CLIENT else OAuthFlowError
        answer.set_exception(kind(f"the authorization server refused: {reason}"))
        return "200 OK", _NOT_DONE
    answer.set_result(AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss")))
    return "200 OK", _DONE
