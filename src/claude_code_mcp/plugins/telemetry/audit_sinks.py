"""Additional destinations of the audit trail: standard output, syslog (RFC 5424), or a collector over HTTP.

Every sink has a thread and a bounded queue: accepting a line never waits, and a slow or missing sink delays neither the
file nor other sinks. Failed deliveries are retried for a while, then counted and logged; the file has the lines in any
case. `close` waits a few seconds for the rest.
"""

import logging
import logging.handlers
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

import httpx2

from ...core.errors import InvalidArgument
from ...core.model.text import iso

log = logging.getLogger(__name__)

_CAPACITY = 10_000
_BATCH = 200
_TIMEOUT = 10.0
_TRIES = 5
_PAUSE = 0.5
"""Seconds before the second attempt; doubled for each later one."""
_LAST_WAIT = 5.0
_FACILITY = 13
"""The syslog facility: log audit."""


class Delivery(Protocol):
    """Delivers lines, including line breaks. Raises OSError or httpx2.HTTPError. Blocks."""

    def __call__(self, lines: Sequence[str]) -> None: ...
    def close(self) -> None: ...


class AuditSink:
    """One sink with its thread."""

    def __init__(self, name: str, deliver: Delivery, tries: int = _TRIES, pause: float = _PAUSE) -> None:
        self.name = name
        self._deliver = deliver
        self._tries = tries
        self._pause = pause
        self._queue: queue.Queue[str | None] = queue.Queue(_CAPACITY)
        self._closing = threading.Event()
        self.lost = 0
        """Lines that were not delivered."""
        self._thread = threading.Thread(target=self._run, name=f"audit-{name}", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Accepts a line from any thread, without waiting."""
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lose(1)

    def close(self) -> None:
        """Waits briefly for the rest."""
        self._closing.set()
        try:
            self._queue.put(None, timeout=_LAST_WAIT)
        except queue.Full:
            return
        self._thread.join(_LAST_WAIT)

    def _run(self) -> None:
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            ended = None in batch
            lines = [line for line in batch if line is not None]
            if lines and not self._delivered(lines):
                self._lose(len(lines))
        self._deliver.close()

    def _delivered(self, lines: Sequence[str]) -> bool:
        for number in range(self._tries):
            try:
                self._deliver(lines)
                return True
            except (OSError, httpx2.HTTPError) as error:
                if number == 0:
                    log.warning("the audit trail cannot be sent to %s: %s", self.name, error)
            # A server that stops does not wait for an unavailable collector.
            if self._closing.wait(self._pause * 2**number):
                return False
        return False

    def _lose(self, lines: int) -> None:
        self.lost += lines
        log.error("%d lines of the audit trail were not sent to %s; they are in its file", self.lost, self.name)


def make_sinks(names: Sequence[str], token: str | None, *, stdout: bool) -> list[AuditSink]:
    """The sinks in the settings. Raises InvalidArgument for an unusable one, such as `stdout` if the protocol uses it.
    Blocks briefly."""
    return [AuditSink(name, _delivery(name, token, stdout=stdout)) for name in names]


def _delivery(name: str, token: str | None, *, stdout: bool) -> Delivery:
    parts = urlsplit(name)
    try:
        if name == "stdout":
            if not stdout:
                raise InvalidArgument(
                    "CLAUDE_CODE_MCP_AUDIT_SINKS: standard output is used for the MCP client; choose another."
                )
            return _StandardOutput()
        if parts.scheme in ("syslog", "syslog+udp", "syslog+tcp"):
            return _Syslog(parts.scheme.rpartition("+")[2], parts.hostname, parts.port, parts.path)
        if parts.scheme in ("http", "https") and parts.hostname:
            if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
                raise InvalidArgument(
                    f"CLAUDE_CODE_MCP_AUDIT_SINKS: {name!r} would receive the audit trail unencrypted; use https."
                )
            return _Collector(name, token)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"CLAUDE_CODE_MCP_AUDIT_SINKS: {name!r} cannot be used: {error}.") from None
    raise InvalidArgument(
        f"CLAUDE_CODE_MCP_AUDIT_SINKS: {name!r} is not valid. Use stdout, syslog: (this machine's), "
        "syslog+udp://HOST:PORT, syslog+tcp://HOST:PORT or https://…"
    )


class _StandardOutput:
    def __call__(self, lines: Sequence[str]) -> None:
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def close(self) -> None:
        """The stream is not ours to close."""


class _RaisingHandler(logging.handlers.SysLogHandler):
    """Raises errors, which we retry, instead of printing them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name
        raise  # noqa: PLE0704 - called where it was caught


class _Syslog:
    """Python's own handler, with messages in RFC 5424 format."""

    def __init__(self, transport: str, host: str | None, port: int | None, path: str) -> None:
        address: tuple[str, int] | str = (host, port or 514) if host is not None else path or "/dev/log"
        kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
        handler = _RaisingHandler(address, _FACILITY, kind if host is not None else None)
        handler.append_nul = False
        self._end = "\n" if transport == "tcp" else ""
        self._handler = handler

    def __call__(self, lines: Sequence[str]) -> None:
        for line in lines:
            head = f"1 {iso(time.time())} {socket.gethostname()} claude-code-mcp {os.getpid()} audit - "
            text = f"{head}{line.rstrip()}{self._end}"
            self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, text.replace("%", "%%"), (), None))

    def close(self) -> None:
        self._handler.close()


class _Collector:
    """Posts lines unchanged (`application/x-ndjson`)."""

    def __init__(self, address: str, token: str | None) -> None:
        self._address = address
        headers = {"Content-Type": "application/x-ndjson"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx2.Client(timeout=_TIMEOUT, follow_redirects=False, headers=headers)

    def __call__(self, lines: Sequence[str]) -> None:
        answer = self._http.post(self._address, content="".join(lines).encode("utf-8", "replace"))
        if answer.status_code >= 300:
            raise OSError(f"it answered {answer.status_code}")

    def close(self) -> None:
        self._http.close()
