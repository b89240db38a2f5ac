"""The hub: one connection to every configured MCP server, shared by all sessions, clients and commands.

This is the public face of the package. `Hub` finds the server and checks the configuration. `servers.py` has all
servers, `server_pool.py` decides which callers share a connection, `upstream.py` has the connections, and
`session_endpoint.py` is the view of one session.
"""

import asyncio
import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, get_args

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client.auth import OAuthFlowError
from mcp.shared.dispatcher import ProgressFnT

from ..core.config import Settings
from ..core.errors import InvalidArgument, UpstreamUnavailable
from ..core.model.question import AskPerson
from ..core.model.tool_names import ToolNames, normalize
from .auth.sign_in import deliver_redirect, sign_in
from .auth.stored_oauth import ShowAddress
from .client_session import CallerSide, UpstreamClient, wants_input
from .config_entry import CallLimits, OAuthServerConfig
from .config_files import HubConfig
from .hub_deps import HubDeps
from .long_results import text_of
from .server_pool import ServerPool
from .servers import HubServers, ServerStatus, status_of
from .session_endpoint import CONNECT_TIMEOUT, Push, SessionEndpoint
from .streams import JsonObject
from .transports.transport_factory import own_storage

log = logging.getLogger(__name__)

_SIGN_IN_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class HubTool:
    """A tool and its name in the hub."""

    name: str
    server: str
    tool: types.Tool


class Hub(HubServers):
    """The operations of callers on the servers. A server is connected when first needed."""

    def __init__(self, configuration: HubConfig, settings: Settings, deps: HubDeps) -> None:
        super().__init__(configuration, settings, deps)
        self._endpoints = itertools.count(1)
        self._sign_ins: dict[str, tuple[str, asyncio.Event]] = {}
        """The running sign-ins by the shown URL: the server, and an event for the end."""
        self.opened: Hub | None = self
        """This hub itself, for code that handles both `Hub` and `LazyHub`."""

    # -- connecting ----------------------------------------------------------------------------------------

    async def connect(self, timeout: float | None = None, names: Collection[str] | None = None) -> list[ServerStatus]:
        """Connect to all enabled servers, or the named ones, a few at a time, and wait until the timeout; attempts
        continue. Unknown names are ignored."""
        await self._connect([pool for name, pool in self._pools.items() if names is None or name in names], timeout)
        return self.status()

    async def reconnect(self, server: str) -> ServerStatus:
        """Reconnect, wait for the outcome, and return it."""
        pool = self._find(server)
        for upstream in pool.connections:
            if upstream is pool.shown or not upstream.is_idle:
                upstream.reconnect()
        await self._connect([pool], None)
        return status_of(pool)

    async def tools(
        self,
        server: str | None = None,
        timeout: float | None = CONNECT_TIMEOUT,
        *,
        caller: str = "",
        directory: str | None = None,
    ) -> list[HubTool]:
        """The tools of all servers, or of one, for a caller. A server that is not connected in time is skipped; its
        attempt continues.

        Raises UpstreamUnavailable for a single server that is unavailable.
        """
        if server is not None:
            await self._client(server)
        tools: dict[str, list[types.Tool]] = await self.lists("tools", timeout, server, caller, directory)
        names = ToolNames((name, tool.name) for name in sorted(tools) for tool in tools[name])
        return [
            HubTool(names.name(name, tool.name), name, tool) for name in self._pools for tool in tools.get(name, ())
        ]

    async def lists(
        self,
        kind: str,
        timeout: float | None,
        server: str | None = None,
        caller: str = "",
        directory: str | None = None,
    ) -> dict[str, list[Any]]:
        """The `tools`, `resources`, `templates`, `prompts` or `skills` of all servers, or of one, by server: those of
        the caller's own connection, if it has one. A server that is not connected in time, or fails, is skipped; its
        attempt continues."""
        lists: dict[str, list[Any]] = {}

        async def fetch(pool: ServerPool) -> None:
            try:
                with anyio.move_on_after(timeout):
                    client = await pool.existing(caller, directory).connected()
                    lists[pool.server.name] = await getattr(client, kind)()
            except (UpstreamUnavailable, MCPError, ValueError) as error:
                log.info("the %s of %s are skipped: %s", kind, pool.server.name, error)

        async with anyio.create_task_group() as tasks:
            for pool in self._select(server):
                tasks.start_soon(fetch, pool)
        return {name: lists[name] for name in self._pools if name in lists}

    async def _client(self, server: str) -> UpstreamClient:
        """The connection for callers without a directory that cannot be asked."""
        return await self._find(server).existing("", None).connected()

    async def _connect(self, pools: list[ServerPool], timeout: float | None) -> None:
        async def connect_one(pool: ServerPool) -> None:
            try:
                await self._client(pool.server.name)
            except UpstreamUnavailable as error:
                log.info("%s", error.message)

        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                for pool in pools:
                    tasks.start_soon(connect_one, pool)

    # -- using ---------------------------------------------------------------------------------------------

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        caller: str = "",
        directory: str | None = None,
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
        side: CallerSide | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Call a tool by its own or configured name for a caller in a directory (by default ours), and return the
        complete result, however long. Cancelling the caller cancels the call at the server.

        With `ask`, it gets the server's questions. Without it, a result that requests input is returned; answer it by
        calling again with `input_responses` and `request_state`. A `side` replaces both, and also gets the server's
        other requests and messages during the call. Raises InvalidArgument for a tool that the configuration does not
        allow, UpstreamUnavailable, and MCPError with the server's error.
        """
        pool = self._find(server)
        if pool.own_name(tool) is None:
            raise InvalidArgument(f"The MCP server {server!r} offers no tool {tool!r}.", field="tool")
        optional = {"inputResponses": input_responses, "requestState": request_state, "_meta": meta}
        params = {key: value for key, value in optional.items() if value is not None}
        params |= {"name": tool, "arguments": dict(arguments or {})}
        side = side or CallerSide(on_progress, ask)
        with closing(pool.route(caller, directory)) as route:
            request = route.answered if side.ask is not None else route.request
            result = await request("tools/call", params, side)
        if wants_input(result):
            return types.InputRequiredResult.model_validate(result)
        return types.CallToolResult.model_validate(result)

    def limits(self, server: str) -> CallLimits:
        """The call limits of a server; enforced by code that calls on behalf of clients."""
        return self._find(server).server.config.limits

    async def resolve(self, name: str) -> tuple[str, str]:
        """The server and the tool behind `mcp__server__tool`."""
        for tool in await self.tools():
            if tool.name == name:
                return tool.server, tool.tool.name
        raise InvalidArgument(f"There is no tool {name!r}.", field="name")

    async def resources(self, server: str) -> list[types.Resource]:
        return await (await self._client(server)).resources()

    async def resource_templates(self, server: str) -> list[types.ResourceTemplate]:
        return await (await self._client(server)).templates()

    async def read(self, server: str, uri: str) -> types.ReadResourceResult:
        result = await self.request(server, "resources/read", {"uri": uri})
        return types.ReadResourceResult.model_validate(result)

    async def prompts(self, server: str) -> list[types.Prompt]:
        return await (await self._client(server)).prompts()

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> types.GetPromptResult:
        params = {"name": name, "arguments": dict(arguments or {})}
        return types.GetPromptResult.model_validate(await self.request(server, "prompts/get", params))

    async def expand_prompt(
        self, server: str, prompt: str, arguments: Sequence[str], *, caller: str = "", directory: str | None = None
    ) -> str | None:
        """The text of a prompt by its command name, with its arguments in order; None if there is no such prompt.
        Raises UpstreamUnavailable, also for the server's errors."""
        with closing(self._find(server).route(caller, directory)) as route:
            offered = await (await route.connected()).prompts()
            found = next((each for each in offered if normalize(each.name) == prompt), None)
            if found is None:
                return None
            # In order; the last argument takes all remaining values.
            names, values = [argument.name for argument in found.arguments or ()], list(arguments)
            if len(values) > len(names) > 0:
                values = [*values[: len(names) - 1], " ".join(values[len(names) - 1 :])]
            params = {"name": found.name, "arguments": dict(zip(names, values, strict=False))}
            try:
                result = types.GetPromptResult.model_validate(await route.request("prompts/get", params))
            except MCPError as error:
                raise UpstreamUnavailable(f"The MCP server {server!r} refused the prompt: {error.message}") from None
            texts = [text_of(message.content) for message in result.messages]
            return "\n\n".join(filter(None, texts)) or (result.description or "")

    async def complete(self, server: str, params: JsonObject) -> types.CompleteResult:
        """Complete an argument of a prompt or of a template's URI; `params` are those of `completion/complete`."""
        return types.CompleteResult.model_validate(await self.request(server, "completion/complete", params))

    async def request(self, server: str, method: str, params: JsonObject) -> JsonObject:
        """Send a request of any method to a server and return its result unchanged."""
        with closing(self._find(server).route()) as route:
            return await route.request(method, params)

    async def follow(self, server: str, uri: str) -> None:
        """Subscribe to a resource, on this connection and all later ones; watchers are then called with `updated` and
        the address. Raises UpstreamUnavailable, or MCPError if the server cannot."""
        pool = self._find(server)
        # One caller at a time for each resource: a second one also returns only after the server's confirmation, and
        # tries itself if the first failed.
        async with self._being_followed.setdefault((server, uri), asyncio.Lock()):
            if (server, uri) in self._followed:
                return
            route = pool.route()  # stays open, so that the connection does
            try:
                await route.follow(uri)
                if self._find(server) is not pool:
                    raise UpstreamUnavailable(
                        f"The MCP server {server!r} was replaced in the meantime.", state="pending"
                    )
            except BaseException:
                route.close()
                raise
            self._followed[server, uri] = route

    async def set_log_level(self, level: types.LoggingLevel) -> None:
        """Set the log level of all servers, including later ones, unless a more verbose level is already set. Logs
        during a call go to its caller."""
        levels, wanted = get_args(types.LoggingLevel), self._context.log_level
        if wanted is not None and levels.index(wanted) <= levels.index(level):
            return
        self._context.log_level = level
        async with anyio.create_task_group() as tasks:
            for upstream in (each for pool in self._pools.values() for each in pool.connections):
                if upstream.client is not None:
                    tasks.start_soon(upstream.client.set_log_level, level)

    async def notify(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification of any kind to a connected server."""
        client = self._find(server).shown.client
        if client is None:
            raise UpstreamUnavailable(f"The MCP server {server!r} is not connected.", state="pending")
        await client.notify(method, dict(params))

    def endpoint(
        self,
        server: str,
        push: Push,
        *,
        caller: str = "",
        directory: str | None = None,
        ask: AskPerson | None = None,
        timeout: float = CONNECT_TIMEOUT,
    ) -> SessionEndpoint:
        """The server for one session in a directory; to be closed with the session."""
        # A session without a name still gets a unique one.
        route = self._find(server).route(caller or f"endpoint:{next(self._endpoints)}", directory)
        return SessionEndpoint(route, push, ask=ask, timeout=timeout)

    # -- signing in ----------------------------------------------------------------------------------------

    async def authenticate(self, server: str, show: ShowAddress, timeout: float = _SIGN_IN_TIMEOUT) -> ServerStatus:
        """Sign in: open a URL for a person, store the tokens, enable the server and reconnect. For a server with
        cross-app access the person signs in at the organization's identity provider, once for all servers.

        Raises PermissionDenied for a locked server, InvalidArgument for one without OAuth, and UpstreamUnavailable if
        the sign-in failed or took longer than the timeout.
        """
        pool = self._unlocked(server)
        config = _with_oauth(pool)
        shown: list[str] = []

        def over() -> None:
            for address in shown:
                self._sign_ins.pop(address)[1].set()
            shown.clear()

        async def show_and_note(address: str) -> None:
            over()  # end an earlier sign-in that was never completed
            shown.append(address)
            # Noted before it is shown: the person may return at once.
            self._sign_ins[address] = (server, asyncio.Event())
            await show(address)

        try:
            provider = self._deps.identity_provider
            if not config.oauth.xaa:
                storage = own_storage(server, config, self._deps)
                await sign_in(config, storage, show_and_note, timeout, self._deps.client_document)
            elif provider is None:
                raise OAuthFlowError("there is no identity provider")
            else:
                await provider.sign_in(show_and_note, timeout)
        except OAuthFlowError as error:
            raise UpstreamUnavailable(f"Signing in to {server!r} failed: {error}", state="needs-auth") from None
        else:
            # Forgotten first: the stored state would refuse the new attempt.
            await self._needs_auth.forget(pool.key)
            self.enable(server)
            return await self.reconnect(server)
        finally:
            # Last: `finish_sign_in` waits for this, and reports the status of the new connection.
            over()

    async def finish_sign_in(self, server: str, redirected_to: str) -> ServerStatus:
        """Finish a running sign-in for a person whose browser is on another machine and cannot reach this one, with the
        address at which it ended. InvalidArgument if the address matches no sign-in."""
        # A copy: sign-ins start and end while an address is delivered.
        for address, (name, done) in list(self._sign_ins.items()):
            if name == server and await deliver_redirect(address, redirected_to):
                await done.wait()
                return status_of(self._find(server))
        raise InvalidArgument(
            f"No pending sign-in to {server!r} matches this address. Pass the address that starts with "
            "http://127.0.0.1 and contains a code.",
            field="redirect",
        )

    async def logout(self, server: str) -> ServerStatus:
        """Delete the tokens for a server, and close the connection made with them. Claude Code's own sign-in stays.
        UpstreamUnavailable if the tokens cannot be removed."""
        pool = self._find(server)
        config = _with_oauth(pool)
        try:
            # Before the connections are closed: a new one would use the tokens again.
            await own_storage(server, config, self._deps).delete()
            if config.oauth.xaa and self._deps.identity_provider is not None:
                await self._deps.identity_provider.sign_out()
        except OSError as error:
            reason = f"The tokens for {server!r} cannot be removed: {error.strerror}"
            raise UpstreamUnavailable(reason, state=status_of(pool).state) from None
        await self._needs_auth.forget(pool.key)
        for upstream in pool.connections:
            upstream.reset("signed out")
        return status_of(pool)


def _with_oauth(pool: ServerPool) -> OAuthServerConfig:
    config = pool.server.config
    if not isinstance(config, OAuthServerConfig):
        raise InvalidArgument(f"{pool.server.name!r} needs no sign-in: it is a server of type {config.type}.")
    return config
