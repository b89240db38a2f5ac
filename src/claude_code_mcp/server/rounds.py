"""The rounds of a repeated call: what one round leaves for the next.

On 2026-07-28 a call that has a question for the client returns it, and the client repeats the call with the answer.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from ..core.sessions.session import SessionView
from ..core.transcripts.event_log import Subscription

_MAX_HELD = 100
"""Subscriptions that are kept between two rounds."""


@dataclass(slots=True)
class RoundEvents:
    """The events of a session for one round of a call."""

    events: Subscription
    continues: bool = False
    """Whether another round will go on from here."""


class HeldEvents:
    """The subscriptions of calls between two rounds, by session. The oldest are closed when there are too many, for
    clients that never come back."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def subscribe(self, session: SessionView, after: int) -> Iterator[RoundEvents]:
        """The events from where an earlier round of the call left off, or else those behind `after`. At the end the
        subscription is held for the next round if the call continues, and closed if not."""
        # Taken out: two calls for one session must not read from the same subscription.
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


def read_state(params: types.CallToolRequestParams) -> Mapping[str, Any]:
    """The state that an earlier round of this call left with the client. The SDK has checked its seal."""
    return dict(json.loads(params.request_state)) if params.request_state else {}
