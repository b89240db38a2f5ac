"""Who may do what beside running sessions of their own: the one place for every interface.

A session is its owner's alone. `SessionAccess` says so, and a subclass can say more: by a `Share` somebody else may
watch a session, or answer and write to it as well. Whoever a session is shared with acts in the place of its owner: it
runs in the owner's home, by the owner's profile and on the owner's budget. What they answer and write bears their name.
What changes a session for good, or hands it on, is the owner's: cancelling, deleting, renaming, copying, sharing, and
allowing something for all that follows: they allow what is asked, once.

For everybody else a session that is not shared with them does not exist.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, PermissionDenied
from ..model.caller import Caller
from ..model.events import AuditEvent
from ..model.question import Answer, Question, Scope

if TYPE_CHECKING:
    from .session import Session

OnTakenBack = Callable[[str], None]
"""Called with the id of a session that may be shared with fewer than before, or for less."""
OnMoved = Callable[[str, str], None]
"""Called with the id that a shared session had, and the one that it goes on with."""


class Access(StrEnum):
    """What somebody may do with a session of somebody else."""

    WATCH = "watch"
    """See everything that the owner sees of it."""
    ANSWER = "answer"
    """Besides, answer its questions, send it messages and interrupt it."""

    def covers(self, wanted: "Access") -> bool:
        return self is Access.ANSWER or wanted is Access.WATCH


@dataclass(frozen=True, slots=True)
class Share:
    """A session that its owner shares with a person, or with a group by `group:NAME`."""

    session_id: str
    grantee: str
    access: Access
    owner: str
    at: float


@dataclass(frozen=True, slots=True)
class SessionSharing:
    """Whose a session is, and with whom it is shared, as one principal who may watch it is told."""

    owner: str | None
    """None: the principal's own."""
    shares: tuple[Share, ...]
    access: Access | None = None
    """What the principal may do with a session of another owner."""

    def asked(self, questions: Sequence[Question]) -> list[Question]:
        """Open questions as the principal may answer them, see `SessionAccess.as_asked_of`."""
        return [question if self.owner is None else question.for_once() for question in questions]

    @property
    def rows(self) -> list[dict[str, str]] | None:
        """As every interface reports it; None if it is shared with nobody."""
        return [{"with": share.grantee, "access": str(share.access)} for share in self.shares] or None


class SessionAccess:
    """Who may use the sessions of one service: their owners. A subclass that shares sessions overrides the methods of
    the first section, and calls `taken_back` and `notify_moved`; what follows from a share is decided here."""

    def __init__(self) -> None:
        self.known: Callable[[str], Session | None] = lambda _: None
        """Finds a session in memory, also by an id that it had before."""
        self.audit: Callable[[AuditEvent], None] = lambda _: None
        self._on_taken_back: list[OnTakenBack] = []
        self._on_moved: list[OnMoved] = []
        self._borrowing: ContextVar[Callable[[str], None] | None] = ContextVar("borrowing", default=None)

    def attach(self, known: "Callable[[str], Session | None]", audit: Callable[[AuditEvent], None]) -> None:
        """Called by the service whose sessions these are, once."""
        self.known, self.audit = known, audit

    # -- what is shared -------------------------------------------------------------------------------------------

    def share_of(self, session_id: str, principal: str) -> Share | None:
        """The share by which a principal may use a session; it may be one that they have given themselves."""
        return None

    def shares_of(self, session_id: str) -> Sequence[Share]:
        """All shares of a session."""
        return ()

    def shared_with(self, principal: str) -> list[Share]:
        """The sessions of others that a principal may watch, those shared last first."""
        return []

    async def share(self, session_id: str, owner: str, grantee: str, access: Access) -> None:
        """Shares a session of the owner's. InvalidArgument where nothing can be shared, or not with this name."""
        raise InvalidArgument("This server does not support sharing sessions.")

    async def take_back(self, session_id: str, owner: str, grantee: str | None = None) -> list[str]:
        """Shares a session with somebody, or with everybody, no longer; returns with whom it was. What they have open
        of it ends."""
        return []

    async def end_shares_of(self, name: str) -> None:
        """Somebody is removed: what they have shared ends, and what is shared with them."""

    def change_groups(
        self, principal: str, groups: Collection[str], assign: Callable[[str, Collection[str]], None]
    ) -> None:
        """Somebody is in these groups from now on, which `assign` takes over."""
        assign(principal, groups)

    def moved(self, old: str, new: str) -> None:
        """A session goes on under another id. May block on the disk."""

    async def refresh(self) -> None:
        """Takes over what other servers of the same state have changed."""

    async def follow(self) -> None:
        """Takes that over whenever it changes, for as long as this runs."""

    # -- asking ---------------------------------------------------------------------------------------------------

    def owner_for(self, session_id: str, principal: str, wanted: Access) -> str | None:
        """In whose place the principal may do this with a session; None if it is not shared with them at all.
        PermissionDenied if it is, and not for this."""
        share = self._share_of_other(session_id, principal)
        if share is None:
            return None
        if not share.access.covers(wanted):
            raise PermissionDenied(f"{share.owner} shared this session with you for watching only.")
        borrowed = self._borrowing.get()
        if borrowed is not None:
            borrowed(session_id)
        return share.owner

    def _share_of_other(self, session_id: str, principal: str) -> Share | None:
        share = self.share_of(session_id, principal)
        return share if share is not None and share.owner != principal else None

    def refuse_borrowed(self, session_id: str, principal: str) -> None:
        """PermissionDenied for what only the owner of a session may do, if it is shared with the principal."""
        share = self._share_of_other(session_id, principal)
        if share is not None:
            raise PermissionDenied(f"Only the owner of this session, {share.owner}, can do this.")

    def acting(self, session_id: str, caller: Caller, wanted: Access) -> Caller:
        """As whom a caller acts on a session: its owner, where it is shared with them for this, else themselves."""
        owner = self.owner_for(session_id, caller.principal, wanted)
        return caller if owner is None else Caller(owner)

    def may(self, session_id: str, owner: str, principal: str, wanted: Access) -> bool:
        """Whether a principal may do this with a session of this owner."""
        if owner == principal:
            return True
        share = self.share_of(session_id, principal)
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
        return question.for_once() if self._share_of_other(question.session_id, principal) is not None else question

    def check_answer(self, session: "Session", principal: str, answer: Answer) -> None:
        """PermissionDenied for an answer about the session of somebody else that allows more than what was asked."""
        if session.owner != principal and answer.goes_beyond_once:
            field = "scope" if answer.scope is Scope.SESSION else "permission_mode"
            raise PermissionDenied(
                f"Only the owner of this session, {session.owner}, can allow this for the whole session; you can "
                "allow it once.",
                field=field,
            )

    def is_shared(self, session_id: str, principal: str) -> bool:
        """Whether a session of somebody else is shared with a principal."""
        return self.share_of(session_id, principal) is not None

    def sharing(self, session_id: str, principal: str) -> SessionSharing:
        """What a principal who may watch a session is told of whose it is and who else may."""
        share = self.share_of(session_id, principal)
        owner = principal if share is None else share.owner
        shares = [each for each in self.shares_of(session_id) if each.owner == owner]
        in_order = tuple(sorted(shares, key=lambda each: each.grantee))
        if share is None or owner == principal:
            return SessionSharing(None, in_order)
        return SessionSharing(owner, in_order, share.access)

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

    def taken_back(self, session_id: str) -> None:
        """A session may be shared with fewer than before, or for less: what is open of it by a share ends."""
        for listener in self._on_taken_back:
            listener(session_id)

    def notify_moved(self, old: str, new: str) -> None:
        """A shared session goes on under another id: what is open of it must be found by the new one."""
        for listener in self._on_moved:
            listener(old, new)
