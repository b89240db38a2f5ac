"""A client of the shared server for commands and user interfaces: joins a server that runs, and never starts one.

    with join(os.environ) as client:
        status = client.call("claude_list_sessions")

On the standard library. `LineClient` speaks MCP on any two streams of lines, such as the pipes of a server that was
started as a child. Whatever speaks MCP in another way takes `connect`: a socket on which the hello is done and MCP
begins.
"""

import json
import os
import queue
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import hello, place
from .place import NoPlace, Place

PROTOCOL_VERSION = "2025-11-25"
_TIMEOUT = 60.0


class NotRunning(Exception):
    """There is no server, it does not serve us, or it has ended; the text says which."""


def connect(
    where: Place, fingerprint: str, environment: Mapping[str, str], timeout: float = _TIMEOUT, ask: str = ""
) -> tuple[socket.socket, hello.Welcome]:
    """A connection on which the hello is done. NotRunning if there is no server, or it refuses us."""
    try:
        connection = socket.socket(fileno=place.connect(where.socket).detach())
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotRunning("no shared server runs") from None
    except OSError as error:
        raise NotRunning(f"the shared server at {where.socket} cannot be reached ({error.strerror or error})") from None
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


def join(environment: Mapping[str, str], timeout: float = _TIMEOUT, arguments: Sequence[str] = ()) -> "LineClient":
    """A client of the server that clients with this environment and these arguments of `serve` share. NotRunning if
    there is none."""
    try:
        where, fingerprint = place.find_place(arguments, environment)
    except NoPlace as error:
        raise NotRunning(f"there can be no shared server: {error}") from None
    connection, _ = connect(where, fingerprint, environment, timeout)
    connection.settimeout(None)

    def leave() -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        except OSError:
            pass  # the server was faster
        connection.close()

    return LineClient(connection.makefile("rb"), connection.sendall, leave)


def ask_shared(environment: Mapping[str, str], ask: str, arguments: Sequence[str] = ()) -> Any:
    """The answer of the server that clients with this environment and these arguments share; None if there is none."""
    try:
        answer, connection = ask_server(place.find_place(arguments, environment)[0], ask)
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
    """The server has refused a call; the text is its own, and so is the code, where it has given one."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class McpClient(ABC):
    """One MCP session with a server of ours. Any thread may make requests, several at the same time."""

    def __enter__(self) -> "McpClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Leaves the server; requests that still wait raise NotRunning."""

    @abstractmethod
    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. CallFailed for an error, NotRunning if the server ends meanwhile."""

    def listen(self, on_notification: Callable[[str, Mapping[str, Any]], None]) -> bool:
        """From now on `on_notification` is called with the method and the parameters of every notification, in
        another thread. False if this client receives none."""
        return False

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's result. CallFailed with its text if it is a refusal."""
        result = self.request("tools/call", name=tool, arguments=arguments)
        if result.get("isError"):
            problem = (result.get("structuredContent") or {}).get("error") or {}
            text = "\n".join(block.get("text", "") for block in result.get("content", []))
            raise CallFailed(text, str(problem.get("code") or ""))
        structured: dict[str, Any] = result.get("structuredContent") or {}
        return structured


def initialization() -> dict[str, Any]:
    """The parameters of `initialize`."""
    information = {"name": "claude-code-mcp", "version": "1"}
    # A person at a terminal can be asked; a script that runs the same command cannot.
    can_answer = sys.stdin is not None and sys.stdin.isatty()
    capabilities: dict[str, Any] = {"experimental": {hello.PERSON: {"answers": can_answer}}}
    return {"protocolVersion": PROTOCOL_VERSION, "capabilities": capabilities, "clientInfo": information}


def result_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The result in an answer; CallFailed if it is an error."""
    if "error" in answer:
        raise CallFailed(str(answer["error"].get("message")))
    result: dict[str, Any] = answer["result"]
    return result


class LineClient(McpClient):
    """MCP on two streams of lines. A thread of its own reads, and ends with the stream."""

    def __init__(self, lines: Iterable[bytes], write: Callable[[bytes], Any], leave: Callable[[], None]) -> None:
        self._lines = lines
        self._write = write
        self._leave = leave
        self._lock = threading.Lock()
        self._last_id = 0
        self._ended = False
        self._on_notification: Callable[[str, Mapping[str, Any]], None] | None = None
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        """For every request that has no answer yet, where that goes; None when there will be none."""
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.request("initialize", **initialization())
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._leave()

    def listen(self, on_notification: Callable[[str, Mapping[str, Any]], None]) -> bool:
        self._on_notification = on_notification
        return True

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        with self._lock:
            if self._ended:
                raise NotRunning("the server has ended")
            self._last_id += 1
            request_id = self._last_id
            # Before the request is sent: the thread that reads may have the answer before `_send` returns.
            self._waiting[request_id] = answers
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        answer = answers.get()
        if answer is None:
            raise NotRunning("the server has ended")
        return result_of(answer)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._write(json.dumps(message).encode() + b"\n")
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            raise NotRunning(f"the server has ended: {error}") from None

    def _read(self) -> None:
        """Hands every answer to its request. What the server asks is refused: we have declared nothing it could ask."""
        try:
            for line in self._lines:
                message = json.loads(line) if line.startswith(b"{") else {}
                if "method" not in message and message.get("id") in self._waiting:
                    self._waiting.pop(message["id"]).put(message)
                elif "method" in message and "id" in message:
                    refusal = {"code": -32601, "message": "this client takes no such request"}
                    reply = {"result": {}} if message["method"] == "ping" else {"error": refusal}
                    self._send({"jsonrpc": "2.0", "id": message["id"], **reply})
                elif "method" in message and self._on_notification is not None:
                    self._on_notification(message["method"], message.get("params") or {})
        except (OSError, ValueError, NotRunning):
            pass  # as at the end of the stream
        close = getattr(self._lines, "close", None)
        if close is not None:
            close()  # here and not in `close`: no other thread may close what this one reads
        with self._lock:
            # Together with the look at who waits: a request is either answered here or finds that the server has ended.
            self._ended = True
            unanswered = list(self._waiting.values())
        for answers in unanswered:
            answers.put(None)
