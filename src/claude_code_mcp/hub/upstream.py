"""One connection of the hub to a server, as those see it who use it, watch it and steer it.

`Upstream` says what there is and who waits for it; it opens nothing itself. The task of `connection_owner.py` makes the
connection when a caller needs one, keeps it, and closes it. What follows from each event is decided by
`connection_state.Connection`.
"""

import asyncio
import logging
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client.auth import OAuthFlowError
from mcp_types import CONNECTION_CLOSED

from ..errors import UpstreamUnavailable
from ..model.tool_names import UPDATED
from .auth.credentials import NeedsAuthMemory
from .client_session import ANONYMOUS, LIST_CHANGES, NO_SIDE, CallerSide, Requester, UpstreamClient
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer
from .connection_state import Conclusion, Connection, ConnectionState, Phase
from .dependencies import ConnectThrottle, HubDeps, ServerMemory, Traits
from .server_changes import ServerChanges
from .streams import JsonObject, TransportFailure
from .transport_factory import credential_storage, has_oauth
from .transports import SESSION_GONE, UNAUTHORIZED, UNREACHABLE

log = logging.getLogger(__name__)

_END_TIMEOUT = 5.0
"""Seconds that a call whose server has ended waits to learn how it ended."""

Watcher = Callable[[str], None]
"""Is called with what changed: `state`, `tools`, `resources`, `templates` or `prompts`, or `UPDATED` and the address of
a resource."""


@dataclass(slots=True)
class UpstreamContext:
    """What all connections of a hub share."""

    deps: HubDeps
    throttle: ConnectThrottle
    needs_auth: NeedsAuthMemory
    memory: ServerMemory
    timeout: float
    directory: str
    """The directory of callers that name none."""
    samples: bool = False
    """Whether there are callers whose models servers may ask."""
    log_level: str | None = None
    """From which level on servers are to log; None leaves that to them."""


class Upstream:
    """All methods may be called from any task."""

    def __init__(self, server: ConfiguredServer, context: UpstreamContext, directory: str) -> None:
        """`directory` is the one of those who use the connection: the server's root."""
        self.server = server
        self.context = context
        self.directory = directory
        self.on_roots_asked: Callable[[], None] = lambda: None
        self.name = server.name
        self.key = fingerprint(server.name, server.config)
        self.client: UpstreamClient | None = None
        """The connection while there is one."""
        self.connection = Connection()
        if server.barred is not None:
            self.connection = self.connection.disabled(server.barred)
        self.failure = TransportFailure()
        """Of the current attempt."""
        self.changes = ServerChanges(self.forget_lists, lambda: context.log_level)
        signing_in = f"; run `claude-code-mcp mcp login {shlex.quote(server.name)}`"
        self.sign_in_hint = signing_in if has_oauth(server.config) else ""
        self.owner_wanted = asyncio.Event()
        """Set for the owner task: an attempt may be due, or the hub is closing."""
        self.given_up = asyncio.Event()
        self.attempt_scope: anyio.CancelScope | None = None
        """Of the attempt under way; set by the owner task."""
        self._watchers: set[Watcher] = set()
        self._waiters: set[asyncio.Future[UpstreamClient]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection, nobody makes one, and nobody waits for one."""
        return self.connection.phase is Phase.IDLE and not self.connection.requested and not self._waiters

    @property
    def traits(self) -> Traits:
        """What is known of the server from earlier connections, and from this one."""
        return self.context.memory.traits(self.key)

    @property
    def roots(self) -> types.ListRootsResult:
        """The result of `roots/list`: the directory of those who use the connection."""
        directory = Path(self.directory)
        return types.ListRootsResult(roots=[types.Root(uri=directory.as_uri(), name=directory.name or None)])

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Calls back with what has changed, on every change, until the function that it returns is called."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    # -- for callers ------------------------------------------------------------------------------------------

    async def connected(self) -> UpstreamClient:
        """The connection, made now if there is none. Raises UpstreamUnavailable."""
        sign_in_remembered = await self._recall_sign_in()  # does not wait while there is a connection
        # From here to the waiter nothing is awaited: what is decided holds when the caller begins to wait.
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
        """Whether a sign-in was wanted a short while ago with the very tokens that are stored now; moves to that state
        unless an attempt is under way."""
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
            return False  # what is stored cannot be read: the attempt reports it
        recalled = self.connection.sign_in_remembered(f"it said so a short while ago{self.sign_in_hint}")
        if recalled is not self.connection:
            self.move(recalled)
            self._refuse_waiters(f"needs a sign-in: {recalled.reason}")
        return True

    async def request(
        self, method: str, params: JsonObject, side: CallerSide = NO_SIDE, requester: Requester = ANONYMOUS
    ) -> JsonObject:
        """Sends a request. One that a restarted server has certainly not seen is sent again on a new connection, once.

        Raises UpstreamUnavailable, MCPError with what the server answered, or MovedElsewhere.
        """
        for is_last in (False, True):
            client = await self.connected()
            try:
                result = await client.request(method, params, side, requester)
            except MCPError as error:
                # An error on a connection that was given up says nothing about the one that there is now.
                if client is self.client:
                    self._count_error(error)
                elif error.code == CONNECTION_CLOSED:
                    raise await self._ended_in_call(client) from None
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
        # How a program ended is known only when the owner has closed the transport.
        with anyio.move_on_after(_END_TIMEOUT):
            await client.ended.wait()
        how = client.end_reason or "the connection closed"
        message = f"The MCP server {self.name!r} was lost during the call: {how}. It may have done some of its work."
        return UpstreamUnavailable(message, state=self.connection.state.value)

    def _count_error(self, error: MCPError) -> None:
        """Gives the connection up at once where it is of no more use, and after a few terminal errors in a row."""
        if error.code == SESSION_GONE or (error.code == UNAUTHORIZED and self.failure.needs_auth):
            self.give_up()
        elif error.code in {UNREACHABLE, CONNECTION_CLOSED}:
            self.connection = self.connection.error_counted()
            if self.connection.worn_out:
                self.failure.reason = f"given up after {self.connection.errors} errors: {error.message}"
                self.give_up()

    # -- steering ---------------------------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Gives up the connection, if there is one, and makes a new one."""
        if self.connection.state is ConnectionState.DISABLED:
            raise self.unavailable("disabled", "disabled")
        self.give_up()
        self.move(self.connection.reconnecting())
        self.owner_wanted.set()

    def reset(self, reason: str) -> None:
        """Gives up the connection; the next is made when a caller needs it."""
        if self.connection.state is not ConnectionState.DISABLED:
            self.give_up()
            self.move(self.connection.at_rest(reason, caller_waits=bool(self._waiters)))

    def disable(self, reason: str = "disabled by hand") -> None:
        """Gives up the connection and refuses all callers, until `enable`."""
        # The state first: whoever is refused below may ask again at once.
        self.move(self.connection.disabled(reason))
        self._refuse_waiters(reason)
        self.give_up()
        self.changed("tools")  # there are none now; those of a connection that is only lost come back, and stay listed

    def enable(self) -> None:
        """Lets a disabled server be used again; it is connected to when a caller needs it."""
        if self.connection.state is ConnectionState.DISABLED:
            self.move(self.connection.enabled())
            self.changed("tools")

    def close(self) -> None:
        """Ends the owner's task, and refuses all callers from now on."""
        # First: nothing that is woken below may begin another attempt.
        self.connection = self.connection.closing()
        self._refuse_waiters("the hub is closing")
        self.owner_wanted.set()
        self.give_up()

    def give_up(self) -> None:
        """Gives up the connection, or the attempt to make one; the owner closes the transport and concludes."""
        # In any case: a handshake may be done at this very moment, see `ConnectionOwner._keep_connection`.
        self.given_up.set()
        if self.client is not None:
            self.client = None
            self.move(self.connection.lost(anyio.current_time()))
        elif self.connection.phase is Phase.CONNECTING and self.attempt_scope is not None:
            self.attempt_scope.cancel()

    # -- for the owner task -----------------------------------------------------------------------------------

    def publish(self, client: UpstreamClient) -> None:
        """The handshake is done: those who wait get the connection."""
        connection = self.connection.connected(anyio.current_time())
        self.failure.reason = None  # a probe that was refused is no reason why a connection ends later
        # Before anybody is told: a caller that comes now must find it.
        self.client = client
        self.move(connection)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(client)
        for kind in ("tools", "resources", "prompts"):
            self.changed(kind)

    def conclude(self, reason: str) -> None:
        """The transport is closed: moves on as the state machine says, and refuses those who wait in vain."""
        conclusion: Conclusion = self.connection.concluded(
            reason,
            anyio.current_time(),
            needs_auth=self.failure.needs_auth is not None,
            caller_waits=bool(self._waiters),
        )
        self.move(conclusion.connection)
        if conclusion.refuse_callers:
            self._refuse_waiters(reason)

    def take_notification(self, method: str, params: JsonObject) -> None:
        """The server has sent a notification, of any kind."""
        self.forget_lists(*LIST_CHANGES.get(method, ()))
        if method == "notifications/resources/updated":
            self.changed(f"{UPDATED}{params.get('uri')}")
        self.context.deps.on_notification(self.name, method, params)

    def forget_lists(self, *kinds: str) -> None:
        """Lists of the server are stale: whoever knew one is told."""
        if self.client is not None:
            for kind in self.client.forget_lists(*kinds):
                self.changed(kind)

    def move(self, connection: Connection) -> None:
        """The connection stands otherwise now; watchers are told where that shows."""
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
