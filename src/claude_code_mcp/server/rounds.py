"""The rounds of a repeated call: the state that one round passes to the next.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from ..core.sessions.session import Session
from ..core.transcripts.event_log import Subscription

_MAX_HELD = 100
"""Subscriptions that are kept between two rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position that a round has reached in the stream of a session's messages."""

    epoch: str
    """The log that `reached` refers to. A session that was unloaded since then has a new log."""
    reached: int
    """The last event that was numbered."""
    began: int
    """When the first round began, in milliseconds of the monotonic clock."""
    sequence: int
    """The number of the last notification."""
    total: int
    """Messages for the bundle so far."""
    missed: int
    """Messages that were dropped so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The state that a round leaves with the client for the next one. The SDK seals it for the repetition of the same
    call."""

    session: str | None = None
    """The session that the round used; the next round must not start another one."""
    message: str | None = None
    """The message that the round sent; the call waits for its outcome."""
    shown: Sequence[str] = ()
    """The questions whose forms the round returned."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """How far the person has read in questions that take several forms, by question."""
    since: str | None = None
    """The cursor after which the report starts."""
    late: str = ""
    """Who answered first, if an answer came too late."""
    stream: StreamPosition | None = None
    confirming: str | None = None
    """The text of the requested confirmation: an answer counts only for that text."""
    permission: str | None = None
    """The id of the question whether a hub call is permitted."""
    paused_call: str | None = None
    """The key of a paused call to a hub server that waits for an answer."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Additional state of a tool; JSON."""

    def to_json(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @classmethod
    def from_json(cls, text: str | None) -> "RoundState":
        """The state of the previous round; an empty one in the first round."""
        fields = json.loads(text) if text else {}
        if "stream" in fields:
            fields["stream"] = StreamPosition(**fields["stream"])
        return cls(**fields)


@dataclass(slots=True)
class RoundEvents:
    """The events of a session for one round of a call."""

    events: Subscription
    continues: bool = False
    """Whether another round will continue from here."""


class HeldEvents:
    """The subscriptions of calls between two rounds, by session. The oldest are closed when there are too many, for
    clients that never come back."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def subscribe(self, session: Session, after: int) -> Iterator[RoundEvents]:
        """The events from where an earlier round of the call stopped, or those after `after`. At the end the
        subscription is held for the next round if the call continues, and closed if not."""
        # Removed: two calls for one session must not read from the same subscription.
        held = self._held.pop(session.id) if session.id in self._held else session.events.subscribe(after)
        round_ = RoundEvents(held)
        try:
            yield round_
        finally:
            if round_.continues:
                self._held[session.id] = round_.events
                while len(self._held) > _MAX_HELD:
                    self._held.popitem(last=False)[1].close()
            else:
                round_.events.close()
