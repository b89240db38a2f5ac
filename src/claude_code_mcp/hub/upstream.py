"""One server of the hub: its connection is made when a caller needs it, shared by all, and made again when it is lost.

A connection belongs to one task, the owner (`run`), which opens the transport, keeps it, and closes it. Everybody else
waits for the connection, uses it, or asks for it to be given up. What follows from each event is decided by
`connection_state.Connection`; this module carries it out.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED, Implementation
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .. import __version__
from ..errors import UpstreamUnavailable
from ..model.question import AskPerson
from .auth.credentials import NeedsAuthMemory
from .auth.oauth import has_oauth
from .client_session import LIST_CHANGES, LISTS, UpstreamClient
from .config_entry import fingerprint
from .config_files import ConfiguredServer
from .connection_state import Afterwards, Connection, ConnectionState, Phase
from .dependencies import ConnectSlot, ConnectThrottle, HubDeps
from .elicitation import CallersInFlight
from .streams import JsonObject, ObservedInbox, Streams, TransportFailure, WritableOutbox
from .transport_factory import open_transport
from .transports.http import SESSION_GONE, UNAUTHORIZED, UNREACHABLE

log = logging.getLogger(__name__)

_CLIENT_INFO = Implementation(name="claude-code-mcp", version=__version__)

Watcher = Callable[[str], None]
"""Is called with what changed: `state`, `tools`, `resources`, `templates` or `prompts`."""


class Upstream:
    """`run` is the owner task; all other methods may be called from any task."""

    def __init__(
        self,
        server: ConfiguredServer,
        deps: HubDeps,
        throttle: ConnectThrottle,
        memory: NeedsAuthMemory,
        timeout: float,
    ) -> None:
        self.server = server
        self.name = server.name
        self.key = fingerprint(server.name, server.config)
        self.client: UpstreamClient | None = None
        """The connection while there is one."""
        self._deps = deps
        self._throttle = throttle
        self._memory = memory
        self._timeout = timeout
        self._redact = server.config.secrets_redactor().text
        self._connection = Connection()
        if server.barred is not None:
            self._connection = self._connection.disabled(server.barred)
        self._watchers: set[Watcher] = set()
        self._waiters: set[asyncio.Future[UpstreamClient]] = set()
        self._wake_owner = asyncio.Event()
        self._given_up = asyncio.Event()
        self._attempt_scope: anyio.CancelScope | None = None
        self._failure = TransportFailure()

    @property
    def connection(self) -> Connection:
        return self._connection

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
        if not has_oauth(self.server.config) or not await self._memory.remembers(self.key):
            return False
        recalled = self._connection.sign_in_remembered()
        if recalled is not self._connection:
            self._set(recalled)
            self._refuse_waiters(f"needs a sign-in: {recalled.reason}")
        return True

    async def request(
        self, method: str, params: JsonObject, on_progress: ProgressFnT | None = None, ask: AskPerson | None = None
    ) -> JsonObject:
        """Sends a request. One that a restarted server has certainly not seen is sent again on a new connection, once.

        Raises UpstreamUnavailable, or MCPError with what the server answered.
        """
        try:
            return await self._request(method, params, on_progress, ask)
        except MCPError as error:
            if error.code != SESSION_GONE:
                raise
        return await self._request(method, params, on_progress, ask)

    async def _request(
        self, method: str, params: JsonObject, on_progress: ProgressFnT | None, ask: AskPerson | None
    ) -> JsonObject:
        client = await self.connected()
        try:
            result = await client.request(method, params, on_progress, ask)
        except MCPError as error:
            if client is self.client:
                self._count_error(error)
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
        slot = self._throttle.slot(self.server.config)
        error: Exception | None = None
        with anyio.CancelScope() as scope:
            self._attempt_scope = scope
            try:
                await slot.acquire()
                scope.deadline = anyio.current_time() + self._timeout
                await self._keep_connection(slot, scope)
            except Exception as caught:  # whatever goes wrong with one server stays with it
                error = caught
            finally:
                slot.release()
        self._give_up()
        timed_out = self._connection.phase is Phase.CONNECTING and anyio.current_time() >= scope.deadline
        await self._conclude(f"no answer within {self._timeout:g} s" if timed_out else self._end_reason(error))

    async def _keep_connection(self, slot: ConnectSlot, scope: anyio.CancelScope) -> None:
        callers = CallersInFlight()
        transport = self._observed_transport()
        async with Client(
            transport, cache=None, elicitation_callback=callers.elicit, client_info=_CLIENT_INFO
        ) as client:
            scope.deadline = math.inf
            slot.release()
            if self._given_up.is_set():
                return  # given up just when the handshake was done: nobody may get this connection
            self._publish(UpstreamClient(client.session, self.server.config, callers))
            await self._memory.forget(self.key)
            async with anyio.create_task_group() as tasks:
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    tasks.start_soon(self._subscribe, client)
                await self._given_up.wait()
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _observed_transport(self) -> AsyncIterator[Streams]:
        transport = open_transport(self.name, self.server.config, self._deps, self._failure, self._give_up)
        async with transport as (inbox, outbox):
            yield ObservedInbox(inbox, self._on_notification, self._give_up), WritableOutbox(outbox)

    def _publish(self, client: UpstreamClient) -> None:
        connection = self._connection.connected(anyio.current_time())
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
        if not (tools or prompts or resources):
            return
        with suppress(MCPError, SubscriptionLost):
            async with client.listen(
                tools_list_changed=tools, prompts_list_changed=prompts, resources_list_changed=resources
            ) as subscription:
                self._forget_lists(*LISTS)  # changes from before the subscription were announced to nobody
                async for _ in subscription:
                    pass

    def _on_notification(self, method: str, params: JsonObject) -> None:
        self._forget_lists(*LIST_CHANGES.get(method, ()))
        self._deps.on_notification(self.name, method, params)

    def _forget_lists(self, *kinds: str) -> None:
        if self.client is not None:
            for kind in self.client.forget_lists(*kinds):
                self._changed(kind)

    async def _conclude(self, reason: str) -> None:
        """Moves on after an attempt, and remembers a sign-in that is needed, for as long as nobody asked otherwise."""
        if self._failure.needs_auth is not None:
            reason = self._redact(self._failure.needs_auth)
            overruled = self._connection.closed or self._connection.afterwards is Afterwards.REST
            if has_oauth(self.server.config) and not overruled:
                await self._memory.remember(self.key)
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
