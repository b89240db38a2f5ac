"""Events held for a call that comes back: between two rounds of it nobody listens, and the log keeps fragments of
messages only in merged form. Bounded, as a client may never come back."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..sessions.session import Session
from ..store.log import Subscription

_MOST = 100


@dataclass(slots=True)
class Listening:
    """The events of a session for one round of a call."""

    events: Subscription
    comes_back: bool = False
    """Whether another round will go on from here."""


class Holding:
    """The subscriptions of calls between two rounds, by session."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def listening(self, session: Session, after: int) -> Iterator[Listening]:
        """The events from behind `after` on, or from where an earlier round of the call left off."""
        held = self._held.pop(session.id) if session.id in self._held else session.log.subscribe(after)
        listening = Listening(held)
        try:
            yield listening
        finally:
            if listening.comes_back:
                self._hold(session.id, listening.events)
            else:
                listening.events.close()

    def _hold(self, session_id: str, events: Subscription) -> None:
        self._held[session_id] = events
        while len(self._held) > _MOST:
            self._held.popitem(last=False)[1].close()
