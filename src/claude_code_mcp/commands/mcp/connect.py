"""`mcp connect`: a small interactive client for one server, in a terminal or on a pipe."""

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
from .configure import raw_entry
from .live import called, tool_line
from .prompts import Person, arguments_of
from .render import block_text, counted, one_line, resource_text, result_text, signature
from .runner import hub_for, run
from .terminal import Screen

_SHOWN_OTHERWISE = {"notifications/progress", "notifications/cancelled"}
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
    return run(_connect(_server(arguments)))


def _server(arguments: argparse.Namespace) -> ConfiguredServer:
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

    def heard(_: str, method: str, params: dict[str, Any]) -> None:
        if method not in _SHOWN_OTHERWISE:
            screen.tell(f"* {_news(method, params)}")

    async with hub_for(HubConfig({server.name: server}), heard) as hub:
        return await Client(hub, server.name, screen).run()


def _news(method: str, params: dict[str, Any]) -> str:
    if method == "notifications/message":
        return f"{params.get('level')}: {one_line(_plain(params.get('data')), 1000)}"
    return f"{method} {one_line(_plain(params), 1000)}".rstrip() if params else method


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Client:
    """Reads commands and does them one after another. Ctrl-C gives up what is being done, or ends the client."""

    def __init__(self, hub: Hub, server: str, screen: Screen) -> None:
        self._hub = hub
        self._server = server
        self._screen = screen
        self._all = anyio.CancelScope()
        self._current: anyio.CancelScope | None = None
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "tools": self._tools,
            "call": self._call,
            "resources": self._resources,
            "read": self._read,
            "prompts": self._prompts,
            "prompt": self._prompt,
            "watch": self._watch,
            "help": self._help,
        }

    async def run(self) -> int:
        """The exit code: on a pipe 1 if any command failed, so that scripts can tell."""
        with self._interruptible(), self._all:
            await self._greet()
            unwatch = self._hub.watch(self._server, self._changed)
            try:
                while (line := await self._screen.next_line("> ")) is not None:
                    if line.strip() in {"quit", "exit"}:
                        break
                    await self._do(line.strip())
            finally:
                unwatch()
        if self._screen.terminal:
            self._screen.tell("Good bye.")
        if self._all.cancel_called:
            return 130
        return 1 if self._screen.errors and not self._screen.terminal else 0

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError):  # Windows ends us its own way
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    def _interrupt(self) -> None:
        (self._current if self._current is not None and self._screen.terminal else self._all).cancel()

    def _changed(self, what: str) -> None:
        if what == "state":
            [status] = self._hub.status(self._server)
            self._screen.tell(
                f"* connection: {status.state}{f' ({one_line(status.reason, 300)})' if status.reason else ''}"
            )

    async def _greet(self) -> None:
        hub, server = self._hub, self._server
        counts = [counted(len(await hub.tools(server)), "tool")]
        with suppress(MCPError):
            counts.append(counted(len(await hub.resources(server)), "resource"))
            counts.append(counted(len(await hub.prompts(server)), "prompt"))
        [status] = hub.status(server)
        info = status.server_info or {}
        who = one_line(f"{info.get('name', 'a server without a name')} {info.get('version', '')}")
        self._screen.tell(f"Connected to {who}, protocol {status.protocol_version}: {', '.join(counts)}.")
        if status.instructions:
            self._screen.tell(f"It says: {one_line(status.instructions, 300)}")
        if self._screen.terminal:
            self._screen.tell("`help` lists the commands.")

    async def _do(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if not word or word.startswith("#"):
            return
        command = self._commands.get(word)
        if command is None:
            self._screen.complain(f"There is no command {word!r}; `help` lists them.")
            return
        with anyio.CancelScope() as self._current:
            try:
                await command(rest.strip())
            except ClaudeCodeError as error:
                self._screen.complain(error.message)
            except MCPError as error:
                self._screen.complain(f"The server refused: {error.message}")
        if self._current.cancelled_caught:
            self._screen.tell("Given up.")
        self._current = None

    async def _tools(self, _: str) -> None:
        for tool in await self._hub.tools(self._server):
            self._screen.tell(tool_line(tool.tool))

    async def _call(self, given: str) -> None:
        name, words = _words(given, "call NAME [JSON | A=B …]")
        person = Person(self._screen.tell, self._screen.next_line)
        try:
            result = await called(self._hub, self._server, name, words, person)
        finally:
            await person.withdraw()
        self._screen.tell(result_text(result))
        if result.get("isError"):
            self._screen.complain(f"{name} says that it failed.")

    async def _resources(self, _: str) -> None:
        for resource in await self._hub.resources(self._server):
            self._screen.tell(f"{resource.uri}  {one_line(resource.description or resource.name)}")
        for template in await self._hub.resource_templates(self._server):
            self._screen.tell(f"{template.uri_template}  {one_line(template.description or template.name)}")

    async def _read(self, uri: str) -> None:
        if not uri:
            raise InvalidArgument("read URI")
        for content in (await self._hub.read(self._server, uri)).contents:
            self._screen.tell(resource_text(content.model_dump(by_alias=True, mode="json", exclude_none=True)))

    async def _prompts(self, _: str) -> None:
        for prompt in await self._hub.prompts(self._server):
            given = prompt.arguments or []
            schema = {
                "properties": {one.name: {} for one in given},
                "required": [one.name for one in given if one.required],
            }
            self._screen.tell(
                f"{signature(prompt.name, schema)}  {one_line(prompt.description or prompt.title)}".rstrip()
            )

    async def _prompt(self, given: str) -> None:
        name, words = _words(given, "prompt NAME [JSON | A=B …]")
        arguments = {key: _plain(value) for key, value in arguments_of(words, {}).items()}
        for message in (await self._hub.prompt(self._server, name, arguments)).messages:
            block = message.content.model_dump(by_alias=True, mode="json", exclude_none=True)
            self._screen.tell(f"{message.role}: {block_text(block)}")

    async def _watch(self, seconds: str) -> None:
        try:
            patience = float(seconds) if seconds else math.inf
        except ValueError:
            raise InvalidArgument("watch [SECONDS]") from None
        with anyio.move_on_after(patience):
            await anyio.sleep_forever()

    async def _help(self, _: str) -> None:
        self._screen.tell(_HELP)


def _words(given: str, usage: str) -> tuple[str, list[str]]:
    """A name and what follows: one piece of JSON as it is, or words as a shell would see them."""
    name, _, rest = given.partition(" ")
    if not name:
        raise InvalidArgument(usage)
    rest = rest.strip()
    if rest.startswith(("{", "[")):
        return name, [rest]
    try:
        return name, shlex.split(rest)
    except ValueError as error:
        raise InvalidArgument(f"{usage}: {error}.") from None
