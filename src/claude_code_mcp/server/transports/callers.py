"""Decides who may call `/mcp`, `/metrics` and the console.

The operator issues tokens, one in the settings, others in a file (`tokens_file.py`). The file is watched:

- A change applies as soon as it is written. Requests wait while the file is being read again.
- If a caller is removed from the file or gets another token, all its requests, streams and calls end at once.
  The MCP server and the console are notified by name.
- A new name is admitted if it needs nothing that is created at server start; otherwise it waits for a restart.
- While the file is unusable, requests of its callers are refused as unavailable. Running calls continue for ten
  seconds, so that editing the file interrupts nothing, and then end. No caller counts as removed. The token of the
  settings does not depend on the file.
- A file without tokens has no callers. The server still requires tokens.

Other callers are admitted by an `Authenticator`, for example with access tokens of an OAuth issuer. Each has a unique
name that no caller with a token has. An access token cannot sign in to the console. A standing stream ends with its
token (`running_calls.py`); a running call then completes.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.auth.provider import AccessToken, TokenVerifier
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ...core.config import Settings
from ...core.errors import ClaudeCodeError, UpstreamUnavailable
from ...core.model.events import AuditEvent, AuditKind
from ...core.state.listed_callers import ListedCallers
from ...core.transcripts.watched_files import WatchedFile, facts_of, is_empty
from .authenticator import Authenticator, Challenge, HttpService, SignInPage
from .identity import Identity
from .running_calls import RunningCalls

if TYPE_CHECKING:
    from .http import Address
from .tokens_file import identities, load_tokens

log = logging.getLogger(__name__)

SCOPE = "claude-code"
_SETTLED = 0.05
"""Seconds without a change after which a file counts as written."""
_EMPTIED = 2.0
"""Seconds that a file must be empty to count as emptied: a program that truncates and rewrites it may be slow."""
_MAX_READS = 20
_GRACE = 10.0
"""Seconds for which running calls continue while the file is unusable."""
_CHANGED_MEANWHILE = object()
_UNAVAILABLE = "The tokens of this server cannot be read at the moment."


@dataclass(frozen=True, slots=True)
class CallersChange:
    """The difference between a new list and the previous one."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()
    """Callers with a new token."""
    waiting: tuple[str, ...] = ()
    """New names that are admitted after a restart."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renewed or self.waiting)


Audit = Callable[[AuditEvent], None]
OnEnded = Callable[[Identity, bool], None]
"""Called with a caller whose token is no longer valid, and whether its name was removed."""
Remove = Callable[[str], Awaitable[None]]
"""Ends everything that belongs to a caller who was removed from the file while no server was running."""


class Callers:
    """The callers of one server as they are now, and their running calls over HTTP."""

    def __init__(
        self, settings: Settings, principal: str = "default", authenticators: Sequence[Authenticator] = ()
    ) -> None:
        """Read the tokens; InvalidArgument if they cannot be used. `principal` is the name of the caller with the token
        of the settings; `authenticators` admit callers without one. Blocks on the disk."""
        self._settings = settings
        self.authenticators = authenticators
        self._principal = principal
        self._file = settings.http_tokens_file
        # Checked before it is read: `follow` notices a change in between.
        self._facts: object = facts_of(self._file)
        self._tokens: Mapping[str, Identity] = identities(load_tokens(settings, principal))
        self.names = tuple(identity.principal for identity in self._tokens.values())
        """The names at the start."""
        self._waiting: tuple[str, ...] = ()
        self.problem: str | None = None
        """Why the file cannot be used at the moment."""
        self._read = asyncio.Event()
        self._read.set()
        self.running = RunningCalls()
        """The running calls of callers."""
        self._on_ended: list[OnEnded] = []
        self.remove: Remove | None = None
        self._ending: asyncio.TimerHandle | None = None
        self.open = bool(authenticators)
        """Whether unlisted people may be admitted."""
        self.required = bool(self._tokens) or self._file is not None or self.open
        """Whether a token is required; that does not change while the server runs."""

    def on_ended(self, listener: OnEnded) -> None:
        self._on_ended.append(listener)

    # -- the server -------------------------------------------------------------------------------------------

    def serve(self, service: HttpService, address: "Address") -> None:
        """Prepare the authenticators, before the first request. Blocks on the disk."""
        for authenticator in self.authenticators:
            authenticator.serve(self, service, address)

    def check(self, address: "Address") -> None:
        """InvalidArgument if an authenticator cannot work on a server that listens at this address."""
        for authenticator in self.authenticators:
            authenticator.check(address)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The application with the middleware of each authenticator."""
        for authenticator in self.authenticators:
            app = authenticator.wrap(app)
        return app

    def routes(self, page: SignInPage | None) -> Sequence[BaseRoute]:
        """The routes of the authenticators; `page` is where people sign in. Blocks on the disk."""
        return [route for authenticator in self.authenticators for route in authenticator.routes(page)]

    @property
    def challenge(self) -> Challenge | None:
        """Where clients get access tokens; None if there are none."""
        return next(filter(None, (authenticator.challenge() for authenticator in self.authenticators)), None)

    @property
    def origin(self) -> str | None:
        """The only origin at which browsers can sign in; None if any works."""
        return next(filter(None, (authenticator.origin() for authenticator in self.authenticators)), None)

    @property
    def offers_sign_in(self) -> bool:
        """Whether people can sign in at `/sign-in`."""
        return any(authenticator.offers_sign_in for authenticator in self.authenticators)

    async def sign_out_address(self, identity: Identity) -> str | None:
        """Where a person also signs out at their provider; None if signing out here is enough."""
        for authenticator in self.authenticators:
            address = await authenticator.sign_out_address(identity)
            if address is not None:
                return address
        return None

    async def follow(self, service: HttpService) -> None:
        """Apply changes of the callers as they happen. Never returns if there is a tokens file."""
        if self.authenticators:
            service.start_task(self.running.end_streams_with_tokens(), endless=True)
        for authenticator in self.authenticators:
            service.start_task(authenticator.follow(), endless=True)
        await self._follow_file(service)

    # -- the file ---------------------------------------------------------------------------------------------

    async def _follow_file(self, service: HttpService) -> None:
        """Reread the file whenever it changes. Never returns."""
        service.add_secrets(self._tokens)
        if self._file is None:
            return
        # Until the callers removed while no server was running are known: their shares must end.
        self._read.clear()
        try:
            await self._note_listed(service, self.remove)
            # The change itself stops new requests: they wait until the file was read again.
            async with WatchedFile(str(self._file), self._read.clear) as watched:
                while True:
                    # The first read covers changes since the start of the server.
                    await self._read_again(watched, service)
                    if self._facts is not _CHANGED_MEANWHILE:
                        await watched.wait()
        except Exception:
            # An unwatched list must admit no one: it may name removed callers.
            log.exception("the tokens file is no longer watched")
            self._refuse("it is no longer watched; see the log", service.audit)
        finally:
            # In any case, or requests would wait forever; they find the `problem`.
            self._read.set()

    async def _read_again(self, watched: WatchedFile, service: HttpService) -> None:
        for _ in range(_MAX_READS):
            # First: changes from here on are noted again.
            watched.clear()
            await watched.watch_again()
            facts = await asyncio.to_thread(facts_of, self._file)
            if facts == self._facts:
                break
            # An editor may truncate the file before it writes: only a stable content counts.
            if is_empty(facts):
                await watched.wait(_EMPTIED)
            else:
                await asyncio.sleep(_SETTLED)
            if not watched.is_noted and facts == await asyncio.to_thread(facts_of, self._file):
                await self._load(facts, service)
                break
        else:
            # The current content may be incomplete: used as the list, it would remove callers permanently.
            self._facts = _CHANGED_MEANWHILE
            self._refuse(f"{self._file} keeps changing while it is read", service.audit)
        # If a change was noted in the meantime, the next round reads it, and requests keep waiting.
        if not watched.is_noted and self._facts is not _CHANGED_MEANWHILE:
            self._read.set()

    async def _load(self, facts: object, service: HttpService) -> None:
        self._facts = facts
        try:
            read = await asyncio.to_thread(load_tokens, self._settings, self._principal, may_be_empty=True)
            if facts != await asyncio.to_thread(facts_of, self._file):
                # The content may be incomplete or empty: the caller checks again at once.
                self._facts = _CHANGED_MEANWHILE
                return
            service.add_secrets(read)
            tokens = identities(read)
            waiting = await self._waiting_for_restart(tokens, service)
        except ClaudeCodeError as error:
            self._refuse(error.message, service.audit)
            return
        listed = {token: identity for token, identity in tokens.items() if identity.principal not in waiting}
        self._apply(listed, waiting, service.audit)
        await self._note_listed(service)

    async def _note_listed(self, service: HttpService, remove: Remove | None = None) -> None:
        """Record the callers in the file, after calling `remove` for those who were removed since the last record. A
        failure is corrected at the next start."""
        assert self._file is not None
        all_names = {*self._waiting, *(identity.principal for identity in self._tokens.values())}
        names, noted = all_names - {self._principal}, ListedCallers(service.state)
        try:
            if remove is not None:
                for name in await asyncio.to_thread(noted.missing, self._file, names):
                    await remove(name)
            await asyncio.to_thread(noted.note, self._file, names)
        except OSError as error:
            log.error("cannot record the callers in the tokens file: %s", error)

    async def _waiting_for_restart(self, tokens: Mapping[str, Identity], service: HttpService) -> tuple[str, ...]:
        """The names in a new list that cannot be admitted before a restart, sorted. The reasons are logged."""
        waiting = []
        for name in {identity.principal for identity in tokens.values()} - {*self.names}:
            reason = None if self.knows(name) else await service.why_restart_for(name)
            if reason is not None:
                log.error("the caller %s in the tokens file is admitted only after a restart: %s", name, reason)
                waiting.append(name)
        return tuple(sorted(waiting))

    def _apply(self, tokens: Mapping[str, Identity], waiting: tuple[str, ...], audit: Audit) -> None:
        """Apply the new list. No await: no request is answered in between."""
        before, now = {*self._tokens.values()}, {*tokens.values()}
        names_before, names_now = {identity.principal for identity in before}, {identity.principal for identity in now}
        ended = before - now
        change = CallersChange(
            tuple(sorted(names_now - names_before)),
            tuple(sorted(names_before - names_now)),
            tuple(sorted({identity.principal for identity in ended} & names_now)),
            waiting if waiting != self._waiting else (),
        )
        self._tokens, self._waiting = tokens, waiting
        if self.problem is not None:
            log.warning("the tokens file can be used again")
        self._set_problem(None)
        if change:
            log.warning("the callers changed: %s", change)
            details = {name: list(getattr(change, name)) for name in ("added", "removed", "renewed", "waiting")}
            audit(AuditEvent(AuditKind.CALLERS_CHANGED, "operator", details=details))
        for identity in ended:
            self.end(identity, "renewed" if identity.principal in names_now else "removed", audit)
        # A name in the file belongs to its token: a caller admitted under it with access tokens loses it.
        for authenticator in self.authenticators:
            for identity in authenticator.drop(names_now):
                self.end(identity, "renewed", audit)

    def _refuse(self, problem: str, audit: Audit) -> None:
        """Refuse the callers in the file from now on, because it is unusable."""
        if self.problem != problem:
            log.error("no caller in the tokens file is admitted: %s", problem)
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
        """End running calls; the names stay, because they were not removed."""
        for identity in [identity for identity in self._tokens.values() if not self._counts(identity)]:
            self.end(identity, "unusable", audit)

    def end(self, identity: Identity, why: str, audit: Audit) -> None:
        calls = self.running.end(identity)
        audit(AuditEvent(AuditKind.CALLER_ENDED, identity.principal, details={"why": why, "calls": calls}))
        for listener in self._on_ended:
            listener(identity, why == "removed")

    # -- identifying callers ----------------------------------------------------------------------------------

    async def by_token(self, token: str, *, with_scopes: bool = True) -> Identity | None:
        """The caller with this token; None if it is invalid or lacks a required scope, unless the caller of this method
        checks scopes. UpstreamUnavailable while that cannot be decided, RateLimited for an invalid token from an
        address with too many of them. The current request then belongs to that caller, and ends when the token becomes
        invalid."""
        await self._read.wait()
        # No await from here to `claim`: a caller removed later is found among the running ones.
        found, access = self._find(token), None
        # Not sent to an issuer then: it may be a token from the file, which must stay secret.
        if found is None and self.problem is not None:
            raise UpstreamUnavailable(_UNAVAILABLE)
        for authenticator in self.authenticators if found is None else ():
            admission = await authenticator.by_token(token)
            if admission is None:
                continue
            challenge = authenticator.challenge()
            if with_scopes and challenge is not None and not {*challenge.scopes}.issubset(admission.scopes):
                log.info("rejected an access token of %s: it lacks a scope", admission.identity.principal)
                continue
            found, access = admission.identity, admission.access
            break
        if found is not None:
            self.running.claim(found, access)
        return found

    def _find(self, token: str) -> Identity | None:
        """Compare every token, so that the timing does not reveal which one matches."""
        candidate, found = token.encode("utf-8", "surrogatepass"), None
        for known, identity in self._tokens.items():
            if hmac.compare_digest(candidate, known.encode()) and self._counts(identity):
                found = identity
        return found

    def _counts(self, identity: Identity) -> bool:
        """Whether a caller of the last good list can be admitted now; callers in the file only while the file is
        usable."""
        return self.problem is None or (self._settings.http_token is not None and identity.principal == self._principal)

    async def by_request(self, request: Request) -> Identity | None:
        """The identity that the request itself names, for example through a trusted proxy; None if it names no admitted
        one."""
        for authenticator in self.authenticators:
            found = await authenticator.by_request(request)
            if found is not None:
                return found
        return None

    def is_named_in(self, request: Request) -> bool:
        """Whether `by_request` may find an identity."""
        return any(authenticator.is_named_in(request) for authenticator in self.authenticators)

    def must_be_named(self, identity: Identity) -> bool:
        """Whether each request of this identity must name it again."""
        return any(authenticator.must_be_named(identity) for authenticator in self.authenticators)

    async def stands(self, identity: Identity) -> bool:
        """Whether this caller still has this token. UpstreamUnavailable while that cannot be decided."""
        if not identity.has_operator_token:
            for authenticator in self.authenticators:
                if await authenticator.stands(identity):
                    return True
            return False
        await self._read.wait()
        known = [other for other in self._tokens.values() if other == identity]
        if known and self._counts(identity):
            return True
        if self.problem is not None:
            raise UpstreamUnavailable(_UNAVAILABLE)
        return False

    def is_taken(self, name: str) -> bool:
        """Whether a name belongs to a caller with a token, including one that waits for a restart."""
        listed = {identity.principal for identity in self._tokens.values()}
        return name in {self._principal, *self.names, *self._waiting, *listed}

    def scopes_of(self, identity: Identity, all_scopes: Collection[str]) -> Collection[str]:
        """The scopes of a caller's newest access token; an operator token has all scopes."""
        if identity.has_operator_token:
            return all_scopes
        authenticator = self._authenticator_of(identity)
        return authenticator.scopes_of(identity) if authenticator is not None else ()

    def _authenticator_of(self, identity: Identity) -> Authenticator | None:
        return next((each for each in self.authenticators if each.has(identity)), None)

    def knows(self, name: str) -> bool:
        """Whether a caller of this name has a token or has been admitted, as far as known."""
        has_token = any(identity.principal == name for identity in self._tokens.values())
        return has_token or any(authenticator.knows(name) for authenticator in self.authenticators)

    def remembers(self, name: str) -> bool:
        """Like `knows`, but includes admissions by earlier servers."""
        return self.knows(name) or any(authenticator.remembers(name) for authenticator in self.authenticators)

    def claim(self, identity: Identity) -> None:
        """Assign the current request to a signed-in caller. No await between the check of the caller and this call, so
        that no change comes in between."""
        authenticator = None if identity.has_operator_token else self._authenticator_of(identity)
        self.running.claim(identity, authenticator.access_of(identity) if authenticator is not None else None)


class CallerTokens(TokenVerifier):
    """The token verifier for the MCP SDK."""

    def __init__(
        self, callers: Callers, resource: str, refused: Callable[[], None], scopes: Collection[str] = ()
    ) -> None:
        """`refused` is called for every unknown token; callers with a token of the operator's have all `scopes`."""
        self._callers = callers
        self._scopes = scopes
        self._resource = resource
        self._refused = refused

    async def verify_token(self, token: str) -> AccessToken | None:
        # The SDK checks the scopes itself, and reports the missing one to the client.
        identity = await self._callers.by_token(token, with_scopes=False)
        if identity is None:
            self._refused()
            return None
        # The SDK uses the subject to distinguish connections with an old and a new token of the same name.
        return AccessToken(
            token=token,
            client_id=identity.principal,
            scopes=[*self._callers.scopes_of(identity, (SCOPE, *self._scopes))],
            resource=self._resource,
            subject=identity.credential,
        )
