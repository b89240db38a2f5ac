"""Operations on connected servers, and the actions that run one of them: `mcp status`, `call`, `tools`, `read`, `watch`
and others.

An operation returns its result twice: as data for programs, and as text for people; `connect` uses the operations too.
Each action creates a hub for the servers that it needs and closes it before it returns, also on failure and Ctrl-C, so
that no server program is left running. The requested output goes to stdout, everything else to stderr. A server that is
not available is named on stderr.
"""

import argparse
import asyncio
import base64
import contextlib
import difflib
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from pydantic import BaseModel

from ...client.connections import CallFailed, NotRunning, Target, ask_shared, in_thread
from ...client.conventions import ExitCode, camel_names, failed, print_json, print_outcome, standard_input
from ...core.config import load_settings
from ...core.errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ...core.model.question import AskPerson
from ...core.model.text import count_of
from ...hub.client_session import cancel_elicitation
from ...hub.config_files import HubConfig
from ...hub.factory import make_hub
from ...hub.hub import Hub
from ...hub.hub_deps import OnNotification, ignore_notification
from ...hub.servers import ServerStatus
from .configure import NO_SERVERS, load_configuration, select_servers
from .prompts import QuestionPrompter, ReadLine, Show, parse_arguments
from .terminal import (
    InputLines,
    Progress,
    block_text,
    clean,
    is_terminal,
    notification_line,
    one_line,
    plain_text,
    print_table,
    resource_text,
    result_text,
    signature,
)

# -- operations --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of an operation. `failed` is set if a tool reports that it failed."""

    data: Any
    text: str
    failed: bool = False


def dump(model: BaseModel) -> dict[str, Any]:
    """A result of the protocol as JSON."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def dump_all(models: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [dump(model) for model in models]


def tool_line(tool: types.Tool) -> str:
    """`name(parameters)` and the beginning of the description."""
    return _line(signature(tool.name, tool.input_schema), tool.description or tool.title)


async def list_tools(hub: Hub, server: str) -> OperationResult:
    tools = [tool.tool for tool in await hub.tools(server)]
    return OperationResult(dump_all(tools), "\n".join(map(tool_line, tools)))


async def call_tool(hub: Hub, server: str, tool: str, texts: Sequence[str], ask: AskPerson) -> OperationResult:
    """Calls a tool with arguments as people type them; progress is shown on stderr meanwhile.

    Raises InvalidArgument, before anything is sent, for arguments that do not parse and for a tool that the server does
    not list.
    """
    schemas = {each.tool.name: each.tool.input_schema for each in await hub.tools(server)}
    # A server that lists no tools may still have this one: the server decides.
    if schemas and tool not in schemas:
        raise InvalidArgument(f"{server!r} has no tool {tool!r}; {_those_there(tool, schemas)}")
    # The schema decides how arguments are read: `number=7` is a number only if the tool expects one.
    values = parse_arguments(texts, schemas.get(tool, {}))
    progress = Progress(sys.stderr)
    try:
        result = dump(await hub.call(server, tool, values, on_progress=progress, ask=ask))
    finally:
        # Also when the call fails: the message must not appear after a half-drawn bar.
        progress.done()
    return OperationResult(result, result_text(result), bool(result.get("isError")))


def resource_lines(resources: Iterable[types.Resource], templates: Iterable[types.ResourceTemplate]) -> list[str]:
    """The addresses that can be read, then the templates of addresses."""
    shown = [_line(clean(str(each.uri)), each.description or each.title or each.name) for each in resources]
    return [
        *shown,
        *(_line(clean(each.uri_template), each.description or each.title or each.name) for each in templates),
    ]


async def list_resources(hub: Hub, server: str) -> OperationResult:
    resources, templates = await hub.resources(server), await hub.resource_templates(server)
    data = {"resources": dump_all(resources), "templates": dump_all(templates)}
    return OperationResult(data, "\n".join(resource_lines(resources, templates)))


async def read_resource(hub: Hub, server: str, uri: str) -> OperationResult:
    result = dump(await hub.read(server, uri))
    return OperationResult(result, "\n".join(map(resource_text, result.get("contents") or ())))


def prompt_line(prompt: types.Prompt) -> str:
    arguments = prompt.arguments or []
    schema = {
        "properties": {argument.name: {} for argument in arguments},
        "required": [argument.name for argument in arguments if argument.required],
    }
    return _line(signature(prompt.name, schema), prompt.description or prompt.title)


async def list_prompts(hub: Hub, server: str) -> OperationResult:
    prompts = await hub.prompts(server)
    return OperationResult(dump_all(prompts), "\n".join(map(prompt_line, prompts)))


async def get_prompt(hub: Hub, server: str, name: str, texts: Sequence[str]) -> OperationResult:
    """A prompt with arguments as people type them. Raises InvalidArgument, before the request, if the server lists
    prompts without this one, or if a required argument is missing."""
    arguments = text_arguments(texts)
    prompts = {prompt.name: prompt for prompt in await hub.prompts(server)}
    if prompts and name not in prompts:
        raise InvalidArgument(f"{server!r} has no prompt {name!r}; {_those_there(name, prompts)}")
    declared = (prompts[name].arguments or []) if prompts else []
    missing = [each.name for each in declared if each.required and each.name not in arguments]
    if missing:
        raise InvalidArgument(f"The prompt {name!r} needs {clean(', '.join(missing))}: NAME=VALUE for each.")
    result = dump(await hub.prompt(server, name, arguments))
    lines = [f"{each.get('role')}: {block_text(each.get('content') or {})}" for each in result.get("messages") or ()]
    return OperationResult(result, "\n".join(lines))


def text_arguments(texts: Sequence[str]) -> dict[str, str]:
    """Arguments that are always strings, like the arguments of prompts."""
    schema = {"properties": {text.partition("=")[0]: {"type": "string"} for text in texts}}
    return {key: plain_text(value) for key, value in parse_arguments(texts, schema).items()}


async def complete(
    hub: Hub, server: str, name: str, argument: str, value: str = "", known_arguments: Mapping[str, str] | None = None
) -> OperationResult:
    """The values that a server suggests for an argument of a prompt or of a URI template; the arguments in
    `known_arguments` already have a value."""
    is_address = "://" in name or "{" in name
    reference = {"type": "ref/resource", "uri": name} if is_address else {"type": "ref/prompt", "name": name}
    params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
    if known_arguments:
        params["context"] = {"arguments": dict(known_arguments)}
    completion = dump((await hub.complete(server, params)).completion)
    return OperationResult(completion, "\n".join(map(clean, completion.get("values") or ())))


def _line(name: str, description: str | None) -> str:
    return f"{name}  {one_line(description)}".rstrip()


def _those_there(name: str, there: Iterable[str]) -> str:
    names = [*there]
    close = difflib.get_close_matches(name, names, 3) or names[:10]
    return f"it has, for example: {clean(', '.join(close))}."


# -- actions -----------------------------------------------------------------------------------------------------------


def command_hub(configuration: HubConfig, on_notification: OnNotification = ignore_notification) -> Hub:
    """A hub for the person at the shell, without any policy; `on_notification` receives the servers' notifications."""
    return make_hub(load_settings(), configuration, os.environ, on_notification, serving=False)


def run_action(action: Coroutine[Any, Any, int]) -> int:
    """Runs an action to its end and returns its exit code.

    A call that a server refuses, or a server that is not available, is one line on stderr.
    """
    logging.getLogger().addHandler(logging.NullHandler())  # the action itself prints the hub's problems, once
    try:
        return asyncio.run(action)
    except UpstreamUnavailable as error:
        return print_error(error.message, ExitCode.UNAVAILABLE)
    except MCPError as error:
        return print_error(f"The server refused: {error.message}")


def print_error(message: str, code: ExitCode = ExitCode.FAILED) -> int:
    """Prints text that may come from a server as one line to stderr; returns the exit code."""
    return failed(" ".join(clean(message).split()), code)


_PASTE_HINT = """\
If the browser ends on a page that cannot be opened, paste that page's address here."""


# -- status --------------------------------------------------------------------------------------------------------


async def _status(arguments: argparse.Namespace) -> int:
    configuration, timeout = selected(arguments), arguments.timeout
    shared = await asyncio.to_thread(ask_shared, os.environ, "hub")
    if shared is not None:
        waiting = [status["name"] for status in shared if status["state"] == "pending"]
        if any(name in configuration.servers for name in waiting):
            # The answer above is the current state; pending connections get time until the timeout.
            with anyio.move_on_after(timeout):
                await in_thread(_have_connected, waiting)
            shared = await asyncio.to_thread(ask_shared, os.environ, "hub") or shared
        # Without fields that are unknown here: the shared server may be of another version.
        known = {each.name for each in fields(ServerStatus)}
        statuses = [
            ServerStatus(**{name: value for name, value in status.items() if name in known})
            for status in shared
            if status["name"] in configuration.servers
        ]
    else:
        async with command_hub(configuration) as hub:
            listed = Counter(tool.server for tool in await hub.tools(timeout=timeout))
            # The number of listed tools: after a server has announced a change, its status has none.
            statuses = [replace(status, tools=listed[status.name] or status.tools) for status in hub.status()]
    if arguments.json:
        print_json([_status_data(status, timeout) for status in statuses])
    elif statuses:
        rows = [(status.name, status.state, _status_line(status, timeout)) for status in statuses]
        print_table(("name", "state", "details"), rows)
    elif not configuration.problems:
        print(NO_SERVERS)
    unavailable = [status for status in statuses if status.state not in {"connected", "disabled"}]
    return 1 if unavailable or configuration.problems else 0


def _have_connected(servers: Sequence[str]) -> None:
    """Makes the shared server connect to these servers, and returns when their state is known."""
    with contextlib.suppress(CallFailed, NotRunning, ClaudeCodeError), Target().join() as client:
        for name in servers:
            client.call("claude_mcp_servers", action="status", server=name)


def selected(arguments: argparse.Namespace) -> HubConfig:
    """The configuration with the named servers, or with all."""
    configuration = load_configuration(arguments)
    return select_servers(configuration, arguments.servers) if arguments.servers else configuration


def _status_line(status: ServerStatus, timeout: float) -> str:
    """Name, version and features of a connected server; the reason if it is not connected."""
    if status.state != "connected":
        return one_line(reason_of(status, timeout), 400)
    offers_tools = "tools" in (status.capabilities or {})
    tools = count_of(status.tools or 0, "tool") if status.tools is not None or not offers_tools else "tools not listed"
    return f"{server_name(status)}, protocol {status.protocol_version}, {tools}"


def _status_data(status: ServerStatus, timeout: float) -> dict[str, Any]:
    reason = None if status.state == "connected" else reason_of(status, timeout)
    return {**camel_names(asdict(status)), "reason": reason}


def reason_of(status: ServerStatus, timeout: float) -> str:
    return status.reason or f"no answer within {timeout:g} s"


def server_name(status: ServerStatus) -> str:
    """Name and version as reported by the server."""
    info = status.server_info or {}
    return one_line(f"{info.get('name', 'a server without a name')} {info.get('version', '')}")


# -- login and logout ----------------------------------------------------------------------------------------------


async def _login(arguments: argparse.Namespace) -> int:
    """Prints the address to open. Done when the browser returns to us, or when its final address is pasted."""
    server, lines = arguments.server, InputLines()

    async def read_line(prompt: str, choices: Sequence[str] = ()) -> str | None:
        return await lines.next()

    show = partial(print, file=sys.stderr if arguments.json else None, flush=True)
    async with command_hub(select_servers(load_configuration(arguments), [server])) as hub:
        status, was_asked = await sign_in(hub, server, arguments.timeout, show, read_line)
        tools = await hub.tools(server, arguments.timeout) if status.state == "connected" else []
    if status.state != "connected":
        return print_error(f"{server}: {status.state}: {status.reason}")
    done = f"Signed in to {server}" if was_asked else f"{server} needs no sign-in"
    return print_outcome(
        arguments,
        {**_status_data(status, arguments.timeout), "signedIn": was_asked, "tools": len(tools)},
        f"{done}: {server_name(status)}, {count_of(len(tools), 'tool')}.",
    )


async def sign_in(hub: Hub, server: str, timeout: float, show: Show, read_line: ReadLine) -> tuple[ServerStatus, bool]:
    """Shows the address at which a person signs in, and accepts the browser's final address if it is pasted. Returns
    the server's state afterward, and whether there was an address to open. Raises UpstreamUnavailable."""
    pasting: list[asyncio.Future[None]] = []

    async def show_address(address: str) -> None:
        show(f"Open this address to sign in to {server}:\n\n  {address}\n\n{_PASTE_HINT}")
        pasting.append(asyncio.ensure_future(_follow_pasted_address(hub, server, show, read_line)))

    try:
        return await hub.authenticate(server, show_address, timeout), bool(pasting)
    finally:
        # The browser itself completed the sign-in: waiting for a pasted address must not consume the next line of the
        # terminal.
        for each in pasting:
            each.cancel()
        await asyncio.gather(*pasting, return_exceptions=True)


async def _follow_pasted_address(hub: Hub, server: str, show: Show, read_line: ReadLine) -> None:
    """Accepts the final address of a browser on another machine."""
    while (line := await read_line("")) is not None:
        if line.strip():
            try:
                await hub.finish_sign_in(server, line)
            except InvalidArgument as error:
                show(f"This address cannot be used. {error.message}")


async def _logout(arguments: argparse.Namespace) -> int:
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        await hub.logout(arguments.server)
    return print_outcome(arguments, {"name": arguments.server, "signedIn": False}, f"Signed out of {arguments.server}.")


# -- lists ---------------------------------------------------------------------------------------------------------

_LISTS = {"tools": ("tools",), "resources": ("resources", "templates"), "prompts": ("prompts",)}
_LINES: dict[str, Callable[..., list[str]]] = {
    "tools": lambda tools: [tool_line(tool) for tool in tools],
    "resources": resource_lines,
    "prompts": lambda prompts: [prompt_line(prompt) for prompt in prompts],
}


async def _list(arguments: argparse.Namespace) -> int:
    configuration, kinds = selected(arguments), _LISTS[arguments.action]
    async with command_hub(configuration) as hub:
        lists = await asyncio.gather(*(hub.lists(kind, arguments.timeout) for kind in kinds))
        statuses = hub.status()
    connected = [status.name for status in statuses if status.state == "connected"]
    by_server = {name: [listed.get(name, []) for listed in lists] for name in connected}
    if arguments.json:
        shown: dict[str, Any] = {}
        for name, found in by_server.items():
            dumped = {kind: dump_all(items) for kind, items in zip(kinds, found, strict=True)}
            shown[name] = dumped if len(dumped) > 1 else dumped[kinds[0]]
        print_json(shown)
    else:
        for name, found in by_server.items():
            counts = (count_of(len(items), kind.removesuffix("s")) for kind, items in zip(kinds, found, strict=True))
            print(
                "\n".join([f"{name}: {', '.join(counts)}", *(f"  {line}" for line in _LINES[arguments.action](*found))])
            )
        if not statuses and not configuration.problems:
            print(NO_SERVERS)
    missing = [
        status
        for status in statuses
        if status.name not in by_server and (arguments.servers or status.state != "disabled")
    ]
    for status in missing:
        print_error(f"{status.name}: {status.state}: {reason_of(status, arguments.timeout)}")
    return 1 if missing or configuration.problems else 0


# -- operations on a single server -------------------------------------------------------------------------------------


async def _operate(arguments: argparse.Namespace) -> int:
    """Runs an operation on the named server within the given time, and prints the result."""
    # Arguments are parsed before anything is started: a mistake in them costs no connection.
    known_arguments = text_arguments(arguments.pairs) if arguments.action == "complete" else {}
    if arguments.action == "call" and arguments.arguments == ["-"]:
        arguments.arguments = [standard_input()]
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        with anyio.move_on_after(arguments.timeout):
            found = await _operation(hub, arguments, known_arguments)
            if arguments.action == "read" and not arguments.json and not is_terminal(sys.stdout):
                _write_contents(found.data)
            elif arguments.json:
                print_json(found.data)
            elif found.text:
                print(clean(found.text) if is_terminal(sys.stdout) else found.text)
            return int(ExitCode.FAILED if found.failed else ExitCode.DONE)
    return print_error(f"{arguments.server} did not answer within {arguments.timeout:g} s.")


async def _operation(hub: Hub, arguments: argparse.Namespace, known_arguments: Mapping[str, str]) -> OperationResult:
    server = arguments.server
    match arguments.action:
        case "call":
            return await call_tool(hub, server, arguments.tool, arguments.arguments, _prompter())
        case "read":
            return await read_resource(hub, server, arguments.uri)
        case "prompt":
            return await get_prompt(hub, server, arguments.prompt, arguments.arguments)
    return await complete(hub, server, arguments.reference, arguments.argument, arguments.value, known_arguments)


def _prompter() -> AskPerson:
    """Asks on stderr, so that stdout contains only the result; without a terminal every question is cancelled."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return cancel_elicitation
    lines = InputLines()

    async def read_line(prompt: str, choices: Sequence[str] = ()) -> str | None:
        print(prompt, end="", file=sys.stderr, flush=True)
        return await lines.next()

    return QuestionPrompter(lambda text: print(text, file=sys.stderr), read_line)


def _write_contents(result: dict[str, Any]) -> None:
    """Writes the contents of a resource unchanged, for a file or another program: adds nothing and writes bytes as
    bytes."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    for content in result.get("contents") or ():
        if isinstance(content.get("text"), str):
            sys.stdout.write(content["text"])
        elif isinstance(content.get("blob"), str):
            try:
                decoded = base64.b64decode(content["blob"])
            except ValueError:
                raise UpstreamUnavailable("The server sent bytes that are not base64.") from None
            sys.stdout.flush()
            # Bypasses the text layer, which has just been flushed: otherwise bytes and text would be out of order.
            sys.stdout.buffer.write(decoded)
            sys.stdout.buffer.flush()


# -- watching ------------------------------------------------------------------------------------------------------


class _Watch:
    """Prints the notifications of a server, and changes of its connection."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.lost = anyio.Event()
        self.unwritten: OSError | None = None
        """Why nothing more can be printed. Not raised where a notification arrives: that would end the connection."""

    def on_notification(self, _: str, method: str, params: dict[str, Any]) -> None:
        try:
            self._print(method, params)
        except OSError as error:
            self.unwritten = error
            self.lost.set()

    def _print(self, method: str, params: dict[str, Any]) -> None:
        if self._as_json:
            print(json.dumps({"method": method, "params": params}, ensure_ascii=False), flush=True)
        else:
            line = notification_line(method, params)
            print(clean(line) if is_terminal(sys.stdout) else line, flush=True)

    def on_state(self, status: ServerStatus) -> None:
        reason = f" ({status.reason})" if status.reason else ""
        print(f"claude-code-mcp: {status.name}: {status.state}{clean(reason)}", file=sys.stderr, flush=True)
        if status.state in ("failed", "needs-auth", "disabled"):
            self.lost.set()


async def _watch(arguments: argparse.Namespace) -> int:
    """Runs until the time is over, Ctrl-C, the server is lost permanently, or the reader of the output leaves."""
    server, watch = arguments.server, _Watch(as_json=arguments.json)
    configuration = select_servers(load_configuration(arguments), [server])
    async with command_hub(configuration, watch.on_notification) as hub:
        await hub.tools(server)  # raises if the connection fails
        for uri in arguments.uris:
            await hub.follow(server, uri)
        unwatch = hub.watch(server, lambda what: watch.on_state(hub.status(server)[0]) if what == "state" else None)
        # Checked after the watch was set: a connection lost before that would never be reported.
        [status] = hub.status(server)
        if status.state != "connected":
            raise UpstreamUnavailable(f"{server} is no longer connected.", state=status.state)
        print(f"claude-code-mcp: watching {server}; Ctrl-C stops.", file=sys.stderr, flush=True)
        try:
            with anyio.move_on_after(arguments.timeout):
                await watch.lost.wait()
        finally:
            unwatch()
    if watch.unwritten is not None:
        raise watch.unwritten
    return 1 if watch.lost.is_set() else 0


_ACTIONS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "status": _status,
    "login": _login,
    "logout": _logout,
    **dict.fromkeys(_LISTS, _list),
    **dict.fromkeys(("call", "read", "prompt", "complete"), _operate),
    "watch": _watch,
}


def run(arguments: argparse.Namespace) -> int:
    return run_action(_ACTIONS[arguments.action](arguments))
