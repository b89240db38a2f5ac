"""`mcp tools`, `resources`, `read`, `prompts`, `prompt`, `complete` and `watch`: what configured servers have, once.

What was asked for goes to stdout, everything else to stderr. A server that is not there is named on stderr, and the
exit code is 1.
"""

import argparse
import asyncio
import base64
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from ...errors import UpstreamUnavailable
from ...hub.hub import Hub, ServerStatus
from .configure import load_configuration, select_servers
from .live import reason_of, selected
from .operations import (
    OperationResult,
    complete,
    dump_all,
    get_prompt,
    prompt_line,
    read_resource,
    resource_lines,
    text_arguments,
    tool_line,
)
from .render import as_json, clean, counted, notification_line
from .runner import command_hub, print_error, print_found, run_action
from .terminal import is_terminal

# -- lists ---------------------------------------------------------------------------------------------------------

_LISTS = {"tools": ("tools",), "resources": ("resources", "templates"), "prompts": ("prompts",)}


async def _list(arguments: argparse.Namespace) -> int:
    configuration, kinds = selected(arguments), _LISTS[arguments.action]
    async with command_hub(configuration) as hub:
        lists = await asyncio.gather(*(hub.lists(kind, arguments.timeout) for kind in kinds))
        statuses = hub.status()
    connected = [status.name for status in statuses if status.state == "connected"]
    by_server = {name: [listed.get(name, []) for listed in lists] for name in connected}
    if arguments.json:
        print(as_json({name: _list_data(kinds, found) for name, found in by_server.items()}))
    else:
        for name, found in by_server.items():
            counts = (counted(len(items), kind.removesuffix("s")) for kind, items in zip(kinds, found, strict=True))
            print("\n".join([f"{name}: {', '.join(counts)}", *(f"  {line}" for line in _list_lines(kinds, found))]))
    missing = [
        status
        for status in statuses
        if status.name not in by_server and (arguments.servers or status.state != "disabled")
    ]
    for status in missing:
        print_error(f"{status.name}: {status.state}: {reason_of(status, arguments.timeout)}")
    return 1 if missing or configuration.problems else 0


def _list_data(kinds: tuple[str, ...], found: list[list[Any]]) -> Any:
    dumped = {kind: dump_all(items) for kind, items in zip(kinds, found, strict=True)}
    return dumped if len(dumped) > 1 else dumped[kinds[0]]


def _list_lines(kinds: tuple[str, ...], found: list[list[Any]]) -> list[str]:
    if kinds == ("tools",):
        return [tool_line(tool) for tool in found[0]]
    return resource_lines(*found) if len(found) > 1 else [prompt_line(prompt) for prompt in found[0]]


# -- one thing of one server ---------------------------------------------------------------------------------------


async def _on_server(
    arguments: argparse.Namespace, operation: Callable[[Hub], Coroutine[Any, Any, OperationResult]]
) -> int:
    """Does something with the one server that was named, within the time that was given, and prints what it found."""
    async with command_hub(select_servers(load_configuration(arguments), [arguments.server])) as hub:
        with anyio.move_on_after(arguments.timeout):
            found = await operation(hub)
            if arguments.action == "read" and not arguments.json and not is_terminal(sys.stdout):
                _write_contents(found.data)
            else:
                print_found(found, json=arguments.json)
            return 0
    return print_error(f"{arguments.server} did not answer within {arguments.timeout:g} s.")


def _write_contents(result: dict[str, Any]) -> None:
    """The contents of a resource as they are, for a file or another program: nothing is added, bytes are bytes."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    for content in result.get("contents") or ():
        if isinstance(content.get("text"), str):
            sys.stdout.write(content["text"])
        elif isinstance(content.get("blob"), str):
            sys.stdout.flush()
            sys.stdout.buffer.write(_decoded(content["blob"]))
            sys.stdout.buffer.flush()


def _decoded(blob: str) -> bytes:
    try:
        return base64.b64decode(blob)
    except ValueError:
        raise UpstreamUnavailable("The server sent bytes that are not base64.") from None


async def _read(arguments: argparse.Namespace) -> int:
    return await _on_server(arguments, lambda hub: read_resource(hub, arguments.server, arguments.uri))


async def _prompt(arguments: argparse.Namespace) -> int:
    return await _on_server(
        arguments, lambda hub: get_prompt(hub, arguments.server, arguments.prompt, arguments.arguments)
    )


async def _complete(arguments: argparse.Namespace) -> int:
    known_arguments = text_arguments(arguments.pairs)
    return await _on_server(
        arguments,
        lambda hub: complete(
            hub, arguments.server, arguments.reference, arguments.argument, arguments.value, known_arguments
        ),
    )


# -- watching ------------------------------------------------------------------------------------------------------


class _Watch:
    """Prints what a server tells by itself, and how its connection stands."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.lost = anyio.Event()
        self.unwritten: OSError | None = None
        """Why nothing more can be printed. Not raised where a notification arrives: it would end the connection."""

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
    """Runs until the time is over, Ctrl-C, the server is lost for good, or nobody reads the output any more."""
    server, watch = arguments.server, _Watch(as_json=arguments.json)
    configuration = select_servers(load_configuration(arguments), [server])
    async with command_hub(configuration, watch.on_notification) as hub:
        await hub.tools(server)  # raises where it cannot be connected to
        for uri in arguments.uris:
            await hub.follow(server, uri)
        unwatch = hub.watch(server, lambda what: watch.on_state(hub.status(server)[0]) if what == "state" else None)
        [status] = hub.status(server)
        if status.state != "connected":
            raise UpstreamUnavailable(f"{server} is not connected any more.", state=status.state)
        print(f"claude-code-mcp: watching {server}; Ctrl-C ends it.", file=sys.stderr, flush=True)
        try:
            with anyio.move_on_after(arguments.timeout):
                await watch.lost.wait()
        finally:
            unwatch()
    if watch.unwritten is not None:
        raise watch.unwritten
    return 1 if watch.lost.is_set() else 0


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "tools": lambda arguments: run_action(_list(arguments)),
    "resources": lambda arguments: run_action(_list(arguments)),
    "prompts": lambda arguments: run_action(_list(arguments)),
    "read": lambda arguments: run_action(_read(arguments)),
    "prompt": lambda arguments: run_action(_prompt(arguments)),
    "complete": lambda arguments: run_action(_complete(arguments)),
    "watch": lambda arguments: run_action(_watch(arguments)),
}
