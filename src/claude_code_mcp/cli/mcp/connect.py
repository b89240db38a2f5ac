"""`mcp connect`: an interactive client for one server, in a terminal or on a pipe.

Commands are read line by line and run one after another; a failed command is reported and the next one is read.
Notifications of the server and changes of the connection are shown as they arrive.
"""

import argparse
import asyncio
import math
import os
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from mcp import MCPError

from ...core.config import load_settings
from ...core.errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ...core.model.text import count_of
from ...hub.config_entry import InvalidEntry, parse_entry
from ...hub.config_files import ConfigScope, ConfiguredServer, HubConfig
from ...hub.hub import Hub
from ...hub.transports.transport_factory import has_oauth
from .configure import load_configuration, raw_entry, select_servers
from .live import (
    OperationResult,
    call_tool,
    command_hub,
    complete,
    get_prompt,
    list_prompts,
    list_resources,
    list_tools,
    read_resource,
    run_action,
    server_name,
    sign_in,
    text_arguments,
)
from .prompts import QuestionPrompter
from .terminal import Screen, notification_line, one_line

_NOT_ANNOUNCED = {"notifications/progress", "notifications/cancelled"}
_SIGN_IN_SECONDS = 300.0
_COMMANDS = {
    "tools": ("", "list the tools"),
    "call": ("NAME [JSON | A=B …]", "call a tool"),
    "resources": ("", "list the resources"),
    "read": ("URI", "read a resource"),
    "prompts": ("", "list the prompts"),
    "prompt": ("NAME [JSON | A=B …]", "get a prompt"),
    "complete": ("NAME ARGUMENT [BEGINNING]", "show the server's completions for an argument"),
    "watch": ("[URI …] [SECONDS]", "show notifications only; Ctrl-C stops"),
    "help": ("", "show this list"),
    "quit": ("", "exit, like Ctrl-C and the end of input (Ctrl-D)"),
}
_HELP = "\n".join(f"{f'{name} {usage}':<36}{summary}" for name, (usage, summary) in _COMMANDS.items())
_EDITING_HELP = """
Tab completes; arrows and Ctrl-R find earlier commands; lines that begin with a space are not saved."""
_NOTES_HELP = """
Notifications of the server appear as they arrive, marked with *."""


def connect(arguments: argparse.Namespace) -> int:
    server = _server(arguments)

    async def connected() -> int:
        client = InteractiveClient(server)
        async with command_hub(HubConfig({server.name: server}), client.announce) as hub:
            return await client.run(hub)

    return run_action(connected())


def _server(arguments: argparse.Namespace) -> ConfiguredServer:
    if arguments.kind == "server":
        return select_servers(load_configuration(arguments), [arguments.name]).servers[arguments.name]
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.url is None and not command:
        raise InvalidArgument("Which program? claude-code-mcp mcp connect stdio COMMAND [ARGUMENT …]")
    entry = raw_entry(command, arguments.url, arguments.kind, arguments.header, arguments.env)
    try:
        name = Path(command[0]).name if arguments.url is None else urlsplit(arguments.url).hostname or arguments.kind
    except ValueError:
        raise InvalidArgument("This is not a valid URL.") from None
    try:
        return ConfiguredServer(name, parse_entry(name, entry, os.environ), ConfigScope.OWN)
    except InvalidEntry as error:
        raise InvalidArgument(f"This server cannot be connected to: {error}.") from None


class InteractiveClient:
    """Reads commands and runs them one after another.

    Ctrl-C in a terminal cancels the running command, and ends the client if none is running; on a pipe it always ends
    the client.
    """

    _hub: Hub

    def __init__(self, server: ConfiguredServer) -> None:
        self._config = server.config
        self._server = server.name
        self._session = anyio.CancelScope()
        self._current: anyio.CancelScope | None = None
        self._screen = _make_screen(server.name, self._interrupt)
        self._commands: dict[str, Callable[[str], Awaitable[OperationResult | None]]] = {
            "tools": lambda _: list_tools(self._hub, self._server),
            "call": self._call,
            "resources": lambda _: list_resources(self._hub, self._server),
            "read": self._read,
            "prompts": lambda _: list_prompts(self._hub, self._server),
            "prompt": self._prompt,
            "complete": self._complete,
            "watch": self._watch,
            "help": self._help,
        }
        """Each command takes the rest of its line; its result is shown."""

    def announce(self, _: str, method: str, params: dict[str, Any]) -> None:
        """Shows a notification of the server."""
        if method not in _NOT_ANNOUNCED:  # the call shows progress, and cancellations are ours
            self._screen.show(f"* {notification_line(method, params)}")

    async def run(self, hub: Hub) -> int:
        """Runs until the end of input, `quit` or Ctrl-C. The exit code is 130 after Ctrl-C; on a pipe it is 1 if any
        command failed."""
        self._hub = hub
        with self._handling_interrupts(), self._session:
            await self._sign_in_if_needed()
            await self._greet()
            self._screen.complete_from(hub, self._server, _COMMANDS)
            # After the greeting: earlier changes come from our own connecting.
            unwatch = hub.watch(self._server, self._announce_change)
            try:
                while (line := await self._screen.read_command()) is not None:
                    if line.strip() in {"quit", "exit"}:
                        break
                    await self._execute(line.strip())
            finally:
                unwatch()
        if self._screen.is_terminal:
            self._screen.show("Goodbye.")
        if self._session.cancel_called:
            return 130
        return 1 if self._screen.errors and not self._screen.is_terminal else 0

    @contextmanager
    def _handling_interrupts(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends the process there
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        (self._current if self._current is not None and self._screen.is_terminal else self._session).cancel()

    def _announce_change(self, what: str) -> None:
        if what == "state":
            [status] = self._hub.status(self._server)
            reason = f" ({one_line(status.reason, 300)})" if status.reason else ""
            self._screen.show(f"* connection: {status.state}{reason}")

    async def _sign_in_if_needed(self) -> None:
        """Connects; if a person must sign in first and is present, starts the sign-in."""
        try:
            await self._hub.tools(self._server)
        except UpstreamUnavailable as error:
            can_sign_in = self._screen.is_terminal and has_oauth(self._config)
            if error.data.get("state") != "needs-auth" or not can_sign_in:
                raise
            await sign_in(self._hub, self._server, _SIGN_IN_SECONDS, self._screen.show, self._screen.read_line)

    async def _greet(self) -> None:
        hub, server = self._hub, self._server
        counts = [count_of(len(await hub.tools(server)), "tool")]
        with suppress(MCPError):
            counts.append(count_of(len(await hub.resources(server)), "resource"))
            counts.append(count_of(len(await hub.prompts(server)), "prompt"))
        [status] = hub.status(server)
        offer = ", ".join(counts)
        self._screen.show(f"Connected to {server_name(status)}, protocol {status.protocol_version}: {offer}.")
        if status.instructions:
            self._screen.show(f"Instructions: {one_line(status.instructions, 300)}")
        if self._screen.is_terminal:
            self._screen.show("`help` lists the commands.")

    async def _execute(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if not name or name.startswith("#"):
            return
        command = self._commands.get(name)
        if command is None:
            self._screen.show_error(f"There is no command {name!r}; `help` lists them.")
            return
        # Ctrl-C cancels only this command; the session and the connection to the server continue.
        with anyio.CancelScope() as self._current:
            try:
                found = await command(rest.strip())
                if found is not None and found.text:
                    self._screen.show(found.text)
            except ClaudeCodeError as error:
                self._screen.show_error(error.message)
            except MCPError as error:
                self._screen.show_error(f"The server refused: {error.message}")
        if self._current.cancelled_caught:
            self._screen.show("Cancelled.")
        self._current = None

    # -- the commands -------------------------------------------------------------------------------------------

    async def _call(self, line: str) -> None:
        name, texts = _split_line(line, "call")
        prompter = QuestionPrompter(self._screen.show, self._screen.read_line)
        try:
            found = await call_tool(self._hub, self._server, name, texts, prompter)
        finally:
            # An open question would take the next command as its answer.
            await prompter.withdraw()
        self._screen.show(found.text)
        if found.failed:
            self._screen.show_error(f"{name} reported a failure.")

    async def _read(self, uri: str) -> OperationResult:
        if not uri:
            raise _misuse("read")
        return await read_resource(self._hub, self._server, uri)

    async def _prompt(self, line: str) -> OperationResult:
        name, texts = _split_line(line, "prompt")
        return await get_prompt(self._hub, self._server, name, texts)

    async def _complete(self, line: str) -> OperationResult:
        name, texts = _split_line(line, "complete")
        if not texts:
            raise _misuse("complete")
        argument, beginning, *pairs = [*texts, ""] if len(texts) == 1 else texts
        return await complete(self._hub, self._server, name, argument, beginning, text_arguments(pairs))

    async def _watch(self, line: str) -> None:
        *uris, last = line.split() or [""]
        try:
            duration = float(last) if last else math.inf
        except ValueError:
            uris, duration = [*uris, last], math.inf
        if not duration >= 0 or any(":" not in uri for uri in uris):
            raise _misuse("watch")
        for uri in uris:
            await self._hub.follow(self._server, uri)
        with anyio.move_on_after(duration):
            await anyio.sleep_forever()

    async def _help(self, _: str) -> None:
        self._screen.show(_HELP + (_EDITING_HELP if self._screen.edits else "") + _NOTES_HELP)


def _make_screen(server: str, interrupt: Callable[[], None]) -> Screen:
    """Creates the screen, with line editing if the terminal supports it and the required package is installed."""
    plain = Screen()
    if not plain.is_terminal or (os.environ.get("TERM", "dumb") == "dumb" and sys.platform != "win32"):
        return plain
    try:
        from .line_editor import EditingScreen  # noqa: PLC0415 - an extra, and needed in a terminal only
    except ImportError:
        return plain
    name = re.sub(r"[^A-Za-z0-9_-]", "_", server)[:64]
    return EditingScreen(load_settings().state_dir / "mcp" / "history" / name, interrupt)


def _misuse(command: str) -> InvalidArgument:
    return InvalidArgument(f"{command} {_COMMANDS[command][0]}")


def _split_line(line: str, command: str) -> tuple[str, list[str]]:
    """A name and its arguments: a single piece of JSON unchanged, or words split like in a shell. Raises
    InvalidArgument."""
    name, _, rest = line.partition(" ")
    if not name:
        raise _misuse(command)
    rest = rest.strip()
    if rest.startswith(("{", "[")):
        return name, [rest]
    try:
        return name, shlex.split(rest)
    except ValueError as error:
        raise InvalidArgument(f"{command} {_COMMANDS[command][0]}: {error}.") from None
