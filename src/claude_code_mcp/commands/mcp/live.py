"""`mcp status`, `tools`, `call`, `login`, `logout`: what needs a connection."""

import argparse
import asyncio
import difflib
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import mcp_types as types

from ...errors import InvalidArgument
from ...hub.config_files import HubConfig
from ...hub.elicitation import ask_nobody
from ...hub.hub import Hub, HubTool, ServerStatus
from ...model.question import AskPerson
from .configure import chosen, configured
from .prompts import Person, arguments_of
from .render import Progress, as_json, clean, counted, one_line, result_text, signature, table
from .runner import complain, hub_for, run
from .terminal import InputLines


def _wanted(arguments: argparse.Namespace) -> HubConfig:
    configuration = configured(arguments)
    return chosen(configuration, arguments.servers) if arguments.servers else configuration


async def _status(arguments: argparse.Namespace) -> int:
    configuration = _wanted(arguments)
    async with hub_for(configuration) as hub:
        tools = await hub.tools(timeout=arguments.patience)
        found = [_counted(one, tools) for one in hub.status()]
    if arguments.json:
        print(as_json([_with_reason(one, arguments.patience) for one in found]))
    elif found:
        rows = [(one.name, one.state, status_line(one, arguments.patience)) for one in found]
        for line in table(("name", "state", "told"), rows):
            print(line)
    wrong = [one for one in found if one.state not in {"connected", "disabled"}]
    return 1 if wrong or configuration.problems else 0


def _counted(status: ServerStatus, tools: list[HubTool]) -> ServerStatus:
    """With the number of tools that it told, also where it said at once that they changed."""
    number = sum(tool.server == status.name for tool in tools)
    return replace(status, tools=number) if number else status


def status_line(status: ServerStatus, patience: float) -> str:
    """What a server said of itself, or why it is not there."""
    if status.state != "connected":
        return one_line(_reason(status, patience), 300)
    offers_tools = "tools" in (status.capabilities or {})
    tools = counted(status.tools or 0, "tool") if status.tools is not None or not offers_tools else "tools not told"
    return f"{_who(status)}, protocol {status.protocol_version}, {tools}"


def _who(status: ServerStatus) -> str:
    info = status.server_info or {}
    return one_line(f"{info.get('name', 'a server without a name')} {info.get('version', '')}")


def _reason(status: ServerStatus, patience: float) -> str:
    return status.reason or f"no answer within {patience:g} s"


def _with_reason(status: ServerStatus, patience: float) -> dict[str, Any]:
    reason = None if status.state == "connected" else _reason(status, patience)
    return {**asdict(status), "reason": reason}


async def _tools(arguments: argparse.Namespace) -> int:
    configuration = _wanted(arguments)
    async with hub_for(configuration) as hub:
        tools = await hub.tools(timeout=arguments.patience)
        found = hub.status()
    by_server = {one.name: [tool for tool in tools if tool.server == one.name] for one in found}
    present = {one.name: by_server[one.name] for one in found if one.state == "connected"}
    if arguments.json:
        print(as_json({name: [_dumped(tool.tool) for tool in own] for name, own in present.items()}))
    else:
        for name, own in present.items():
            print("\n".join(_tool_lines(name, own)))
    missing = [one for one in found if one.name not in present and (arguments.servers or one.state != "disabled")]
    for one in missing:
        complain(f"{one.name}: {one.state}: {_reason(one, arguments.patience)}")
    return 1 if missing or configuration.problems else 0


def _tool_lines(server: str, tools: list[HubTool]) -> list[str]:
    return [f"{server}: {counted(len(tools), 'tool')}", *(f"  {tool_line(tool.tool)}" for tool in tools)]


def tool_line(tool: types.Tool) -> str:
    """`name(arguments)` and the beginning of its description."""
    about = one_line(tool.description or tool.title)
    shown = signature(tool.name, tool.input_schema)
    return f"{shown}  {about}" if about else shown


def _dumped(model: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped


async def _call(arguments: argparse.Namespace) -> int:
    given = [sys.stdin.read()] if arguments.arguments == ["-"] else arguments.arguments
    async with hub_for(chosen(configured(arguments), [arguments.server])) as hub:
        with anyio.move_on_after(arguments.timeout):
            result = await called(hub, arguments.server, arguments.tool, given, _person())
            print(as_json(result) if arguments.json else _for(sys.stdout.isatty(), result_text(result)))
            return 1 if result.get("isError") else 0
    return complain(f"{arguments.tool} did not answer within {arguments.timeout:g} s.")


def _for(terminal: bool, text: str) -> str:
    return clean(text) if terminal else text


async def called(hub: Hub, server: str, tool: str, given: list[str], ask: AskPerson) -> dict[str, Any]:
    """The result of a call with arguments as people type them; progress is shown on standard error."""
    schema = _schema(await hub.tools(server), server, tool)
    progress = Progress(sys.stderr)
    try:
        return _dumped(await hub.call(server, tool, arguments_of(given, schema), on_progress=progress, ask=ask))
    finally:
        progress.done()


def _schema(tools: list[HubTool], server: str, tool: str) -> dict[str, Any]:
    names = [one.tool.name for one in tools]
    if tool in names:
        return tools[names.index(tool)].tool.input_schema
    if not names:
        return {}  # it tells nothing of its tools, and knows best whether it has this one
    close = difflib.get_close_matches(tool, names, 3) or names[:10]
    raise InvalidArgument(f"{server!r} has no tool {tool!r}; it has, among others: {clean(', '.join(close))}.")


def _person() -> AskPerson:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return ask_nobody
    lines = InputLines()

    async def next_line(prompt: str) -> str | None:
        print(prompt, end="", file=sys.stderr, flush=True)
        return await lines.next()

    return Person(lambda text: print(text, file=sys.stderr), next_line)


async def _login(arguments: argparse.Namespace) -> int:
    server, shown = arguments.server, list[str]()
    pasting: asyncio.Future[None] | None = None

    async def show(address: str) -> None:
        nonlocal pasting
        shown.append(address)
        print(f"Open this address to sign in to {server}:\n\n  {address}\n\n{_ELSEWHERE}", flush=True)
        pasting = asyncio.ensure_future(_take_pasted(InputLines(), address))

    async with hub_for(chosen(configured(arguments), [server])) as hub:
        try:
            status = await hub.authenticate(server, show, arguments.timeout)
            tools = await hub.tools(server, arguments.timeout) if status.state == "connected" else []
        finally:
            if pasting is not None:
                pasting.cancel()
    if status.state != "connected":
        return complain(f"{server}: {status.state}: {status.reason}")
    done = f"Signed in to {server}" if shown else f"{server} wants nobody to sign in"
    print(f"{done}: {_who(status)}, {counted(len(tools), 'tool')}.")
    return 0


_ELSEWHERE = """\
A browser on another machine will end up on a page that it cannot open: paste the address of that page here."""


async def _take_pasted(lines: InputLines, address: str) -> None:
    """Goes where a browser elsewhere could not: to the address on this machine that the sign-in ends at."""
    [back] = parse_qs(urlsplit(address).query).get("redirect_uri") or [""]
    while (line := await lines.next()) is not None:
        if back and line.strip().startswith(f"{back}?"):
            async with httpx2.AsyncClient(trust_env=False) as browser:
                await browser.get(line.strip())
        elif line.strip():
            print(f"That is not it: the address begins with {back}?", flush=True)


async def _logout(arguments: argparse.Namespace) -> int:
    async with hub_for(chosen(configured(arguments), [arguments.server])) as hub:
        await hub.logout(arguments.server)
    print(f"Signed out of {arguments.server}.")
    return 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": lambda arguments: run(_status(arguments)),
    "tools": lambda arguments: run(_tools(arguments)),
    "call": lambda arguments: run(_call(arguments)),
    "login": lambda arguments: run(_login(arguments)),
    "logout": lambda arguments: run(_logout(arguments)),
}
