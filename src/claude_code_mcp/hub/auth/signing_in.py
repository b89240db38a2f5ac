"""Signing in to a remote server: the person goes to an address, and the tokens end up in storage."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from ..configuration import HttpConfig, SseConfig
from ..transports.carrier import tls_context
from .callback import Callback, listen
from .oauth import CLIENT_NAME, SigningIn
from .tokens import CredentialStorage

log = logging.getLogger(__name__)

ShowAddress = Callable[[str], Awaitable[None]]
"""Brings a person to an address: opens a browser, or shows it."""


async def sign_in(
    config: HttpConfig | SseConfig, storage: CredentialStorage, show: ShowAddress, timeout: float
) -> bool:
    """Tells whether there was anything to sign in to. Raises OAuthFlowError when it did not work in time."""
    try:
        with anyio.fail_after(timeout):
            async with listen(await _port(config, storage)) as callback:
                await _forget_other_address(storage, callback)
                return await _knock(config, storage, show, callback)
    except TimeoutError:
        raise OAuthFlowError(f"nobody signed in within {timeout:g} s") from None
    except httpx2.TransportError as error:
        raise OAuthFlowError(f"the server cannot be reached: {error}") from None


async def _knock(
    config: HttpConfig | SseConfig, storage: CredentialStorage, show: ShowAddress, callback: Callback
) -> bool:
    """Asks for what needs a token, which sets the flow going."""
    flow = SigningIn(
        config.url,
        config.oauth,
        storage,
        callback.redirect_uri,
        redirect_handler=show,
        callback_handler=callback.wait,
    )
    async with httpx2.AsyncClient(auth=flow, verify=tls_context(config.tls), headers=config.headers) as client:
        async with client.stream(**_question(config)) as response:
            if response.status_code in {401, 403}:
                raise OAuthFlowError(f"the server refused the new token with HTTP {response.status_code}")
        return flow.context.current_tokens is not None


def _question(config: HttpConfig | SseConfig) -> dict[str, Any]:
    if isinstance(config, SseConfig):
        return {"method": "GET", "url": config.url, "headers": {"Accept": "text/event-stream"}}
    params = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": CLIENT_NAME, "version": "1"},
    }
    return {
        "method": "POST",
        "url": config.url,
        "headers": {"Accept": "application/json, text/event-stream"},
        "json": {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
    }


async def _port(config: HttpConfig | SseConfig, storage: CredentialStorage) -> int | None:
    """The port that a registration made before names, so that it can be used again."""
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


async def _forget_other_address(storage: CredentialStorage, callback: Callback) -> None:
    """A registration for another port is of no use: the authorization server would refuse to come back here."""
    client = (await storage.load()).client
    if client is not None and callback.redirect_uri not in [str(uri) for uri in client.redirect_uris or ()]:
        await storage.update(client=None)
