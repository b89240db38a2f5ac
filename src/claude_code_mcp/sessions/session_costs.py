"""What a session has cost: tokens and dollars over all of its processes, and the time with the API per turn."""

from dataclasses import replace

from ..claude.frames import Result
from ..model.outcome import Outcome, read_outcome
from ..model.usage import Usage


class SessionCosts:
    """Totals of one session; they outlive its processes and are kept in its record."""

    def __init__(self, usage: Usage) -> None:
        self.usage = usage
        self.spent_usd = 0.0
        """Counts against the session's budget. A fork begins with what its source has spent."""
        self.model_turns = 0
        self._api_ms = 0
        """The CLI's time with the API at the last result."""

    def start_api_time(self, api_ms: int) -> None:
        """Where the CLI's count begins: a resumed process counts on from its transcript, a new conversation at 0."""
        self._api_ms = api_ms

    def read_result(self, frame: Result, *, wants_structure: bool, interrupted: bool) -> Outcome:
        """The outcome in a result. The CLI reports the time with the API as a total; the outcome has this turn's."""
        outcome = read_outcome(frame.raw, wants_structure=wants_structure, interrupted=interrupted, usage=frame.usage)
        total, before = outcome.duration_api_ms, self._api_ms
        self._api_ms = total
        return replace(outcome, duration_api_ms=total - before if total >= before else total)

    def add(self, usage: Usage) -> None:
        self.usage += usage
        self.spent_usd += usage.cost_usd
