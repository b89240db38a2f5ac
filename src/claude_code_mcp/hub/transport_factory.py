"""From a server's configuration to its transport."""

from collections.abc import Callable, Mapping

import httpx2
from mcp.client.auth import OAuthFlowError

from .auth.credentials import CredentialStorage
from .auth.oauth import SilentOAuth, identity_assertion
from .config_entry import (
    HttpConfig,
    IdeConfig,
    SdkConfig,
    ServerConfig,
    SseConfig,
    SseIdeConfig,
    StdioConfig,
    WebSocketConfig,
    WebSocketIdeConfig,
)
from .dependencies import HubDeps
from .streams import Transport, Trouble
from .transports.http import http, ide_headers, sse
from .transports.in_process import in_process
from .transports.stdio import stdio
from .transports.websocket import websocket


def open_transport(
    name: str, config: ServerConfig, means: HubDeps, trouble: Trouble, lose: Callable[[], None]
) -> Transport:
    """The transport of a server; `lose` is called when it can go on no more without having ended."""
    match config:
        case StdioConfig():
            return stdio(config, means.environment, means.child_environment, trouble)
        case HttpConfig():
            return http(config, config.headers, authentication(name, config, means), trouble)
        case SseConfig():
            return sse(config, config.headers, authentication(name, config, means), trouble, lose)
        case SdkConfig():
            return _in_process(config.name or name, means)
        case SseIdeConfig():
            return sse(config, _headers(config, means), None, trouble, lose)
        case WebSocketIdeConfig() | WebSocketConfig():
            return websocket(config.url, _headers(config, means), config.tls, trouble)


def _headers(config: WebSocketConfig | IdeConfig, means: HubDeps) -> Mapping[str, str]:
    return config.headers if isinstance(config, WebSocketConfig) else ide_headers(config, means.claude_directory)


def _in_process(name: str, means: HubDeps) -> Transport:
    serve = means.in_process.get(name)
    if serve is None:
        raise LookupError(f"there is no server called {name!r} in this process")
    return in_process(serve)


def authentication(name: str, config: HttpConfig | SseConfig, means: HubDeps) -> httpx2.Auth | None:
    """How we show who we are; None where a header is configured for that."""
    if any(header.lower() == "authorization" for header in config.headers):
        return None
    storage = credential_storage(name, config, means)
    if not config.oauth.xaa:
        return SilentOAuth(config.url, config.oauth, storage)
    if means.assert_identity is None:
        raise OAuthFlowError("cross-app access is asked for, but there is no identity provider")
    return identity_assertion(config.url, config.oauth, storage, means.assert_identity)


def credential_storage(name: str, config: HttpConfig | SseConfig, means: HubDeps) -> CredentialStorage:
    """Tokens belong to a name and an address: an entry that now leads elsewhere must not take them there."""
    return CredentialStorage(means.vault, f"{name} {config.url}")


def has_oauth(config: ServerConfig) -> bool:
    """Whether somebody can sign in to the server."""
    return isinstance(config, HttpConfig | SseConfig) and not config.oauth.xaa
