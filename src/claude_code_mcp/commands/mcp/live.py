"""`mcp status`, `tools`, `call`, `login`, `logout`: the actions that connect to configured servers.

Each makes a hub for the servers that it needs and closes it before it returns, also on failure and Ctrl-C, so that no
program of a server is left running. What was asked for goes to stdout, everything else to stderr.
"""

import argparse
import asyncio
import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import anyio
import mcp_types as types

from ...errors import InvalidArgument
from ...hub.config_files import HubConfig
from ...hub.elicitation import cancel_elicitation
from ...hub.hub import Hub, HubTool, ServerStatus
from ...model.question import AskPerson
from ...shared.client import ask_shared
from .configure import load_configuration, select_servers
from .prompts import QuestionPrompter, parse_arguments
from .render import Progress, as_json, clean, counted, one_line, result_text, signature, table
from .runner import command_hub, print_error, run_action
from .terminal import InputLines

_PASTE_HINT = """\
A browser on another machine will end up on a page that it cannot open: paste the address of that page here."""


# -- status and tools ----------------------------------------------------------------------------------------------


async def _status(arguments: argparse.Namespace) -> int:
    configuration, timeout = _selected(arguments), arguments.timeout
    shared = await asyncio.to_thread(ask_shared, os.environ, "hub")
    if shared is not None:
        statuses = [ServerStatus(**status) for status in shared if status["name"] in configuration.servers]
    else:
        async with command_hub(configuration) as hub:
            tools = await hub.tools(timeout=timeout)
            statuses = [_with_tool_count(status, tools) for status in hub.status()]
    if arguments.json:
        print(as_json([_status_data(status, timeout) for status in statuses]))
    elif statuses:
        rows = [(status.name, status.state, _status_line(status, timeout)) for status in statuses]
        for line in table(("name", "state", "told"), rows):
            print(line)
    unavailable = [status for status in statuses if status.state not in {"connected", "disabled"}]
    return 1 if unavailable or configuration.problems else 0


def _selected(arguments: argparse.Namespace) -> HubConfig:
    configuration = load_configuration(arguments)
    return select_servers(configuration, arguments.servers) if arguments.servers else configuration


def _with_tool_count(status: ServerStatus, tools: list[HubTool]) -> ServerStatus:
    """The status with the number of tools that were listed: a server that then announced a change has none in its
    status."""
    number = sum(tool.server == status.name for tool in tools)
    return replace(status, tools=number) if number else status


def _status_line(status: ServerStatus, timeout: float) -> str:
    """Who the server is and what it offers, or why it is not connected."""
    if status.state != "connected":
        return one_line(_reason(status, timeout), 300)
    offers_tools = "tools" in (status.capabilities or {})
    tools = counted(status.tools or 0, "tool") if status.tools is not None or not offers_tools else "tools not told"
    return f"{server_name(status)}, protocol {status.protocol_version}, {tools}"


def _status_data(status: ServerStatus, timeout: float) -> dict[str, Any]:
    reason = None if status.state == "connected" else _reason(status, timeout)
    return {**asdict(status), "reason": reason}


def _reason(status: ServerStatus, timeout: float) -> str:
    return status.reason or f"no answer within {timeout:g} s"


def server_name(status: ServerStatus) -> str:
    """Name and version, as the server gave them."""
    info = status.server_info or {}
    return one_line(f"{info.get('name', 'a server without a name')} {info.get('version', '')}")


async def _tools(arguments: argparse.Namespace) -> int:
    configuration = _selected(arguments)
    async with command_hub(configuration) as hub:
        tools = await hub.tools(timeout=arguments.timeout)
        statuses = hub.status()
    connected = [status.name for status in statuses if status.state == "connected"]
    by_server = {name: [tool.tool for tool in tools if tool.server == name] for name in connected}
    if arguments.json:
        print(as_json({name: [_dump(tool) for tool in own] for name, own in by_server.items()}))
    else:
        for name, own in by_server.items():
            print("\n".join([f"{name}: {counted(len(own), 'tool')}", *(f"  {tool_line(tool)}" for tool in own)]))
    missing = [
        status
        for status in statuses
        if status.name not in by_server and (arguments.servers or status.state != "disabled")
    ]
    for status in missing:
        print_error(f"{status.name}: {status.state}: {_reason(status, arguments.timeout)}")
    return 1 if missing or configuration.problems else 0


def tool_line(tool: types.Tool) -> str:
    """`name(parameters)` and the beginning of the description."""
    description = one_line(tool.description or tool.title)
    shown = signature(tool.name, tool.input_schema)
    return f"{shown}  {description}" if description else shown


def _dump(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped


# -- call ----------------------------------------------------------------------------------------------------------


async def _call(arguments: argparse.Namespace) -> int:
    texts = [sys.stdin.read()] if arguments.arguments == ["-"] else arguments.arguments
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        with anyio.move_on_after(arguments.timeout):
            result = await call_tool(hub, arguments.server, arguments.tool, texts, _prompter())
            text = as_json(result) if arguments.json else result_text(result)
            print(clean(text) if sys.stdout.isatty() and not arguments.json else text)
            return 1 if result.get("isError") else 0
    return print_error(f"{arguments.tool} did not answer within {arguments.timeout:g} s.")


async def call_tool(hub: Hub, server: str, tool: str, texts: list[str], ask: AskPerson) -> dict[str, Any]:
    """The result of a call with arguments as people type them; progress is shown on stderr meanwhile.

    Raises InvalidArgument, before anything is sent, for arguments that do not parse and for a tool that the server
    does not list.
    """
    schema = _input_schema(await hub.tools(server), server, tool)
    progress = Progress(sys.stderr)
    try:
        return _dump(await hub.call(server, tool, parse_arguments(texts, schema), on_progress=progress, ask=ask))
    finally:
        progress.done()


def _input_schema(tools: list[HubTool], server: str, name: str) -> dict[str, Any]:
    schemas = {tool.tool.name: tool.tool.input_schema for tool in tools}
    if name in schemas:
        return schemas[name]
    if not schemas:
        return {}  # a server that lists no tools may still have this one: it decides
    close = difflib.get_close_matches(name, schemas, 3) or list(schemas)[:10]
    raise InvalidArgument(f"{server!r} has no tool {name!r}; it has, among others: {clean(', '.join(close))}.")


def _prompter() -> AskPerson:
    """Asks on stderr, so that stdout has nothing but the result; without a terminal every question is cancelled."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return cancel_elicitation
    lines = InputLines()

    async def read_line(prompt: str) -> str | None:
        print(prompt, end="", file=sys.stderr, flush=True)
        return await lines.next()

    return QuestionPrompter(lambda text: print(text, file=sys.stderr), read_line)


# -- login and logout ----------------------------------------------------------------------------------------------


async def _login(arguments: argparse.Namespace) -> int:
    """Prints the address to open. It is done when the browser comes back to us, or when its last address is pasted."""
    server, addresses = arguments.server, list[str]()
    pasting: asyncio.Future[None] | None = None

    async def show(address: str) -> None:
        nonlocal pasting
        addresses.append(address)
        print(f"Open this address to sign in to {server}:\n\n  {address}\n\n{_PASTE_HINT}", flush=True)
        pasting = asyncio.ensure_future(_follow_pasted_address(hub, server, InputLines()))

    async with command_hub(select_servers(load_configuration(arguments), [server])) as hub:
        try:
            status = await hub.authenticate(server, show, arguments.timeout)
            tools = await hub.tools(server, arguments.timeout) if status.state == "connected" else []
        finally:
            if pasting is not None:
                pasting.cancel()
    if status.state != "connected":
        return print_error(f"{server}: {status.state}: {status.reason}")
    done = f"Signed in to {server}" if addresses else f"{server} wants nobody to sign in"
    print(f"{done}: {server_name(status)}, {counted(len(tools), 'tool')}.")
    return 0


async def _follow_pasted_address(hub: Hub, server: str, lines: InputLines) -> None:
    """Takes the address that a browser on another machine ended up at."""
    while (line := await lines.next()) is not None:
        if line.strip():
            try:
                await hub.finish_sign_in(server, line)
            except InvalidArgument as error:
                print(f"That is not it. {error.message}", flush=True)


async def _logout(arguments: argparse.Namespace) -> int:
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        await hub.logout(arguments.server)
    print(f"Signed out of {arguments.server}.")
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": lambda arguments: run_action(_status(arguments)),
    "tools": lambda arguments: run_action(_tools(arguments)),
    "call": lambda arguments: run_action(_call(arguments)),
    "login": lambda arguments: run_action(_login(arguments)),
    "logout": lambda arguments: run_action(_logout(arguments)),
}
