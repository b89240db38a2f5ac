"""What sessions cost: by session, project, model and day, over everything on disk. Pure.

The dollars are those that Claude Code wrote down when its processes ended or, for sessions that this product ran, what
their records have where that is more: a killed process writes nothing. What was used and never priced is counted in
tokens alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from .transcript_summary import NO_DAY, Row, TranscriptSummary

_NOTHING: Row = [0.0] * 5
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


def cost_lines(sessions: Iterable[SpentSession], by: Grouping, since: str = "") -> list[CostLine]:
    """The groups: days in their order, all others with the most expensive first. `since` is the first day that counts,
    such as `2026-11-01`."""
    lines: dict[str, CostLine] = {}
    for session in sessions:
        touched: set[str] = set()
        for key, row in session.usage.items():
            if key[:10] >= since:
                line = _line(lines, session, key, by)
                line.usd += row[4]
                line.input_tokens += round(row[0] + row[2] + row[3])
                line.output_tokens += round(row[1])
                touched.add(line.name)
        for key, row in session.unpriced.items():
            if key[:10] >= since:
                line = _line(lines, session, key, by)
                line.unpriced_tokens += round(sum(row[:4]))
                touched.add(line.name)
        for name in touched:
            lines[name].sessions += 1
    if by == "day":
        return sorted(lines.values(), key=lambda line: line.name)
    return sorted(lines.values(), key=lambda line: (-line.usd, -line.unpriced_tokens, line.name))


def _line(lines: dict[str, CostLine], session: SpentSession, key: str, by: Grouping) -> CostLine:
    day = "unknown" if key[:10] == NO_DAY else key[:10]
    name = {"session": session.session_id, "project": session.project, "model": key[11:], "day": day}[by]
    line = lines.get(name)
    if line is None:
        line = lines[name] = CostLine(name, title=session.title if by == "session" else None)
    return line


def total(lines: Iterable[CostLine], sessions: int) -> CostLine:
    """All groups together."""
    whole = CostLine("total", sessions=sessions)
    for line in lines:
        whole.usd += line.usd
        whole.input_tokens += line.input_tokens
        whole.output_tokens += line.output_tokens
        whole.unpriced_tokens += line.unpriced_tokens
    return whole
