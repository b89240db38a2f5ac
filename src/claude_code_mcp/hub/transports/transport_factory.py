"""Creates a server's transport and authentication from its configuration.

There are two OAuth providers with shared stored credentials: `SilentOAuth` serves a connection, `InteractiveOAuth` is
the flow with a person and a browser, which `sign_in` runs. `http_auth` chooses the authentication of a server.

A transport is an asynchronous context manager that yields two streams, an inbox and an outbox. A new one needs three
parts: a file next to this one; an entry in `config_entry.py` (a class with its fields, its secrets and its description,
in the `ServerConfig` union); and a case here. The type checker reports this function if the case is missing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError

from ..auth.claude_sign_in import ClaudeSignIn
from ..auth.credentials import CredentialStorage
from ..auth.cross_app_access import AssertionOAuth
from ..auth.silent_oauth import SilentOAuth
from ..config_entry import (
    HttpConfig,
    IdeConfig,
    OAuthServerConfig,
    SdkConfig,
    ServerConfig,
    SseConfig,
    SseIdeConfig,
    StdioConfig,
    WebSocketConfig,
    WebSocketIdeConfig,
)
from ..hub_deps import HubDeps
from ..streams import Transport, TransportFailure
from .http_client import http, sse
from .in_process import in_process
from .stdio_client import stdio

IDE_HEADER = "X-Claude-Code-Ide-Authorization"


def has_oauth(config: ServerConfig) -> bool:
    """Whether a person can sign in to the server itself."""
    return isinstance(config, OAuthServerConfig) and not config.oauth.xaa


def credential_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """The storage of a server's credentials. Tokens belong to a name and an address: if an entry's address changes,
    they must not be sent there."""
    claude_sign_in = ClaudeSignIn(deps.claude_directory, name, config.url) if deps.uses_claude_sign_ins else None
    return CredentialStorage(deps.vault, _key(name, config), claude_sign_in)


def own_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """The storage of our own credentials, without Claude Code's sign-in; our own sign-ins read and write it."""
    return CredentialStorage(deps.vault, _key(name, config))


def _key(name: str, config: OAuthServerConfig) -> str:
    return f"{name} {config.url}"


def http_auth(name: str, config: OAuthServerConfig, deps: HubDeps) -> httpx2.Auth | None:
    """The authentication that adds tokens to requests; None if a header is configured for that. Raises
    OAuthFlowError."""
    if any(header.lower() == "authorization" for header in config.headers):
        return None
    if not config.oauth.xaa:
        storage = credential_storage(name, config, deps)
        return SilentOAuth(config.url, config.oauth, storage, config.tls, deps.renewals)
    if deps.identity_provider is None:
        raise OAuthFlowError("cross-app access needs an identity provider, and none is configured")
    storage, get_assertion = own_storage(name, config, deps), deps.identity_provider.assertion
    return AssertionOAuth(config.url, config.oauth, storage, config.tls, deps.renewals, get_assertion)


def ide_headers(config: IdeConfig, claude_directory: Path) -> dict[str, str]:
    """The headers for an IDE: the configured ones and its token, which may be in the lock file of its port."""
    token: object = config.auth_token
    if not token:
        port = urlsplit(config.url).port
        try:
            lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            lock = None
        token = lock.get("authToken") if isinstance(lock, dict) else None
    return {**config.headers, IDE_HEADER: token} if isinstance(token, str) and token else dict(config.headers)


def open_transport(
    name: str, config: ServerConfig, deps: HubDeps, failure: TransportFailure, give_up: Callable[[], None]
) -> Transport:
    """The transport of a server, not yet entered.

    It writes the reason of its end to `failure`, and calls `give_up` when it is unusable although its streams are open.
    Raises the error that makes the configuration unusable.
    """
    match config:
        case StdioConfig():
            return stdio(name, config, deps.environment, deps.child_environment, failure)
        case HttpConfig():
            return http(config, config.headers, http_auth(name, config, deps), failure)
        case SseConfig():
            return sse(config, config.headers, http_auth(name, config, deps), failure, give_up)
        case SseIdeConfig():
            return sse(config, ide_headers(config, deps.claude_directory), None, failure, give_up)
        case WebSocketConfig() | WebSocketIdeConfig():
            from .websocket import websocket  # noqa: PLC0415 - few have such a server

            if isinstance(config, WebSocketIdeConfig):
                headers = ide_headers(config, deps.claude_directory)
            else:
                headers = config.headers
            return websocket(config.url, headers, config.tls, failure)
        case SdkConfig():
            serve = deps.in_process.get(config.name or name)
            if serve is None:
                raise LookupError(f"there is no server called {config.name or name!r} in this process")
            return in_process(serve)
    assert_never(config)
