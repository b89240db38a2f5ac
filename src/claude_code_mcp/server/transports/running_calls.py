"""Everything that callers have running over HTTP, how it ends with what lets them in, and how often they may ask.

- A caller that is removed: every request, stream and call of it is cancelled at once (`end`).
- A session that is no longer shared with a caller: what of theirs has to do with it is cancelled.
- A token that expires or is revoked: what only stands open to be told of changes, an event stream of `/mcp` or of the
  console, ends with the very token that it was opened with. A call that works goes on to its end: half of what it does
  would be worse than the rest of it.

A stream is looked at when its token expires and, where the issuer is asked about tokens, as often as an answer counts.
While the issuer cannot be asked the stream goes on until its token would expire.
"""

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.errors import RateLimited, UpstreamUnavailable
from ...core.rate_limit import MinuteLimit
from .identity import Identity

log = logging.getLogger(__name__)

_ENDING = 10.0
"""Seconds that a call may take to end once it was cancelled."""
_LAST_WORD = 1.0
"""Seconds that a client may take to read the end of a stream."""
_WINDOW = 60.0
_MOST_ADDRESSES = 2000

_current_call: ContextVar["RunningCall | None"] = ContextVar("running_call", default=None)


@dataclass(frozen=True, slots=True)
class AccessUntil:
    """What has let a request in: until when that counts (Unix seconds), and how often it is looked at meanwhile."""

    expires_at: float
    look_every: float
    still_good: Callable[[], Awaitable[float | None]]
    """Until when it counts by now; None if it does not. UpstreamUnavailable while that cannot be said."""


@dataclass(eq=False)
class RunningCall:
    """A request or a call of a tool while it runs; `identity` and `access` are set as soon as they are known."""

    identity: Identity | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    address: str = ""
    """Where the request is from."""
    standing: bool = False
    """Whether it only waits for something to be told, and ends with its `access`."""
    access: AccessUntil | None = None
    borrowed: set[str] = field(default_factory=set)
    """The sessions of others that it has to do with."""
    due: float | None = None
    """When it is to be looked at, by the monotonic clock."""


NotingBorrowed = Callable[[Callable[[str], None]], contextlib.AbstractContextManager[None]]


def caller_address() -> str:
    """Where the request that is being answered is from; empty outside of one."""
    call = _current_call.get()
    return call.address if call is not None else ""


class RunningCalls:
    """The calls and requests of one server."""

    def __init__(self) -> None:
        self._running: set[RunningCall] = set()
        self._one_over = asyncio.Event()
        self._standing_changed = asyncio.Event()
        self.requests = MinuteLimit(lambda _: None)
        self.noting_borrowed: NotingBorrowed = lambda _: contextlib.nullcontext()
        """A context in which its argument is called with each session of somebody else that is used."""

    def claim(self, identity: Identity, access: AccessUntil | None = None) -> None:
        """The request that is being answered is this caller's. Nothing is awaited between the check of the caller and
        this, so that no change comes between. RateLimited if the caller has sent too many."""
        call = _current_call.get()
        if call is not None:
            # Once for each request, however often it looks who its caller is.
            if call.identity is None:
                self.requests.take(identity.principal)
            call.identity, call.access = identity, access
            self._schedule(call)

    def stand(self) -> None:
        """The request that is being answered is a stream which only stands open: it ends with its token."""
        call = _current_call.get()
        if call is not None:
            call.standing = True
            self._schedule(call)

    @contextlib.contextmanager
    def running(self, identity: Identity | None = None) -> Iterator[RunningCall]:
        """What is done within this context ends with the caller: it is cancelled, and the context left quietly."""
        call = RunningCall(identity)
        self._running.add(call)
        try:
            with call.scope:
                yield call
        finally:
            self._running.discard(call)
            self._one_over.set()

    @contextlib.contextmanager
    def running_tool(self) -> Iterator[RunningCall]:
        """The same for a call of a tool, whoever makes it: calls on a connection of the older protocol outlive the
        request that brought them."""
        token = get_access_token()
        with (
            self.running(None if token is None else Identity(token.client_id, token.subject or "")) as call,
            self.noting_borrowed(call.borrowed.add),
        ):
            yield call

    def end(self, identity: Identity) -> int:
        """Cancels everything of a caller; returns how much that was."""
        calls = [call for call in self._running if call.identity == identity]
        for call in calls:
            call.scope.cancel()
        return len(calls)

    def end_borrowed(self, session_id: str, may_go_on: Callable[[str], bool]) -> None:
        """Cancels what has to do with a session of somebody else, of principals who may not use it any more."""
        for call in [call for call in self._running if session_id in call.borrowed]:
            if call.identity is not None and not may_go_on(call.identity.principal):
                call.scope.cancel()

    def borrowed_moved(self, old: str, new: str) -> None:
        """What has to do with a session of somebody else has to do with the id that it goes on with."""
        for call in self._running:
            if old in call.borrowed:
                call.borrowed.add(new)

    async def calls_over(self, name: str) -> None:
        """Returns when no request and no call of a caller runs; after a while even if one does not end."""
        with anyio.move_on_after(_ENDING):
            while any(call.identity is not None and call.identity.principal == name for call in self._running):
                self._one_over.clear()
                await self._one_over.wait()

    # -- streams and their tokens ---------------------------------------------------------------------------------

    def _schedule(self, call: RunningCall) -> None:
        if call.standing and call.access is not None:
            left = call.access.expires_at - time.time()
            call.due = time.monotonic() + min(max(left, 0.0), call.access.look_every)
            self._standing_changed.set()

    async def end_streams_with_tokens(self) -> None:
        """Ends each stream when its token does, for as long as this runs."""
        while True:
            self._standing_changed.clear()
            standing = [(call.due, call) for call in self._running if call.due is not None]
            due = min((moment for moment, _ in standing), default=None)
            if due is None or due > time.monotonic():
                # A stream that begins meanwhile may be due earlier: the event wakes this.
                with anyio.move_on_after(None if due is None else due - time.monotonic()):
                    await self._standing_changed.wait()
                continue
            async with anyio.create_task_group() as looks:
                # Side by side: an issuer that is slow about one token holds up no other.
                for moment, call in standing:
                    if moment <= time.monotonic():
                        looks.start_soon(self._look_at, call)

    async def _look_at(self, call: RunningCall) -> None:
        access = call.access
        assert access is not None
        try:
            until = await access.still_good()
        except UpstreamUnavailable:
            # Not known is not revoked; and its own end it has in any case.
            until = access.expires_at
        except Exception:
            # A stream that cannot be looked at ends, and the others go on being looked at.
            who = call.identity.principal if call.identity is not None else f"a caller at {call.address}"
            log.exception("could not re-check the access of %s; closing its stream", who)
            until = None
        if call.access is not access:
            return  # claimed anew meanwhile
        if until is None or until <= time.time():
            call.due = None
            call.scope.cancel()
        else:
            call.access = AccessUntil(until, access.look_every, access.still_good)
            self._schedule(call)

    # -- requests ---------------------------------------------------------------------------------------------------

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wraps an application whose requests end with their callers."""

        async def ended_with_caller(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            answer = _Answer(send)
            with self.running() as call, self.noting_borrowed(call.borrowed.add):
                call.address = (scope.get("client") or ("",))[0]
                # What is got and does not end by itself is an event stream.
                call.standing = scope["method"] == "GET"
                token = _current_call.set(call)
                try:
                    await app(scope, receive, answer.send)
                except RateLimited as error:
                    if answer.started:
                        raise
                    headers = {"Retry-After": str(error.retry_after)}
                    body = {"error": {"code": error.code, "message": error.message}}
                    await JSONResponse(body, 429, headers)(scope, receive, send)
                except UpstreamUnavailable as error:
                    if answer.started:
                        raise
                    await JSONResponse({"error": error.message}, 503, {"Retry-After": "1"})(scope, receive, send)
                finally:
                    _current_call.reset(token)
            # Outside of the scope, which was cancelled: within it nothing could be sent any more.
            if call.scope.cancelled_caught:
                await answer.end(scope, receive)

        return ended_with_caller


class _Answer:
    """The answer to a request, which may have to end before it is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self._complete = False

    async def send(self, message: Message) -> None:
        self.started = True
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Tells the client, or ends the stream that it reads. One that does not read is not waited for: the server
        closes a connection whose answer is not complete."""
        with anyio.move_on_after(_LAST_WORD):
            if not self.started:
                headers = {"WWW-Authenticate": 'Bearer error="invalid_token"', "Connection": "close"}
                await JSONResponse({"error": "Your access to this server or session has ended."}, 401, headers)(
                    scope, receive, self._send
                )
            elif not self._complete:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


# -- failures ---------------------------------------------------------------------------------------------------------


class FailureLimit:
    """Counts failures of each address: after so many within a minute no more tries are allowed until it is over."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Since when an address fails, and how often."""

    def is_over(self, address: str) -> bool:
        """Whether an address has failed too often."""
        return self._wait(address) > 0

    def _wait(self, address: str) -> float:
        """Seconds until an address that has failed too often may try again; 0 or less for others."""
        since, count = self._failed.get(_network_of(address), (0.0, 0))
        return since + _WINDOW - self._clock() if count >= self._most else 0.0

    def check(self, address: str) -> None:
        """RateLimited for an address that has failed too often."""
        left = self._wait(address)
        if left > 0:
            raise RateLimited("Too many failed tokens or sign-ins; wait a minute.", int(left) + 1)

    def failed(self, address: str) -> None:
        now, address = self._clock(), _network_of(address)
        since, count = self._failed.pop(address, (now, 0))
        self._failed[address] = (since, count + 1) if now - since < _WINDOW else (now, 1)
        # The one that failed longest ago goes first, since each failure puts its address at the end.
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)


def _network_of(address: str) -> str:
    """All addresses of one IPv6 network count as one: whoever has one of them has them all."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else address
