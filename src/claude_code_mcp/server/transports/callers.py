"""The callers with tokens as they are now, and everything of theirs that runs over HTTP.

The one place that says who may call, for `/mcp`, `/metrics` and the console alike. The tokens file is followed:

- A change counts as soon as it is written. While the file is being read again nobody is let in by the list from before;
  a request waits for that moment.
- Of a caller that was taken out of the file, or has another token there, every request, stream and call ends at once.
  Those who want to know (the MCP server, the console) are told by name.
- A name that is new is let in if nothing had to be made for it when the server started; else it waits for a restart.
- A file that cannot be used lets nobody in who is in it, and takes nobody for removed: requests are refused as
  unavailable, what runs goes on for ten seconds, so that a file which is being edited cuts nobody off, and ends then.
  The token of the settings does not depend on the file.
- A file without any token has no callers. It never makes a server that began with tokens one that needs none.
"""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...config import Settings
from ...errors import ClaudeCodeError, UpstreamUnavailable
from ...model.events import AuditEvent, AuditKind
from ...service import Service
from ...store.watched_file import WatchedFile
from .bearer import load_tokens

log = logging.getLogger(__name__)

SCOPE = "claude-code"
_SETTLED = 0.05
"""Seconds without a change after which a file is taken for written."""
_MOST_READS = 20
_GRACE = 10.0
"""Seconds for which what runs goes on while the file cannot be used."""
_ENDING = 10.0
"""Seconds that a call may take to end once it was cancelled."""
_LAST_WORD = 1.0
"""Seconds that a client may take to read the end of a stream."""
_CHANGED_MEANWHILE = object()
_UNAVAILABLE = "The tokens of this server cannot be read just now."

_current_call: ContextVar["RunningCall | None"] = ContextVar("running_call", default=None)


@dataclass(frozen=True, slots=True)
class TokenCaller:
    """Somebody with a token; `credential` stands for the token and tells nothing of it."""

    name: str
    credential: str


@dataclass(eq=False)
class RunningCall:
    """A request or a call of a tool while it runs; `caller` is set as soon as it is known."""

    caller: TokenCaller | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


@dataclass(frozen=True, slots=True)
class CallersChange:
    """What a new list says beside the one before."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()
    """Those who have another token."""
    waiting: tuple[str, ...] = ()
    """New names that are let in after a restart."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renewed or self.waiting)


Audit = Callable[[AuditEvent], None]
OnEnded = Callable[[TokenCaller, bool], None]
"""Called for a caller whose token counts no more, and whether its name is gone with it."""


class Callers:
    """Those of one server."""

    def __init__(self, settings: Settings, owner: str = "default") -> None:
        """Reads the tokens: InvalidArgument if they cannot be used. `owner` has the token of the settings, if there is
        one. Blocks on the disk."""
        self._settings = settings
        self._owner = owner
        self._file = settings.http_tokens_file
        self._facts: object = _facts(self._file)
        self._tokens: Mapping[str, TokenCaller] = _callers(load_tokens(settings, owner))
        self.required = bool(self._tokens) or self._file is not None
        """Whether nobody gets in without a token; that does not change while the server runs."""
        self.names = tuple(caller.name for caller in self._tokens.values())
        """Those at the start."""
        self._waiting: tuple[str, ...] = ()
        self.problem: str | None = None
        """Why the file cannot be used at the moment."""
        self._read = asyncio.Event()
        self._read.set()
        self._running: set[RunningCall] = set()
        self._one_over = asyncio.Event()
        self._on_ended: list[OnEnded] = []
        self._ending: asyncio.TimerHandle | None = None

    # -- who asks -------------------------------------------------------------------------------------------------

    async def by_token(self, token: str) -> TokenCaller | None:
        """Whose token this is; None if nobody's. UpstreamUnavailable while that cannot be said. The request that is
        being answered belongs to that caller from then on, and ends when the token counts no more."""
        await self._read.wait()
        found = self._find(token)
        if found is None and self.problem is not None:
            raise UpstreamUnavailable(_UNAVAILABLE)
        if found is not None:
            self.claim(found)
        return found

    def _find(self, token: str) -> TokenCaller | None:
        """Every token is compared, so that the time tells nothing about which one fits."""
        candidate, found = token.encode("utf-8", "surrogatepass"), None
        for known, caller in self._tokens.items():
            if hmac.compare_digest(candidate, known.encode()) and self._counts(caller):
                found = caller
        return found

    def _counts(self, caller: TokenCaller) -> bool:
        """Whether a caller of the last good list can be let in now: one of the file only if the file can be used."""
        return self.problem is None or (self._settings.http_token is not None and caller.name == self._owner)

    async def stands(self, caller: TokenCaller) -> bool:
        """Whether this caller still has this token. UpstreamUnavailable while that cannot be said."""
        await self._read.wait()
        known = [other for other in self._tokens.values() if other == caller]
        if known and self._counts(caller):
            return True
        if self.problem is not None:
            raise UpstreamUnavailable(_UNAVAILABLE)
        return False

    def knows(self, name: str) -> bool:
        """Whether somebody of this name has a token, as far as is known."""
        return any(caller.name == name for caller in self._tokens.values())

    # -- what runs ------------------------------------------------------------------------------------------------

    def on_ended(self, listener: OnEnded) -> None:
        self._on_ended.append(listener)

    @staticmethod
    def claim(caller: TokenCaller) -> None:
        """The request that is being answered is this caller's. Nothing is awaited between the check of the caller and
        this, so that no change comes between."""
        call = _current_call.get()
        if call is not None:
            call.caller = caller

    @contextlib.contextmanager
    def running(self, caller: TokenCaller | None = None) -> Iterator[RunningCall]:
        """What is done within this context ends with the caller: it is cancelled, and the context left quietly."""
        call = RunningCall(caller)
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
        with self.running(None if token is None else TokenCaller(token.client_id, token.subject or "")) as call:
            yield call

    async def calls_over(self, name: str) -> None:
        """Returns when no request and no call of a caller runs; after a while even if one does not end."""
        with anyio.move_on_after(_ENDING):
            while any(call.caller is not None and call.caller.name == name for call in self._running):
                self._one_over.clear()
                await self._one_over.wait()

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Wraps an application whose requests end with their callers."""

        async def ended_with_caller(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            answer = _Answer(send)
            with self.running() as call:
                token = _current_call.set(call)
                try:
                    await app(scope, receive, answer.send)
                except UpstreamUnavailable as error:
                    if answer.started:
                        raise
                    await JSONResponse({"error": error.message}, 503, {"Retry-After": "1"})(scope, receive, send)
                finally:
                    _current_call.reset(token)
            if call.scope.cancelled_caught:
                await answer.end(scope, receive)

        return ended_with_caller

    # -- the file -------------------------------------------------------------------------------------------------

    async def follow(self, service: Service) -> None:
        """Reads the file again whenever it changes, for as long as this runs."""
        service.add_secrets(self._tokens)
        if self._file is None:
            return
        try:
            async with WatchedFile(str(self._file), self._read.clear) as watched:
                while True:
                    # The first look is at what has changed since the server has read it.
                    await self._read_again(watched, service)
                    if self._facts is not _CHANGED_MEANWHILE:
                        await watched.wait()
        except Exception:
            log.exception("the tokens file is not followed any more")
            self._refuse("it is not followed any more; see the log", service.audit)
        finally:
            self._read.set()

    async def _read_again(self, watched: WatchedFile, service: Service) -> None:
        facts: object = None
        for _ in range(_MOST_READS):
            watched.clear()
            await watched.watch_again()
            facts = await asyncio.to_thread(_facts, self._file)
            if facts == self._facts:
                break
            # An editor may truncate the file before it writes: what counts is what stays for a moment.
            await asyncio.sleep(_SETTLED)
            if not watched.is_noted and facts == await asyncio.to_thread(_facts, self._file):
                break
        if facts != self._facts:
            await self._load(facts, service)
        if not watched.is_noted and self._facts is not _CHANGED_MEANWHILE:
            self._read.set()

    async def _load(self, facts: object, service: Service) -> None:
        self._facts = facts
        try:
            read = await asyncio.to_thread(load_tokens, self._settings, self._owner, may_be_empty=True)
            if facts != await asyncio.to_thread(_facts, self._file):
                self._facts = _CHANGED_MEANWHILE
            service.add_secrets(read)
            tokens = _callers(read)
            waiting = await self._waiting_for_restart(tokens, service)
        except ClaudeCodeError as error:
            self._refuse(error.message, service.audit)
            return
        listed = {token: caller for token, caller in tokens.items() if caller.name not in waiting}
        self._apply(listed, waiting, service.audit)

    async def _waiting_for_restart(self, tokens: Mapping[str, TokenCaller], service: Service) -> tuple[str, ...]:
        """The new names that cannot be let in now."""
        waiting = []
        for name in {caller.name for caller in tokens.values()} - {*self.names}:
            reason = None if self.knows(name) else await service.why_restart_for(name)
            if reason is not None:
                log.error("the caller %s of the tokens file is let in after a restart: %s", name, reason)
                waiting.append(name)
        return tuple(sorted(waiting))

    def _apply(self, tokens: Mapping[str, TokenCaller], waiting: tuple[str, ...], audit: Audit) -> None:
        """From here on the new list counts. Nothing is awaited: no request is answered in between."""
        before, now = {*self._tokens.values()}, {*tokens.values()}
        names_before, names_now = {caller.name for caller in before}, {caller.name for caller in now}
        ended = before - now
        change = CallersChange(
            tuple(sorted(names_now - names_before)),
            tuple(sorted(names_before - names_now)),
            tuple(sorted({caller.name for caller in ended} & names_now)),
            waiting if waiting != self._waiting else (),
        )
        self._tokens, self._waiting = tokens, waiting
        if self.problem is not None:
            log.warning("the tokens file can be used again")
        self._set_problem(None)
        if change:
            log.warning("the callers have changed: %s", change)
            details = {name: list(getattr(change, name)) for name in ("added", "removed", "renewed", "waiting")}
            audit(AuditEvent(AuditKind.CALLERS_CHANGED, "operator", details=details))
        for caller in ended:
            self._end(caller, "renewed" if caller.name in names_now else "removed", audit)

    def _refuse(self, problem: str, audit: Audit) -> None:
        """The file cannot be used: whoever is in it is not let in from now on."""
        if self.problem != problem:
            log.error("nobody of the tokens file is let in: %s", problem)
            audit(AuditEvent(AuditKind.TOKENS_UNUSABLE, "operator", details={"reason": problem}))
        self._set_problem(problem)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(_GRACE, self._end_all, audit)

    def _set_problem(self, problem: str | None) -> None:
        self.problem = problem
        if problem is None and self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def _end_all(self, audit: Audit) -> None:
        """What runs ends; the names stay, since nobody has said that they are gone."""
        for caller in [caller for caller in self._tokens.values() if not self._counts(caller)]:
            self._end(caller, "unusable", audit)

    def _end(self, caller: TokenCaller, why: str, audit: Audit) -> None:
        calls = [call for call in self._running if call.caller == caller]
        audit(AuditEvent(AuditKind.CALLER_ENDED, caller.name, details={"why": why, "calls": len(calls)}))
        for call in calls:
            call.scope.cancel()
        for listener in self._on_ended:
            listener(caller, why == "removed")


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
                await JSONResponse({"error": "The token is no longer valid."}, 401, headers)(scope, receive, self._send)
            elif not self._complete:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class CallerTokens(TokenVerifier):
    """What the MCP SDK asks about the token of a request."""

    def __init__(self, callers: Callers, resource: str, refused: Callable[[], None]) -> None:
        """`refused` is called for every unknown token."""
        self._callers = callers
        self._resource = resource
        self._refused = refused

    async def verify_token(self, token: str) -> AccessToken | None:
        caller = await self._callers.by_token(token)
        if caller is None:
            self._refused()
            return None
        # By the subject the SDK tells connections of an old token from those of a new one under the same name.
        return AccessToken(
            token=token, client_id=caller.name, scopes=[SCOPE], resource=self._resource, subject=caller.credential
        )


def credential_of(token: str) -> str:
    return f"token:{hashlib.sha256(token.encode()).hexdigest()}"


def _callers(tokens: Mapping[str, str]) -> dict[str, TokenCaller]:
    return {token: TokenCaller(name, credential_of(token)) for token, name in tokens.items()}


def _facts(file: os.PathLike[str] | None) -> object:
    """What is different when a file is; how it cannot be looked at, if so. Blocks on the disk."""
    if file is None:
        return None
    try:
        found = os.stat(file)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid
