"""`mcp status`, `call`, `login`, `logout`: the actions that connect to configured servers.

Each makes a hub for the servers that it needs and closes it before it returns, also on failure and Ctrl-C, so that no
program of a server is left running. What was asked for goes to stdout, everything else to stderr.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

import anyio

from ...errors import InvalidArgument
from ...hub.config_files import HubConfig
from ...hub.elicitation import cancel_elicitation
from ...hub.hub import Hub, HubTool, ServerStatus
from ...model.question import AskPerson
from ...shared.client import ask_shared
from ..flags import standard_input
from .configure import load_configuration, select_servers
from .operations import call_tool
from .prompts import QuestionPrompter, ReadLine, Show
from .render import as_json, counted, one_line, table
from .runner import command_hub, print_error, print_found, run_action
from .terminal import InputLines, is_terminal

_PASTE_HINT = """\
A browser on another machine will end up on a page that it cannot open: paste the address of that page here."""


# -- status --------------------------------------------------------------------------------------------------------


async def _status(arguments: argparse.Namespace) -> int:
    configuration, timeout = selected(arguments), arguments.timeout
    shared = await asyncio.to_thread(ask_shared, os.environ, "hub")
    if shared is not None:
        statuses = [_status_of(status) for status in shared if status["name"] in configuration.servers]
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


def selected(arguments: argparse.Namespace) -> HubConfig:
    """The configuration with the servers that were named, or with all."""
    configuration = load_configuration(arguments)
    return select_servers(configuration, arguments.servers) if arguments.servers else configuration


def _status_of(raw: Mapping[str, Any]) -> ServerStatus:
    """A status as the shared server gives it, which may be of another version."""
    known = {each.name for each in fields(ServerStatus)}
    return ServerStatus(**{name: value for name, value in raw.items() if name in known})


def _with_tool_count(status: ServerStatus, tools: list[HubTool]) -> ServerStatus:
    """The status with the number of tools that were listed: a server that then announced a change has none in its
    status."""
    number = sum(tool.server == status.name for tool in tools)
    return replace(status, tools=number) if number else status


def _status_line(status: ServerStatus, timeout: float) -> str:
    """Who the server is and what it offers, or why it is not connected."""
    if status.state != "connected":
        return one_line(reason_of(status, timeout), 400)
    offers_tools = "tools" in (status.capabilities or {})
    tools = counted(status.tools or 0, "tool") if status.tools is not None or not offers_tools else "tools not told"
    return f"{server_name(status)}, protocol {status.protocol_version}, {tools}"


def _status_data(status: ServerStatus, timeout: float) -> dict[str, Any]:
    reason = None if status.state == "connected" else reason_of(status, timeout)
    return {**asdict(status), "reason": reason}


def reason_of(status: ServerStatus, timeout: float) -> str:
    return status.reason or f"no answer within {timeout:g} s"


def server_name(status: ServerStatus) -> str:
    """Name and version, as the server gave them."""
    info = status.server_info or {}
    return one_line(f"{info.get('name', 'a server without a name')} {info.get('version', '')}")


# -- call ----------------------------------------------------------------------------------------------------------


async def _call(arguments: argparse.Namespace) -> int:
    texts = [standard_input()] if arguments.arguments == ["-"] else arguments.arguments
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        with anyio.move_on_after(arguments.timeout):
            found = await call_tool(hub, arguments.server, arguments.tool, texts, _prompter())
            print_found(found, json=arguments.json)
            return 1 if found.failed else 0
    return print_error(f"{arguments.tool} did not answer within {arguments.timeout:g} s.")


def _prompter() -> AskPerson:
    """Asks on stderr, so that stdout has nothing but the result; without a terminal every question is cancelled."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return cancel_elicitation
    lines = InputLines()

    async def read_line(prompt: str, choices: Sequence[str] = ()) -> str | None:
        print(prompt, end="", file=sys.stderr, flush=True)
        return await lines.next()

    return QuestionPrompter(lambda text: print(text, file=sys.stderr), read_line)


# -- login and logout ----------------------------------------------------------------------------------------------


async def _login(arguments: argparse.Namespace) -> int:
    """Prints the address to open. It is done when the browser comes back to us, or when its last address is pasted."""
    server, lines = arguments.server, InputLines()

    async def read_line(prompt: str, choices: Sequence[str] = ()) -> str | None:
        return await lines.next()

    async with command_hub(select_servers(load_configuration(arguments), [server])) as hub:
        status, was_asked = await sign_in(hub, server, arguments.timeout, partial(print, flush=True), read_line)
        tools = await hub.tools(server, arguments.timeout) if status.state == "connected" else []
    if status.state != "connected":
        return print_error(f"{server}: {status.state}: {status.reason}")
    done = f"Signed in to {server}" if was_asked else f"{server} wants nobody to sign in"
    print(f"{done}: {server_name(status)}, {counted(len(tools), 'tool')}.")
    return 0


async def sign_in(hub: Hub, server: str, timeout: float, show: Show, read_line: ReadLine) -> tuple[ServerStatus, bool]:
    """Shows the address at which a person signs in, and takes the one that the browser ends up at if it is pasted.
    Returns how the server stands then, and whether there was an address to open. Raises UpstreamUnavailable."""
    pasting: list[asyncio.Future[None]] = []

    async def show_address(address: str) -> None:
        show(f"Open this address to sign in to {server}:\n\n  {address}\n\n{_PASTE_HINT}")
        pasting.append(asyncio.ensure_future(_follow_pasted_address(hub, server, show, read_line)))

    try:
        return await hub.authenticate(server, show_address, timeout), bool(pasting)
    finally:
        for each in pasting:
            each.cancel()
        await asyncio.gather(*pasting, return_exceptions=True)


async def _follow_pasted_address(hub: Hub, server: str, show: Show, read_line: ReadLine) -> None:
    """Takes the address that a browser on another machine ended up at."""
    while (line := await read_line("")) is not None:
        if line.strip():
            try:
                await hub.finish_sign_in(server, line)
            except InvalidArgument as error:
                show(f"That is not it. {error.message}")


async def _logout(arguments: argparse.Namespace) -> int:
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        await hub.logout(arguments.server)
    print(f"Signed out of {arguments.server}.")
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": lambda arguments: run_action(_status(arguments)),
    "call": lambda arguments: run_action(_call(arguments)),
    "login": lambda arguments: run_action(_login(arguments)),
    "logout": lambda arguments: run_action(_logout(arguments)),
}
