"""A client of the shared server for commands and user interfaces: joins a server that runs, and never starts one.

    with join(os.environ) as client:
        status = client.call("claude_list_sessions")

Blocking, on the standard library. Whatever speaks MCP in another way takes `connect`: a socket on which the hello is
done and MCP begins.
"""

import json
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import hello, place
from .place import NoPlace, Place

_PROTOCOL_VERSION = "2025-11-25"
_TIMEOUT = 60.0


class NotRunning(Exception):
    """There is no shared server at this place, or it does not serve us; the text says which."""


def connect(
    where: Place, fingerprint: str, environment: Mapping[str, str], timeout: float = _TIMEOUT, ask: str = ""
) -> tuple[socket.socket, hello.Welcome]:
    """A connection on which the hello is done. NotRunning if there is no server, or it refuses us."""
    try:
        connection = socket.socket(fileno=place.connect(where.socket).detach())
    except OSError as error:
        raise NotRunning(f"no shared server runs at {where.socket} ({error.strerror or error})") from None
    client_hello = hello.Hello(
        directory=place.working_directory(),
        environment=environment,
        fingerprint=fingerprint,
        identity=hello.new_identity(),
        pid=os.getpid(),
        ask=ask,
    )
    try:
        return connection, say_hello(connection, client_hello, timeout)
    except BaseException:
        connection.close()
        raise


def say_hello(connection: socket.socket, client_hello: hello.Hello, timeout: float = _TIMEOUT) -> hello.Welcome:
    """Begins a conversation; NotRunning if the server refuses, ends or does not answer in time."""
    try:
        connection.settimeout(timeout)
        connection.sendall(client_hello.line())
        welcome = hello.read_welcome(_line(connection))
    except (OSError, ValueError) as error:
        raise NotRunning(f"the shared server does not answer: {error}") from None
    if welcome.refused:
        raise NotRunning(f"the shared server refuses: {welcome.refused}")
    return welcome


def _line(connection: socket.socket) -> bytes:
    """One line, byte by byte: what follows it is not ours to read."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > hello.LONGEST:
            raise ValueError("it has closed the connection")
        line += byte
    return bytes(line)


def join(environment: Mapping[str, str], timeout: float = _TIMEOUT) -> "SharedClient":
    """A client of the server that clients with this environment share. NotRunning if there is none."""
    try:
        where, fingerprint = place.find_place((), environment)
    except NoPlace as error:
        raise NotRunning(f"there can be no shared server: {error}") from None
    connection, _ = connect(where, fingerprint, environment, timeout)
    return SharedClient(connection)


def ask_shared(environment: Mapping[str, str], ask: str) -> Any:
    """The answer of the server that clients with this environment share; None if there is none."""
    try:
        answer, connection = ask_server(place.find_place((), environment)[0], ask)
    except (NotRunning, OSError):
        return None
    connection.close()
    return answer


def ask_server(where: Place, ask: str, timeout: float = _TIMEOUT) -> tuple[Any, socket.socket]:
    """The answer of a server to an ask of `Hello`, and the connection, which ends with the server."""
    connection, _ = connect(where, "", {}, timeout, ask)
    try:
        answer = json.loads(_line(connection))
    except (OSError, ValueError) as error:
        connection.close()
        raise NotRunning(f"the shared server at {where.socket} does not answer: {error}") from None
    return answer, connection


class CallFailed(Exception):
    """The server has refused a call; the text is its own."""


class SharedClient:
    """One MCP session on the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._last_id = 0
        information = {"name": "claude-code-mcp", "version": "1"}
        self.request("initialize", protocolVersion=_PROTOCOL_VERSION, capabilities={}, clientInfo=information)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> "SharedClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._connection.close()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's result. CallFailed with its text if it is a refusal."""
        result = self.request("tools/call", name=tool, arguments=arguments)
        if result.get("isError"):
            raise CallFailed("\n".join(block.get("text", "") for block in result.get("content", [])))
        structured: dict[str, Any] = result.get("structuredContent") or {}
        return structured

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. CallFailed for an error, NotRunning if the server ends meanwhile."""
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        try:
            for line in self._lines:
                message = json.loads(line) if not line.startswith(b"!") else {}
                if message.get("id") == self._last_id and "method" not in message:
                    if "error" in message:
                        raise CallFailed(str(message["error"].get("message")))
                    result: dict[str, Any] = message["result"]
                    return result
        except OSError as error:
            raise NotRunning(f"the shared server does not answer: {error}") from None
        raise NotRunning("the shared server has ended")

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise NotRunning(f"the shared server has ended: {error}") from None
