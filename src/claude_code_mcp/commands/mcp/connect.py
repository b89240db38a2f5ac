"""`mcp connect`: a small interactive client for one server, in a terminal or on a pipe.

Commands are read line by line and done one after another; a command that fails is reported and the next one is read.
Notifications of the server and changes of the connection are shown as they come.
"""

import argparse
import asyncio
import json
import math
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from mcp import MCPError

from ...errors import ClaudeCodeError, InvalidArgument
from ...hub.config_entry import InvalidEntry, parse_entry
from ...hub.config_files import ConfigScope, ConfiguredServer, HubConfig
from ...hub.hub import Hub
from .add_line import raw_entry
from .live import call_tool, server_name, tool_line
from .prompts import QuestionPrompter, parse_arguments
from .render import block_text, counted, one_line, resource_text, result_text, signature
from .runner import command_hub, run_action
from .terminal import Screen

_NOT_ANNOUNCED = {"notifications/progress", "notifications/cancelled"}
_HELP = """\
tools                         what can be called
call NAME [JSON | A=B …]      call a tool
resources                     what can be read
read URI                      read a resource
prompts                       what can be asked for
prompt NAME [JSON | A=B …]    get a prompt
watch [SECONDS]               do nothing but show what the server tells; Ctrl-C ends it
help                          this
quit                          end, as do Ctrl-C and the end of input (Ctrl-D)
What the server tells by itself is shown as it comes, behind a *."""


def connect(arguments: argparse.Namespace) -> int:
    return run_action(_connect(_configured_server(arguments)))


def _configured_server(arguments: argparse.Namespace) -> ConfiguredServer:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if arguments.url is None and not command:
        raise InvalidArgument("Which program? claude-code-mcp mcp connect stdio COMMAND [ARGUMENT …]")
    entry = raw_entry(command, arguments.url, arguments.kind, arguments.header, arguments.env)
    name = Path(command[0]).name if arguments.url is None else urlsplit(arguments.url).hostname or arguments.kind
    try:
        return ConfiguredServer(name, parse_entry(name, entry, os.environ), ConfigScope.OWN)
    except InvalidEntry as error:
        raise InvalidArgument(f"This server cannot be connected to: {error}.") from None


async def _connect(server: ConfiguredServer) -> int:
    screen = Screen()

    def announce(_: str, method: str, params: dict[str, Any]) -> None:
        if method not in _NOT_ANNOUNCED:  # progress is shown by the call, and a cancellation is ours
            screen.show(f"* {_notification_line(method, params)}")

    async with command_hub(HubConfig({server.name: server}), announce) as hub:
        return await InteractiveClient(hub, server.name, screen).run()


def _notification_line(method: str, params: dict[str, Any]) -> str:
    if method == "notifications/message":
        return f"{params.get('level')}: {one_line(_as_text(params.get('data')), 1000)}"
    return f"{method} {one_line(_as_text(params), 1000)}".rstrip() if params else method


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class InteractiveClient:
    """Reads commands and does them one after another.

    Ctrl-C in a terminal gives up the running command, and ends the client when there is none; on a pipe it always ends
    the client.
    """

    def __init__(self, hub: Hub, server: str, screen: Screen) -> None:
        self._hub = hub
        self._server = server
        self._screen = screen
        self._session = anyio.CancelScope()
        self._current: anyio.CancelScope | None = None
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "tools": self._tools,
            "call": self._call,
            "resources": self._resources,
            "read": self._read,
            "prompts": self._prompts,
            "prompt": self._prompt,
            "watch": self._wait,
            "help": self._help,
        }

    async def run(self) -> int:
        """Runs until the end of input, `quit` or Ctrl-C. The exit code is 130 after Ctrl-C; on a pipe it is 1 if any
        command failed."""
        with self._handling_interrupts(), self._session:
            await self._greet()
            unwatch = self._hub.watch(self._server, self._announce_change)
            try:
                while (line := await self._screen.read_line("> ")) is not None:
                    if line.strip() in {"quit", "exit"}:
                        break
                    await self._execute(line.strip())
            finally:
                unwatch()
        if self._screen.is_terminal:
            self._screen.show("Good bye.")
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

    async def _greet(self) -> None:
        hub, server = self._hub, self._server
        counts = [counted(len(await hub.tools(server)), "tool")]
        with suppress(MCPError):
            counts.append(counted(len(await hub.resources(server)), "resource"))
            counts.append(counted(len(await hub.prompts(server)), "prompt"))
        [status] = hub.status(server)
        offer = ", ".join(counts)
        self._screen.show(f"Connected to {server_name(status)}, protocol {status.protocol_version}: {offer}.")
        if status.instructions:
            self._screen.show(f"It says: {one_line(status.instructions, 300)}")
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
        with anyio.CancelScope() as self._current:
            try:
                await command(rest.strip())
            except ClaudeCodeError as error:
                self._screen.show_error(error.message)
            except MCPError as error:
                self._screen.show_error(f"The server refused: {error.message}")
        if self._current.cancelled_caught:
            self._screen.show("Given up.")
        self._current = None

    async def _tools(self, _: str) -> None:
        for tool in await self._hub.tools(self._server):
            self._screen.show(tool_line(tool.tool))

    async def _call(self, line: str) -> None:
        name, texts = _split_line(line, "call NAME [JSON | A=B …]")
        prompter = QuestionPrompter(self._screen.show, self._screen.read_line)
        try:
            result = await call_tool(self._hub, self._server, name, texts, prompter)
        finally:
            await prompter.withdraw()
        self._screen.show(result_text(result))
        if result.get("isError"):
            self._screen.show_error(f"{name} says that it failed.")

    async def _resources(self, _: str) -> None:
        for resource in await self._hub.resources(self._server):
            self._screen.show(f"{resource.uri}  {one_line(resource.description or resource.name)}")
        for template in await self._hub.resource_templates(self._server):
            self._screen.show(f"{template.uri_template}  {one_line(template.description or template.name)}")

    async def _read(self, uri: str) -> None:
        if not uri:
            raise InvalidArgument("read URI")
        for content in (await self._hub.read(self._server, uri)).contents:
            self._screen.show(resource_text(content.model_dump(by_alias=True, mode="json", exclude_none=True)))

    async def _prompts(self, _: str) -> None:
        for prompt in await self._hub.prompts(self._server):
            arguments = prompt.arguments or []
            schema = {
                "properties": {argument.name: {} for argument in arguments},
                "required": [argument.name for argument in arguments if argument.required],
            }
            description = one_line(prompt.description or prompt.title)
            self._screen.show(f"{signature(prompt.name, schema)}  {description}".rstrip())

    async def _prompt(self, line: str) -> None:
        name, texts = _split_line(line, "prompt NAME [JSON | A=B …]")
        arguments = {key: _as_text(value) for key, value in parse_arguments(texts, {}).items()}
        for message in (await self._hub.prompt(self._server, name, arguments)).messages:
            block = message.content.model_dump(by_alias=True, mode="json", exclude_none=True)
            self._screen.show(f"{message.role}: {block_text(block)}")

    async def _wait(self, seconds: str) -> None:
        try:
            duration = float(seconds) if seconds else math.inf
        except ValueError:
            raise InvalidArgument("watch [SECONDS]") from None
        with anyio.move_on_after(duration):
            await anyio.sleep_forever()

    async def _help(self, _: str) -> None:
        self._screen.show(_HELP)


def _split_line(line: str, usage: str) -> tuple[str, list[str]]:
    """A name and its arguments: one piece of JSON as it is, or words split as a shell would. Raises InvalidArgument."""
    name, _, rest = line.partition(" ")
    if not name:
        raise InvalidArgument(usage)
    rest = rest.strip()
    if rest.startswith(("{", "[")):
        return name, [rest]
    try:
        return name, shlex.split(rest)
    except ValueError as error:
        raise InvalidArgument(f"{usage}: {error}.") from None
