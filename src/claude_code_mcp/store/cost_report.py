"""What a session has cost, by day and model, and what a report on many of them says. Pure.

The dollars are those that Claude Code wrote down when its processes ended or, for sessions that this product ran, what
their records have where that is more: a killed process writes nothing. What was used and never priced is counted in
tokens alone. All of it is for people to read: limits are kept to by what the server itself has counted, elsewhere.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from .transcript_summary import Row, TranscriptSummary

_NOTHING: Row = [0.0] * 5
_LARGEST_AMOUNT = 1e15
"""Transcripts can be written by anybody: what is in one must not make the sum of all infinite."""
Grouping = Literal["session", "project", "model", "day"]


@dataclass(frozen=True, slots=True)
class SpentSession:
    """One session, as far as its costs go."""

    session_id: str
    title: str
    project: str
    usage: Mapping[str, Row]
    """By day and model, joined by a space."""
    unpriced: Mapping[str, Row]


class DailyCost(NamedTuple):
    """What one session cost on one day with one model."""

    session_id: str
    day: str
    model: str
    usd: float
    input_tokens: float
    output_tokens: float
    unpriced_tokens: float


@dataclass(slots=True)
class CostLine:
    """The costs of one group."""

    name: str
    usd: float = 0.0
    input_tokens: int = 0
    """Those read from and written to the cache included."""
    output_tokens: int = 0
    sessions: int = 0
    unpriced_tokens: int = 0
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """What sessions cost, in groups and together."""

    by: Grouping
    lines: list[CostLine]
    """Days in their order, all others with the most expensive first."""
    total: CostLine
    left_out: int = 0
    """So many more groups there are: days before these, or cheaper ones."""


def spent_session(
    session_id: str,
    summary: TranscriptSummary,
    last_used: float,
    recorded: Mapping[str, Row],
    former: Iterable[TranscriptSummary] = (),
) -> SpentSession:
    """`recorded` is what its record has, by model, together with the conversations before it was cleared (`former`).
    Where that is more than the transcripts say, the difference is laid on the day it was last used."""
    usage = dict(summary.usage)
    day = datetime.fromtimestamp(min(max(last_used, 0), 1e11), UTC).date().isoformat()
    for model, row in recorded.items():
        known = _of_model(model, (summary, *former))
        if row[4] > known[4] * (1 + 1e-9):
            more = [max(0.0, new - old) for new, old in zip(row, known, strict=True)]
            usage[f"{day} {model}"] = _sum(usage.get(f"{day} {model}", _NOTHING), more)
    unpriced = {} if recorded else summary.pending
    return SpentSession(session_id, summary.title or summary.first_prompt or "", summary.cwd or "", usage, unpriced)


def _of_model(model: str, summaries: Iterable[TranscriptSummary]) -> Row:
    total = _NOTHING
    for summary in summaries:
        for key, row in summary.usage.items():
            total = _sum(total, row) if key[11:] == model else total
    return total


def _sum(left: Row, right: Row) -> Row:
    return [a + b for a, b in zip(left, right, strict=True)]


def daily_costs(session: SpentSession) -> Iterator[DailyCost]:
    """One for each day and model that the session has used."""
    for key in {**session.usage, **session.unpriced}:
        used, unpriced = session.usage.get(key, _NOTHING), session.unpriced.get(key, _NOTHING)
        yield DailyCost(
            session.session_id,
            key[:10],
            key[11:],
            _amount(used[4]),
            round(_amount(used[0] + used[2] + used[3])),
            round(_amount(used[1])),
            round(_amount(sum(unpriced[:4]))),
        )


def _amount(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(value, 0.0), _LARGEST_AMOUNT)
