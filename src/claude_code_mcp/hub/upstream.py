"""One server of the hub: its connection is made when a caller needs it, shared by all, and made again when it is lost.

A connection belongs to one task, the owner (`run`), which opens the transport, keeps it, and closes it. Everybody else
waits for the connection, uses it, or asks for it to be given up. What follows from each event is decided by
`connection_state.Connection`; this module carries it out.
"""

import asyncio
import logging
import math
import random
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED, Implementation

from .. import __version__
from ..errors import UpstreamUnavailable
from ..model.mcp_servers import UPDATED
from ..model.question import AskPerson
from .auth.credentials import NeedsAuthMemory, digest_of
from .auth.headers_helper import with_helped_headers
from .auth.oauth import credential_storage, has_oauth
from .client_session import LIST_CHANGES, LISTS, UpstreamClient
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer
from .connection_state import Afterwards, Connection, ConnectionState, Phase
from .dependencies import ConnectSlot, ConnectThrottle, HubDeps
from .elicitation import ANONYMOUS, Caller, CallersInFlight
from .probe import Probe
from .server_memory import Offer, ServerMemory, Traits
from .streams import JsonObject, ObservedInbox, RequestsInFlight, Streams, TransportFailure, WritableOutbox
from .transport_factory import open_transport
from .transports.http import SESSION_GONE, UNAUTHORIZED, UNREACHABLE

log = logging.getLogger(__name__)

_CLIENT_INFO = Implementation(name="claude-code-mcp", version=__version__)

_LISTEN_TIMEOUT = 5.0

Watcher = Callable[[str], None]
"""Is called with what changed: `state`, `tools`, `resources`, `templates` or `prompts`, or `UPDATED` and the address of
a resource."""


@dataclass(frozen=True, slots=True)
class UpstreamContext:
    """What all connections of a hub share."""

    deps: HubDeps
    throttle: ConnectThrottle
    needs_auth: NeedsAuthMemory
    memory: ServerMemory
    timeout: float
    directory: str
    """The directory of callers that name none."""


class Upstream:
    """`run` is the owner task; all other methods may be called from any task."""

    def __init__(self, server: ConfiguredServer, context: UpstreamContext, directory: str) -> None:
        """`directory` is the one of those who use the connection: the server's root."""
        self.server = server
        self.directory = directory
        self.on_roots_asked: Callable[[], None] = lambda: None
        self.name = server.name
        self.key = fingerprint(server.name, server.config)
        self.client: UpstreamClient | None = None
        """The connection while there is one."""
        self._context = context
        self._redact = server.config.secrets_redactor().text
        signing_in = f"; run `claude-code-mcp mcp login {shlex.quote(server.name)}`"
        self._sign_in_hint = signing_in if has_oauth(server.config) else ""
        self._connection = Connection()
        if server.barred is not None:
            self._connection = self._connection.disabled(server.barred)
        self._watchers: set[Watcher] = set()
        self._waiters: set[asyncio.Future[UpstreamClient]] = set()
        self._wake_owner = asyncio.Event()
        self._given_up = asyncio.Event()
        self._attempt_scope: anyio.CancelScope | None = None
        self._failure = TransportFailure()
        self._followed: set[str] = set()
        self._follow_changed = asyncio.Event()
        self._listening = anyio.CancelScope()
        self._listening_to: set[str] = set()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection, nobody makes one, and nobody waits for one."""
        return self._connection.phase is Phase.IDLE and not self._connection.requested and not self._waiters

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Calls back on every change, until the function that it returns is called."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    # -- for callers ------------------------------------------------------------------------------------------

    async def connected(self) -> UpstreamClient:
        """The connection, made now if there is none. Raises UpstreamUnavailable."""
        sign_in_remembered = await self._recall_sign_in()  # does not wait while there is a connection
        # From here to the waiter nothing is awaited: what is decided holds when the caller begins to wait.
        if self.client is not None:
            return self.client
        refusal = self._connection.refusal(sign_in_remembered=sign_in_remembered)
        if refusal is not None:
            raise self._unavailable(refusal.reason, refusal.state)
        waiter: asyncio.Future[UpstreamClient] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            self._set(self._connection.requested_by_caller())
            self._wake_owner.set()
            return await waiter
        finally:
            self._waiters.discard(waiter)

    async def _recall_sign_in(self) -> bool:
        """Whether this server is known to need a sign-in; moves to that state unless an attempt is under way."""
        if self._connection.refusal() is not None or self._connection.phase is not Phase.IDLE:
            return False
        if not await self._is_refused_sign_in():
            return False
        recalled = self._connection.sign_in_remembered(f"it said so a short while ago{self._sign_in_hint}")
        if recalled is not self._connection:
            self._set(recalled)
            self._refuse_waiters(f"needs a sign-in: {recalled.reason}")
        return True

    async def _is_refused_sign_in(self) -> bool:
        """Whether a sign-in was wanted a short while ago with the very tokens that are stored now."""
        config = self.server.config
        if not isinstance(config, OAuthServerConfig) or not has_oauth(config):
            return False
        refused = await self._context.needs_auth.remembered(self.key)
        storage = credential_storage(self.name, config, self._context.deps)
        return refused is not None and refused == await storage.digest()

    async def request(
        self,
        method: str,
        params: JsonObject,
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
        caller: Caller = ANONYMOUS,
    ) -> JsonObject:
        """Sends a request. One that a restarted server has certainly not seen is sent again on a new connection, once.

        Raises UpstreamUnavailable, MCPError with what the server answered, or MovedElsewhere.
        """
        try:
            return await self._request(method, params, on_progress, ask, caller)
        except MCPError as error:
            if error.code != SESSION_GONE:
                raise
        return await self._request(method, params, on_progress, ask, caller)

    async def _request(
        self, method: str, params: JsonObject, on_progress: ProgressFnT | None, ask: AskPerson | None, caller: Caller
    ) -> JsonObject:
        client = await self.connected()
        try:
            result = await client.request(method, params, on_progress, ask, caller)
        except MCPError as error:
            if client is self.client:
                self._count_error(error)
            data = error.error.data
            if error.code == UNAUTHORIZED and isinstance(data, dict) and data.get("sign_in"):
                raise MCPError(error.code, f"{error.message}{self._sign_in_hint}", data) from None
            raise
        if client is self.client:
            self._connection = self._connection.answered()
        return result

    def _count_error(self, error: MCPError) -> None:
        """Gives the connection up at once where it is of no more use, and after a few terminal errors in a row."""
        if error.code == SESSION_GONE or (error.code == UNAUTHORIZED and self._failure.needs_auth):
            self._give_up()
        elif error.code in {UNREACHABLE, CONNECTION_CLOSED}:
            self._connection = self._connection.error_counted()
            if self._connection.worn_out:
                self._failure.reason = f"given up after {self._connection.errors} errors: {error.message}"
                self._give_up()

    async def follow(self, uri: str) -> None:
        """Asks the server to tell when a resource changes, and again whenever a connection is made anew. Raises
        UpstreamUnavailable, or MCPError where the server refuses."""
        client = await self.connected()
        if client.is_modern:
            self._followed.add(uri)
            self._follow_changed.set()
            self._listening.cancel()  # to listen anew, to this address too
            with anyio.move_on_after(_LISTEN_TIMEOUT):
                await self._acknowledged(uri)
            return
        await client.request("resources/subscribe", {"uri": uri})
        self._followed.add(uri)

    async def _acknowledged(self, uri: str) -> None:
        """Waits until the server listens to changes of a resource."""
        news = asyncio.Event()
        unwatch = self.watch(lambda _: news.set())
        try:
            while uri not in self._listening_to:
                news.clear()
                await news.wait()
        finally:
            unwatch()

    # -- steering ---------------------------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Gives up the connection, if there is one, and makes a new one."""
        if self._connection.state is ConnectionState.DISABLED:
            raise self._unavailable("disabled", "disabled")
        self._give_up()
        self._set(self._connection.reconnecting())
        self._wake_owner.set()

    def reset(self, reason: str) -> None:
        """Gives up the connection; the next is made when a caller needs it."""
        if self._connection.state is not ConnectionState.DISABLED:
            self._give_up()
            self._set(self._connection.at_rest(reason, caller_waits=bool(self._waiters)))

    def disable(self, reason: str = "disabled by hand") -> None:
        """Gives up the connection and refuses all callers, until `enable`."""
        self._set(self._connection.disabled(reason))
        self._refuse_waiters(reason)
        self._give_up()
        self._changed("tools")  # there are none now; those of a connection that is only lost come back, and stay listed

    def enable(self) -> None:
        """Lets a disabled server be used again; it is connected to when a caller needs it."""
        if self._connection.state is ConnectionState.DISABLED:
            self._set(self._connection.enabled())
            self._changed("tools")

    def close(self) -> None:
        """Ends the owner's task, and refuses all callers from now on."""
        self._connection = self._connection.closing()
        self._refuse_waiters("the hub is closing")
        self._wake_owner.set()
        self._give_up()

    def _give_up(self) -> None:
        """Gives up the connection, or the attempt to make one; the owner closes the transport and concludes."""
        self._given_up.set()
        if self.client is not None:
            self.client = None
            self._set(self._connection.lost(anyio.current_time()))
        elif self._connection.phase is Phase.CONNECTING and self._attempt_scope is not None:
            self._attempt_scope.cancel()

    def _refuse_waiters(self, reason: str) -> None:
        error = self._unavailable(reason, self._connection.state.value)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _unavailable(self, reason: str, state: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"The MCP server {self.name!r} is not available: {reason}", state=state)

    def _set(self, connection: Connection) -> None:
        changed = (connection.state, connection.reason) != (self._connection.state, self._connection.reason)
        self._connection = connection
        if changed:
            log.info("%s: %s%s", self.name, connection.state, f" ({connection.reason})" if connection.reason else "")
            self._changed("state")

    def _changed(self, what: str) -> None:
        for watcher in list(self._watchers):
            watcher(what)

    # -- the owner task ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Makes an attempt whenever one is due, until `close`."""
        while not self._connection.closed:
            await self._wake_owner.wait()
            self._wake_owner.clear()
            while self._connection.attempt_due:
                await self._attempt()
                if self._connection.attempt_due:
                    await self._pause()

    async def _pause(self) -> None:
        """Waits before the next attempt; a caller, a reconnect or the close of the hub ends the pause."""
        with anyio.move_on_after(self._connection.pause(random.random())):  # noqa: S311 - only spreads attempts
            await self._wake_owner.wait()
            self._wake_owner.clear()

    async def _attempt(self) -> None:
        """Connects, keeps the connection until it is given up, closes the transport, and concludes.

        The timeout covers everything from the connect slot to the end of the handshake.
        """
        self._failure = TransportFailure()
        self._given_up.clear()
        self._set(self._connection.attempted())
        slot = self._context.throttle.slot(self.server.config)
        error: Exception | None = None
        with anyio.CancelScope() as scope:
            self._attempt_scope = scope
            try:
                await slot.acquire()
                scope.deadline = anyio.current_time() + self._context.timeout
                await self._connect(slot, scope)
            except Exception as caught:  # whatever goes wrong with one server stays with it
                error = caught
            finally:
                slot.release()
        self._give_up()
        timed_out = self._connection.phase is Phase.CONNECTING and anyio.current_time() >= scope.deadline
        await self._conclude(f"no answer within {self._context.timeout:g} s" if timed_out else self._end_reason(error))

    async def _connect(self, slot: ConnectSlot, scope: anyio.CancelScope) -> None:
        """Makes a connection and keeps it. A server that ends at the probe for the newest protocol, or reads it and
        stays mute, is started again and greeted with `initialize`; if that works, it is remembered."""
        if not self._traits.handshake_only:
            probe = Probe(self._failure)
            with anyio.CancelScope() as self._attempt_scope, probe.watching(self._attempt_scope.cancel):
                try:
                    return await self._keep_connection("auto", slot, scope, probe)
                except Exception:
                    if not probe.was_in_vain:
                        raise
            self._attempt_scope = scope
            if not probe.was_in_vain or not self._connection.attempt_goes_on:
                return None
            log.info("%s cannot take a probe; it is started again with a handshake", self.name)
            self._failure = TransportFailure()
            self._given_up.clear()
        try:
            return await self._keep_connection("legacy", slot, scope, None)
        except MCPError as error:
            if error.code == types.UNSUPPORTED_PROTOCOL_VERSION:  # it has learned the newest protocol meanwhile
                await self._learn(handshake_only=False)
            raise

    async def _keep_connection(
        self, mode: str, slot: ConnectSlot, scope: anyio.CancelScope, probe: Probe | None
    ) -> None:
        callers = CallersInFlight(partial(self._learn, asks_questions=True))
        async with Client(
            self._observed_transport(probe),
            mode=mode,
            cache=None,
            elicitation_callback=callers.elicit,
            list_roots_callback=partial(self._list_roots, callers),
            client_info=_CLIENT_INFO,
        ) as client:
            scope.deadline = math.inf
            slot.release()
            if mode == "legacy" and not self._traits.handshake_only:
                with anyio.CancelScope(shield=True):  # it took time to find out, and is known when anybody sees it
                    await self._learn(handshake_only=True)
            if self._given_up.is_set():
                return  # given up just when the handshake was done: nobody may get this connection
            connected = UpstreamClient(client.session, self.server.config, callers)
            self._publish(connected)
            await self._context.needs_auth.forget(self.key)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._remember, connected)
                if connected.is_modern:
                    tasks.start_soon(self._subscribe, client)
                else:
                    tasks.start_soon(self._follow_again, connected)
                await self._given_up.wait()
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _observed_transport(self, probe: Probe | None) -> AsyncIterator[Streams]:
        programs = self._context.deps.programs
        config = programs.placed(self.server.config, self.directory)
        helper_directory = programs.directory or self.directory
        config = await with_helped_headers(self.name, config, self._context.deps, helper_directory)
        transport = open_transport(self.name, config, self._context.deps, self._failure, self._give_up)
        async with transport as (inbox, outbox):
            requests = RequestsInFlight()
            observed = ObservedInbox(inbox, requests, self._on_notification, self._give_up)
            if probe is not None:
                probe.inbox = observed
            yield observed, WritableOutbox(outbox, requests)

    # -- what the server shows of itself ------------------------------------------------------------------------

    @property
    def _traits(self) -> Traits:
        return self._context.memory.traits(self.key)

    async def _learn(self, **changes: object) -> None:
        if self._context.memory.learn(self.key, **changes):
            await self._context.memory.save(self.key)

    async def _list_roots(
        self, callers: CallersInFlight, context: ClientRequestContext
    ) -> types.ListRootsResult | types.ErrorData:
        """Answers `roots/list`: the server depends on the directory, so that this connection is for one alone. That is
        the one of the calls in flight; while they are of several, the server is refused, this once."""
        directories = callers.directories
        news = self._context.memory.learn(self.key, asks_for_roots=True)
        if len(directories) == 1:
            (self.directory,) = directories
        self.on_roots_asked()  # before anything is awaited: nobody may see the one without the other
        if news:
            await self._context.memory.save(self.key)
        if len(directories) > 1:
            return types.ErrorData(code=types.INVALID_REQUEST, message="Callers in several directories share this.")
        return self.roots

    @property
    def roots(self) -> types.ListRootsResult:
        """The directory of those who use the connection."""
        directory = Path(self.directory)
        return types.ListRootsResult(roots=[types.Root(uri=directory.as_uri(), name=directory.name or None)])

    async def _remember(self, client: UpstreamClient) -> None:
        """Keeps what the server offers, so that a session need not wait for it the next time."""
        try:
            offer = Offer(
                capabilities=client.capabilities,
                server_info=client.server_info,
                instructions=client.instructions,
                tools=await client.tools(),
                prompts=await client.prompts(),
            )
        except Exception as error:  # whatever it is, somebody who needs a list will be told of it
            log.debug("what %s offers is not kept: %s", self.name, error)
        else:
            await self._learn(offer=offer)

    def _publish(self, client: UpstreamClient) -> None:
        connection = self._connection.connected(anyio.current_time())
        self._failure.reason = None  # a probe that was refused is no reason why a connection ends later
        self.client = client
        self._set(connection)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(client)
        for kind in ("tools", "resources", "prompts"):
            self._changed(kind)

    async def _subscribe(self, client: Client) -> None:
        """Asks for changes of lists, where the protocol has no handshake that does; they come as notifications."""
        capabilities = client.server_capabilities
        tools, prompts, resources = (
            bool(offered and offered.list_changed)
            for offered in (capabilities.tools, capabilities.prompts, capabilities.resources)
        )
        while True:
            self._follow_changed.clear()
            if not (tools or prompts or resources or self._followed):
                await self._follow_changed.wait()
                continue
            with anyio.CancelScope() as self._listening, suppress(MCPError, SubscriptionLost):
                async with client.listen(
                    tools_list_changed=tools,
                    prompts_list_changed=prompts,
                    resources_list_changed=resources,
                    resource_subscriptions=sorted(self._followed),
                ) as subscription:
                    self._listening_to = set(self._followed)
                    self._changed("listening")
                    self._forget_lists(*LISTS)  # changes from before the subscription were announced to nobody
                    async for _ in subscription:
                        pass
            if not self._follow_changed.is_set():
                return

    async def _follow_again(self, client: UpstreamClient) -> None:
        """Asks a server with a handshake for the changes that an earlier connection was asked for."""
        for uri in sorted(self._followed):
            with suppress(MCPError):
                await client.request("resources/subscribe", {"uri": uri})

    def _on_notification(self, method: str, params: JsonObject) -> None:
        self._forget_lists(*LIST_CHANGES.get(method, ()))
        if method == "notifications/resources/updated":
            self._changed(f"{UPDATED}{params.get('uri')}")
        self._context.deps.on_notification(self.name, method, params)

    def _forget_lists(self, *kinds: str) -> None:
        if self.client is not None:
            for kind in self.client.forget_lists(*kinds):
                self._changed(kind)

    async def _conclude(self, reason: str) -> None:
        """Moves on after an attempt, and remembers a sign-in that is needed, for as long as nobody asked otherwise."""
        if self._failure.needs_auth is not None:
            reason = self._redact(self._failure.needs_auth) + self._sign_in_hint
            overruled = self._connection.closed or self._connection.afterwards is Afterwards.REST
            if has_oauth(self.server.config) and not overruled:
                # Not of what is stored now: that may be other tokens already.
                await self._context.needs_auth.remember(self.key, digest_of(self._failure.refused_token))
        conclusion = self._connection.concluded(
            reason,
            anyio.current_time(),
            needs_auth=self._failure.needs_auth is not None,
            caller_waits=bool(self._waiters),
        )
        self._set(conclusion.connection)
        if conclusion.refuse_callers:
            self._refuse_waiters(reason)

    def _end_reason(self, error: Exception | None) -> str:
        if self._failure.reason or error is None:
            return self._redact(self._failure.reason or "the connection closed")
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return self._redact(str(cause) or type(cause).__name__)
