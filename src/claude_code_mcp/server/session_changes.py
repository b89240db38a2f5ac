"""Watches sessions for the clients that follow them as resources.

A session that runs here is observed through the service. The transcript of every followed session is watched as well,
because another process may write it. Both may report the same change; `Changes` announces it only once.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.errors import ClaudeCodeError
from ..core.model.caller import Caller
from ..core.model.events import (
    AuditEvent,
    Event,
    QuestionOpened,
    QuestionSettled,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ..core.service import Service
from .change_notifications import Changes
from .resource_addresses import LIST, ResourceAddress, View

_WRITTEN: tuple[View, ...] = ("status", "transcript", "turns", "events")
"""The views that may change when a transcript grows."""
_WITH_QUESTIONS: tuple[View, ...] = (*_WRITTEN, "questions")
FollowedKey = tuple[str, Caller]
"""The followed session, and the caller whose client follows it."""


@dataclass(slots=True)
class _Followed:
    followers: int = 0
    watch: "asyncio.Task[None] | None" = field(default=None)


class SessionChanges:
    """An observer of the service. Sessions without followers cost nothing here."""

    def __init__(self, service: Service, changes: Changes) -> None:
        self._service = service
        self._changes = changes
        self._followed: dict[FollowedKey, _Followed] = {}
        self._names: dict[str, set[FollowedKey]] = {}
        """The ids that clients know a session by, by its current id."""

    def follow(self, session_id: str, caller: Caller) -> FollowedKey:
        """Announce changes of this session from now on. Every call needs an `unfollow` of what it returned."""
        key = (session_id, caller)
        followed = self._followed.setdefault(key, _Followed())
        followed.followers += 1
        if followed.watch is None:
            followed.watch = self._service.start_task(self._watch(key), endless=True)
        self._learn_names()
        return key

    def unfollow(self, keys: Iterable[FollowedKey]) -> None:
        for key in keys:
            followed = self._followed[key]
            followed.followers -= 1
            if not followed.followers:
                del self._followed[key]
                if followed.watch is not None:
                    followed.watch.cancel()
        self._learn_names()

    def _learn_names(self) -> None:
        """Note a cleared session's new id; clients follow it under the id that they know."""
        self._names = {}
        for key in self._followed:
            self._names.setdefault(self._service.current_id(key[0]), set()).add(key)

    async def _watch(self, key: FollowedKey) -> None:
        """Announce that the transcript has grown, whichever process writes it. Ends if there is none yet."""
        session_id, caller = key
        try:
            async for _ in self._service.stored.follow(session_id, caller=caller):
                self._updated(key, _WRITTEN)
        except ClaudeCodeError:
            pass  # checked again at the end of the next turn

    def _updated(self, key: FollowedKey, views: Iterable[View]) -> None:
        for view in views:
            self._changes.resource_updated(ResourceAddress(view, key[0]).uri, key[1].principal)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, StateChanged | TurnEnded):
            self._changes.resource_updated(LIST, owner)
        if not self._followed:
            return
        # Names change only within a turn, when the conversation is cleared.
        turn = isinstance(event, TurnStarted | TurnEnded)
        if turn:
            self._learn_names()
        for key in self._names.get(session_id, ()):
            if key[1].principal == owner:
                self._updated(key, _WITH_QUESTIONS if isinstance(event, QuestionOpened | QuestionSettled) else _WRITTEN)
                followed = self._followed[key]
                # The watch ends if there was no transcript yet; a turn may have created one.
                if turn and followed.watch is not None and followed.watch.done():
                    followed.watch = self._service.start_task(self._watch(key), endless=True)

    def act(self, act: AuditEvent) -> None:
        """Handle `LIST_CHANGES`: sessions are added, removed or renamed."""
        self._changes.sessions_changed(act.who)
        self._changes.resource_updated(LIST, act.who)
        for key in self._names.get(act.session_id or "", ()):
            self._updated(key, _WRITTEN)
