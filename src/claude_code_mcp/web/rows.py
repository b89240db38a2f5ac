"""Sessions, questions and turns as the page gets them. Pure: what they are made from has been read before."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..client.question_view import question_lines
from ..model.events import Stalled
from ..model.question import Question, QuestionKind
from ..model.states import SESSION_TOOL_STATUS, State
from ..model.text import clip_line, iso
from ..questions.presentation import Redacts, without_secrets
from ..server.tools.status import retrying_line
from ..sessions.session import Session
from ..store.catalogue import Entry
from ..store.conversation import ConversationTurn
from .event_frames import item_fields

_LONGEST_TITLE = 200
_NEEDS_ORDER = {"question": 0, "stalled": 1, "error": 2}


def live_row(session: Session, redactor: Redacts) -> dict[str, Any]:
    """What is known of a session in memory without a look at the disk; its title is not."""
    row: dict[str, Any] = {
        "sessionId": session.id,
        "prompt": clip_line(session.first_prompt or "", _LONGEST_TITLE),
        "directory": session.cwd,
        "lastUsed": iso(session.used_at),
        "created": iso(session.created_at),
        "status": SESSION_TOOL_STATUS[session.state],
        "inMemory": True,
        "live": session.live,
        "needs": needs(session),
        "asks": [_ask(question) for question in session.questions],
        "costUsd": round(session.usage.cost_usd, 6),
        "queued": session.queued,
        "retrying": retrying_line(session),
        "stalledSeconds": _stalled_seconds(session),
    }
    return dict(redactor.data(row))


def needs(session: Session) -> str | None:
    """What a person is needed for."""
    if session.questions:
        return "question"
    if session.stalled:
        return "stalled"
    return "error" if session.state is State.ERROR else None


def _ask(question: Question) -> dict[str, Any]:
    return {"questionId": question.id, "kind": str(question.kind), "description": question.description}


def _stalled_seconds(session: Session) -> int | None:
    noticed = session.events.latest(Stalled, 1) if session.stalled else []
    return next((int(time.time() - stall.at + stall.seconds) for stall in noticed if isinstance(stall, Stalled)), None)


def listed_row(
    entry: Entry | None, session: Session | None, last_state: State | None, redactor: Redacts
) -> dict[str, Any]:
    """A session wherever it is; without an entry, one in memory that has no transcript yet."""
    row = dict(redactor.data(_stored(entry, last_state))) if entry is not None else {}
    if session is None:
        return row
    known = live_row(session, redactor)
    if entry is None:
        return known
    cost = max(row["costUsd"] or 0.0, known["costUsd"])
    kept = {name: value for name, value in known.items() if value is not None and name not in ("created", "lastUsed")}
    return {**row, **kept, "costUsd": cost}


def _stored(entry: Entry, last_state: State | None) -> dict[str, Any]:
    return {
        "sessionId": entry.session_id,
        "title": clip_line(entry.title or entry.first_prompt or "", _LONGEST_TITLE),
        "directory": entry.project,
        "branch": entry.branch,
        "lastUsed": iso(entry.last_used),
        "created": iso(entry.created) if entry.created is not None else None,
        "status": SESSION_TOOL_STATUS[last_state] if last_state is not None else None,
        "inMemory": False,
        "live": False,
        "messages": entry.messages,
        "model": entry.model,
        "costUsd": round(entry.cost_usd, 6) if entry.cost_usd is not None else None,
        "tag": entry.tag,
        "pinned": entry.pinned,
        "archived": entry.archived,
        "mention": entry.mention,
    }


def most_urgent_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that ask, then the stalled and the failed, then those at work, then the newest."""

    def urgency(row: dict[str, Any]) -> int:
        need = row.get("needs")
        return _NEEDS_ORDER[need] if need in _NEEDS_ORDER else 3 if row.get("status") == "running" else 4

    newest = sorted(rows, key=lambda row: str(row["lastUsed"]), reverse=True)
    return sorted(newest, key=urgency)


# -- questions --------------------------------------------------------------------------------------------------------


def question_row(question: Question, redactor: Redacts) -> dict[str, Any]:
    """All of a question, without secrets."""
    shown = without_secrets(question, redactor)
    row: dict[str, Any] = {
        "questionId": shown.id,
        "sessionId": shown.session_id,
        "kind": str(shown.kind),
        "toolName": shown.tool_name,
        "toolInput": dict(shown.tool_input),
        "description": shown.description,
        "reason": shown.reason,
        "blockedPath": shown.blocked_path,
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
    if shown.kind is QuestionKind.USER_QUESTION:
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
        "items": [item_fields(item, cwd) for item in turn.items],
    }
