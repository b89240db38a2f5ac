"""One connection of the hub to a server: the public object (`Upstream`) and the task that owns it (`ConnectionOwner`).

`Upstream` has the connection's state and its waiting callers; it opens nothing itself. The owner task opens the
transport when a caller needs one, keeps it open, and closes it. All other code waits for the connection at its
`Upstream`, uses it, or asks for it to be dropped. `reconnection.Connection` decides what follows each event.
"""

import asyncio
import logging
import math
import random
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.auth import OAuthFlowError
from mcp.client.session import ClientRequestContext
from mcp_types import CONNECTION_CLOSED

from .. import __version__
from ..core.errors import UpstreamUnavailable
from ..core.model.tool_names import UPDATED
from .auth.credentials import NeedsAuthMemory, digest_of
from .client_session import (
    ANONYMOUS,
    NO_SIDE,
    CallerSide,
    CallsInFlight,
    Requester,
    UpstreamClient,
)
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer
from .connect_throttle import ConnectSlot, ConnectThrottle
from .hub_deps import HubDeps
from .reconnection import Connection, ConnectionState, NextStep, Phase
from .server_changes import LIST_CHANGES, ServerChanges
from .server_memory import Offer, ServerMemory, Traits
from .streams import JsonObject, ObservedInbox, RequestsInFlight, Streams, TransportFailure, WritableOutbox
from .transports.headers_helper import with_helped_headers
from .transports.http_client import SESSION_GONE, UNAUTHORIZED, UNREACHABLE
from .transports.probe import Probe
from .transports.transport_factory import credential_storage, has_oauth, open_transport

log = logging.getLogger(__name__)

_END_TIMEOUT = 5.0
"""Seconds that a call whose server has exited waits for the reason."""

Watcher = Callable[[str], None]
"""Called with the name of what changed: `state`, `tools`, `resources`, `templates` or `prompts`, or `UPDATED` and the
URI of a resource."""


@dataclass(slots=True)
class UpstreamContext:
    """The settings and objects that all connections of a hub share."""

    deps: HubDeps
    throttle: ConnectThrottle
    needs_auth: NeedsAuthMemory
    memory: ServerMemory
    timeout: float
    samples: bool = False
    """Whether servers may ask the models of callers."""
    log_level: str | None = None
    """The minimum level of server logs; None leaves it to the servers."""


class Upstream:
    """One connection to a server, for its users. All methods may be called from any task."""

    def __init__(self, server: ConfiguredServer, context: UpstreamContext, directory: str) -> None:
        """`directory` is the directory of the connection's users: the server's root."""
        self.server = server
        self.context = context
        self.directory = directory
        self.on_roots_asked: Callable[[], None] = lambda: None
        self.name = server.name
        self.key = fingerprint(server.name, server.config)
        self.client: UpstreamClient | None = None
        """The open connection, or None."""
        self.connection = Connection()
        if server.barred is not None:
            self.connection = self.connection.disabled(server.barred)
        self.failure = TransportFailure()
        """Why the current attempt failed."""
        self.changes = ServerChanges(self.forget_lists, lambda: context.log_level)
        signing_in = f"; run `claude-code-mcp mcp login {shlex.quote(server.name)}`"
        self.sign_in_hint = signing_in if has_oauth(server.config) else ""
        self.owner_wanted = asyncio.Event()
        """Set for the owner task: an attempt may be due, or the hub is closing."""
        self.given_up = asyncio.Event()
        self.attempt_scope: anyio.CancelScope | None = None
        """The scope of the running attempt; set by the owner task."""
        self._watchers: set[Watcher] = set()
        self._waiters: set[asyncio.Future[UpstreamClient]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection, no attempt and no waiting caller."""
        return self.connection.phase is Phase.IDLE and not self.connection.requested and not self._waiters

    @property
    def traits(self) -> Traits:
        """The traits known from this and earlier connections."""
        return self.context.memory.traits(self.key)

    @property
    def roots(self) -> types.ListRootsResult:
        """The result of `roots/list`: the directory of the connection's users."""
        directory = Path(self.directory)
        return types.ListRootsResult(roots=[types.Root(uri=directory.as_uri(), name=directory.name or None)])

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` on every change. Returns a function that ends this."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    # -- for callers ------------------------------------------------------------------------------------------

    async def connected(self) -> UpstreamClient:
        """The connection; connects first if needed. Raises UpstreamUnavailable."""
        sign_in_remembered = await self._recall_sign_in()  # does not wait while there is a connection
        # No await from here until the caller waits: the decision still holds then.
        if self.client is not None:
            return self.client
        refusal = self.connection.refusal(sign_in_remembered=sign_in_remembered)
        if refusal is not None:
            raise self.unavailable(refusal.reason, refusal.state)
        waiter: asyncio.Future[UpstreamClient] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            self.move(self.connection.requested_by_caller())
            self.owner_wanted.set()
            return await waiter
        finally:
            self._waiters.discard(waiter)

    async def _recall_sign_in(self) -> bool:
        """Whether the server recently required a sign-in with the tokens that are still stored; moves to that state
        unless an attempt is running."""
        config = self.server.config
        if self.client is not None or self.connection.phase is not Phase.IDLE:
            return False
        if self.connection.refusal() is not None or not isinstance(config, OAuthServerConfig) or not has_oauth(config):
            return False
        refused = await self.context.needs_auth.remembered(self.key)
        try:
            if refused is None or refused != await credential_storage(self.name, config, self.context.deps).digest():
                return False
        except OAuthFlowError:
            return False  # the stored tokens cannot be read: the attempt reports it
        recalled = self.connection.sign_in_remembered(f"the server asked for one recently{self.sign_in_hint}")
        if recalled is not self.connection:
            self.move(recalled)
            self._refuse_waiters(f"needs a sign-in: {recalled.reason}")
        return True

    async def request(
        self, method: str, params: JsonObject, side: CallerSide = NO_SIDE, requester: Requester = ANONYMOUS
    ) -> JsonObject:
        """Send a request. If a restarted server certainly has not seen it, send it again once on a new connection.

        Raises UpstreamUnavailable, MCPError with the server's error, or MovedElsewhere.
        """
        for is_last in (False, True):
            client = await self.connected()
            try:
                result = await client.request(method, params, side, requester)
            except MCPError as error:
                if client is not self.client:
                    # An error on a dropped connection says nothing about the current one.
                    if error.code == CONNECTION_CLOSED:
                        raise await self._ended_in_call(client) from None
                elif error.code == SESSION_GONE or (error.code == UNAUTHORIZED and self.failure.needs_auth):
                    self.give_up()
                elif error.code in {UNREACHABLE, CONNECTION_CLOSED}:
                    # One such error may pass; after several in a row the connection is dropped.
                    self.connection = self.connection.error_counted()
                    if self.connection.has_too_many_errors:
                        self.failure.reason = f"stopped after {self.connection.errors} errors: {error.message}"
                        self.give_up()
                if error.code == SESSION_GONE and not is_last:
                    continue
                data = error.error.data
                if error.code == UNAUTHORIZED and isinstance(data, dict) and data.get("sign_in"):
                    raise MCPError(error.code, f"{error.message}{self.sign_in_hint}", data) from None
                raise
            break
        if client is self.client and self.connection.errors:
            self.connection = self.connection.answered()
        return result

    async def _ended_in_call(self, client: UpstreamClient) -> UpstreamUnavailable:
        """The error for a request whose connection ended before its answer."""
        # The exit of a program is known only after the owner has closed the transport.
        with anyio.move_on_after(_END_TIMEOUT):
            await client.ended.wait()
        how = client.end_reason or "the connection closed"
        message = (
            f"The MCP server {self.name!r} was lost during the call: {how}. The call may have taken effect in part."
        )
        return UpstreamUnavailable(message, state=self.connection.state.value)

    # -- control --------------------------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Drop the connection, if there is one, and make a new one."""
        if self.connection.state is ConnectionState.DISABLED:
            raise self.unavailable("disabled", "disabled")
        self.give_up()
        self.move(self.connection.reconnecting())
        self.owner_wanted.set()

    def reset(self, reason: str) -> None:
        """Drop the connection; the next is made when a caller needs it."""
        if self.connection.state is not ConnectionState.DISABLED:
            self.give_up()
            self.move(self.connection.at_rest(reason, caller_waits=bool(self._waiters)))

    def disable(self, reason: str = "disabled manually") -> None:
        """Drop the connection and refuse all callers until `enable`."""
        # The state first: a caller that is refused below may ask again at once.
        self.move(self.connection.disabled(reason))
        self._refuse_waiters(reason)
        self.give_up()
        self.changed("tools")  # there are none now; after a mere connection loss they stay listed

    def enable(self) -> None:
        """Enable a disabled server; it is connected when a caller needs it."""
        if self.connection.state is ConnectionState.DISABLED:
            self.move(self.connection.enabled())
            self.changed("tools")

    def close(self) -> None:
        """End the owner task, and refuse all callers from now on."""
        # First: nothing that wakes below may start another attempt.
        self.connection = self.connection.closing()
        self._refuse_waiters("the hub is closing")
        self.owner_wanted.set()
        self.give_up()

    def give_up(self) -> None:
        """Drop the connection or the running attempt; the owner closes the transport and concludes."""
        # Unconditionally: a handshake may complete at this very moment, see `ConnectionOwner._keep_connection`.
        self.given_up.set()
        if self.client is not None:
            self.client = None
            self.move(self.connection.lost(anyio.current_time()))
        elif self.connection.phase is Phase.CONNECTING and self.attempt_scope is not None:
            self.attempt_scope.cancel()

    # -- for the owner task -----------------------------------------------------------------------------------

    def publish(self, client: UpstreamClient) -> None:
        """Pass the connection to waiting callers; called when the handshake is done."""
        connection = self.connection.connected(anyio.current_time())
        self.failure.reason = None  # a refused probe is not the reason for a later end of the connection
        # Before any watcher is notified: a caller that arrives now must find it.
        self.client = client
        self.move(connection)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(client)
        for kind in ("tools", "resources", "prompts"):
            self.changed(kind)

    def conclude(self, reason: str) -> None:
        """Apply the state machine's decision after the transport was closed; refuse waiting callers if it says so."""
        conclusion = self.connection.concluded(
            reason,
            anyio.current_time(),
            needs_auth=self.failure.needs_auth is not None,
            caller_waits=bool(self._waiters),
        )
        self.move(conclusion.connection)
        if conclusion.refuse_callers:
            self._refuse_waiters(reason)

    def take_notification(self, method: str, params: JsonObject) -> None:
        """Handle a notification from the server, of any kind."""
        self.forget_lists(*LIST_CHANGES.get(method, ()))
        if method == "notifications/resources/updated":
            self.changed(f"{UPDATED}{params.get('uri')}")
        self.context.deps.on_notification(self.name, method, params)

    def forget_lists(self, *kinds: str) -> None:
        """Invalidate lists of the server; watchers are notified of those that any caller had read."""
        if self.client is not None:
            for kind in self.client.forget_lists(*kinds):
                self.changed(kind)

    def move(self, connection: Connection) -> None:
        """Set the connection's state; watchers are notified if the visible part changed."""
        changed = (connection.state, connection.reason) != (self.connection.state, self.connection.reason)
        self.connection = connection
        if changed:
            log.info("%s: %s%s", self.name, connection.state, f" ({connection.reason})" if connection.reason else "")
            self.changed("state")

    def changed(self, what: str) -> None:
        # A copy: a watcher may end its own watch.
        for watcher in list(self._watchers):
            watcher(what)

    def unavailable(self, reason: str, state: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"The MCP server {self.name!r} is not available: {reason}", state=state)

    def _refuse_waiters(self, reason: str) -> None:
        error = self.unavailable(reason, self.connection.state.value)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)


# -- the owner ---------------------------------------------------------------------------------------------------------


_CLIENT_INFO = types.Implementation(name="claude-code-mcp", version=__version__)


class ConnectionOwner:
    """`run` makes the connection of an `Upstream` whenever one is due."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._context = upstream.context
        self._config = upstream.server.config
        self._client: UpstreamClient | None = None
        """The client of the current attempt; kept until its transport is closed."""

    async def run(self) -> None:
        """Make an attempt whenever one is due, until the upstream is closed."""
        upstream = self._upstream
        try:
            while not upstream.connection.closed:
                await upstream.owner_wanted.wait()
                # Cleared before the check: a request during an attempt wakes the owner again.
                upstream.owner_wanted.clear()
                while upstream.connection.attempt_due:
                    await self._attempt()
                    if upstream.connection.attempt_due:
                        # A caller, a reconnect or closing the hub ends the pause.
                        with anyio.move_on_after(upstream.connection.pause(random.random())):  # noqa: S311 - jitter
                            await upstream.owner_wanted.wait()
                            upstream.owner_wanted.clear()
        except Exception:
            log.exception("the owner of %s failed", upstream.name)  # a bug, but no reason to lose the other servers

    async def _attempt(self) -> None:
        """Connect, keep the connection until it is dropped, close the transport, and conclude. Remember a required
        sign-in unless a caller has requested something else since.

        The timeout covers everything from the connect slot to the end of the handshake.
        """
        upstream = self._upstream
        upstream.failure = TransportFailure()
        upstream.given_up.clear()
        upstream.move(upstream.connection.attempted())
        slot = self._context.throttle.slot(self._config)
        error: Exception | None = None
        with anyio.CancelScope() as scope:
            upstream.attempt_scope = scope
            try:
                await slot.acquire()
                scope.deadline = anyio.current_time() + self._context.timeout
                await self._connect(slot, scope)
            except Exception as caught:  # a failure of one server must not affect others
                error = caught
            finally:
                slot.release()
        # Callers that have the connection must stop using it: its transport is closed.
        upstream.give_up()
        failure = upstream.failure
        if upstream.connection.phase is Phase.CONNECTING and anyio.current_time() >= scope.deadline:
            reason = f"no answer within {self._context.timeout:g} s"
        elif failure.reason or error is None:
            reason = self._redact(failure.reason or "the connection closed")
        else:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            reason = self._redact(str(cause) or type(cause).__name__)
        if self._client is not None:
            # Before any await: the calls that it left unanswered wait for this.
            self._client.end_reason = reason
            self._client.ended.set()
            self._client = None
        if failure.needs_auth is not None:
            reason = self._redact(failure.needs_auth) + upstream.sign_in_hint
            overruled = upstream.connection.closed or upstream.connection.next_step is NextStep.REST
            if has_oauth(self._config) and not overruled:
                # Not the digest of the stored tokens: they may have been renewed already.
                await self._context.needs_auth.remember(upstream.key, digest_of(failure.refused_token))
        upstream.conclude(reason)

    async def _connect(self, slot: ConnectSlot, scope: anyio.CancelScope) -> None:
        """Connect and keep the connection. A server that exits on the probe for the newest protocol, or reads it
        without answering, is restarted and sent `initialize`; if that works, it is remembered."""
        upstream = self._upstream
        if not upstream.traits.handshake_only:
            probe = Probe(upstream.failure)
            with anyio.CancelScope() as trying, probe.watching(trying.cancel):
                upstream.attempt_scope = trying
                try:
                    return await self._keep_connection("auto", slot, scope, probe)
                except Exception:
                    if not probe.got_no_answer:
                        raise
            upstream.attempt_scope = scope
            if not probe.got_no_answer or not upstream.connection.attempt_continues:
                return None
            log.info("%s does not support probing; restarting it with a handshake", upstream.name)
            # The second attempt must not inherit the failure of the first.
            upstream.failure = TransportFailure()
            upstream.given_up.clear()
        try:
            return await self._keep_connection("legacy", slot, scope, None)
        except MCPError as error:
            if error.code == types.UNSUPPORTED_PROTOCOL_VERSION:  # it supports the newest protocol by now
                await self._learn(handshake_only=False)
            raise

    async def _keep_connection(
        self, mode: str, slot: ConnectSlot, scope: anyio.CancelScope, probe: Probe | None
    ) -> None:
        upstream = self._upstream
        calls = CallsInFlight(partial(self._learn, asks_questions=True))
        async with Client(
            self._observed_transport(probe, calls),
            mode=mode,
            cache=None,
            elicitation_callback=calls.elicit,
            sampling_callback=calls.sample if self._context.samples else None,
            list_roots_callback=partial(self._list_roots, calls),
            client_info=_CLIENT_INFO,
        ) as client:
            # The handshake is done: an open connection has no time limit.
            scope.deadline = math.inf
            slot.release()
            if probe is not None:
                probe.stop()
            if mode == "legacy" and not upstream.traits.handshake_only:
                with anyio.CancelScope(shield=True):  # stored before callers see the connection
                    await self._learn(handshake_only=True)
            if upstream.given_up.is_set():
                return  # dropped just when the handshake completed: no caller may get this connection
            connected = self._client = UpstreamClient(client.session, self._config, calls)
            upstream.publish(connected)
            if has_oauth(self._config):
                # After the calls have the connection: they must not wait for the disk.
                await self._context.needs_auth.forget(upstream.key)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._remember, connected)
                if connected.is_modern:
                    tasks.start_soon(upstream.changes.listen, client)
                else:
                    tasks.start_soon(upstream.changes.follow_again, connected)
                await upstream.given_up.wait()
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _observed_transport(self, probe: Probe | None, calls: CallsInFlight) -> AsyncIterator[Streams]:
        def take_notification(method: str, params: JsonObject) -> None:
            if method == "notifications/message":
                calls.pass_on_log(params, observed.last_context)
            upstream.take_notification(method, params)

        upstream, programs = self._upstream, self._context.deps.programs
        config = programs.placed(self._config, upstream.directory)
        helper_directory = programs.directory or upstream.directory
        config = await with_helped_headers(upstream.name, config, self._context.deps, helper_directory)
        transport = open_transport(upstream.name, config, self._context.deps, upstream.failure, upstream.give_up)
        async with transport as (inbox, outbox):
            requests = RequestsInFlight()
            observed = ObservedInbox(inbox, requests, take_notification, upstream.give_up)
            if probe is not None:
                probe.inbox = observed
            yield observed, WritableOutbox(outbox, requests)

    # -- traits of the server -----------------------------------------------------------------------

    async def _learn(self, **changes: object) -> None:
        if self._context.memory.learn(self._upstream.key, **changes):
            await self._context.memory.save(self._upstream.key)

    async def _list_roots(
        self, calls: CallsInFlight, context: ClientRequestContext
    ) -> types.ListRootsResult | types.ErrorData:
        """Answer `roots/list`. The server depends on the directory, so this connection now serves one directory only:
        the one of the calls in flight. While they are in several directories, the request is refused this time."""
        directories = calls.directories
        new_facts = self._context.memory.learn(self._upstream.key, asks_for_roots=True)
        if len(directories) == 1:
            (self._upstream.directory,) = directories
        self._upstream.on_roots_asked()  # before any await: both changes must become visible together
        if new_facts:
            await self._context.memory.save(self._upstream.key)
        if len(directories) > 1:
            return types.ErrorData(
                code=types.INVALID_REQUEST, message="Callers in several directories share this connection."
            )
        return self._upstream.roots

    async def _remember(self, client: UpstreamClient) -> None:
        """Store the server's offer, so that the next session need not wait for it."""
        try:
            offer = Offer(
                capabilities=client.capabilities,
                server_info=client.server_info,
                instructions=client.instructions,
                tools=await client.tools(),
                prompts=await client.prompts(),
            )
        except Exception as error:  # any failure: a caller that needs a list gets the error itself
            log.debug("the capabilities of %s could not be cached: %s", self._upstream.name, error)
        else:
            await self._learn(offer=offer)

    def _redact(self, text: str) -> str:
        return self._config.secrets_redactor().text(text)
