"""The task that a connection to a server belongs to: it opens the transport, keeps it, and closes it.

Everybody else waits for the connection at its `Upstream`, uses it, or asks for it to be given up.
"""

import logging
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import Implementation

from .. import __version__
from .auth.credentials import digest_of
from .client_session import CallsInFlight, UpstreamClient
from .connection_state import Afterwards, Phase
from .dependencies import ConnectSlot, Offer
from .streams import JsonObject, ObservedInbox, RequestsInFlight, Streams, TransportFailure, WritableOutbox
from .transport_factory import Probe, has_oauth, open_transport, with_helped_headers
from .upstream import Upstream

log = logging.getLogger(__name__)

_CLIENT_INFO = Implementation(name="claude-code-mcp", version=__version__)


class ConnectionOwner:
    """`run` makes the connection of an `Upstream` whenever one is due."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._context = upstream.context
        self._config = upstream.server.config
        self._client: UpstreamClient | None = None
        """What the current attempt has led to; kept until its transport is closed."""

    async def run(self) -> None:
        """Makes an attempt whenever one is due, until the upstream is closed."""
        upstream = self._upstream
        while not upstream.connection.closed:
            await upstream.owner_wanted.wait()
            # Cleared before the look: a request that comes during an attempt wakes the owner again.
            upstream.owner_wanted.clear()
            while upstream.connection.attempt_due:
                await self._attempt()
                if upstream.connection.attempt_due:
                    # A caller, a reconnect or the close of the hub ends the pause.
                    with anyio.move_on_after(upstream.connection.pause(random.random())):  # noqa: S311 - only spreads them
                        await upstream.owner_wanted.wait()
                        upstream.owner_wanted.clear()

    async def _attempt(self) -> None:
        """Connects, keeps the connection until it is given up, closes the transport, and concludes.

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
            except Exception as caught:  # whatever goes wrong with one server stays with it
                error = caught
            finally:
                slot.release()
        # Whoever has got the connection must not go on using it: its transport is closed.
        upstream.give_up()
        timed_out = upstream.connection.phase is Phase.CONNECTING and anyio.current_time() >= scope.deadline
        reason = f"no answer within {self._context.timeout:g} s" if timed_out else self._end_reason(error)
        if self._client is not None:
            # Before anything is awaited: calls that it has left wait for this.
            self._client.end_reason = reason
            self._client.ended.set()
            self._client = None
        await self._conclude(reason)

    async def _connect(self, slot: ConnectSlot, scope: anyio.CancelScope) -> None:
        """Makes a connection and keeps it. A server that ends at the probe for the newest protocol, or reads it and
        stays mute, is started again and greeted with `initialize`; if that works, it is remembered."""
        upstream = self._upstream
        if not upstream.traits.handshake_only:
            probe = Probe(upstream.failure)
            with anyio.CancelScope() as trying, probe.watching(trying.cancel):
                upstream.attempt_scope = trying
                try:
                    return await self._keep_connection("auto", slot, scope, probe)
                except Exception:
                    if not probe.was_in_vain:
                        raise
            upstream.attempt_scope = scope
            if not probe.was_in_vain or not upstream.connection.attempt_goes_on:
                return None
            log.info("%s cannot take a probe; it is started again with a handshake", upstream.name)
            # For the second try: what the first has left must not count for it.
            upstream.failure = TransportFailure()
            upstream.given_up.clear()
        try:
            return await self._keep_connection("legacy", slot, scope, None)
        except MCPError as error:
            if error.code == types.UNSUPPORTED_PROTOCOL_VERSION:  # it has learned the newest protocol meanwhile
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
            # The handshake is done: a connection has no limit of time.
            scope.deadline = math.inf
            slot.release()
            if mode == "legacy" and not upstream.traits.handshake_only:
                with anyio.CancelScope(shield=True):  # it took time to find out, and is known when anybody sees it
                    await self._learn(handshake_only=True)
            if upstream.given_up.is_set():
                return  # given up just when the handshake was done: nobody may get this connection
            connected = self._client = UpstreamClient(client.session, self._config, calls)
            upstream.publish(connected)
            # After calls have the connection: they need not wait for the disk.
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

    # -- what the server shows of itself ------------------------------------------------------------------------

    async def _learn(self, **changes: object) -> None:
        if self._context.memory.learn(self._upstream.key, **changes):
            await self._context.memory.save(self._upstream.key)

    async def _list_roots(
        self, calls: CallsInFlight, context: ClientRequestContext
    ) -> types.ListRootsResult | types.ErrorData:
        """Answers `roots/list`: the server depends on the directory, so that this connection is for one alone. That is
        the one of the calls in flight; while they are of several, the server is refused, this once."""
        directories = calls.directories
        news = self._context.memory.learn(self._upstream.key, asks_for_roots=True)
        if len(directories) == 1:
            (self._upstream.directory,) = directories
        self._upstream.on_roots_asked()  # before anything is awaited: nobody may see the one without the other
        if news:
            await self._context.memory.save(self._upstream.key)
        if len(directories) > 1:
            return types.ErrorData(code=types.INVALID_REQUEST, message="Callers in several directories share this.")
        return self._upstream.roots

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
            log.debug("what %s offers is not kept: %s", self._upstream.name, error)
        else:
            await self._learn(offer=offer)

    # -- the end of an attempt ----------------------------------------------------------------------------------

    async def _conclude(self, reason: str) -> None:
        """Moves on after an attempt, and remembers a sign-in that is needed, for as long as nobody asked otherwise."""
        upstream = self._upstream
        if upstream.failure.needs_auth is not None:
            reason = self._redact(upstream.failure.needs_auth) + upstream.sign_in_hint
            overruled = upstream.connection.closed or upstream.connection.afterwards is Afterwards.REST
            if has_oauth(self._config) and not overruled:
                # Not of what is stored now: that may be other tokens already.
                await self._context.needs_auth.remember(upstream.key, digest_of(upstream.failure.refused_token))
        upstream.conclude(reason)

    def _end_reason(self, error: Exception | None) -> str:
        failure = self._upstream.failure
        if failure.reason or error is None:
            return self._redact(failure.reason or "the connection closed")
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        return self._redact(str(cause) or type(cause).__name__)

    def _redact(self, text: str) -> str:
        return self._config.secrets_redactor().text(text)


async def own_connection(upstream: Upstream) -> None:
    """Runs the owner of a connection until it is closed."""
    try:
        await ConnectionOwner(upstream).run()
    except Exception:
        log.exception("the owner of %s failed", upstream.name)  # a bug, but no reason to lose the other servers
