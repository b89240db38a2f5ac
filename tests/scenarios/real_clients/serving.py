"""Our server as other programs meet it: a command to start, or an address to connect to."""

import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port
from tests.support.program import COMMAND, OURS, started
from tests.support.waiting import until


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
    program: Sequence[str] = (OURS, "serve", "--http"),
    port: int | None = None,
) -> Iterator[Served]:
    """A real server on loopback, which must end with exit code 0."""
    given = {
        "CLAUDE_CODE_MCP_PROFILE": "local",  # these tests are not about the limits of remote callers
        **environment,
        **({"CLAUDE_CODE_MCP_TOKEN": token} if token else {}),
    }
    address = f"127.0.0.1:{port or free_port()}"
    with started([*program, address], given, directory, real=True) as server:
        until(lambda: _is_healthy(f"http://{address}/health") or server.process.poll() is not None)
        assert server.process.poll() is None, server.said
        yield Served(f"http://{address}/mcp", {"Authorization": f"Bearer {token}"} if token else {})


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:  # it does not listen yet, or does not answer in time
        return False
