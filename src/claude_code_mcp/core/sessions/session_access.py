"""Who may do what beside running sessions of their own: the one place for every interface.

A session is its owner's alone. The owner may share it with a person or a group, to be watched, or to be answered and
written to as well, and takes that back at any time. Whoever a session is shared with acts in the place of its owner:
it runs in the owner's home, by the owner's profile and on the owner's budget. What they answer and write bears their
name. What changes a session for good, or hands it on, is the owner's: cancelling, deleting, renaming, copying, sharing,
and allowing something for all that follows: they allow what is asked, once.

For everybody else a session that is not shared with them does not exist.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, LimitReached, PermissionDenied
from ..model.caller import Caller, is_reserved
from ..model.events import AuditEvent, AuditKind
from ..model.question import Answer, Question, Scope
from ..state.shares import GROUP, Access, Share, Shares

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

_LONGEST_NAME = 256
_MOST_LISTED = 200
OnTakenBack = Callable[[str], None]
"""Called with the id of a session that may be shared with fewer than before, or for less."""
OnMoved = Callable[[str, str], None]
"""Called with the id that a shared session had, and the one that it goes on with."""


@dataclass(frozen=True, slots=True)
class SessionSharing:
    """Whose a session is, and with whom it is shared, as one principal who may watch it is told."""

    owner: str | None
    """None: the principal's own."""
    shares: tuple[Share, ...]

    def asked(self, questions: Sequence[Question]) -> list[Question]:
        """Open questions as the principal may answer them, see `SessionAccess.as_asked_of`."""
        return [question if self.owner is None else question.for_once() for question in questions]

    @property
    def rows(self) -> list[dict[str, str]] | None:
        """As every interface reports it; None if it is shared with nobody."""
        return [{"with": share.grantee, "access": str(share.access)} for share in self.shares] or None


class SessionAccess:
    """The shares of one service, and what follows from them. For a session in memory that is the principal's own, no
    share is looked for."""

    def __init__(
        self, shares: Shares, groups_of: Callable[[str], Collection[str]], audit: Callable[[AuditEvent], None]
    ) -> None:
        self._shares = shares
        self._groups_of = groups_of
        self._audit = audit
        self.known: Callable[[str], Session | None] = lambda _: None
        """Finds a session in memory, also by an id that it had before."""
        self._on_taken_back: list[OnTakenBack] = []
        self._on_moved: list[OnMoved] = []
        self._borrowing: ContextVar[Callable[[str], None] | None] = ContextVar("borrowing", default=None)

    # -- asking ---------------------------------------------------------------------------------------------------

    def owner_for(self, session_id: str, principal: str, wanted: Access) -> str | None:
        """In whose place the principal may do this with a session; None if it is not shared with them at all.
        PermissionDenied if it is, and not for this."""
        share = self._shares.found(session_id, self._names_of(principal))
        if share is None or share.owner == principal:
            return None
        if not share.access.covers(wanted):
            raise PermissionDenied(f"{share.owner} has shared this session with you to watch it, and for no more.")
        borrowed = self._borrowing.get()
        if borrowed is not None:
            borrowed(session_id)
        return share.owner

    def refuse_borrowed(self, session_id: str, principal: str) -> None:
        """PermissionDenied for what only the owner of a session may do, if it is shared with the principal."""
        share = self._shares.found(session_id, self._names_of(principal))
        if share is not None and share.owner != principal:
            raise PermissionDenied(f"Only {share.owner}, whose session it is, can do this.")

    def acting(self, session_id: str, caller: Caller, wanted: Access) -> Caller:
        """As whom a caller acts on a session: its owner, where it is shared with them for this, else themselves."""
        owner = self.owner_for(session_id, caller.principal, wanted)
        return caller if owner is None else Caller(owner)

    def may(self, session_id: str, owner: str, principal: str, wanted: Access) -> bool:
        """Whether a principal may do this with a session of this owner."""
        if owner == principal:
            return True
        share = self._shares.found(session_id, self._names_of(principal))
        return share is not None and share.owner == owner and share.access.covers(wanted)

    def may_answer(self, session_id: str, principal: str) -> bool:
        """Whether a principal may answer what is asked under this id, unless it is a session of somebody else."""
        session = self.known(session_id)
        return session is None or self.may(session.id, session.owner, principal, Access.ANSWER)

    def as_asked_of(self, question: Question, principal: str) -> Question:
        """A question as a principal may answer it: about the session of somebody else, what was asked and no more."""
        session = self.known(question.session_id)
        if session is not None and session.owner == principal:
            return question
        share = self._shares.found(question.session_id, self._names_of(principal))
        return question.for_once() if share is not None and share.owner != principal else question

    def check_answer(self, session: "Session", principal: str, answer: Answer) -> None:
        """PermissionDenied for an answer about the session of somebody else that allows more than what was asked."""
        if session.owner != principal and answer.goes_beyond_once:
            field = "scope" if answer.scope is Scope.SESSION else "permission_mode"
            raise PermissionDenied(
                f"Only {session.owner}, whose session it is, can allow this for the whole session; you can allow it "
                "once.",
                field=field,
            )

    def row_of(self, session_id: str, owner: str | None, principal: str) -> dict[str, str | None]:
        """For a list: whose a session is, if it is not the principal's own, and what they may do with it then."""
        share = self._shares.found(session_id, self._names_of(principal))
        access = share.access if share is not None and share.owner != principal else None
        return {"sharedBy": None if owner == principal else owner, "access": access}

    def is_shared(self, session_id: str, principal: str) -> bool:
        """Whether a session of somebody else is shared with a principal."""
        return self._shares.found(session_id, self._names_of(principal)) is not None

    def shared_with(self, principal: str) -> list[Share]:
        """The sessions of others that a principal may watch, those shared last first."""
        found = self._shares.with_any(self._names_of(principal))
        by_session = {share.session_id: share for share in reversed(found) if share.owner != principal}
        return [*reversed(by_session.values())][:_MOST_LISTED]

    def sharing(self, session_id: str, principal: str) -> SessionSharing:
        """What a principal who may watch a session is told of whose it is and who else may."""
        share = self._shares.found(session_id, self._names_of(principal))
        owner = principal if share is None else share.owner
        shares = [share for share in self._shares.of(session_id) if share.owner == owner]
        in_order = tuple(sorted(shares, key=lambda share: share.grantee))
        return SessionSharing(None if owner == principal else owner, in_order)

    def _names_of(self, principal: str) -> set[str]:
        return {principal, *(f"{GROUP}{group}" for group in self._groups_of(principal))}

    async def refresh(self) -> None:
        """Takes over what other servers of the same state have changed. What is open of sessions that they share no
        longer ends."""
        for session_id in await asyncio.to_thread(self._shares.refresh):
            self._taken_back(session_id)

    # -- changing -------------------------------------------------------------------------------------------------

    async def share(self, session_id: str, owner: str, grantee: str, access: Access) -> None:
        """Shares a session of the owner's. InvalidArgument for a name that nobody can have."""
        name = grantee.removeprefix(GROUP)
        if not name or len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip():
            raise InvalidArgument("with: must be the name of a person, or group:NAME.", field="with")
        if grantee == owner or (name == grantee and is_reserved(name)):
            raise InvalidArgument(f"with: a session cannot be shared with {grantee!r}.", field="with")
        if not await asyncio.to_thread(self._shares.give, session_id, grantee, access, owner):
            raise LimitReached("This session is shared with as many as it can be.")
        details = {"with": grantee, "access": str(access)}
        self._audit(AuditEvent(AuditKind.SESSION_SHARED, owner, session_id, details))
        self._taken_back(session_id)  # from answering to watching is less

    async def take_back(self, session_id: str, owner: str, grantee: str | None = None) -> list[str]:
        """Shares a session with somebody, or with everybody, no longer; returns with whom it was. What they have open
        of it ends."""
        ended = await asyncio.to_thread(self._shares.take_back, session_id, grantee)
        for name in ended:
            self._audit(AuditEvent(AuditKind.SESSION_UNSHARED, owner, session_id, {"with": name}))
        if ended:
            self._taken_back(session_id)
        return ended

    async def end_shares_of(self, name: str) -> None:
        """Somebody is removed: what they have shared ends, and what is shared with them. What is open of it ends even
        where that cannot be written, which is logged."""
        open_now = self._shares.of_person(name)
        try:
            ended = await asyncio.to_thread(self._shares.end_of, name)
        except OSError as error:
            log.error("that the shares of %s have ended cannot be written: %s", name, error)
            ended = []
        for share in ended:
            self._audit(unshared_with_person(share))
        for session_id in {share.session_id for share in (*open_now, *ended)}:
            self._taken_back(session_id)

    def change_groups(
        self, principal: str, groups: Collection[str], assign: Callable[[str, Collection[str]], None]
    ) -> None:
        """Somebody is in these groups from now on, which `assign` takes over. What they have open of sessions that are
        shared with a group that they have left ends."""
        left = {*self._groups_of(principal)}.difference(groups)
        assign(principal, groups)
        shares = self._shares.with_any({f"{GROUP}{name}" for name in left}) if left else []
        for session_id in {share.session_id for share in shares}:
            self._taken_back(session_id)

    def moved(self, old: str, new: str) -> None:
        """A session goes on under another id. Blocks on the disk if it is shared."""
        self._shares.moved(old, new)
        # What is open of it was opened under the old id, and must be found by the new one.
        for listener in self._on_moved:
            listener(old, new)

    # -- what runs ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def noting_borrowed(self, note: Callable[[str], None]) -> Iterator[None]:
        """Within this context `note` is called with the id of each session of somebody else that is used."""
        token = self._borrowing.set(note)
        try:
            yield
        finally:
            self._borrowing.reset(token)

    def on_taken_back(self, listener: OnTakenBack) -> None:
        self._on_taken_back.append(listener)

    def on_moved(self, listener: OnMoved) -> None:
        self._on_moved.append(listener)

    def _taken_back(self, session_id: str) -> None:
        for listener in self._on_taken_back:
            listener(session_id)


def unshared_with_person(share: Share) -> AuditEvent:
    """The end of a share because the operator has removed its owner, or whom it was with."""
    details = {"with": share.grantee, "owner": share.owner, "why": "removed"}
    return AuditEvent(AuditKind.SESSION_UNSHARED, "operator", share.session_id, details)
