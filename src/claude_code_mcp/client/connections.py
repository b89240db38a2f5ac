"""MCP clients on the standard library, and which server a command talks to: the shared one, one at a URL, or a child.

    with join(os.environ) as client:
        status = client.call("claude_list_sessions")

`join` and `connect` use a shared server that runs, and never start one. `LineClient` speaks MCP on any two streams of
lines, such as the pipes of a server that was started as a child, `HttpSession` over HTTP: its token goes to the server
that was named and nowhere else, redirects are errors, and proxies are not used.

The threads are daemons: a call that waits at the server does not keep the program from exiting, and the result of a
call whose caller was cancelled is dropped.
"""

import asyncio
import contextlib
import http.client
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar
from urllib.parse import SplitResult, urlsplit

from ..core.errors import ClaudeCodeError, ExitCode, InvalidArgument
from ..core.processes.environment import OWN_PREFIX
from ..startup.shared import handshake as hello
from ..startup.shared import place
from ..startup.shared.place import Place, SharedServerUnavailable

PROTOCOL_VERSION = "2025-11-25"
_TIMEOUT = 60.0


class NotRunning(Exception):
    """There is no server, it does not serve us, or it has ended; the text says which."""


def connect(
    where: Place, fingerprint: str, environment: Mapping[str, str], timeout: float = _TIMEOUT, ask: str = ""
) -> tuple[socket.socket, hello.Welcome]:
    """A connection after the hello. NotRunning if there is no server, or it refuses us."""
    try:
        connection = socket.socket(fileno=place.connect(where.socket).detach())
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotRunning("no shared server is running") from None
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
    """Exchange hellos; NotRunning if the server refuses, ends or does not answer in time."""
    try:
        connection.settimeout(timeout)
        connection.sendall(client_hello.line())
        welcome = hello.read_welcome(_line(connection))
    except (OSError, ValueError) as error:
        raise NotRunning(f"the shared server does not answer: {error}") from None
    if welcome.refused:
        raise NotRunning(f"the shared server refused the connection: {welcome.refused}")
    return welcome


def _line(connection: socket.socket) -> bytes:
    """One line, read byte by byte: the data after it must not be consumed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > hello.MAX_LENGTH:
            raise ValueError("it closed the connection")
        line += byte
    return bytes(line)


def join(environment: Mapping[str, str], timeout: float = _TIMEOUT, arguments: Sequence[str] = ()) -> "LineClient":
    """A client of the server that clients with this environment and these arguments of `serve` share. NotRunning if no
    server runs."""
    try:
        where, fingerprint = place.find_place(arguments, environment)
    except SharedServerUnavailable as error:
        raise NotRunning(f"a shared server cannot run here: {error}") from None
    connection, _ = connect(where, fingerprint, environment, timeout)
    connection.settimeout(None)

    def leave() -> None:
        with contextlib.suppress(OSError):  # the server may have been faster
            connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        connection.close()

    return LineClient(connection.makefile("rb"), connection.sendall, leave)


def ask_shared(environment: Mapping[str, str], ask: str, arguments: Sequence[str] = ()) -> Any:
    """The answer of the server that clients with this environment and these arguments share; None if no server runs."""
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
    """The server has refused a call; the text and the code, if any, are the server's."""

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
        """Disconnect; waiting requests raise NotRunning."""

    @abstractmethod
    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request. CallFailed for an error, NotRunning if the server ends in the meantime."""

    def listen(self, on_notification: Callable[[str, Mapping[str, Any]], None]) -> bool:
        """Call `on_notification` from now on with the method and parameters of every notification, in another thread.
        False if this client receives no notifications."""
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
    """MCP on two streams of lines. A separate thread reads, and ends with the stream."""

    def __init__(self, lines: Iterable[bytes], write: Callable[[bytes], Any], leave: Callable[[], None]) -> None:
        self._lines = lines
        self._write = write
        self._leave = leave
        self._lock = threading.Lock()
        self._last_id = 0
        self._ended = False
        self._on_notification: Callable[[str, Mapping[str, Any]], None] | None = None
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        """The queue for the answer of each open request; it receives None if there will be no answer."""
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
                raise NotRunning("the server exited")
            self._last_id += 1
            request_id = self._last_id
            # Before the request is sent: the thread that reads may have the answer before `_send` returns.
            self._waiting[request_id] = answers
        self._send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        answer = answers.get()
        if answer is None:
            raise NotRunning("the server exited")
        return result_of(answer)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._lock:
                self._write(json.dumps(message).encode() + b"\n")
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            raise NotRunning(f"the server exited: {error}") from None

    def _read(self) -> None:
        """Pass every answer to its request. Requests of the server are refused, since we declare no capability for
        any."""
        try:
            for line in self._lines:
                message = json.loads(line) if line.startswith(b"{") else {}
                if "method" not in message and message.get("id") in self._waiting:
                    self._waiting.pop(message["id"]).put(message)
                elif "method" in message and "id" in message:
                    refusal = {"code": -32601, "message": "this client does not support this request"}
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


# -- MCP over HTTP ----------------------------------------------------------------------------------------------------


class NoServer(ClaudeCodeError):
    """There is no server to talk to, and none could be started."""

    code = "UNAVAILABLE"
    exit_code = ExitCode.UNAVAILABLE


_HTTP_TIMEOUT = 120.0
"""Seconds without a byte: longer than any call of ours waits."""
_MAX_ERROR = 500
_HTTP_UNAUTHORIZED = 401
_NOT_LET_IN = (_HTTP_UNAUTHORIZED, 403)
_NO_ANSWER = (OSError, http.client.HTTPException)


def address_of(url: str) -> SplitResult:
    """The parts of an address such as `http://host:8765/mcp` or `host:8765`. InvalidArgument if it is not valid."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument(f"--url: {url!r} is not the address of a server.")
    return parts if parts.path not in ("", "/") else parts._replace(path="/mcp")


class HttpSession(McpClient):
    """One MCP session with a server at a URL."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._address = address_of(url)
        self._headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": PROTOCOL_VERSION,
        }
        if token:
            if not token.isascii() or not token.isprintable():
                raise InvalidArgument("The token contains characters that are not allowed.")
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._last_id = 0
        self.request("initialize", **initialization())
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, None)

    def close(self) -> None:
        if "Mcp-Session-Id" in self._headers:
            connection = self._connection(5.0)
            try:
                connection.request("DELETE", self._target, headers=self._headers)
                connection.getresponse().read()
            except _NO_ANSWER:
                pass  # the server removes us automatically
            finally:
                connection.close()

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        with self._lock:
            self._last_id += 1
            request_id = self._last_id
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        return result_of(self._post(message, request_id))

    @property
    def _target(self) -> str:
        return self._address.path + (f"?{self._address.query}" if self._address.query else "")

    def _connection(self, timeout: float = _HTTP_TIMEOUT) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._address.scheme == "https" else http.client.HTTPConnection
        return kind(self._address.hostname or "", self._address.port, timeout=timeout)

    def _post(self, message: dict[str, Any], request_id: int | None) -> dict[str, Any]:
        """Sends a message; the answer to it if it has an id."""
        connection = self._connection()
        try:
            connection.request("POST", self._target, json.dumps(message).encode(), self._headers)
            response = connection.getresponse()
            if response.status >= http.client.MULTIPLE_CHOICES:
                raise _refusal(response)
            session_id = response.headers.get("Mcp-Session-Id")
            # The server names the session with its first answer, and refuses later requests without the name.
            if session_id:
                self._headers["Mcp-Session-Id"] = session_id
            if request_id is None:
                return {}
            for answer in _messages(response):
                if answer.get("id") == request_id and "method" not in answer:
                    return answer
            raise NotRunning("the response ended early")
        except (*_NO_ANSWER, ValueError) as error:
            reason = "it timed out" if isinstance(error, socket.timeout) else str(error) or type(error).__name__
            raise NotRunning(f"{self._address.geturl()} does not answer: {reason}") from None
        finally:
            connection.close()


def _refusal(response: http.client.HTTPResponse) -> CallFailed:
    hint = " Set CLAUDE_CODE_MCP_TOKEN or pass --token." if response.status == _HTTP_UNAUTHORIZED else ""
    body = response.read(_MAX_ERROR).decode("utf-8", "replace")
    code = "PERMISSION_DENIED" if response.status in _NOT_LET_IN else ""
    return CallFailed(f"the server answered {response.status}.{hint} {body}".strip(), code)


def _messages(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages in a response: one JSON object, or a stream of events."""
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        yield json.loads(response.read())
        return
    data: list[bytes] = []
    for line in response:
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif not field and not value and data:
            text, data = b"\n".join(data), []
            if text:
                yield json.loads(text)


# -- connections ------------------------------------------------------------------------------------------------------


_STOP_SECONDS = 60.0
_TOKEN = f"{OWN_PREFIX}TOKEN"


@dataclass(frozen=True, slots=True)
class Target:
    """The requested server: the shared one, unless there is a URL or `own` is set."""

    url: str | None = None
    token: str | None = None
    config: str | None = None
    """A file with settings, which the shared server was started with."""
    own: bool = False

    @property
    def arguments(self) -> list[str]:
        """The arguments of the shared server, which identify it."""
        return ["--config", self.config] if self.config else []

    def join(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a running server. ClaudeCodeError if there is none."""
        try:
            if self.url:
                return HttpSession(self.url, self.token or environment.get(_TOKEN))
            return join(environment, arguments=self.arguments)
        except NotRunning as error:
            reason = str(error).rstrip(".")
            if self.url:
                raise NoServer(f"No server: {reason}.") from None
            start = "Start it with `claude-code-mcp shared start`; a client with --shared does the same."
            raise NoServer(f"{reason[:1].upper()}{reason[1:]}. {start}") from None

    def open(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a running or newly started server: the shared one if the platform supports it, otherwise one that
        ends with this client."""
        if self.url:
            return self.join(environment)
        shared = [] if self.own else ["--shared"]
        # The variable would make a server shared that was asked to be this client's own.
        kept = {name: value for name, value in environment.items() if name != f"{OWN_PREFIX}SHARED"}
        return start_server([*shared, *self.arguments], kept)


def start_server(arguments: list[str], environment: Mapping[str, str]) -> McpClient:
    """A client of a server on the pipes of a child. With `--shared` the child is a relay: it starts the shared server
    if needed, reconnects when that is restarted, and serves itself on platforms without shared servers.

    The child has its own process session, so that Ctrl-C in the terminal reaches only this process; it ends with us.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "claude_code_mcp", "serve", *arguments],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sink = process.stdin

    def write(data: bytes) -> None:
        sink.write(data)
        sink.flush()

    def leave() -> None:
        with contextlib.suppress(OSError):
            sink.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # It has had a minute since the end of its input, and this program must come to its end too.
            process.kill()
            process.wait()

    try:
        return LineClient(process.stdout, write, leave)
    except NotRunning as error:
        raise NoServer(f"The server could not be started: {error}.") from None


# -- async calls ------------------------------------------------------------------------------------------------------


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run a function in another thread. If the caller is cancelled, the thread continues and its result is dropped."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        # The caller may have been cancelled while the thread was at work.
        if not outcome.done():
            outcome.set_exception(error) if error is not None else outcome.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, problem = None, None
        try:
            value = function(*arguments, **named)
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the result is no longer needed
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
