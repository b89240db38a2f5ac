"""From a server's configuration to its transport: how it shows who we are, and which protocol it takes.

OAuth has two providers that share stored credentials: `SilentOAuth` serves a connection, `InteractiveOAuth` is the flow
with a person and a browser, which `sign_in` runs. `http_auth` chooses what a configured server gets.

A transport is an asynchronous context manager that yields two streams, an inbox and an outbox. Adding one touches
three files: the transport itself in `transports.py`, its entry in `config_entry.py` (a class with its fields, what is
secret in them and what may be shown, and its place in the `ServerConfig` union), and a case here. The type checker
names this function when a case is missing.

A `headersHelper` is run by the shell for every connection, in the directory of its user, with the name and the address
of the server in the variables that Claude Code has for that. It has ten seconds, and what it prints is not logged.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import assert_never
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError

from ..core.processes.child import ChildProcess, Exit
from .auth.credentials import CredentialStorage
from .auth.identity_provider import AssertionOAuth
from .auth.oauth_providers import SilentOAuth
from .auth.sign_in import ClaudeSignIn
from .config_entry import (
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
from .dependencies import HubDeps
from .streams import ObservedInbox, Transport, TransportFailure
from .transports import http, in_process, sse, stdio

IDE_HEADER = "X-Claude-Code-Ide-Authorization"


def has_oauth(config: ServerConfig) -> bool:
    """Whether a person can sign in to the server itself."""
    return isinstance(config, OAuthServerConfig) and not config.oauth.xaa


def credential_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """Tokens belong to a name and an address: an entry that now leads elsewhere must not take them there."""
    elsewhere = ClaudeSignIn(deps.claude_directory, name, config.url) if deps.uses_claude_sign_ins else None
    return CredentialStorage(deps.vault, _key(name, config), elsewhere)


def own_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """The storage of our own credentials alone, without the sign-in of Claude Code: what a sign-in of ours begins with,
    and where it is kept."""
    return CredentialStorage(deps.vault, _key(name, config))


def _key(name: str, config: OAuthServerConfig) -> str:
    return f"{name} {config.url}"


def http_auth(name: str, config: OAuthServerConfig, deps: HubDeps) -> httpx2.Auth | None:
    """What adds tokens to requests; None where a header is configured for that. Raises OAuthFlowError."""
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
    """The headers for an IDE: those configured, and its token, which may stand in the lock file of its port."""
    token = config.auth_token or _token_of_lock_file(config.url, claude_directory)
    return {**config.headers, IDE_HEADER: token} if token else dict(config.headers)


def _token_of_lock_file(url: str, claude_directory: Path) -> str | None:
    port = urlsplit(url).port
    try:
        lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = lock.get("authToken") if isinstance(lock, dict) else None
    return token if isinstance(token, str) else None


# -- transport factory ------------------------------------------------------------------------------------------------


def open_transport(
    name: str, config: ServerConfig, deps: HubDeps, failure: TransportFailure, give_up: Callable[[], None]
) -> Transport:
    """The transport of a server, not yet entered.

    It writes to `failure` why it ended; it calls `give_up` when it is of no more use although its streams are open.
    Raises whatever makes the configuration unusable.
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


# -- probe ------------------------------------------------------------------------------------------------------------


_MUTE = 1.5
"""Seconds of silence after which a server that has read the probe is taken for one that cannot answer it."""
_GRACE_OF_MUTE = 0.1
_LOOK_EVERY = 0.1


class Probe:
    """Watches over the first message to a server, which some cannot take: whether it is answered, and in what time."""

    def __init__(self, failure: TransportFailure) -> None:
        self._failure = failure
        self._read_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.inbox: ObservedInbox | None = None
        """Set when the transport is open."""

    @property
    def was_in_vain(self) -> bool:
        """Whether the server was there and has not answered anything."""
        return self.inbox is not None and not self.inbox.has_answered

    @contextmanager
    def watching(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Within the block, or until `stop`, calls `give_up` when a server has read the probe and is mute for `_MUTE`
        seconds. One that has not read it yet is slow to start, and not mute."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            # First, whatever else there is to read: nothing is left to watch, however long the connection lasts.
            if self.inbox is not None and self.inbox.has_answered:
                return
            if self.inbox is None or not self._failure.has_read_input():
                self._read_at = None
            elif self._read_at is None:
                self._read_at = loop.time()
            elif loop.time() - self._read_at >= _MUTE:
                self._failure.grace = _GRACE_OF_MUTE
                give_up()
                return
            self._timer = loop.call_later(_LOOK_EVERY, look)  # nothing tells when a pipe is read

        look()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """The server has answered: there is nothing left to watch."""
        if self._timer is not None:
            self._timer.cancel()


# -- headers helper ---------------------------------------------------------------------------------------------------


_TIMEOUT = 10.0
_GRACE = 1.0
_MAX_OUTPUT = 1 << 20


class HelperFailed(Exception):
    """The command did not print headers; the message repeats nothing of what it printed."""


async def with_helped_headers(name: str, config: ServerConfig, deps: HubDeps, directory: str) -> ServerConfig:
    """The entry with the headers that its helper prints, which come before those configured; as it is without one.

    Raises HelperFailed.
    """
    helper = getattr(config, "headers_helper", None)
    if helper is None:
        return config
    variables = {"CLAUDE_CODE_MCP_SERVER_NAME": name, "CLAUDE_CODE_MCP_SERVER_URL": getattr(config, "url", "")}
    output = await _output_of(name, helper, deps, variables, directory)
    try:
        headers = json.loads(output)
    except (ValueError, RecursionError):
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise HelperFailed("headersHelper did not print a JSON object with string values")
    return config.model_copy(update={"headers": {**getattr(config, "headers", {}), **headers}})


async def _output_of(name: str, command: str, deps: HubDeps, variables: dict[str, str], directory: str) -> bytes:
    environment, mark = deps.child_environment(deps.environment)
    listener = _Listener()
    child = ChildProcess(listener, "headersHelper", mark=mark, owner=f"MCP server {name}")
    shell = ["cmd.exe", "/d", "/s", "/c"] if sys.platform == "win32" else ["/bin/sh", "-c"]
    try:
        with anyio.CancelScope(shield=True):  # cancelled half way, the child would run on with nobody to end it
            await child.start([*shell, command], cwd=directory, environment={**environment, **variables})
        child.close_input()
        with anyio.move_on_after(_TIMEOUT):
            await listener.ended.wait()
    finally:
        # Shielded: nobody else knows of the child.
        with anyio.CancelScope(shield=True):
            if child.started:
                await child.stop(_GRACE)
    if not listener.ended.is_set():
        raise HelperFailed(f"headersHelper took more than {_TIMEOUT:g} s")
    if child.returncode != 0 or len(listener.output) > _MAX_OUTPUT:
        raise HelperFailed(f"headersHelper failed: {Exit(child.returncode or 0, '').how}")
    return bytes(listener.output)


class _Listener:
    def __init__(self) -> None:
        self.output = bytearray()
        self.ended = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        if len(self.output) <= _MAX_OUTPUT:
            self.output += data

    def output_ended(self) -> None:
        """Its end may still have to come."""

    def input_closed(self) -> None:
        """It need not read its input."""

    def child_ended(self, exit_: Exit) -> None:
        self.ended.set()
