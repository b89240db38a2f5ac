"""Sessions, questions, turns and events in the page's format. Pure.

Fragments of a growing text are merged until the next flush, and held back while they may end in the beginning of a
known secret. A frame has an id only if everything up to it was sent: a client that resumes after it misses nothing and
receives no duplicates.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...client.styled_lines import question_lines
from ...core import json_text
from ...core.model.events import (
    BudgetWarned,
    Event,
    Gap,
    Message,
    MessageDropped,
    MessageJoined,
    MessageQueued,
    Partial,
    PartialRun,
    ProcessChanged,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    Stalled,
    StateChanged,
    TurnEnded,
    TurnStarted,
    UsageReported,
    WaitChanged,
    ends_text,
)
from ...core.model.question import Question, QuestionKind
from ...core.model.states import SESSION_TOOL_STATUS, State
from ...core.model.text import iso
from ...core.questions.kinds import kind_class
from ...core.questions.presentation import describe, without_secrets
from ...core.redaction import Redactor
from ...core.service import Service
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import SessionRow
from ...core.transcripts.conversation import ConversationTurn, Item, frame_items, started_agent
from ...core.transcripts.conversation_pages import MAX_PREVIEW, shortened
from ...core.transcripts.transcript_export import item_without_secrets

_KINDS = {"text": "text", "thinking": "thinking", "partial_json": "input"}
_MAX_PENDING = 64 << 10
_MAX_SECRET = 8 << 10
_LOOK_BACK = 1000
"""How many fragments a known secret may span."""


class Frame(NamedTuple):
    """Bytes of the stream; `seq` is the event that they end with, 0 for other frames."""

    seq: int
    data: bytes


def frame(name: str, payload: Mapping[str, Any], event_id: str = "") -> bytes:
    """One server-sent event."""
    head = f"id: {event_id}\nevent: {name}\ndata: " if event_id else f"event: {name}\ndata: "
    return head.encode() + json_text.encode(payload) + b"\n\n"


def item_fields(item: Item, cwd: str = "") -> dict[str, Any]:
    """An item of a conversation in the page's format. For a call's result, only the result."""
    if item.kind != "tool":
        fields: dict[str, Any] = {"id": item.id, "kind": item.kind, "text": item.text}
    else:
        fields = {"id": item.id, "kind": "tool", "status": item.status}
        if item.name:
            tool_input = item.input if isinstance(item.input, Mapping) else {}
            fields |= {"name": item.name, "input": item.input, "description": describe(item.name, tool_input, cwd)}
        if item.status:
            fields |= {"result": item.output or item.result, "diff": item.diff, "agent": item.agent}
    return {**fields, "cut": True} if item.cut else fields


def whole_parts(parts: Sequence[str], redactor: Redactor) -> int:
    """How many of the first fragments can be sent without the others."""
    # From the end: usually nothing is held back, and the first check decides.
    for count in range(len(parts), 0, -1):
        end = "".join(parts[max(0, count - _LOOK_BACK) : count])[-_MAX_SECRET:]
        if not redactor.held_back(end):
            return count
    return 0


class FrameEncoder:
    """Encodes the events of one session, in order."""

    def __init__(self, redactor: Redactor, cursor: Callable[[int], str], cwd: str = "") -> None:
        """`cursor` creates an event's id from its number."""
        self._redactor = redactor
        self._cursor = cursor
        self._cwd = cwd
        self._kind = ""
        self._parts: list[str] = []
        self.reached = 0
        """The last fragment received."""
        self._at = 0.0

    @property
    def holds(self) -> bool:
        """Whether fragments are pending."""
        return bool(self._parts)

    def take(self, event: Event) -> Iterator[Frame]:
        """The frames that this event completes; a fragment waits for `flush`."""
        if isinstance(event, Partial | PartialRun):
            yield from self._fragment(event)
            return
        yield from self._release() if ends_text(event) else self.flush()
        for name, payload in self._payloads(event):
            yield self._frame(name, payload, event.seq, event.at)
        if self.holds:
            # The frame of the pending fragments must not follow with an older number than this one.
            self.reached = event.seq

    def flush(self) -> Iterator[Frame]:
        """The pending fragments that can be sent."""
        text = "".join(self._parts)
        # A text that always seems to begin a secret must neither be held back forever nor grow without a bound.
        if text and (not self._redactor.held_back(text) or len(text) > _MAX_PENDING):
            yield from self._release()

    def finish(self) -> Iterator[Frame]:
        """All pending fragments: another encoder continues."""
        yield from self._release()

    def _fragment(self, event: Partial | PartialRun) -> Iterator[Frame]:
        if isinstance(event, Partial) and event.raw is not None:
            if event.raw.get("parent_tool_use_id") is not None:
                return  # a subagent's fragment: its items are sent complete
            if not event.text:
                kind = (event.raw.get("event") or {}).get("type")
                if kind == "content_block_start":
                    yield from self._release()
                    yield self._frame("block", {}, event.seq, event.at)
                return
        if event.kind != self._kind:
            yield from self._release()
        self._kind = event.kind
        self._parts.append(event.text)
        self.reached, self._at = event.seq, event.at

    def _release(self) -> Iterator[Frame]:
        text, self._parts = "".join(self._parts), []
        if text:
            payload = {"kind": _KINDS.get(self._kind, self._kind), "text": self._redactor.text(text), "parent": None}
            yield self._frame("partial", payload, self.reached, self._at)

    def _frame(self, name: str, payload: Mapping[str, Any], seq: int, at: float) -> Frame:
        return Frame(seq, frame(name, {**payload, "at": iso(at)}, self._cursor(seq)))

    def _payloads(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case Message():
                yield from self._message(event)
            case QuestionOpened():
                yield "question", question_fields(event, self._redactor)
            case QuestionSettled():
                yield "answered", self._redactor.data(_settled(event))
            case TurnStarted():
                prompt = self._redactor.text(event.prompt)
                yield "turn", {"number": event.number, "prompt": prompt, "messageId": event.message_id}
            case MessageQueued():
                text = self._redactor.text(event.text)
                yield "queued", {"messageId": event.message_id, "text": text, "images": event.images}
            case MessageDropped():
                yield "dropped", {"messageId": event.message_id}
            case MessageJoined():
                joined = Item("message", event.text, id=f"{event.message_id}:0")
                shown = self._shown(joined)
                yield "items", {"items": [shown], "parent": None, "model": None}
            case TurnEnded():
                yield "ended", self._redactor.data(_ended(event))
            case StateChanged():
                detail = self._redactor.text(event.detail)
                yield "state", {"status": SESSION_TOOL_STATUS[event.state], "detail": detail}
            case _:
                yield from self._health(event)

    def _health(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case BudgetWarned():
                yield "budget", {"warning": self._redactor.text(event.line)}
            case Retrying():
                fields = {"attempt": event.attempt, "of": event.of, "delayMs": event.delay_ms, "status": event.status}
                yield "retrying", {**fields, "detail": self._redactor.text(event.detail)}
            case WaitChanged():
                yield "limit", {"limit": event.wait.as_json() if event.wait is not None else None}
            case UsageReported():
                yield "plan", {"planUsage": event.plan.as_json()}
            case Stalled():
                yield "stalled", {"seconds": event.seconds}
            case ProcessChanged():
                yield "process", {"change": event.change, "detail": self._redactor.text(event.detail)}
            case Gap():
                yield "gap", {"first": event.first, "last": event.seq}

    def _message(self, event: Message) -> Iterator[tuple[str, dict[str, Any]]]:
        raw = event.raw
        if "omitted_bytes" in raw:  # the log did not store it
            yield "gap", {"first": event.seq, "last": event.seq}
            return
        items = frame_items(raw) if event.type in ("assistant", "user") else []
        if items:
            shown = [self._shown(item) for item in items]
            message = raw.get("message")
            model = message.get("model") if isinstance(message, Mapping) else None
            more = self._redactor.data({"parent": raw.get("parent_tool_use_id"), "model": model})
            yield "items", {"items": shown, **more}
        agent = started_agent(raw)
        if agent is not None:
            yield "agent", self._redactor.data({"call": agent[0], "agent": agent[1]})

    def _shown(self, item: Item) -> dict[str, Any]:
        # Redacted before it is shortened: a truncated secret would not be recognized.
        return item_fields(shortened(item_without_secrets(item, self._redactor.data), MAX_PREVIEW), self._cwd)


def question_fields(event: QuestionOpened, redactor: Redactor) -> dict[str, Any]:
    """Which question was opened; its complete input is requested by id."""
    question = event.question
    fields = {
        "questionId": question.id,
        "kind": kind_class(question.kind).wire_type,
        "toolName": question.tool_name,
        "description": question.description,
        "expiresAt": None if question.deadline is None else iso(question.deadline),
    }
    return dict(redactor.data(fields))


def _settled(event: QuestionSettled) -> dict[str, Any]:
    resolution = event.resolution
    answer = resolution.answer
    return {
        "questionId": event.question.id,
        "closure": str(resolution.closure),
        "allow": answer.allow if answer is not None else None,
        "by": resolution.whose,
        "detail": resolution.detail or (answer.message if answer is not None else None) or "",
    }


def _ended(event: TurnEnded) -> dict[str, Any]:
    outcome = event.outcome
    return {
        "number": event.number,
        "code": str(outcome.code),
        "result": outcome.result,
        "detail": outcome.detail,
        "costUsd": round(outcome.usage.cost_usd, 6),
        "durationMs": outcome.duration_ms,
    }


# -- rows -------------------------------------------------------------------------------------------------------------


_NEEDS_ORDER = {"question": 0, "unanswered": 1, "stalled": 2, "error": 3, "limit": 3}
_STORED_COLUMNS = {
    "sessionId": "session_id",
    "title": "display_text",
    "directory": "project_directory",
    "branch": "branch",
    "lastUsed": "timestamp",
    "created": "created",
    "status": "status",
    "inMemory": "in_memory",
    "live": "is_active",
    "messages": "messages",
    "model": "model",
    "costUsd": "cost_usd",
    "estimatedCostUsd": "estimated_cost_usd",
    "tag": "tag",
    "pinned": "pinned",
    "archived": "archived",
    "mention": "mention",
    "sharedBy": "owner",
    "access": "access",
}
"""The columns of every session: the page's name and the field of `SessionRow`."""
_LIVE_COLUMNS = {
    "prompt": "first_prompt",
    "needs": "needs",
    "asks": "questions",
    "unanswered": "unanswered",
    "permissionMode": "permission_mode",
    "context": "context",
    "inTerminal": "in_terminal",
    "queued": "queued",
    "retrying": "retrying",
    "stalledSeconds": "stalled_seconds",
    "onLimit": "on_limit",
    "planUsage": "plan_usage",
}
"""Additional columns of sessions in memory."""
_ONLY_ON_DISK = frozenset({"title", "branch", "messages", "tag", "pinned", "archived", "mention"})


def page_row(row: SessionRow) -> dict[str, Any]:
    """A row in the page's format, before redaction."""
    columns = {**_STORED_COLUMNS, **(_LIVE_COLUMNS if row.in_memory else {})}
    # A row without a title was created without reading the disk: the page keeps its known values.
    known = {name for name in columns if row.display_text is not None or name not in _ONLY_ON_DISK}
    fields: dict[str, Any] = {name: getattr(row, column) for name, column in columns.items() if name in known}
    if row.machine is not None:
        fields["machine"] = row.machine
    if row.in_memory:
        limit = {"type": row.limit_type, "resetsAt": row.resets_at, "continuesAt": row.continues_at}
        fields["limit"] = limit if row.status == SESSION_TOOL_STATUS[State.LIMITED] else None
    return fields


def most_urgent_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows by urgency: sessions that ask, then stalled and failed ones, then busy ones, each newest first."""

    def urgency(row: dict[str, Any]) -> int:
        need = row.get("needs")
        return _NEEDS_ORDER[need] if need in _NEEDS_ORDER else 4 if row.get("status") == "running" else 5

    newest = sorted(rows, key=lambda row: str(row["lastUsed"]), reverse=True)
    return sorted(newest, key=urgency)


# -- questions --------------------------------------------------------------------------------------------------------


def question_row(question: Question, redactor: Redactor) -> dict[str, Any]:
    """The complete question, redacted."""
    shown = without_secrets(question, redactor)
    row: dict[str, Any] = {
        "questionId": shown.id,
        "sessionId": shown.session_id,
        "kind": kind_class(shown.kind).wire_type,
        "toolName": shown.tool_name,
        "toolInput": dict(shown.tool_input),
        "description": shown.description,
        "reason": shown.reason,
        "blockedPath": shown.blocked_path,
        "fileDiff": shown.change.diff if shown.change is not None else "",
        "fileNote": shown.change.note if shown.change is not None else "",
        "openedAt": iso(shown.opened_at),
        "expiresAt": None if shown.deadline is None else iso(shown.deadline),
        "toolUseId": shown.tool_use_id,
        "canAllowForSession": bool(shown.suggestions),
        "sessionRules": [*shown.session_rules],
        "modes": [*shown.modes],
        "modeAfter": shown.mode_after,
        "lines": [
            {"text": line.text, "style": str(line.style)} for line in question_lines(replace(shown, session_rules=()))
        ],
    }
    if shown.kind in (QuestionKind.USER_QUESTION, QuestionKind.SERVER_FORM):
        row["choices"] = [
            {
                "question": choice.question,
                "header": choice.header,
                "several": choice.several,
                "options": [{"label": label, "description": text} for label, text in choice.options],
                "field": choice.field,
            }
            for choice in shown.choices
        ]
        row["form"] = shown.form
    return row


# -- turns ------------------------------------------------------------------------------------------------------------


def turn_row(number: int, turn: ConversationTurn, cwd: str) -> dict[str, Any]:
    return {
        "number": number,
        "prompt": turn.prompt,
        "at": turn.at,
        "messageId": turn.message_id,
        "model": turn.model,
        "images": turn.images,
        "documents": turn.documents,
        "items": [item_fields(item, cwd) for item in turn.items],
    }


def session_in_memory(service: Service, principal: str, session_id: str) -> Session | None:
    """A principal's session in memory, under its current id; None if it is only on disk."""
    current = service.current_id(session_id)
    return next((session for session in service.sessions(principal=principal) if session.id == current), None)
