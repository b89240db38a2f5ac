"""Bridges the MCP servers of the hub to one Claude Code process, over the control channel that is open anyway.

The process needs no program per server and no port. Every request of the CLI gets an answer or a refusal, whatever
happens to the server: the CLI would wait forever otherwise.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ..claude.process import ClaudeProcess
from ..claude.protocol import ControlRequest, Raw
from ..errors import ClaudeCodeError, PermissionDenied, ProcessFailed
from ..model.question import AskPerson
from ..model.text import one_line
from ..model.tool_names import prefix_of, server_names
from .policy_enforcer import PolicyEnforcer

log = logging.getLogger(__name__)

_NO_ANSWER = {"jsonrpc": "2.0", "result": {}, "id": 0}
"""What the CLI expects as the response to a JSON-RPC notification, which has none."""
_DENIED = -32000
_PROGRESS_INTERVAL = 0.5
_PROGRESS_LENGTH = 200
_PUSH_TIMEOUT = 10
_SET_TIMEOUT = 60


class McpEndpoint(Protocol):
    """One server, for one process."""

    async def answer(self, message: Raw) -> Raw | None:
        """The response to a JSON-RPC message; None for a notification."""

    def close(self) -> None:
        """Ends it, with its calls in flight."""

    def retire(self) -> None:
        """Ends it; calls in flight end as the server ends them."""

    def take_over(self) -> None:
        """Goes on for a process that knows the server already, and has it ask for everything anew."""


class McpServerHost(Protocol):
    """The hub, as far as sessions use it."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of all servers."""

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The names of the servers that a session gets: all that may be used, or those of them it wants."""

    def watch_servers(self, watcher: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Calls back with the names of servers that were added, replaced, removed or enabled, until the function that
        it returns is called."""

    async def expand_prompt(
        self, server: str, prompt: str, arguments: Sequence[str], *, caller: str, directory: str
    ) -> str | None:
        """The text of a prompt, by its name as it is in commands, with its arguments in order; None if there is none
        of that name."""

    def endpoint(
        self, server: str, push: Callable[[Raw], None], *, caller: str, directory: str, ask: AskPerson
    ) -> McpEndpoint:
        """The server for one process in a directory; `push` takes its notifications and requests, `ask` forms for a
        person."""


def usable_servers(
    host: McpServerHost, wanted: tuple[str, ...] | None, enforcer: PolicyEnforcer, principal: str
) -> dict[str, str]:
    """From the name that Claude Code gets to the server: those that a session wants (None: all) and that may be used,
    but for those that the principal's policy denies as a whole. What a session is not given it cannot call."""
    named = server_names(host.offered(wanted))
    return {name: server for name, server in named.items() if enforcer.may_use_server(principal, name, server)}


async def expand_prompt(host: McpServerHost, text: str, servers: Mapping[str, str], caller: str, directory: str) -> str:
    """A message `/mcp__server__prompt arguments` as the text of that prompt; unchanged if none of the servers has it.
    `servers` are those of `usable_servers`. Claude Code has such commands for servers that it connects to itself, and
    for no others.

    Raises ClaudeCodeError where the server cannot be had or refuses.
    """
    command, _, arguments = text[1:].partition(" ")
    for name, server in servers.items():
        if command.startswith(prefix_of(name)):
            prompt = command.removeprefix(prefix_of(name))
            expanded = await host.expand_prompt(server, prompt, arguments.split(), caller=caller, directory=directory)
            if expanded is not None:
                return expanded
    return text


class McpBridge:
    """The servers that one process has: those it was started with, and those that came to the hub since. An endpoint is
    made at the first message to its server."""

    def __init__(
        self,
        host: McpServerHost,
        usable: Callable[[], dict[str, str]],
        caller: str,
        directory: str,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
        redact: Callable[[Any], Any],
        report_progress: Callable[[str], None],
        ask: Callable[[str, Raw], Awaitable[Raw]],
    ) -> None:
        """`usable` returns the servers that the session may have now, by the names they have there; `report_progress`
        takes readable lines for the session's log, `ask` the name of a server and its form."""
        self._host = host
        self._caller = caller
        self._directory = directory
        self._start_task = start_task
        self._redact = redact
        self._report_progress = report_progress
        self._ask = ask
        self._progress_at = 0.0
        self._endpoints: dict[str, McpEndpoint] = {}
        self._usable = usable
        self._servers = usable()
        self._announced = self._servers
        """What the process knows; it is started with those of now."""
        self._process: ClaudeProcess | None = None
        self._announcing = asyncio.Lock()
        self._unwatch = host.watch_servers(self._on_servers_changed)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names under which the process knows the servers."""
        return tuple(self._servers)

    @property
    def configuration(self) -> dict[str, dict[str, str]]:
        """The entries for them in the CLI's MCP configuration."""
        return {name: {"type": "sdk", "name": name} for name in self.servers}

    def forward(
        self,
        process: ClaudeProcess,
        frame: ControlRequest,
        permit: Callable[[], Awaitable[None]],
        failed: Callable[[], None] | None = None,
    ) -> None:
        """Passes a message of the CLI to its server, once `permit` has returned, in a task that answers the request.
        PermissionDenied of `permit` is the answer then. `failed` is called if the server had no result for it."""
        self._start_task(self._answer(process, frame, permit, failed or (lambda: None)))

    async def _answer(
        self,
        process: ClaudeProcess,
        frame: ControlRequest,
        permit: Callable[[], Awaitable[None]],
        failed: Callable[[], None],
    ) -> None:
        name, message = str(frame.request.get("server_name")), frame.request.get("message")
        server = self._servers.get(name)
        if server is None or not isinstance(message, dict):
            process.refuse(frame.id, f"there is no MCP server {name!r} here")
            return
        try:
            await permit()
            # Looked up after the permission, which may take minutes: the server may have been replaced meanwhile.
            answer = await self._endpoint(process, name, server).answer(message)
            if answer is None or "result" not in answer:
                failed()
            process.answer(frame.id, {"mcp_response": answer or _NO_ANSWER})
        except PermissionDenied as denial:
            process.answer(frame.id, {"mcp_response": _error(message.get("id"), denial.message)})
        except ClaudeCodeError as error:
            process.refuse(frame.id, error.message)
        except Exception:  # whatever it is, the CLI must not wait for an answer that never comes
            log.exception("a message from %s to the MCP server %s could not be answered", self._caller, server)
            process.refuse(frame.id, f"the message to the MCP server {server!r} could not be answered")

    def _endpoint(self, process: ClaudeProcess, name: str, server: str) -> McpEndpoint:
        if server not in self._endpoints:

            def push(message: Raw) -> None:
                self._log_progress(server, message)
                # A task for each: the server's own messages must not wait until Claude Code has taken this one.
                self._start_task(_push(process, name, message))

            self._endpoints[server] = self._host.endpoint(
                server, push, caller=self._caller, directory=self._directory, ask=partial(self._ask, server)
            )
        return self._endpoints[server]

    def _log_progress(self, server: str, message: Raw) -> None:
        """Claude Code takes progress notifications without reporting them, so we log them ourselves, some of them."""
        now = time.monotonic()
        if message.get("method") != "notifications/progress" or now - self._progress_at < _PROGRESS_INTERVAL:
            return
        self._progress_at = now
        params = message.get("params") or {}
        total = params.get("total")
        progress = _number_text(params.get("progress", 0)) + (f" of {_number_text(total)}" if total else "")
        # Redacted before it is cut: half of a secret could not be recognised.
        text = one_line(str(self._redact(str(params.get("message") or ""))), _PROGRESS_LENGTH)
        self._report_progress(f"[progress] {server}: {f'{progress} {text}'.strip()}")

    def close(self) -> None:
        """Closes the endpoints, because the process is about to end."""
        self._unwatch()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()

    # -- when the servers change ------------------------------------------------------------------------------

    def follow(self, process: ClaudeProcess) -> None:
        """From now on the process is told of servers that come and go."""
        self._process = process
        # Servers came or went while it started, when it could not be told.
        if self._announced != self._servers:
            self._start_task(self._announce(process))

    def _on_servers_changed(self, changed: frozenset[str]) -> None:
        known = {*self._servers.values()}
        # One that is disabled stays known, with no tools: the model goes on naming them, and may get them back.
        there = [name for name in self._servers.values() if name in self._host.servers]
        offered = self._usable().values()
        self._servers = server_names([*there, *(name for name in offered if name not in known)])
        for name in changed & {*self._endpoints}:
            self._endpoints.pop(name).retire()
        process = self._process
        if process is None:
            return
        # Those that it knows have had their handshake: the new endpoint goes on from there.
        for name, server in self._servers.items():
            if server in changed and server in known:
                self._endpoint(process, name, server).take_over()
        if self._servers != self._announced:
            self._start_task(self._announce(process))

    async def _announce(self, process: ClaudeProcess) -> None:
        """Tells the process which servers there are. A CLI that cannot be told has them when it is started next."""
        # One at a time: an older list must not come behind a newer one.
        async with self._announcing:
            # Noted before the request: what changes while that runs is announced by the next call.
            servers = self._servers
            if servers == self._announced:
                return
            try:
                # This replaces the servers of this kind alone: those that the session brought itself stay.
                await process.request("mcp_set_servers", timeout=_SET_TIMEOUT, servers=self.configuration)
                self._announced = servers
            except ClaudeCodeError as error:
                log.info("could not send a session its list of MCP servers: %s", error.message)


async def _push(process: ClaudeProcess, server: str, message: Raw) -> None:
    try:
        await process.request("mcp_message", timeout=_PUSH_TIMEOUT, server_name=server, message=message)
    except ProcessFailed as error:
        log.debug("a message from %s did not reach its session: %s", server, error.message)


def _error(id_: object, message: str) -> Raw:
    return {"jsonrpc": "2.0", "id": id_, "error": {"code": _DENIED, "message": message}}


def _number_text(value: object) -> str:
    """A number of a progress report; servers send texts there too."""
    return f"{value:g}" if isinstance(value, int | float) else one_line(str(value), 20)
