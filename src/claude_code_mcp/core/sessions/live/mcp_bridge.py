"""Bridges the hub's MCP servers to one Claude Code process, over its control channel.

The process needs neither a program per server nor a port. Every request of the CLI gets an answer or a refusal,
whatever happens to the server; otherwise the CLI would wait forever.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from ...claude.process import ClaudeProcess
from ...claude.protocol import ControlRequest, Raw
from ...errors import ClaudeCodeError, PermissionDenied, ProcessFailed
from ...model.question import AskPerson
from ...model.text import one_line
from ...model.tool_names import prefix_of, server_names
from ..background_tasks import StartTask
from ..callers.policy_enforcer import PolicyEnforcer

log = logging.getLogger(__name__)

_NO_ANSWER = {"jsonrpc": "2.0", "result": {}, "id": 0}
"""What the CLI expects as the response to a JSON-RPC notification, which has none."""
_DENIED = -32000
_PROGRESS_INTERVAL = 0.5
_PROGRESS_LENGTH = 200
_PUSH_TIMEOUT = 10
_SET_TIMEOUT = 60


class McpEndpoint(Protocol):
    """A connection of one process to one server."""

    async def answer(self, message: Raw) -> Raw | None:
        """The response to a JSON-RPC message; None for a notification."""

    def close(self) -> None:
        """Close it and cancel its calls in flight."""

    def retire(self) -> None:
        """Close it; calls in flight end when the server ends them."""

    def take_over(self) -> None:
        """Continue for a process that already knows the server, and make it request all lists again."""


class SessionHub(Protocol):
    """The hub, as far as sessions use it."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of all servers."""

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The names of the servers that a session gets: all usable ones, or the wanted ones among them."""

    def watch_servers(self, watcher: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call `watcher` with the names of servers that were added, replaced, removed or enabled. Returns a function
        that stops this."""

    async def expand_prompt(
        self, server: str, prompt: str, arguments: Sequence[str], *, caller: str, directory: str
    ) -> str | None:
        """The text of a prompt by its command name, with its arguments in order; None if there is no such prompt."""

    def endpoint(
        self, server: str, push: Callable[[Raw], None], *, caller: str, directory: str, ask: AskPerson
    ) -> McpEndpoint:
        """A connection to the server for one process in a directory; `push` gets its notifications and requests, `ask`
        its forms."""


def usable_servers(
    hub: SessionHub, wanted: tuple[str, ...] | None, enforcer: PolicyEnforcer, principal: str
) -> dict[str, str]:
    """Maps the names that Claude Code sees to servers: those that a session wants (None: all) and may use, except those
    that the principal's policy denies entirely. A session cannot call other servers."""
    named = server_names(hub.offered(wanted))
    return {name: server for name, server in named.items() if enforcer.may_use_server(principal, name, server)}


async def expand_prompt(hub: SessionHub, text: str, servers: Mapping[str, str], caller: str, directory: str) -> str:
    """Expand a message `/mcp__server__prompt arguments` to the text of that prompt; unchanged if no server has it.
    `servers` come from `usable_servers`. Claude Code has such commands only for servers that it connects to itself.

    Raises ClaudeCodeError if the server is unavailable or refuses.
    """
    command, _, arguments = text[1:].partition(" ")
    for name, server in servers.items():
        if command.startswith(prefix_of(name)):
            prompt = command.removeprefix(prefix_of(name))
            expanded = await hub.expand_prompt(server, prompt, arguments.split(), caller=caller, directory=directory)
            if expanded is not None:
                return expanded
    return text


class McpBridge:
    """The servers of one process: those it was started with, and those added to the hub since. An endpoint is created
    at the first message to its server."""

    def __init__(
        self,
        hub: SessionHub,
        usable: Callable[[], dict[str, str]],
        caller: str,
        directory: str,
        start_task: StartTask,
        redact: Callable[[Any], Any],
        report_progress: Callable[[str], None],
        ask: Callable[[str, Raw], Awaitable[Raw]],
    ) -> None:
        """`usable` returns the servers that the session may use now, by their names there; `report_progress` gets
        readable lines for the session's log, `ask` the name of a server and its form."""
        self._hub = hub
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
        """The servers that the process knows; it is started with the current ones."""
        self._process: ClaudeProcess | None = None
        self._announcing = asyncio.Lock()
        self._closed = False
        self._unwatch = hub.watch_servers(self._on_servers_changed)

    @property
    def servers(self) -> tuple[str, ...]:
        """The names under which the process knows the servers."""
        return tuple(self._servers)

    @property
    def configuration(self) -> dict[str, dict[str, str]]:
        """The entries for them in the CLI's MCP configuration."""
        return {name: {"type": "sdk", "name": name} for name in self.servers}

    async def answer(
        self,
        process: ClaudeProcess,
        frame: ControlRequest,
        permit: Callable[[], Awaitable[None]],
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Pass a message of the CLI to its server after `permit` returns, and answer the request. PermissionDenied from
        `permit` becomes the answer. `failed` is called if the server gives no result."""
        name, message = str(frame.request.get("server_name")), frame.request.get("message")
        server = self._servers.get(name)
        if server is None or not isinstance(message, dict):
            process.refuse(frame.id, f"there is no MCP server {name!r} here")
            return
        try:
            await permit()
            # The process may have been left before this task ran, or while a person was asked.
            if self._closed:
                process.refuse(frame.id, "the session's process is being closed")
                return
            # Looked up after the permission, which may take minutes: the server may have been replaced by then.
            answer = await self._endpoint(process, name, server).answer(message)
            if answer is None or "result" not in answer:
                failed()
            process.answer(frame.id, {"mcp_response": answer or _NO_ANSWER})
        except PermissionDenied as denial:
            error = {"code": _DENIED, "message": denial.message}
            process.answer(frame.id, {"mcp_response": {"jsonrpc": "2.0", "id": message.get("id"), "error": error}})
        except ClaudeCodeError as failure:
            process.refuse(frame.id, failure.message)
        except Exception:  # the CLI must always get an answer
            log.exception("a message from %s to the MCP server %s could not be answered", self._caller, server)
            process.refuse(frame.id, f"the message to the MCP server {server!r} could not be answered")

    def _endpoint(self, process: ClaudeProcess, name: str, server: str) -> McpEndpoint:
        if server not in self._endpoints:

            def push(message: Raw) -> None:
                self._log_progress(server, message)
                # A task for each: the server's messages must not wait until Claude Code has accepted this one.
                self._start_task(_push(process, name, message))

            self._endpoints[server] = self._hub.endpoint(
                server, push, caller=self._caller, directory=self._directory, ask=partial(self._ask, server)
            )
        return self._endpoints[server]

    def _log_progress(self, server: str, message: Raw) -> None:
        """Log some progress notifications, because Claude Code does not report them."""
        now = time.monotonic()
        if message.get("method") != "notifications/progress" or now - self._progress_at < _PROGRESS_INTERVAL:
            return
        self._progress_at = now
        params = message.get("params") or {}
        total = params.get("total")
        progress = _number_text(params.get("progress", 0)) + (f" of {_number_text(total)}" if total else "")
        # Redacted before it is truncated: part of a secret could not be recognized.
        text = one_line(str(self._redact(str(params.get("message") or ""))), _PROGRESS_LENGTH)
        self._report_progress(f"[progress] {server}: {f'{progress} {text}'.strip()}")

    def close(self) -> None:
        """Close the endpoints, because the process is about to end; no message reaches a server afterward."""
        self._closed = True
        self._unwatch()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._endpoints.clear()

    # -- when the servers change ------------------------------------------------------------------------------

    def follow(self, process: ClaudeProcess) -> None:
        """Announce server changes to the process from now on."""
        self._process = process
        # Servers changed while it started, when it could not be notified.
        if self._announced != self._servers:
            self._start_task(self._announce(process))

    def _on_servers_changed(self, changed: frozenset[str]) -> None:
        known = {*self._servers.values()}
        # A disabled server stays known, without tools: the model keeps naming them, and may get them back.
        there = [name for name in self._servers.values() if name in self._hub.servers]
        offered = self._usable().values()
        self._servers = server_names([*there, *(name for name in offered if name not in known)])
        for name in changed & {*self._endpoints}:
            self._endpoints.pop(name).retire()
        process = self._process
        if process is None:
            return
        # Known servers have completed their handshake: the new endpoint continues from there.
        for name, server in self._servers.items():
            if server in changed and server in known:
                self._endpoint(process, name, server).take_over()
        if self._servers != self._announced:
            self._start_task(self._announce(process))

    async def _announce(self, process: ClaudeProcess) -> None:
        """Send the process the list of servers. A CLI that cannot receive it gets them at its next start."""
        # One at a time: an older list must not follow a newer one.
        async with self._announcing:
            # Noted before the request: changes during it are announced by the next call.
            servers = self._servers
            if servers == self._announced:
                return
            try:
                # This replaces only servers of this kind: the session's own servers stay.
                await process.request("mcp_set_servers", timeout=_SET_TIMEOUT, servers=self.configuration)
                self._announced = servers
            except ClaudeCodeError as error:
                log.info("could not send a session its list of MCP servers: %s", error.message)


async def _push(process: ClaudeProcess, server: str, message: Raw) -> None:
    try:
        await process.request("mcp_message", timeout=_PUSH_TIMEOUT, server_name=server, message=message)
    except ProcessFailed as error:
        log.debug("a message from %s did not reach its session: %s", server, error.message)


def _number_text(value: object) -> str:
    """A number of a progress report; some servers send strings."""
    return f"{value:g}" if isinstance(value, int | float) else one_line(str(value), 20)
