"""Runs the `headersHelper` of a server, which prints headers for its connection.

The shell runs it for every connection, in the directory of the connection's user, with the server's name and address in
the same variables as in Claude Code. It has ten seconds, and its output is not logged.
"""

import asyncio
import json
import sys

import anyio

from ...core.processes.child import ChildProcess, Exit
from ..config_entry import (
    ServerConfig,
)
from ..hub_deps import HubDeps

_TIMEOUT = 10.0
_GRACE = 1.0
_MAX_OUTPUT = 1 << 20


class HelperFailed(Exception):
    """The command did not print headers; the message contains none of its output."""


async def with_helped_headers(name: str, config: ServerConfig, deps: HubDeps, directory: str) -> ServerConfig:
    """The entry with the headers from its helper, which override configured ones; unchanged if it has no helper.

    Raises HelperFailed.
    """
    helper = getattr(config, "headers_helper", None)
    if helper is None:
        return config
    variables = {"CLAUDE_CODE_MCP_SERVER_NAME": name, "CLAUDE_CODE_MCP_SERVER_URL": getattr(config, "url", "")}
    output = await _output_of(name, helper, deps, variables, directory)
    try:
        headers = json.loads(output)
    except (ValueError, RecursionError):
        headers = None
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise HelperFailed("headersHelper did not print a JSON object with string values")
    return config.model_copy(update={"headers": {**getattr(config, "headers", {}), **headers}})


async def _output_of(name: str, command: str, deps: HubDeps, variables: dict[str, str], directory: str) -> bytes:
    environment, mark = deps.child_environment(deps.environment)
    listener = _Listener()
    child = ChildProcess(listener, "headersHelper", mark=mark, owner=f"MCP server {name}")
    shell = ["cmd.exe", "/d", "/s", "/c"] if sys.platform == "win32" else ["/bin/sh", "-c"]
    try:
        with anyio.CancelScope(shield=True):  # if this were cancelled, the child would keep running
            await child.start([*shell, command], cwd=directory, environment={**environment, **variables})
        child.close_input()
        with anyio.move_on_after(_TIMEOUT):
            await listener.ended.wait()
    finally:
        # Shielded: no other code would end the child.
        with anyio.CancelScope(shield=True):
            if child.started:
                await child.stop(_GRACE)
    if not listener.ended.is_set():
        raise HelperFailed(f"headersHelper took more than {_TIMEOUT:g} s")
    if child.returncode != 0 or len(listener.output) > _MAX_OUTPUT:
        raise HelperFailed(f"headersHelper failed: {Exit(child.returncode or 0, '').how}")
    return bytes(listener.output)


class _Listener:
    def __init__(self) -> None:
        self.output = bytearray()
        self.ended = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        if len(self.output) <= _MAX_OUTPUT:
            self.output += data

    def output_ended(self) -> None:
        """Ignored: the exit of the process is waited for instead."""

    def input_closed(self) -> None:
        """Ignored: the command need not read its input."""

    def child_ended(self, exit_: Exit) -> None:
        self.ended.set()
