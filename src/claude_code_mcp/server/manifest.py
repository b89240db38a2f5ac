"""Builds a manifest by asking a real server in memory for its first answers. Run as a module, it renews the shipped
manifest."""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from ..core.config import load_settings
from ..core.service import Service
from ..startup.greeting.first_answers import (
    MADE_WITH,
    SHIPPED,
    GreetedInput,
    Results,
    is_installed,
    place_with_plugins,
    write,
)
from .message_streams import SendStream, message_streams
from .server import McpServer

log = logging.getLogger(__name__)

Answers = dict[str, dict[str, dict[str, Any]]]

_CLIENT_INFO = {"name": "manifest", "version": "1"}


async def renew_manifest(
    server: Server[Any],
    greeted: GreetedInput,
    plugins: dict[str, str],
    outbox: SendStream[SessionMessage] | None = None,
) -> None:
    """Store the manifest for the next start, unless it equals the one that the greeting used; a failure is only logged.
    A client on `outbox` that was given other tools is notified. `plugins` are the distributions of the plug-ins that
    add tools."""
    used, file = greeted.manifest, greeted.leave_manifest or place_with_plugins(greeted.argv)
    results, otherwise = encoded(await first_answers(server))
    # Only if the next start can detect that a plug-in has changed or was removed.
    lasting = all(is_installed(name, version) for name, version in plugins.items())
    if file is not None and lasting and (used is None or not used.checked or used.results != results):
        await _write(file, results, otherwise, plugins)
    version = greeted.listed_in
    if outbox is None or used is None or version is None:
        return
    if results["tools/list"][version] != used.result("tools/list", version):
        changed = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/tools/list_changed")
        with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the client disconnected
            await outbox.send(SessionMessage(changed))


async def leave_manifest(server: Server[Any], file: str) -> None:
    """Store the manifest for the next start; a failure is only logged."""
    results, otherwise = encoded(await first_answers(server))
    await _write(file, results, otherwise, None)


async def _write(file: str, results: Results, otherwise: str, plugins: dict[str, str] | None) -> None:
    made_with = {name: importlib.metadata.version(name) for name in MADE_WITH}
    try:
        await asyncio.to_thread(write, file, results, otherwise, made_with, plugins)
    except OSError as error:
        log.debug("the manifest cannot be cached, so the next start will not be faster: %s", error)


def encoded(answers: tuple[Answers, str]) -> tuple[Results, str]:
    """Answers in the format of a manifest."""
    by_method, otherwise = answers
    results = {
        method: {version: _compact(result) for version, result in by_version.items()}
        for method, by_version in by_method.items()
    }
    return results, otherwise


async def first_answers(server: Server[Any]) -> tuple[Answers, str]:
    """The first answers of this server by method and version, and the version for clients of unknown ones."""
    answers: Answers = {"initialize": {}, "server/discover": {}, "tools/list": {}}
    for version in HANDSHAKE_PROTOCOL_VERSIONS:
        async with _connection(server) as client:
            answers["initialize"][version] = await client.request("initialize", _handshake(version))
            answers["tools/list"][version] = await client.request("tools/list")
    for version in MODERN_PROTOCOL_VERSIONS:
        async with _connection(server) as client:
            for method in ("server/discover", "tools/list"):
                answers[method][version] = await client.request(method, _envelope(version))
    async with _connection(server) as client:
        otherwise = await client.request("initialize", _handshake("unknown"))
    return answers, otherwise["protocolVersion"]


def _handshake(version: str) -> dict[str, Any]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": _CLIENT_INFO}


def _envelope(version: str) -> dict[str, Any]:
    return {
        "_meta": {
            types.PROTOCOL_VERSION_META_KEY: version,
            types.CLIENT_CAPABILITIES_META_KEY: {},
            types.CLIENT_INFO_META_KEY: _CLIENT_INFO,
        }
    }


def _compact(result: dict[str, Any]) -> bytes:
    return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()


class _Client:
    """A minimal client that sends one request at a time."""

    def __init__(self, to_server: Any, from_server: Any) -> None:
        self._to_server, self._from_server = to_server, from_server

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        request = types.JSONRPCRequest(jsonrpc="2.0", id=1, method=method, params=params)
        await self._to_server.send(SessionMessage(request))
        reply = (await self._from_server.receive()).message
        assert isinstance(reply, types.JSONRPCResponse), reply
        return reply.result


@asynccontextmanager
async def _connection(server: Server[Any]) -> AsyncIterator[_Client]:
    to_server, inbox = message_streams()
    outbox, from_server = message_streams()
    async with anyio.create_task_group() as tasks, to_server, from_server:
        tasks.start_soon(server.run, inbox, outbox, server.create_initialization_options())
        yield _Client(to_server, from_server)


if __name__ == "__main__":
    asyncio.run(leave_manifest(McpServer(Service(load_settings({}))).server(), SHIPPED))
