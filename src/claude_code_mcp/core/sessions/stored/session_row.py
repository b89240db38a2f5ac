"""One session in a list: the same row with the same field names for tools, command line, console and fleet.

A front end chooses columns and how to show them. To add a field, add it to `SessionRow` and to `stored_row` or
`live_row`; then name it in the columns of the front ends that show it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from ...model.events import MessageJoined, QuestionSettled, Retrying, Stalled, TurnStarted
from ...model.outcome import LOG_IN_HINT, OutcomeCode
from ...model.question import Closure
from ...model.states import SESSION_TOOL_STATUS, State
from ...model.text import clip_line, iso, sharing_line
from ...model.usage_limits import iso_or_none
from ...questions.kinds import kind_class

if TYPE_CHECKING:
    from ...transcripts.session_catalog import Entry
    from ..callers.session_access import SessionSharing
    from ..session import Session

_REFUSED_LOGIN = frozenset({401, 403})
"""API errors that a retry does not fix."""
_MAX_TITLE = 200
_MAX_SETTLED = 20
"""How many of the latest settled questions are searched for an unanswered one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session as lists show it. Fields that do not apply are None."""

    session_id: str
    project_directory: str | None = None
    display_text: str | None = None
    """Its title or first prompt; None if the disk was not read."""
    first_prompt: str | None = None
    """The first prompt of a session in memory."""
    timestamp: str = ""
    """When it was last used."""
    created: str | None = None
    branch: str | None = None
    is_active: bool = False
    """Whether it has a process."""
    active_status: str | None = None
    """Its status in memory."""
    last_status: str | None = None
    """Its last status, if it is not in memory."""
    messages: int | None = None
    model: str | None = None
    cost_usd: float | None = None
    estimated_cost_usd: float | None = None
    """A lower bound at list prices, if more was used than Claude Code has recorded, as in a terminal that is open."""
    tag: str | None = None
    pinned: bool = False
    archived: bool = False
    mention: str | None = None
    """Where a searched text was found."""
    asks: Sequence[str] | None = None
    """Its open questions, a line each."""
    questions: Sequence[Mapping[str, str]] | None = None
    """Its open questions: id, type and description of each."""
    needs: str | None = None
    """Why it needs a person: `question`, `unanswered`, `stalled`, `error` or `limit`."""
    unanswered: Mapping[str, str] | None = None
    """The question that ended its last turn because it was not answered in time."""
    permission_mode: str | None = None
    context: Sequence[int] | None = None
    """Tokens of the context that are used, and its size."""
    in_terminal: bool = False
    """Whether a person drives it in a terminal, so that only its questions are answered here."""
    queued: str | None = None
    retrying: str | None = None
    stalled_seconds: int | None = None
    on_limit: str | None = None
    limit_type: str | None = None
    """The usage limit that ended its last turn, such as `five_hour`."""
    resets_at: str | None = None
    """When that limit resets."""
    continues_at: str | None = None
    """When it continues automatically after that."""
    plan_usage: Mapping[str, Any] | None = None
    owner: str | None = None
    """The owner, if another person has shared the session."""
    access: str | None = None
    """The access that the share grants."""
    shared_with: Sequence[Mapping[str, str]] | None = None
    machine: str | None = None
    """The name of its machine, in a fleet."""
    machine_gone: bool = False
    """Whether that machine is offline: the row then comes from the fleet's copy."""

    @property
    def status(self) -> str | None:
        return self.active_status or self.last_status

    def cost_text(self, decimals: int) -> str:
        """The cost in dollars; a lower bound has a sign that says so. Empty if nothing is known."""
        if self.estimated_cost_usd is not None:
            return f"\N{GREATER-THAN OR EQUAL TO}${self.estimated_cost_usd:.{decimals}f}"
        return f"${self.cost_usd:.{decimals}f}" if self.cost_usd is not None else ""

    @property
    def in_memory(self) -> bool:
        return self.active_status is not None

    @property
    def machine_text(self) -> str:
        """The name of its machine, and whether it is offline; empty without a fleet."""
        return f"{self.machine} (gone)" if self.machine and self.machine_gone else self.machine or ""

    def line(self) -> str:
        """The row as text for a model."""
        columns = [self.session_id, self.timestamp[:16], self.status or "-", self.machine_text]
        line = "  ".join(filter(None, columns)) + f"  {self.project_directory or ''}  {self.display_text or ''}"
        marks = (
            "in a terminal" if self.in_terminal else "",
            f"continues at {self.continues_at}" if self.continues_at else "",
            f"of {self.owner}" if self.owner else "",
            f"shared with {sharing_line(self.shared_with)}" if self.shared_with else "",
        )
        line += "".join(f"  [{mark}]" for mark in marks if mark)
        return f"{line}\n    {self.mention}" if self.mention else line

    def as_json(self) -> dict[str, Any]:
        """The fields that apply, in camelCase. `isActive` is always present, other flags only if set."""
        values = {name: getattr(self, name) for name in _WIRE_NAMES}
        return {
            _WIRE_NAMES[name]: value
            for name, value in values.items()
            if value is not None and (value is not False or name == "is_active")
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """The row from the output of `as_json` or a tool. Unknown fields are ignored; types are not checked."""
        return cls(**{name: row[wire] for name, wire in _WIRE_NAMES.items() if row.get(wire) is not None})


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_WIRE_NAMES = {field.name: _camel(field.name) for field in fields(SessionRow)}


def session_row(
    entry: "Entry | None",
    session: "Session | None",
    *,
    last_state: State | None = None,
    continues_at: float | None = None,
    sharing: "SessionSharing | None" = None,
) -> SessionRow:
    """The row of a session on disk (`entry`), in memory (`session`), or both. `last_state` and `continues_at` come from
    the record of a session that is only on disk."""
    if entry is None:
        assert session is not None
        row = live_row(session)
    else:
        row = stored_row(entry, last_state, continues_at)
        if session is not None:
            row = _joined(row, live_row(session))
    if sharing is None:
        return row
    access = str(sharing.access) if sharing.access is not None else None
    return replace(row, owner=sharing.owner, access=access, shared_with=sharing.rows)


def _joined(stored: SessionRow, live: SessionRow) -> SessionRow:
    """The row of a session in memory with what only the disk has: title, branch, tag and marks, and its dates."""
    costs = [cost for cost in (stored.cost_usd, live.cost_usd) if cost is not None]
    return replace(
        live,
        project_directory=stored.project_directory,
        display_text=stored.display_text,
        timestamp=stored.timestamp,
        created=stored.created,
        branch=stored.branch,
        messages=stored.messages,
        model=live.model or stored.model,
        # The larger value: the record may have more than this server has seen, or less.
        cost_usd=max(costs, default=None),
        # What this server runs is counted exactly.
        estimated_cost_usd=stored.estimated_cost_usd if live.in_terminal else None,
        tag=stored.tag,
        pinned=stored.pinned,
        archived=stored.archived,
        mention=stored.mention,
    )


def stored_row(entry: "Entry", last_state: State | None = None, continues_at: float | None = None) -> SessionRow:
    """A session that is only on disk."""
    return SessionRow(
        session_id=entry.session_id,
        project_directory=entry.project,
        display_text=entry.title or entry.first_prompt or "",
        timestamp=iso(entry.last_used),
        created=iso_or_none(entry.created),
        branch=entry.branch,
        last_status=SESSION_TOOL_STATUS[last_state] if last_state is not None else None,
        messages=entry.messages,
        model=entry.model,
        cost_usd=round(entry.cost_usd, 6) if entry.cost_usd is not None else None,
        estimated_cost_usd=round(entry.estimated_usd, 6) if entry.estimated_usd is not None else None,
        tag=entry.tag,
        pinned=entry.pinned,
        archived=entry.archived,
        mention=entry.mention,
        continues_at=iso_or_none(continues_at),
    )


def live_row(session: "Session") -> SessionRow:
    """The row of a session in memory, without disk access and so without a title."""
    asked, stopped = session.questions, None if session.busy else session.outcome
    limit = stopped if stopped is not None and stopped.code is OutcomeCode.LIMIT_REACHED else None
    ignored, outside = unanswered(session), session.outside
    remote = outside.remote if outside is not None else None
    return SessionRow(
        session_id=session.id,
        project_directory=session.shown_directory,
        first_prompt=clip_line(session.first_prompt or "", _MAX_TITLE),
        timestamp=iso(session.used_at),
        created=iso(session.created_at),
        is_active=session.live or outside is not None,
        active_status=SESSION_TOOL_STATUS[session.state],
        model=session.options.model or session.model,
        # For a session that another program runs, the cost comes from Claude Code's own record.
        cost_usd=round(session.usage.cost_usd, 6) if outside is None else None,
        asks=[question.description for question in asked] or None,
        questions=[
            {
                "questionId": question.id,
                "kind": kind_class(question.kind).wire_type,
                "description": question.description,
            }
            for question in asked
        ]
        or None,
        needs=_needs(session, ignored is not None),
        unanswered=ignored,
        permission_mode=(outside.permission_mode if outside is not None else session.options.permission_mode)
        or "default",
        context=[*session.activity.context] if session.activity.context[0] else None,
        in_terminal=outside is not None,
        machine=remote.machine if remote is not None else None,
        queued=session.queued,
        retrying=retrying_line(session),
        stalled_seconds=silent_seconds(session) if session.stalled else None,
        on_limit=session.options.on_limit or "end",
        limit_type=limit.limit_type if limit is not None else None,
        resets_at=iso_or_none(limit.resets_at) if limit is not None else None,
        continues_at=iso_or_none(session.continues_at) if limit is not None else None,
        plan_usage=session.activity.plan.as_json() if session.activity.plan is not None else None,
    )


def _needs(session: "Session", is_unanswered: bool) -> str | None:
    if session.questions:
        return "question"
    if is_unanswered:
        return "unanswered"
    if session.stalled:
        return "stalled"
    if session.state is State.LIMITED and session.continues_at is None:
        return "limit"
    return "error" if session.state is State.ERROR else None


def unanswered(session: "Session") -> dict[str, str] | None:
    """The question that ended the latest turn because it was not answered in time; None if there is none, or a message
    was sent since."""
    settled = (
        event for event in session.events.latest(QuestionSettled, _MAX_SETTLED) if isinstance(event, QuestionSettled)
    )
    expired = [event for event in settled if event.resolution.closure is Closure.EXPIRED]
    if not expired:
        return None
    since = max(
        (event.seq for kind in (TurnStarted, MessageJoined) for event in session.events.latest(kind, 1)), default=0
    )
    last = max(expired, key=lambda event: event.seq)
    if last.seq < since:
        return None
    return {"description": last.question.description, "reason": last.resolution.detail, "at": iso(last.at)}


def silent_seconds(session: "Session") -> int:
    """How long the process has been silent: since the stall was noticed, and before that."""
    noticed = session.events.latest(Stalled, 1)
    return int(sum(time.time() - stall.at + stall.seconds for stall in noticed if isinstance(stall, Stalled)))


def retrying_line(session: "Session") -> str | None:
    """The API error after which the CLI retries, and when; None if it is not retrying."""
    retry = session.activity.retrying
    return retry_text(retry) if retry is not None else None


def retry_text(retry: Retrying) -> str:
    """The API error, when the CLI tries again, and what to do if the login was refused."""
    of = f" of {retry.of}" if retry.of else ""
    problem = f"API error {retry.status}" if retry.status else "The API cannot be reached"
    hint = f". The key or login was refused {LOG_IN_HINT}" if retry.status in _REFUSED_LOGIN else ""
    return f"{problem}: attempt {retry.attempt}{of}, next in {retry.delay_ms / 1000:.1f} s{hint}"
