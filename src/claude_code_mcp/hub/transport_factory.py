"""From a server's configuration to its transport.

A transport is an asynchronous context manager that yields two streams, an inbox and an outbox. Adding one touches
three files: the transport itself in `transports/`, its entry in `config_entry.py` (a class with its fields, what is
secret in them and what may be shown, and its place in the `ServerConfig` union), and a case here. The type checker
names this function when a case is missing.
"""

from collections.abc import Callable
from typing import assert_never

from .auth.oauth import http_auth, ide_headers
from .config_entry import (
    HttpConfig,
    SdkConfig,
    ServerConfig,
    SseConfig,
    SseIdeConfig,
    StdioConfig,
    WebSocketConfig,
    WebSocketIdeConfig,
)
from .dependencies import HubDeps
from .streams import Transport, TransportFailure
from .transports.http import http, sse, websocket
from .transports.in_process import in_process
from .transports.stdio import stdio


def open_transport(  # noqa: PLR0911 - one for each type
    name: str, config: ServerConfig, deps: HubDeps, failure: TransportFailure, give_up: Callable[[], None]
) -> Transport:
    """The transport of a server, not yet entered.

    It writes to `failure` why it ended; it calls `give_up` when it is of no more use although its streams are open.
    Raises whatever makes the configuration unusable.
    """
    match config:
        case StdioConfig():
            return stdio(config, deps.environment, deps.child_environment, failure)
        case HttpConfig():
            return http(config, config.headers, http_auth(name, config, deps), failure)
        case SseConfig():
            return sse(config, config.headers, http_auth(name, config, deps), failure, give_up)
        case SseIdeConfig():
            return sse(config, ide_headers(config, deps.claude_directory), None, failure, give_up)
        case WebSocketConfig():
            return websocket(config.url, config.headers, config.tls, failure)
        case WebSocketIdeConfig():
            return websocket(config.url, ide_headers(config, deps.claude_directory), config.tls, failure)
        case SdkConfig():
            serve = deps.in_process.get(config.name or name)
            if serve is None:
                raise LookupError(f"there is no server called {config.name or name!r} in this process")
            return in_process(serve)
    assert_never(config)
