"""Our server as other programs meet it: a command to start, or an address to connect to."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS

COMMAND = str(Path(sys.executable).parent / "claude-code-mcp")
_START_SECONDS = HANG_SECONDS
_STOP_SECONDS = HANG_SECONDS


@dataclass(frozen=True, slots=True)
class Served:
    """Where a client finds the server: `url` with `headers`, or, without a url, `command`."""

    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = (COMMAND,)


@contextmanager
def serve_http(
    directory: Path,
    environment: Mapping[str, str],
    token: str | None = None,
    program: tuple[str, ...] = (COMMAND, "serve", "--http"),
    port: int | None = None,
) -> Iterator[Served]:
    """A server on loopback, stopped with SIGTERM at the end, which it must obey by ending well."""
    port = port or free_port()
    given = {
        "CLAUDE_CODE_MCP_PROFILE": "local",  # what remote callers may do is not what these tests are about
        **environment,
        **({"CLAUDE_CODE_MCP_TOKEN": token} if token else {}),
    }
    log = directory / "server.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*program, f"127.0.0.1:{port}"],
            cwd=directory,
            env=given,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )
    try:
        _await_health(process, f"http://127.0.0.1:{port}/health", log)
        yield Served(f"http://127.0.0.1:{port}/mcp", {"Authorization": f"Bearer {token}"} if token else {})
    finally:
        process.terminate()
        try:
            code = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert code == 0, f"the server ended with {code}: {log.read_text()[-2000:]}"


def _await_health(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:  # nobody listens yet, or nobody answers in time
            time.sleep(0.05)
    raise RuntimeError(f"the server did not come up: {log.read_text()[-2000:]}")
