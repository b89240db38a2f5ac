"""Tracks the running calls of callers over HTTP: ends them with the caller's access, and limits their rate.

- If a caller is removed, all its requests, streams and calls are cancelled at once (`end`).
- If a session is no longer shared with a caller, the caller's requests that use it are cancelled.
- If a token expires or is revoked, streams that only wait for changes (an event stream of `/mcp` or of the console)
  end. A running call completes, because stopping it halfway could do more harm.

A stream is checked when its token expires and, if tokens are introspected, as often as a result is valid. While the
issuer is unreachable the stream continues until its token would expire.
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
"""Seconds that a client has to read the end of a stream."""
_WINDOW = 60.0
_MAX_ADDRESSES = 2000

_current_call: ContextVar["RunningCall | None"] = ContextVar("running_call", default=None)


@dataclass(frozen=True, slots=True)
class AccessUntil:
    """Until when a request is admitted (Unix seconds), and how often that is checked."""

    expires_at: float
    recheck_interval: float
    recheck: Callable[[], Awaitable[float | None]]
    """Until when it is now valid; None if it is not. UpstreamUnavailable while that is unknown."""


@dataclass(eq=False)
class RunningCall:
    """A request or a call of a tool while it runs; `identity` and `access` are set as soon as they are known."""

    identity: Identity | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    address: str = ""
    """The address that the request came from."""
    standing: bool = False
    """Whether it only waits for notifications, and so ends with its `access`."""
    access: AccessUntil | None = None
    borrowed: set[str] = field(default_factory=set)
    """The other owners' sessions that it uses."""
    due: float | None = None
    """When it is to be checked, by the monotonic clock."""


NotingBorrowed = Callable[[Callable[[str], None]], contextlib.AbstractContextManager[None]]


def caller_address() -> str:
    """The address that the current request came from; empty outside a request."""
    call = _current_call.get()
    return call.address if call is not None else ""


class RunningCalls:
    """The calls and requests of one server."""

    def __init__(self) -> None:
        self._running: set[RunningCall] = set()
        self._call_ended = asyncio.Event()
        self._standing_changed = asyncio.Event()
        self.requests = MinuteLimit(lambda _: None)
        self.noting_borrowed: NotingBorrowed = lambda _: contextlib.nullcontext()
        """A context in which its argument is called with each session used through a share."""

    def claim(self, identity: Identity, access: AccessUntil | None = None) -> None:
        """Assign the current request to this caller. No await between the check of the caller and this call, so that no
        change comes in between. RateLimited if the caller has sent too many."""
        call = _current_call.get()
        if call is not None:
            # Once for each request, however often its caller is looked up.
            if call.identity is None:
                self.requests.take(identity.principal)
            call.identity, call.access = identity, access
            self._schedule(call)

    def stand(self) -> None:
        """Mark the current request as a standing stream, which ends with its token."""
        call = _current_call.get()
        if call is not None:
            call.standing = True
            self._schedule(call)

    @contextlib.contextmanager
    def running(self, identity: Identity | None = None) -> Iterator[RunningCall]:
        """Context whose work ends with the caller: it is cancelled, and the context exits without an exception."""
        call = RunningCall(identity)
        self._running.add(call)
        try:
            with call.scope:
                yield call
        finally:
            self._running.discard(call)
            self._call_ended.set()

    @contextlib.contextmanager
    def running_tool(self) -> Iterator[RunningCall]:
        """The same for a tool call: calls on a connection of the older protocol outlive the request that brought
        them."""
        token = get_access_token()
        with (
            self.running(None if token is None else Identity(token.client_id, token.subject or "")) as call,
            self.noting_borrowed(call.borrowed.add),
        ):
            yield call

    def end(self, identity: Identity) -> int:
        """Cancel everything of a caller; return the number of cancelled calls."""
        calls = [call for call in self._running if call.identity == identity]
        for call in calls:
            call.scope.cancel()
        return len(calls)

    def end_borrowed(self, session_id: str, may_go_on: Callable[[str], bool]) -> None:
        """Cancel calls that use another owner's session, of principals who may no longer use it."""
        for call in [call for call in self._running if session_id in call.borrowed]:
            if call.identity is not None and not may_go_on(call.identity.principal):
                call.scope.cancel()

    def shared_session_moved(self, old: str, new: str) -> None:
        """Update calls that use another owner's session to its new id."""
        for call in self._running:
            if old in call.borrowed:
                call.borrowed.add(new)

    async def calls_over(self, name: str) -> None:
        """Return when a caller has no running requests or calls, or after a timeout."""
        with anyio.move_on_after(_ENDING):
            while any(call.identity is not None and call.identity.principal == name for call in self._running):
                self._call_ended.clear()
                await self._call_ended.wait()

    # -- streams and their tokens -----------------------------------------------------------------------------

    def _schedule(self, call: RunningCall) -> None:
        if call.standing and call.access is not None:
            left = call.access.expires_at - time.time()
            call.due = time.monotonic() + min(max(left, 0.0), call.access.recheck_interval)
            self._standing_changed.set()

    async def end_streams_with_tokens(self) -> None:
        """End each stream when its token does. Never returns."""
        while True:
            self._standing_changed.clear()
            standing = [(call.due, call) for call in self._running if call.due is not None]
            due = min((moment for moment, _ in standing), default=None)
            if due is None or due > time.monotonic():
                # A new stream may be due earlier: the event wakes this.
                with anyio.move_on_after(None if due is None else due - time.monotonic()):
                    await self._standing_changed.wait()
                continue
            async with anyio.create_task_group() as looks:
                # Concurrently: a slow issuer must not delay other checks.
                for moment, call in standing:
                    if moment <= time.monotonic():
                        looks.start_soon(self._recheck_access, call)

    async def _recheck_access(self, call: RunningCall) -> None:
        access = call.access
        assert access is not None
        try:
            until = await access.recheck()
        except UpstreamUnavailable:
            # Unknown does not mean revoked; and the token expires in any case.
            until = access.expires_at
        except Exception:
            # A stream that cannot be checked ends; the others are still checked.
            who = call.identity.principal if call.identity is not None else f"a caller at {call.address}"
            log.exception("could not re-check the access of %s; closing its stream", who)
            until = None
        if call.access is not access:
            return  # claimed again in the meantime
        if until is None or until <= time.time():
            call.due = None
            call.scope.cancel()
        else:
            call.access = AccessUntil(until, access.recheck_interval, access.recheck)
            self._schedule(call)

    # -- requests ---------------------------------------------------------------------------------------------

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """The application, with requests that end when their caller loses access."""

        async def ended_with_caller(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            answer = _Answer(send)
            with self.running() as call, self.noting_borrowed(call.borrowed.add):
                call.address = (scope.get("client") or ("",))[0]
                # A GET response that does not end is an event stream.
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
            # Outside the cancelled scope: within it nothing more could be sent.
            if call.scope.cancelled_caught:
                await answer.end(scope, receive)

        return ended_with_caller


class _Answer:
    """The response to a request, which may have to end before it is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self._complete = False

    async def send(self, message: Message) -> None:
        self.started = True
        self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Send the client an error, or end its stream. Does not wait for a client that does not read: the server closes
        a connection with an incomplete response."""
        with anyio.move_on_after(_LAST_WORD):
            if not self.started:
                headers = {"WWW-Authenticate": 'Bearer error="invalid_token"', "Connection": "close"}
                await JSONResponse({"error": "Your access to this server or session has ended."}, 401, headers)(
                    scope, receive, self._send
                )
            elif not self._complete:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


# -- failed attempts ---------------------------------------------------------------------------------------------------


class FailureLimit:
    """Counts failures per address: after too many within a minute, further attempts are refused until it is over."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """When an address started failing, and how often."""

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
        # Evicts the address that failed longest ago: each failure moves its address to the end.
        while len(self._failed) > _MAX_ADDRESSES:
            self._failed.popitem(last=False)


def _network_of(address: str) -> str:
    """The network of an IPv6 address, or the IPv4 address itself: a client can use all addresses of its /64 network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else address
