"""What happens in sessions, as changes of their resources: for those that run here and those driven in a terminal.

A session that runs here is heard of as an observer of the service. The transcript of every session that somebody
follows is watched besides, since another process may write it; that both tell of the same change is no harm, because
each thing is announced at most twice a second.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import ClaudeCodeError
from ..model.events import (
    AuditEvent,
    AuditKind,
    Event,
    QuestionOpened,
    QuestionSettled,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ..model.origin import ClientOrigin
from ..service import Service
from .changes import Changes
from .resources import LIST, ResourceAddress, View

_LIST_CHANGES = frozenset(
    {
        AuditKind.SESSION_CREATED,
        AuditKind.SESSION_FORKED,
        AuditKind.SESSION_RESUMED,
        AuditKind.SESSION_MANAGED,
        AuditKind.CANCELLED,
    }
)
_WRITTEN: tuple[View, ...] = ("status", "transcript", "turns", "events")
"""What may be different when a transcript has grown."""
_WITH_QUESTIONS: tuple[View, ...] = (*_WRITTEN, "questions")

Key = tuple[str, str, ClientOrigin | None]
"""The session that is followed, whose client follows it, and where that is from."""


@dataclass(slots=True)
class _Followed:
    followers: int = 0
    watch: "asyncio.Task[None] | None" = field(default=None)


class SessionChanges:
    """An observer of the service. Sessions that nobody follows cost nothing here."""

    def __init__(self, service: Service, changes: Changes) -> None:
        self._service = service
        self._changes = changes
        self._followed: dict[Key, _Followed] = {}
        self._names: dict[str, set[Key]] = {}
        """By the id under which a session goes on, how clients know it."""

    # -- who follows what ---------------------------------------------------------------------------------------

    def follow(self, session_id: str, owner: str, origin: ClientOrigin | None) -> Key:
        """From now on changes of this session are told. Every call needs an `unfollow` of what it returned."""
        key = (session_id, owner, origin)
        followed = self._followed.setdefault(key, _Followed())
        followed.followers += 1
        if followed.watch is None:
            followed.watch = self._service.start_task(self._watch(key), endless=True)
        self._learn_names()
        return key

    def unfollow(self, keys: Iterable[Key]) -> None:
        for key in keys:
            followed = self._followed[key]
            followed.followers -= 1
            if not followed.followers:
                del self._followed[key]
                if followed.watch is not None:
                    followed.watch.cancel()
        self._learn_names()

    def _learn_names(self) -> None:
        """A session that was cleared goes on under another id; clients follow it under the one that they know."""
        self._names = {}
        for key in self._followed:
            self._names.setdefault(self._service.current_id(key[0]), set()).add(key)

    async def _watch(self, key: Key) -> None:
        """Tells when the transcript grows, whoever writes it. Ends where there is none yet."""
        session_id, owner, origin = key
        try:
            async for _ in self._service.stored.follow(session_id, owner=owner, origin=origin):
                self._updated(key, _WRITTEN)
        except ClaudeCodeError:
            pass  # it is looked for again at the end of the next turn

    def _updated(self, key: Key, views: Iterable[View]) -> None:
        for view in views:
            self._changes.resource_updated(ResourceAddress(view, key[0]).uri, key[1])

    # -- what happens -------------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, StateChanged | TurnEnded):
            self._changes.resource_updated(LIST, owner)
        if not self._followed:
            return
        turn = isinstance(event, TurnStarted | TurnEnded)
        if turn:
            self._learn_names()
        for key in self._names.get(session_id, ()):
            if key[1] == owner:
                self._updated(key, _WITH_QUESTIONS if isinstance(event, QuestionOpened | QuestionSettled) else _WRITTEN)
                if turn:
                    self._watch_again(key)

    def _watch_again(self, key: Key) -> None:
        followed = self._followed[key]
        if followed.watch is not None and followed.watch.done():
            followed.watch = self._service.start_task(self._watch(key), endless=True)

    def act(self, act: AuditEvent) -> None:
        if act.kind in _LIST_CHANGES:
            self._changes.sessions_changed(act.who)
            self._changes.resource_updated(LIST, act.who)
            renamed = self._names.get(act.session_id or "", ())
            for key in renamed:
                self._updated(key, _WRITTEN)
