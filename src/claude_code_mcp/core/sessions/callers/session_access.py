"""Access to sessions of other owners: the one place for every interface.

By default only its owner can use a session. A subclass of `SessionAccess` can add shares: a `Share` lets another caller
watch a session, or also answer its questions and send messages. A grantee acts in the place of the owner: the session
runs in the owner's home, with the owner's profile and budget. Answers and messages carry the grantee's name. Only the
owner can change a session permanently or pass it on: cancel, delete, rename, copy, share it, or allow something for the
rest of the session. A grantee can allow a request only once.

To all other callers the session does not exist.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ...errors import InvalidArgument, PermissionDenied
from ...model.caller import Caller
from ...model.events import AuditEvent
from ...model.question import Answer, Question, Scope

if TYPE_CHECKING:
    from ..observers import ObserverList
    from ..registry import Sessions
    from ..session import Session

OnTakenBack = Callable[[str], None]
"""Called with the id of a session whose shares may have been reduced."""
OnMoved = Callable[[str, str], None]
"""Called with the old and the new id of a shared session."""


class Access(StrEnum):
    """What a caller may do with another owner's session."""

    WATCH = "watch"
    """See everything that the owner sees."""
    ANSWER = "answer"
    """Also answer its questions, send messages and interrupt it."""

    def covers(self, wanted: "Access") -> bool:
        return self is Access.ANSWER or wanted is Access.WATCH


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a session with a person, or with a group (`group:NAME`)."""

    session_id: str
    grantee: str
    access: Access
    owner: str
    at: float


@dataclass(frozen=True, slots=True)
class SessionSharing:
    """The owner and the shares of a session, as visible to one principal who may watch it."""

    owner: str | None
    """None if the principal is the owner."""
    shares: tuple[Share, ...]
    access: Access | None = None
    """What the principal may do with a session of another owner."""

    def asked(self, questions: Sequence[Question]) -> list[Question]:
        """The open questions as the principal may answer them, see `SessionAccess.question_for`."""
        return [question if self.owner is None else question.for_once() for question in questions]

    @property
    def rows(self) -> list[dict[str, str]] | None:
        """The shares as interfaces report them; None if there are none."""
        return [{"with": share.grantee, "access": str(share.access)} for share in self.shares] or None


class SessionAccess:
    """Decides who may use the sessions of one service: by default their owners. A subclass that shares sessions
    overrides the methods of the first section, and calls `taken_back` and `notify_moved`; the effects of a share are
    decided here."""

    def __init__(self) -> None:
        self._sessions: Sessions | None = None
        self._observers: ObserverList | None = None
        self._on_taken_back: list[OnTakenBack] = []
        self._on_moved: list[OnMoved] = []
        self._borrowing: ContextVar[Callable[[str], None] | None] = ContextVar("borrowing", default=None)

    def attach(self, sessions: "Sessions", observers: "ObserverList") -> None:
        """Called by the service whose sessions these are, once. A command that only reads shares has no service."""
        self._sessions, self._observers = sessions, observers

    def known(self, session_id: str) -> "Session | None":
        """A session in memory, also by an earlier id."""
        return self._sessions.known(session_id) if self._sessions is not None else None

    def audit(self, act: AuditEvent) -> None:
        """Report an act to the observers of the service."""
        if self._observers is not None:
            self._observers.act(act)

    # -- the shares -----------------------------------------------------------------------------------------------

    def share_of(self, session_id: str, principal: str) -> Share | None:
        """The share through which a principal may use a session; it may be their own."""
        return None

    def shares_of(self, session_id: str) -> Sequence[Share]:
        """All shares of a session."""
        return ()

    def shared_with(self, principal: str) -> list[Share]:
        """Other owners' sessions that a principal may watch, most recently shared first."""
        return []

    async def share(self, session_id: str, owner: str, grantee: str, access: Access) -> None:
        """Share a session of the owner's. InvalidArgument if sharing is not supported, or not with this name."""
        raise InvalidArgument("This server does not support sharing sessions.")

    async def take_back(self, session_id: str, owner: str, grantee: str | None = None) -> list[str]:
        """Stop sharing a session with a grantee, or with everyone; return the former grantees. Their open views of it
        end."""
        return []

    async def end_shares_of(self, name: str) -> None:
        """End all shares by and with a removed person."""

    def change_groups(
        self, principal: str, groups: Collection[str], assign: Callable[[str, Collection[str]], None]
    ) -> None:
        """Set a person's groups by calling `assign`."""
        assign(principal, groups)

    def moved(self, old: str, new: str) -> None:
        """Note that a session continues under another id. May block on the disk."""

    async def refresh(self) -> None:
        """Load the changes that other servers on the same state made."""

    async def follow(self) -> None:
        """Load such changes whenever they happen. Never returns."""

    # -- asking ---------------------------------------------------------------------------------------------------

    def owner_for(self, session_id: str, principal: str, wanted: Access) -> str | None:
        """The owner in whose place the principal may do this with a session; None if it is not shared with them.
        PermissionDenied if it is shared, but not for this."""
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
        """Raise PermissionDenied for an owner-only action if the session is shared with the principal."""
        share = self._share_of_other(session_id, principal)
        if share is not None:
            raise PermissionDenied(f"Only the owner of this session, {share.owner}, can do this.")

    def acting(self, session_id: str, caller: Caller, wanted: Access) -> Caller:
        """The caller as whom a caller acts on a session: its owner if it is shared for this, else the caller itself."""
        owner = self.owner_for(session_id, caller.principal, wanted)
        return caller if owner is None else Caller(owner)

    def may(self, session_id: str, owner: str, principal: str, wanted: Access) -> bool:
        """Whether a principal may do this with a session of this owner."""
        if owner == principal:
            return True
        share = self.share_of(session_id, principal)
        return share is not None and share.owner == owner and share.access.covers(wanted)

    def may_answer(self, session_id: str, principal: str) -> bool:
        """Whether a principal may answer questions under this id, unless it belongs to another owner's session."""
        session = self.known(session_id)
        return session is None or self.may(session.id, session.owner, principal, Access.ANSWER)

    def question_for(self, question: Question, principal: str) -> Question:
        """A question as a principal may answer it: for another owner's session, only the request itself."""
        session = self.known(question.session_id)
        if session is not None and session.owner == principal:
            return question
        return question.for_once() if self._share_of_other(question.session_id, principal) is not None else question

    def check_answer(self, session: "Session", principal: str, answer: Answer) -> None:
        """Raise PermissionDenied if an answer for another owner's session allows more than the request."""
        if session.owner != principal and answer.exceeds_one_call:
            field = "scope" if answer.scope is Scope.SESSION else "permission_mode"
            raise PermissionDenied(
                f"Only the owner of this session, {session.owner}, can allow this for the whole session; you can "
                "allow it once.",
                field=field,
            )

    def is_shared(self, session_id: str, principal: str) -> bool:
        """Whether another owner's session is shared with a principal."""
        return self.share_of(session_id, principal) is not None

    def sharing(self, session_id: str, principal: str) -> SessionSharing:
        """The owner and shares of a session, as visible to a principal who may watch it."""
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
        """Context in which `note` is called with the id of each session used through a share."""
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
        """The shares of a session may have been reduced: end what they had open."""
        for listener in self._on_taken_back:
            listener(session_id)

    def notify_moved(self, old: str, new: str) -> None:
        """A shared session continues under another id: open views must be found by the new one."""
        for listener in self._on_moved:
            listener(old, new)
