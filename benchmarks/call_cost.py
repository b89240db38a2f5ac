"""A server as a process of its own, and the cheapest client that makes one call to it: it parses no notification."""

import contextlib
import http.client
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .wire import INITIALIZE, INITIALIZED, encode_message

_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2025-11-25",
}
_NOTIFIED = b'"method":"claude-code/messages"'
_ANSWERED = b'"id":2'


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call cost the server."""

    messages: int
    cpu: float
    grown: int

    @property
    def cpu_per_thousand(self) -> float:
        """Milliseconds of processor time for each thousand notifications."""
        return self.cpu * 1e6 / self.messages

    @property
    def grown_mb(self) -> float:
        return self.grown / (1 << 20)


def tool_call(name: str, arguments: dict[str, Any]) -> bytes:
    return encode_message("tools/call", 2, name=name, arguments=arguments)


class _Watch:
    """The processor time and the largest size of a process, while this lasts."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> "_Watch":
        self._cpu = self._cpu_seconds()
        self._before = self._largest = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu = self._cpu_seconds() - self._cpu
        self._over.set()
        self._thread.join()
        self.grown = self._largest - self._before

    def _sample(self) -> None:
        while not self._over.wait(0.05):
            self._largest = max(self._largest, self._process.memory_info().rss)

    def _cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def over_stdio(command: Sequence[str], environment: Mapping[str, str], cwd: Path, first: bytes, message: bytes) -> Cost:
    """What the call `message` costs a server that has answered `first`, so that it has loaded all that it needs."""
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(INITIALIZE + INITIALIZED + encode_message("ping", 1))
        stdin.flush()
        stdout.readline()
        stdout.readline()  # the greeting answered the first; now what is loaded behind it is there
        stdin.write(first)
        stdin.flush()
        _count(stdout)
        with _Watch(process.pid) as watch:
            stdin.write(message)
            stdin.flush()
            messages = _count(stdout)
        process.communicate()
    return Cost(messages, watch.cpu, watch.grown)


def over_http(
    command: Sequence[str], port: int, environment: Mapping[str, str], cwd: Path, first: bytes, message: bytes
) -> Cost:
    """The same over HTTP."""
    with _serving(command, port, environment, cwd) as pid:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        session = _post(connection, INITIALIZE)
        session_id = session.getheader("mcp-session-id") or ""
        session.read()
        _post(connection, INITIALIZED, session_id).read()
        connection.close()
        _call(port, first, session_id)
        with _Watch(pid) as watch:
            messages = _call(port, message, session_id)
    return Cost(messages, watch.cpu, watch.grown)


def _call(port: int, message: bytes, session_id: str) -> int:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        return _count(_post(connection, message, session_id))


def _post(connection: http.client.HTTPConnection, message: bytes, session_id: str = "") -> http.client.HTTPResponse:
    headers = {**_HEADERS, "Mcp-Session-Id": session_id} if session_id else _HEADERS
    connection.request("POST", "/mcp", message, headers)
    return connection.getresponse()


def _count(lines: Any) -> int:
    """The notifications up to the answer."""
    count = 0
    for line in lines:
        if _NOTIFIED in line:
            count += 1
        elif _ANSWERED in line:
            return count
    raise AssertionError("no answer came")


@contextmanager
def _serving(command: Sequence[str], port: int, environment: Mapping[str, str], cwd: Path) -> Iterator[int]:
    with subprocess.Popen(command, env=environment, cwd=cwd, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield process.pid
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise AssertionError("the server did not start")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
