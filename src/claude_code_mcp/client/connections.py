"""Which server a command talks to, and MCP over HTTP on the standard library.

The token goes to the server that was named and nowhere else: redirects are errors, and proxies are not used.

The threads are daemons: a call that waits at the server for something to happen keeps no program from ending, and one
whose caller has gone ends by itself, with nobody to tell.
"""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from urllib.parse import SplitResult, urlsplit

from ..errors import ClaudeCodeError, InvalidArgument
from ..processes.environment import OWN_PREFIX
from ..shared.client import (
    PROTOCOL_VERSION,
    CallFailed,
    LineClient,
    McpClient,
    NotRunning,
    initialization,
    join,
    result_of,
)


class NoServer(ClaudeCodeError):
    """There is no server to talk to, and none could be started."""

    code = "UNAVAILABLE"


_TIMEOUT = 120.0
"""Seconds without a byte: longer than any call of ours waits."""
_LONGEST_ERROR = 500
_HTTP_UNAUTHORIZED = 401
_NOT_LET_IN = (_HTTP_UNAUTHORIZED, 403)
_NO_ANSWER = (OSError, http.client.HTTPException)


def address_of(url: str) -> SplitResult:
    """The parts of an address such as `http://host:8765/mcp` or `host:8765`. InvalidArgument if it is none."""
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
                raise InvalidArgument("The token has characters in it that no token has.")
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
                pass  # the server forgets us by itself
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

    def _connection(self, timeout: float = _TIMEOUT) -> http.client.HTTPConnection:
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
            raise NotRunning("the server has ended its answer too early")
        except (*_NO_ANSWER, ValueError) as error:
            reason = "it took too long" if isinstance(error, socket.timeout) else str(error) or type(error).__name__
            raise NotRunning(f"{self._address.geturl()} does not answer: {reason}") from None
        finally:
            connection.close()


def _refusal(response: http.client.HTTPResponse) -> CallFailed:
    hint = " Set CLAUDE_CODE_MCP_TOKEN or give --token." if response.status == _HTTP_UNAUTHORIZED else ""
    body = response.read(_LONGEST_ERROR).decode("utf-8", "replace")
    code = "PERMISSION_DENIED" if response.status in _NOT_LET_IN else ""
    return CallFailed(f"the server answered {response.status}.{hint} {body}".strip(), code)


def _messages(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """What a response says: one JSON object, or a stream of events."""
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
    """The server that was asked for: the shared one, unless there is a URL or it is to be `own`."""

    url: str | None = None
    token: str | None = None
    config: str | None = None
    """A file with settings, which the shared server was started with."""
    own: bool = False

    @property
    def arguments(self) -> list[str]:
        """Those of the shared server, by which it is found."""
        return ["--config", self.config] if self.config else []

    def join(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a server that runs. ClaudeCodeError if there is none."""
        try:
            if self.url:
                return HttpSession(self.url, self.token or environment.get(_TOKEN))
            return join(environment, arguments=self.arguments)
        except NotRunning as error:
            hint = "" if self.url else " `claude-code-mcp shared start` starts one, as does a client with --shared."
            raise NoServer(f"No server: {error}.{hint}") from None

    def open(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a server that runs or is started now: the shared one where there can be one, else one that ends
        with this client."""
        if self.url:
            return self.join(environment)
        shared = [] if self.own else ["--shared"]
        # The variable would make a server shared that was asked to be this client's own.
        kept = {name: value for name, value in environment.items() if name != f"{OWN_PREFIX}SHARED"}
        return start_server([*shared, *self.arguments], kept)


def start_server(arguments: list[str], environment: Mapping[str, str]) -> McpClient:
    """A client of a server on the pipes of a child. With `--shared` the child is a relay: it starts the shared server
    if need be, stays connected when that is restarted, and serves by itself where there can be none.

    The child is in a session of its own, so that Ctrl-C in the terminal reaches us alone; it ends when we do.
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
    """What a function returns or raises in another thread. Cancelled, the thread goes on and its result is dropped."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
