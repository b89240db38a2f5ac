"""MCP over Streamable HTTP on the standard library: a connection for each request, so that any thread may make some.

The token goes to the server that was named and nowhere else: redirects are errors, and proxies are not used.
"""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ..errors import InvalidArgument
from ..shared.client import PROTOCOL_VERSION, CallFailed, McpClient, NotRunning, initialization, result_of

_TIMEOUT = 120.0
"""Seconds without a byte: longer than any call of ours waits."""
_LONGEST_ERROR = 500
_HTTP_UNAUTHORIZED = 401
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
            self._headers["Authorization"] = f"Bearer {_header_value(token)}"
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
            if session_id:
                self._headers["Mcp-Session-Id"] = session_id
            if request_id is None:
                return {}
            for answer in _messages(response):
                if answer.get("id") == request_id and "method" not in answer:
                    return answer
            raise NotRunning("the server has ended its answer too early")
        except (*_NO_ANSWER, ValueError) as error:
            raise NotRunning(f"{self._address.geturl()} does not answer: {_reason(error)}") from None
        finally:
            connection.close()


def _header_value(token: str) -> str:
    if not token.isascii() or not token.isprintable():
        raise InvalidArgument("The token has characters in it that no token has.")
    return token


def _reason(error: Exception) -> str:
    return "it took too long" if isinstance(error, socket.timeout) else str(error) or type(error).__name__


def _refusal(response: http.client.HTTPResponse) -> CallFailed:
    hint = " Set CLAUDE_CODE_MCP_TOKEN or give --token." if response.status == _HTTP_UNAUTHORIZED else ""
    body = response.read(_LONGEST_ERROR).decode("utf-8", "replace")
    return CallFailed(f"the server answered {response.status}.{hint} {body}".strip())


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
