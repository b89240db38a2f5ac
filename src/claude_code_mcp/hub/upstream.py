"""One server of the hub: its connection, made when needed, kept, and made again; shared by all who use it.

A connection belongs to one task, the owner, from its first to its last moment. Everybody else waits for it or uses
it, and can ask for it to be given up, but never opens or closes it.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED, Implementation
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .. import __version__
from ..errors import UpstreamUnavailable
from .auth.credentials import NeedsAuthMemory
from .client_session import CHANGES, KINDS, UpstreamClient
from .config_entry import fingerprint
from .config_files import ConfiguredServer
from .connection_state import Connection, ConnectionState
from .dependencies import ConnectSlot, ConnectThrottle, HubDeps
from .elicitation import Ask, Askers
from .streams import SoundOutbox, Streams, Tap, Trouble
from .transport_factory import has_oauth, open_transport
from .transports.http import SESSION_GONE, UNAUTHORIZED, UNREACHABLE

log = logging.getLogger(__name__)

_WHO = Implementation(name="claude-code-mcp", version=__version__)
_LASTING = 10.0
"""Seconds after which a connection counts as one that worked."""

Message = dict[str, Any]
Watcher = Callable[[str], None]
"""Hears what changed: `state`, `tools`, `resources`, `templates` or `prompts`."""


class Upstream:
    """`run` is its owner; the rest is for whoever uses it."""

    def __init__(
        self, server: ConfiguredServer, means: HubDeps, turns: ConnectThrottle, memory: NeedsAuthMemory, timeout: float
    ) -> None:
        self.server = server
        self.name = server.name
        self.key = fingerprint(server.name, server.config)
        self.link: UpstreamClient | None = None
        """The connection while there is one."""
        self._means = means
        self._turns = turns
        self._memory = memory
        self._timeout = timeout
        self._redact = server.config.redactor().text
        self._connection = Connection()
        if server.barred is not None:
            self._connection = self._connection.disabled(server.barred)
        self._watchers: set[Watcher] = set()
        self._waiters: set[asyncio.Future[UpstreamClient]] = set()
        self._work = asyncio.Event()
        self._lost = asyncio.Event()
        self._trouble = Trouble()
        self._attempting: anyio.CancelScope | None = None
        self._established: float | None = None
        self._again = False
        self._resting = False
        self._closing = False

    @property
    def connection(self) -> Connection:
        return self._connection

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Calls back on every change, until the function that it returns is called."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    # -- using it ---------------------------------------------------------------------------------------------

    async def connected(self) -> UpstreamClient:
        """The connection, made now if there is none. Raises UpstreamUnavailable."""
        if self.link is not None:
            return self.link
        await self._check()
        waiter: asyncio.Future[UpstreamClient] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            self._want()
            return await waiter
        finally:
            self._waiters.discard(waiter)

    async def request(
        self, method: str, params: Message, on_progress: ProgressFnT | None = None, ask: Ask | None = None
    ) -> Message:
        """Sends a request. One that a restarted server has certainly not seen is sent again on a new connection.

        Raises UpstreamUnavailable, or MCPError with what the server answered.
        """
        link = await self.connected()
        try:
            return await self._request(link, method, params, on_progress, ask)
        except MCPError as error:
            if error.code != SESSION_GONE:
                raise
        return await self._request(await self.connected(), method, params, on_progress, ask)

    async def _request(
        self, link: UpstreamClient, method: str, params: Message, on_progress: ProgressFnT | None, ask: Ask | None
    ) -> Message:
        try:
            result = await link.request(method, params, on_progress, ask)
        except MCPError as error:
            self._judge(link, error)
            raise
        if self._connection.errors and link is self.link:
            self._connection = self._connection.healthy()
        return result

    def _judge(self, link: UpstreamClient, error: MCPError) -> None:
        """Terminal errors count against the connection; one too many, and it is made anew."""
        if link is not self.link:
            return
        if error.code == SESSION_GONE or (error.code == UNAUTHORIZED and self._trouble.needs_auth):
            self._lose()
        elif error.code in {UNREACHABLE, CONNECTION_CLOSED}:
            self._connection = self._connection.troubled()
            if self._connection.worn_out:
                self._trouble.reason = f"given up after {self._connection.errors} errors: {error.message}"
                self._lose()

    # -- steering it ------------------------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Gives up the connection, if there is one, and makes a new one."""
        if self._connection.state is ConnectionState.DISABLED:
            raise UpstreamUnavailable(self._told("disabled"), state="disabled")
        self._again = self._attempting is not None
        self._lose()
        self._want()

    def disable(self, reason: str = "disabled by hand") -> None:
        self._set(self._connection.disabled(reason))
        self._refuse_waiters(reason)
        self._lose()
        self._tell("tools")  # there are none now; one that is only lost comes back, and its tools stay in sight

    def reset(self, reason: str) -> None:
        """Gives up the connection; the next is made when somebody needs it."""
        if self._connection.state is ConnectionState.DISABLED:
            return
        self._resting = self._attempting is not None
        self._lose()
        self._set(self._connection.at_rest(reason))

    def enable(self) -> None:
        if self._connection.state is ConnectionState.DISABLED:
            self._set(self._connection.wanted())
            self._tell("tools")

    def close(self) -> None:
        """Ends the owner's work. Whoever still waits is told so."""
        self._closing = True
        self._refuse_waiters("the hub is closing")
        self._work.set()
        self._lose()

    async def _check(self) -> None:
        """Raises UpstreamUnavailable where an attempt is not to be made."""
        state, reason = self._connection.state, self._connection.reason
        if self._closing:
            raise UpstreamUnavailable(self._told("the hub is closing"), state="closing")
        if state is ConnectionState.DISABLED:
            raise UpstreamUnavailable(self._told(f"disabled: {reason}"), state=state.value)
        if self._attempting is None and await self._is_known_to_need_auth():
            raise UpstreamUnavailable(self._told(f"needs a sign-in: {self._connection.reason}"), state="needs-auth")

    async def _is_known_to_need_auth(self) -> bool:
        if not has_oauth(self.server.config) or not await self._memory.remembers(self.key):
            return False
        if self._connection.state is ConnectionState.PENDING and self._attempting is None:
            self._set(self._connection.needs_auth("it said so a short while ago"))
        return self._connection.state is ConnectionState.NEEDS_AUTH

    def _want(self) -> None:
        if self._attempting is None:
            self._set(self._connection.wanted())
        self._work.set()

    def _lose(self) -> None:
        """Gives up the connection, or the attempt to make one; the owner does the rest."""
        self._lost.set()
        if self.link is not None:
            self.link = None
            if self._connection.state is ConnectionState.CONNECTED:
                self._set(self._connection.lost("the connection closed", lasted=self._lasted))
        elif self._attempting is not None and self._established is None:
            self._attempting.cancel()

    @property
    def _lasted(self) -> bool:
        return self._established is not None and anyio.current_time() - self._established > _LASTING

    def _refuse_waiters(self, reason: str) -> None:
        error = UpstreamUnavailable(self._told(reason), state=self._connection.state.value)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _told(self, reason: str) -> str:
        return f"The MCP server {self.name!r} is not available: {reason}"

    def _set(self, connection: Connection) -> None:
        changed = (connection.state, connection.reason) != (self._connection.state, self._connection.reason)
        self._connection = connection
        if changed:
            log.info("%s: %s%s", self.name, connection.state, f" ({connection.reason})" if connection.reason else "")
            self._tell("state")

    def _tell(self, what: str) -> None:
        for watcher in list(self._watchers):
            watcher(what)

    # -- owning it --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connects whenever somebody needs it, until `close`."""
        while not self._closing:
            await self._work.wait()
            self._work.clear()
            while self._is_wanted and not await self._attempt():
                await self._pause()

    @property
    def _is_wanted(self) -> bool:
        return not self._closing and self._connection.state is ConnectionState.PENDING

    async def _pause(self) -> None:
        """Waits before the next attempt, or until somebody needs the server now."""
        if not self._is_wanted:
            return
        with anyio.move_on_after(self._connection.pause(random.random())):  # noqa: S311 - only spreads attempts
            await self._work.wait()
            self._work.clear()

    async def _attempt(self) -> bool:
        """Connects, and stays until the connection is lost. True when there is nothing more to try."""
        self._trouble = Trouble()
        self._lost.clear()
        self._again = self._resting = False
        self._established = None
        self._set(self._connection.attempted())
        turn = self._turns.turn(self.server.config)
        error: Exception | None = None
        with anyio.CancelScope() as scope:
            self._attempting = scope
            try:
                await turn.begin()
                scope.deadline = anyio.current_time() + self._timeout
                await self._live(turn, scope)
            except Exception as caught:  # whatever goes wrong with one server stays with it
                error = caught
            finally:
                turn.end()
        self._lose()
        self._attempting = None
        timed_out = self._established is None and anyio.current_time() >= scope.deadline
        return await self._conclude(self._reason(error, timed_out))

    async def _live(self, turn: ConnectSlot, scope: anyio.CancelScope) -> None:
        askers = Askers()
        client = Client(self._tapped(), cache=None, elicitation_callback=askers.elicit, client_info=_WHO)
        async with client:
            scope.deadline = math.inf
            self._established = anyio.current_time()
            turn.end()
            self._publish(UpstreamClient(client.session, self.server.config, askers))
            await self._until_lost(client)

    @asynccontextmanager
    async def _tapped(self) -> AsyncIterator[Streams]:
        transport = open_transport(self.name, self.server.config, self._means, self._trouble, self._lose)
        async with transport as (inbox, outbox):
            yield Tap(inbox, self._notified, self._lose), SoundOutbox(outbox)

    def _publish(self, link: UpstreamClient) -> None:
        self.link = link
        self._set(self._connection.connected())
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(link)
        for what in ("tools", "resources", "prompts"):
            self._tell(what)

    async def _until_lost(self, client: Client) -> None:
        await self._memory.forget(self.key)
        async with anyio.create_task_group() as tasks:
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                tasks.start_soon(self._listen, client)
            await self._lost.wait()
            tasks.cancel_scope.cancel()

    async def _listen(self, client: Client) -> None:
        """A server without a handshake tells of changes only to those who listen; they come as notifications."""
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
                self._forget(*KINDS)  # what changed before anybody listened was told to nobody
                async for _ in subscription:
                    pass

    def _notified(self, method: str, params: Message) -> None:
        self._forget(*CHANGES.get(method, ()))
        self._means.notified(self.name, method, params)

    def _forget(self, *kinds: str) -> None:
        if self.link is not None:
            for kind in self.link.drop(*kinds):
                self._tell(kind)

    async def _conclude(self, reason: str) -> bool:
        """What becomes of it after an attempt or a connection; True when there is nothing more to try."""
        if self._connection.state is ConnectionState.DISABLED or self._closing:
            return True
        if self._resting:
            return not self._waiters  # whoever came since then needs a new one
        if self._trouble.needs_auth:
            reason = self._redact(self._trouble.needs_auth)
            if has_oauth(self.server.config):
                await self._memory.remember(self.key)
            self._set(self._connection.needs_auth(reason))
        else:
            if self._again or self._established is not None:
                self._set(self._connection.lost(reason, lasted=self._again or self._lasted))
            if self._connection.may_retry:
                self._set(self._connection.retrying(reason))
            else:
                self._set(self._connection.failed(reason))
        was_an_attempt = self._established is None and not self._again
        if was_an_attempt or not self._is_wanted:
            self._refuse_waiters(reason)
        return not self._is_wanted

    def _reason(self, error: Exception | None, timed_out: bool) -> str:
        if timed_out:
            return f"no answer within {self._timeout:g} s"
        told = self._trouble.reason or (_first(error) if error is not None else "the connection closed")
        return self._redact(told)


def _first(error: BaseException) -> str:
    """The first cause in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
