"""MCP servers that live in this process and reach Claude Code over the control channel, as one of its processes meets
them: no program per session, and no port."""

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from ..claude.frames import ControlRequest, Raw
from ..claude.process import ClaudeProcess
from ..errors import ClaudeCodeError, ProcessFailed
from ..model.question import AskPerson
from ..model.text import one_line

log = logging.getLogger(__name__)

_NO_ANSWER = {"jsonrpc": "2.0", "result": {}, "id": 0}
"""What the CLI wants to hear where JSON-RPC has nothing to say."""
_BETWEEN_LINES = 0.5
_LONGEST = 200


class McpEndpoint(Protocol):
    """One server, as one process meets it."""

    async def answer(self, message: dict[str, Any]) -> dict[str, Any] | None: ...

    def close(self) -> None: ...


class McpServerHost(Protocol):
    """Whoever has the servers."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of all there are."""

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The names of the servers that a session gets: all that may be used, or those of them it wants."""

    def endpoint(
        self, server: str, push: Callable[[dict[str, Any]], None], *, caller: str, ask: AskPerson
    ) -> McpEndpoint:
        """The server for one process; `push` takes what that did not ask for, `ask` what a person must fill in."""


class McpBridge:
    """The servers that one process was promised. Endpoints are made when they are first spoken to."""

    def __init__(
        self,
        host: McpServerHost,
        servers: tuple[str, ...],
        caller: str,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
        tell: Callable[[str], None],
        ask: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> None:
        """`tell` takes lines for those who watch the session, `ask` the name of a server and a form of its."""
        self._host = host
        self._caller = caller
        self._start_task = start_task
        self._tell = tell
        self._ask = ask
        self._told_at = 0.0
        self._endpoints: dict[str, McpEndpoint] = {}
        self.servers = servers

    @property
    def configuration(self) -> dict[str, dict[str, str]]:
        """How the CLI is told of them on its command line."""
        return {name: {"type": "sdk", "name": name} for name in self.servers}

    def take(self, process: ClaudeProcess, frame: ControlRequest) -> None:
        """A message of the CLI to one of the servers; the answer follows when there is one."""
        self._start_task(self._answer(process, frame))

    async def _answer(self, process: ClaudeProcess, frame: ControlRequest) -> None:
        server, message = frame.request.get("server_name"), frame.request.get("message")
        if server not in self.servers or not isinstance(message, dict):
            process.refuse(frame.id, f"there is no MCP server {server!r} here")
            return
        try:
            answer = await self._endpoint(process, str(server)).answer(message)
            process.answer(frame.id, {"mcp_response": answer or _NO_ANSWER})
        except ClaudeCodeError as error:
            process.refuse(frame.id, error.message)
        except Exception:  # whatever it is, the CLI must not wait for an answer that never comes
            log.exception("a message to the MCP server %s could not be answered", server)
            process.refuse(frame.id, f"the message to the MCP server {server!r} could not be answered")

    def _endpoint(self, process: ClaudeProcess, server: str) -> McpEndpoint:
        if server not in self._endpoints:

            def push(message: Raw) -> None:
                self._tell_progress(server, message)
                self._start_task(_push(process, server, message))

            self._endpoints[server] = self._host.endpoint(
                server, push, caller=self._caller, ask=partial(self._ask, server)
            )
        return self._endpoints[server]

    def _tell_progress(self, server: str, message: Raw) -> None:
        """Claude Code takes reports of progress and says nothing of them, so whoever watches hears them from us."""
        now = time.monotonic()
        if message.get("method") == "notifications/progress" and now - self._told_at >= _BETWEEN_LINES:
            self._told_at = now
            self._tell(f"[progress] {server}: {_progress(message.get('params') or {})}")

    def close(self) -> None:
        """The process is gone, or will be."""
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()


def _progress(params: Raw) -> str:
    total = params.get("total")
    done = f"{params.get('progress', 0):g}" + (f" of {total:g}" if total else "")
    words = one_line(str(params.get("message") or ""), _LONGEST)
    return f"{done} {words}".strip()


async def _push(process: ClaudeProcess, server: str, message: Raw) -> None:
    try:
        await process.request("mcp_message", timeout=10, server_name=server, message=message)
    except ProcessFailed as error:
        log.debug("a message of %s did not reach its session: %s", server, error.message)
