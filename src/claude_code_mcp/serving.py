"""Serves a running server to its clients: one client on stdio, any number over HTTP, or as the server that all clients
of this user share.
"""

import asyncio
import logging
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import SecretStr

from . import __version__
from .app import authenticators, only_part, queries_of, running_service, tools_with
from .core.config import Settings, load_settings
from .core.errors import ClaudeCodeError, InvalidArgument
from .core.model.caller import LOCAL
from .core.model.question import Question
from .core.model.states import SESSION_TOOL_STATUS
from .core.policy.policy import Policy
from .core.policy_file import read_policy
from .core.service import Service
from .hub.provider import HubProvider
from .installed_plugins import distributions_of
from .plugin import HttpPort, Plugin, RunningServer
from .server.server import McpServer
from .startup.greeting.first_answers import GreetedInput

if TYPE_CHECKING:
    import socket

    from mcp.server.lowlevel import Server
    from mcp.shared.message import SessionMessage
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from .server.message_streams import SendStream
    from .server.transports.callers import Callers
    from .server.transports.http import Address, HttpServer
    from .server.transports.unix_socket import SharedSocket
    from .startup.shared.handshake import Hello

log = logging.getLogger(__name__)

_HANDOVER_PAUSE = 0.5


async def run_stdio(settings: Settings, greeted: GreetedInput | None = None) -> None:
    """Serves one client on stdin and stdout until it disconnects or a signal arrives; `greeted` holds what it has
    already sent."""
    from .server.transports.stdio import stdio_streams  # noqa: PLC0415 - each transport is loaded where it is used

    greeted, serving = greeted or GreetedInput(), anyio.CancelScope()
    with on_signals(serving.cancel):
        async with (
            running_service(settings, "local", None) as (service, hosting, running),
            stdio_streams(greeted) as (inbox, outbox),
        ):
            server = McpServer(
                service, "keep", hosting.shared_hub, tools_with(running.plugins, settings)
            ).server()  # the server ends with its only client: see below
            manifest = _renewed_manifest(server, greeted, running.plugins, outbox)
            if manifest is not None:
                service.start_task(manifest)
            with serving:
                # In a separate task: a message then wakes only the protocol's loop, not everything above it in the call
                # stack.
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(server.run, inbox, outbox, server.create_initialization_options())
                # Inside the scope: a signal ends this wait too.
                await _finish_turns(service, settings.on_disconnect or "stop")


def _renewed_manifest(
    server: "Server[Any]",
    greeted: GreetedInput,
    plugins: Sequence[Plugin],
    outbox: "SendStream[SessionMessage] | None" = None,
) -> "Coroutine[Any, Any, None] | None":
    """The coroutine that writes a manifest for the next start; None if this server answers like every server with its
    settings."""
    with_tools = [plugin for plugin in plugins if type(plugin).tools is not Plugin.tools]
    used = greeted.manifest
    if greeted.leave_manifest is None and not with_tools and (used is None or not used.with_plugins):
        return None
    from .server.manifest import renew_manifest  # noqa: PLC0415 - few starts need it

    async def renew() -> None:
        distributions = await asyncio.to_thread(distributions_of, with_tools)
        await renew_manifest(server, greeted, distributions, outbox)

    return renew()


async def refuse_stdio(problem: ClaudeCodeError, greeted: GreetedInput) -> None:
    """Answers every call of the client on stdin and stdout with the reason why there is no server, until the client
    disconnects or a signal arrives."""
    from .server.server import refusing_server  # noqa: PLC0415
    from .server.transports.stdio import stdio_streams  # noqa: PLC0415

    server, serving = refusing_server(problem, load_settings({})), anyio.CancelScope()
    with on_signals(serving.cancel):
        async with stdio_streams(greeted) as (inbox, outbox):
            with serving:
                await server.run(inbox, outbox, server.create_initialization_options())


async def _finish_turns(service: Service, on_disconnect: str) -> None:
    """The only client has disconnected: lets running turns finish (`keep`) or interrupts them. The service closes
    afterward in both cases."""
    running = [session for session in service.sessions(principal=None) if session.busy]
    if on_disconnect == "keep":
        log.info("the client disconnected; waiting for %d turns to end", len(running))
        await asyncio.gather(*(session.wait(None, for_questions=False) for session in running))
    elif on_disconnect == "interrupt":
        await asyncio.gather(*(session.interrupt() for session in running))


async def run_http(settings: Settings, address: str) -> None:
    """Serves any number of clients over HTTP until a signal arrives."""
    from .server.transports import systemd  # noqa: PLC0415
    from .server.transports.callers import Callers  # noqa: PLC0415
    from .server.transports.http import Address, check_exposure, read_address  # noqa: PLC0415
    from .server.transports.tokens_file import TOKEN_FILE, created_token  # noqa: PLC0415

    stop_requested, systemd_manager = asyncio.Event(), systemd.Notifier()
    listener = systemd.inherited_listener() if address == systemd.ADDRESS else None
    bind = read_address(address) if listener is None else Address(*listener.getsockname()[:2])
    policy, audit_file = read_policy(settings, "remote"), settings.state_dir / "audit.jsonl"
    callers = await asyncio.to_thread(partial(Callers, settings, authenticators=authenticators(settings)))
    # Before anything starts: the server must not be exposed even for a moment.
    check_exposure(bind, callers, settings)
    announcement = ""
    if not callers.required and policy.needs_token:
        token, is_new = await asyncio.to_thread(created_token, settings.state_dir)
        settings = settings.model_copy(update={"http_token": SecretStr(token)})
        # The holder of the token is the user of this server, like every caller of a server without a token.
        callers = await asyncio.to_thread(Callers, settings, LOCAL, callers.authenticators)
        announcement = _announcement(settings.state_dir / TOKEN_FILE, token if is_new else None)
    serving_at, principals = (bind.host, bind.port), callers.names
    with on_signals(stop_requested.set):
        async with running_service(settings, policy, audit_file, serving_at, principals, others=callers.open) as (
            service,
            hosting,
            running,
        ):
            mcp_server = McpServer(
                service, settings.on_disconnect or "keep", hosting.shared_hub, tools_with(running.plugins, settings)
            )
            async with _http_server(bind, mcp_server, callers, running, listener) as server:
                stopping = service.start_task(_stop_when_requested(server, running.plugins, stop_requested))
                try:
                    # Not through the log: it hides tokens, and may be kept.
                    sys.stderr.write(announcement)
                    # Before the first request is answered: from now on, clients that connect wait at the socket.
                    systemd_manager.send("READY=1", f"STATUS=serves MCP on {server.url}")
                    await server.serve()
                finally:
                    systemd_manager.send("STOPPING=1")
                    stopping.cancel()


def _announcement(file: Path, created: str | None) -> str:
    """The message about the token that clients need and the operator has not configured. It shows the token itself only
    if it was created now."""
    if created is None:
        return f"Clients need the token in {file}.\n"
    return (
        f"No token was configured, so the server created one. Clients send it as `Authorization: Bearer {created}`; "
        f"you also sign in to the console with it. It is stored in {file}.\n"
    )


@asynccontextmanager
async def _http_server(
    bind: "Address",
    mcp_server: McpServer,
    callers: "Callers",
    running: RunningServer,
    listener: "socket.socket | None" = None,
) -> "AsyncIterator[HttpServer]":
    """An HTTP server for the MCP server, the page and the routes of plug-ins; the block must call `serve`. It already
    listens, and requests wait until then. Changes of the callers are followed until the end of the block."""
    from .server.transports.http import HttpServer, http_app  # noqa: PLC0415

    service, plugins = running.service, running.plugins

    def make_app(at: "Address") -> "ASGIApp":
        port = HttpPort(at, callers, by_socket=running.shared is not None)

        def routes() -> "Sequence[BaseRoute]":
            page = only_part(plugins, "a page", lambda plugin: plugin.page(running, port))
            more = [route for plugin in plugins for route in plugin.routes(running, port)]
            return [*more, *callers.routes(page), *(page.routes() if page is not None else ())]

        return http_app(mcp_server, service.settings, at, callers, routes)

    server = HttpServer(bind, make_app, settings=service.settings, callers=callers, listener=listener)
    # Before anything is served: a new session must not connect back to this server.
    service.own_addresses.extend(server.own_addresses)
    following = service.start_task(callers.follow(service))
    try:
        yield server
    finally:
        following.cancel()


async def _stop_when_requested(server: "HttpServer", plugins: Sequence[Plugin], stop_requested: asyncio.Event) -> None:
    await stop_requested.wait()
    server.stop()
    for plugin in plugins:
        try:
            plugin.stop()
        except Exception:
            log.exception("the plug-in %s could not be stopped", plugin.name)


async def run_shared(shared: "SharedSocket", settings_of: "Callable[[Hello], Settings]", http: str | None) -> None:
    """Serves every client that connects to the socket, and HTTP clients if there is an address. Ends on a signal, on a
    request to stop, when a newer version wants to take over and no work is running, or after a while without use.

    `settings_of` makes the settings from the hello of the first client. If the settings, or what they refer to, cannot
    be used, every client gets the error and this raises ClaudeCodeError.
    """
    from .server.transports.unix_socket import STOPPING  # noqa: PLC0415

    with on_signals(partial(shared.end, STOPPING)):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shared.run)
            try:
                first = await shared.first_hello()
                if first is not None:
                    await _serve_shared(shared, settings_of(first), first, http)
            except ClaudeCodeError as problem:
                await shared.refuse(problem.message)
                raise
            finally:
                # On every path: the task group waits for `run`, which ends only after this.
                shared.end(STOPPING)


async def _serve_shared(shared: "SharedSocket", settings: Settings, first: "Hello", http: str | None) -> None:
    callers = await asyncio.to_thread(shared_callers, settings, http)
    principals = {LOCAL, *callers.names} if callers is not None else ()
    policy = shared_policy(settings, http)
    async with running_service(
        settings,
        policy,
        None,
        principals=principals,
        spares=1,
        others=callers is not None and callers.open,
        shared=shared.name,
        over_http=http is not None,
    ) as (service, hosting, running):
        plugins = running.plugins
        server = McpServer(service, settings.on_disconnect or "keep", hosting.shared_hub, tools_with(plugins, settings))
        # The front sends the first answers and does not know the tools of this server's plug-ins.
        greeted = GreetedInput(leave_manifest=first.manifest, argv=first.arguments)
        manifest = _renewed_manifest(server.server(), greeted, plugins)
        if manifest is not None:
            service.start_task(manifest)

        async def expects(question: Question) -> bool:
            mine = service.sessions(principal=LOCAL)
            return shared.has_person and any(session.id == question.session_id for session in mine)

        service.broker.add_audience(expects)

        async def is_needed(idle: float) -> bool:
            return any([await _is_needed(plugin, idle) for plugin in plugins])

        def status() -> dict[str, Any]:
            sessions = service.sessions(principal=None)
            return {
                "http": url,
                **{name: value for plugin in plugins for name, value in plugin.status().items()},
                "sessions": len(sessions),
                "busy": sum(session.busy for session in sessions),
                "processes": sum(session.live for session in sessions),
                "questions": len(service.broker.pending()),
            }

        async with _serve_http_too(http, server, callers, running) as url:
            asks: dict[str, Callable[[], Awaitable[Any]]] = {
                "sessions": partial(_states, service),
                "hub": partial(_servers, hosting),
            }
            shared.open(server, status, {**asks, **queries_of(plugins, running)})
            log.info("version %s serves the clients of this user", __version__)
            idle = settings.shared_idle if http is None else math.inf
            await _until_unused(shared, service, idle, is_needed)


def shared_callers(settings: Settings, http: str | None) -> "Callers | None":
    """Callers over HTTP; the token of the settings identifies the user. A token is required even on loopback, which
    other users of the machine can reach. Blocks on the disk."""
    if http is None:
        return None
    from .server.transports.callers import Callers  # noqa: PLC0415

    if (
        settings.http_token is None
        and settings.http_tokens_file is None
        and not (settings.oauth or settings.oauth_issuer)
    ):
        raise InvalidArgument("The shared server serves over HTTP only with a token: set CLAUDE_CODE_MCP_TOKEN.")
    return Callers(settings, LOCAL, authenticators(settings))


def shared_policy(settings: Settings, http: str | None) -> Policy:
    """The policy for the user on stdio and for callers over HTTP, if there are any."""
    local = read_policy(settings, "local")
    if http is None:
        return local
    remote = read_policy(settings, "remote")
    return replace(remote, principals={LOCAL: local.profile(LOCAL), **remote.principals})


@asynccontextmanager
async def _serve_http_too(
    http: str | None,
    mcp_server: McpServer,
    callers: "Callers | None",
    running: RunningServer,
) -> "AsyncIterator[str | None]":
    """Serves over HTTP as well during the block, if there is an address; yields the URL, or None."""
    if http is None or callers is None:
        yield None
        return
    from .server.transports.http import check_exposure, read_address  # noqa: PLC0415

    bind = read_address(http)
    check_exposure(bind, callers, mcp_server.service.settings)
    async with _http_server(bind, mcp_server, callers, running) as server:
        serving = mcp_server.service.start_task(server.serve())
        try:
            yield server.url
        finally:
            server.stop()
            await asyncio.wait([serving])


async def _states(service: Service) -> dict[str, str]:
    return {session.id: SESSION_TOOL_STATUS[session.state] for session in service.sessions(principal=None)}


async def _servers(hosting: HubProvider) -> list[dict[str, Any]] | None:
    """The status of each server of the hub, after each had time to connect; None without a hub."""
    if hosting.hub is None:
        return None
    await hosting.hub.tools()
    return [asdict(status) for status in hosting.hub.status()]


def _has_work(service: Service) -> bool:
    return any(session.busy for session in service.sessions(principal=None)) or bool(service.broker.pending())


async def _is_needed(plugin: Plugin, idle: float) -> bool:
    """Whether a plug-in needs the server. If the plug-in raises, it may be in use, so the answer is yes."""
    try:
        return await plugin.is_needed(idle)
    except Exception:
        log.exception("cannot determine whether the plug-in %s is in use", plugin.name)
        return True


async def _until_unused(
    shared: "SharedSocket", service: Service, idle: float, in_use: Callable[[float], Awaitable[bool]]
) -> None:
    """Returns when the server must end, for any reason; its clients have been notified by then. While a plug-in is
    `in_use`, the server does not end for lack of use."""
    async with anyio.create_task_group() as reasons:

        async def needed() -> bool:
            # This order matters: running work is checked last, with no await after it.
            return await in_use(idle) or service.waits_for_limits or _has_work(service)

        async def unused() -> None:
            await shared.unused(idle, needed)
            log.info("stopping: unused for %g s", idle)
            shared.end()

        async def handed_over() -> None:
            await shared.handover_wanted.wait()
            # Checked again after each pause, with no await between the check and the end: new work is not cut off.
            while _has_work(service) or not shared.idle:
                busy = [session for session in service.sessions(principal=None) if session.busy]
                await asyncio.gather(*(session.wait(None, for_questions=False) for session in busy))
                await shared.wait_until_idle()
                await asyncio.sleep(_HANDOVER_PAUSE)  # the client that was just answered may continue
            log.info("stopping: version %s takes over", shared.wanted_version)
            shared.end_for(shared.wanted_version)

        reasons.start_soon(unused)
        reasons.start_soon(handed_over)
        await shared.ended()
        reasons.cancel_scope.cancel()


@contextmanager
def on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP call `stop` and do nothing else, so that they cannot cut the shutdown short."""
    loop = asyncio.get_running_loop()
    signals = () if sys.platform == "win32" else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
