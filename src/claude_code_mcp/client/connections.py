"""Which server a command talks to: the shared one of this user, one at a URL, or one that it starts for itself."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ClaudeCodeError
from ..processes.environment import OWN_PREFIX
from ..shared.client import LineClient, McpClient, NotRunning, join
from .http_client import HttpSession

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
    def _arguments(self) -> list[str]:
        return ["--config", self.config] if self.config else []

    def join(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a server that runs. ClaudeCodeError if there is none."""
        try:
            if self.url:
                return HttpSession(self.url, self.token or environment.get(_TOKEN))
            return join(environment, arguments=self._arguments)
        except NotRunning as error:
            hint = "" if self.url else " `claude-code-mcp shared start` starts one, as does a client with --shared."
            raise ClaudeCodeError(f"No server: {error}.{hint}") from None

    def open(self, environment: Mapping[str, str] = os.environ) -> McpClient:
        """A client of a server that runs or is started now: the shared one where there can be one, else one that ends
        with this client."""
        if self.url:
            return self.join(environment)
        shared = [] if self.own else ["--shared"]
        kept = {name: value for name, value in environment.items() if name != f"{OWN_PREFIX}SHARED"}
        return start_server([*shared, *self._arguments], kept)


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
            process.kill()
            process.wait()

    try:
        return LineClient(process.stdout, write, leave)
    except NotRunning as error:
        raise ClaudeCodeError(f"The server could not be started: {error}.") from None
