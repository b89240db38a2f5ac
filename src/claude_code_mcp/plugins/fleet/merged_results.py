"""Merges the answers of many machines. Every row names its machine, and machines without an answer are listed."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from ...core import json_text
from ...core.model.states import SESSION_TOOL_STATUS
from ...core.model.text import iso
from ...core.model.usage_limits import iso_or_none
from ...core.sessions.stored.session_row import SessionRow
from ...server.tools.cost_report import with_few_parts
from ...server.tools.list_sessions import listed_session
from ...server.tools.output import dump
from .records import AbsentSession
from .routing import MachineIdentity

JsonObject = Mapping[str, Any]
Absent = Sequence[tuple[MachineIdentity, AbsentSession]]
"""Sessions of offline machines, each with its machine."""
Answers = Sequence[tuple[MachineIdentity, dict[str, Any]]]
Structured = Sequence[tuple[MachineIdentity, Any]]
"""Structured answers of machines; not trusted to have any particular shape."""
MAX_PER_MACHINE: Final = 500
"""Maximum number of rows that a machine lists at once."""
USUAL_ROWS = 50
_MAX_COMPLETIONS = 100
_UNANSWERED = "unanswered"
_LINE_FIELDS = (
    "sessionId",
    "timestamp",
    "activeStatus",
    "lastStatus",
    "machine",
    "projectDirectory",
    "displayText",
    "mention",
    "continuesAt",
    "owner",
)
"""The texts of a row that its line shows."""


@dataclass(frozen=True, slots=True)
class Silent:
    """A machine without an answer, and the reason."""

    machine: MachineIdentity
    reason: str

    @property
    def row(self) -> dict[str, str]:
        return {"machine": self.machine.name, "reason": self.reason}


def repeated_sessions(answers: Structured) -> set[str]:
    """The ids of sessions that several machines list: one that was taken over is also on its previous machine's
    disk."""
    counted = Counter(str(row.get("sessionId")) for _, answer in answers for row in _session_rows(answer))
    return {session_id for session_id, count in counted.items() if count > 1}


def leave_to(holder: str, session_id: str, answers: Structured) -> None:
    """Removes a session's rows from the answers of all machines except its holder; for a session without a holder, the
    rows of the fleet's copy, which has less data than a disk."""
    for machine, answer in answers:
        is_other = machine.id != holder if holder else not machine.id
        if is_other and (rows := _session_rows(answer)):
            answer["sessions"] = [row for row in rows if row.get("sessionId") != session_id]


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; anything else is skipped."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def number(value: Any) -> float:
    """A number in a machine's answer; 0 if it is not a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else 0


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _session_rows(answer: Any) -> list[dict[str, Any]]:
    rows = answer.get("sessions") if isinstance(answer, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def absent_answers(absent: Absent, offset: int, limit: int) -> list[tuple[MachineIdentity, dict[str, Any]]]:
    """What offline machines would list of these sessions, from the fleet's copies: from the offset up to the limit,
    newest first."""
    newest = sorted(((session, machine) for machine, session in absent), key=lambda pair: -pair[0].last_used)
    answers: list[tuple[MachineIdentity, dict[str, Any]]] = [
        (machine, {"sessions": [{**dump(listed_session(absent_row(session))), "machineGone": True}]})
        for session, machine in newest[offset : offset + limit]
    ]
    if answers and len(newest) > offset + limit:
        answers[-1][1]["nextOffset"] = offset + limit
    return answers


def absent_row(session: AbsentSession) -> SessionRow:
    """The row of a session on an offline machine."""
    return SessionRow(
        session_id=session.session_id,
        project_directory=session.directory or None,
        display_text=session.title,
        timestamp=iso(session.last_used),
        created=iso(session.created),
        last_status=SESSION_TOOL_STATUS[session.state] if session.state is not None else None,
        model=session.model,
        cost_usd=round(session.cost_usd, 6),
        tag=session.tag or None,
        pinned=session.pinned,
        archived=session.archived,
        continues_at=iso_or_none(session.continues_at),
        machine_gone=True,
    )


def merged_tool(
    name: str,
    arguments: JsonObject,
    answers: Answers,
    silent: Sequence[Silent],
    absent: Sequence[tuple[MachineIdentity, dict[str, Any]]] = (),
) -> dict[str, Any]:
    """The result of a call about all sessions. Refused if every machine refused. `absent` are the rows of offline
    machines."""
    accepted = [(machine, answer) for machine, answer in answers if not answer.get("isError")]
    if not accepted and answers:
        return answers[0][1]
    refused = [Silent(machine, _text_of(answer)) for machine, answer in answers if answer.get("isError")]
    structured_answers = [(machine, _object(answer.get("structuredContent"))) for machine, answer in accepted]
    structured_answers += absent
    if name == "claude_session_costs":
        structured = merged_costs(structured_answers)
        lines = [
            f"{line.get('name')}  ${number(line.get('usd')):.4f}  {line['machine']}  {line.get('title') or ''}".rstrip()
            for line in structured["lines"]
        ]
        lines.append(f"total  ${number(structured['total'].get('usd')):.4f}")
    else:
        offset, limit = 0, len(_rows(structured_answers))
        if name == "claude_list_sessions":
            offset, limit = page_of(arguments) or (0, USUAL_ROWS)
        structured = merged_sessions(structured_answers, offset, limit)
        lines = [_session_line(row) for row in structured["sessions"]] or ["No sessions."]
        if "nextOffset" in structured:
            lines.append(f"[more: offset {structured['nextOffset']}]")
    silences = [*silent, *refused]
    if silences:
        structured[_UNANSWERED] = [each.row for each in silences]
    lines += [f"[machine {each.machine.name} did not answer: {each.reason}]" for each in silences]
    first = accepted[0][1] if accepted else {"isError": False}
    return {**first, "content": [{"type": "text", "text": "\n".join(lines)}], "structuredContent": structured}


def page_of(arguments: JsonObject) -> tuple[int, int] | None:
    """Offset and limit of a list; None if a machine would refuse them."""
    offset, limit = (arguments.get(name, usual) for name, usual in (("offset", 0), ("limit", USUAL_ROWS)))
    offset, limit = 0 if offset is None else offset, USUAL_ROWS if limit is None else limit
    if type(offset) is not int or type(limit) is not int or offset < 0 or not 0 < limit <= MAX_PER_MACHINE:
        return None
    return offset, limit


def list_query(uri: str) -> dict[str, Any] | None:
    """The query of the session list resource; None for another resource or an invalid query."""
    address, _, query = uri.partition("?")
    if address != "claude-sessions:///":
        return None
    asked = dict(parse_qsl(query))
    offset = asked.get("offset", "0")
    return {**asked, "offset": int(offset)} if offset.isascii() and offset.isdigit() and len(offset) < 10 else None


def _session_line(row: JsonObject) -> str:
    # `claude_code_session` uses other names for two of the columns.
    listed = {"activeStatus": row.get("status"), "projectDirectory": row.get("cwd"), **row}
    texts = {name: str(listed[name]) for name in _LINE_FIELDS if listed.get(name) is not None}
    return SessionRow.from_json({**texts, "machineGone": bool(row.get("machineGone"))}).line()


def _text_of(answer: JsonObject) -> str:
    blocks = objects(answer.get("content"))
    return "\n".join(str(block["text"]) for block in blocks if block.get("type") == "text" and block.get("text"))


def merged_sessions(answers: Answers, offset: int, limit: int) -> dict[str, Any]:
    """A page of the sessions of all machines: pinned ones first, then the newest. Each machine returned everything up
    to the end of the page."""
    rows = _rows(answers)
    rows.sort(key=lambda row: str(row.get("timestamp") or row.get("createdAt") or ""), reverse=True)
    rows.sort(key=lambda row: not row.get("pinned"))  # stable: the newest stay first
    page: dict[str, Any] = {"sessions": rows[offset : offset + limit]}
    more = len(rows) > offset + limit or any(answer.get("nextOffset") is not None for _, answer in answers)
    if more:
        page["nextOffset"] = offset + limit
    return {**page, **_errors(answers)}


def _rows(answers: Answers) -> list[dict[str, Any]]:
    return [{**row, "machine": machine.name} for machine, answer in answers for row in objects(answer.get("sessions"))]


def merged_costs(answers: Answers) -> dict[str, Any]:
    """The costs of all machines: each line names its machine; the total covers all."""
    lines = [{**line, "machine": machine.name} for machine, answer in answers for line in objects(answer.get("lines"))]
    for line in lines:
        if "parts" in line:
            line["parts"] = {str(name): number(spent) for name, spent in _object(line["parts"]).items()}
    merged: dict[str, Any] = {"lines": with_few_parts(lines)}
    if answers:
        merged["by"] = answers[0][1].get("by")
    total: dict[str, Any] = {}
    for _, answer in answers:
        for name, value in _object(answer.get("total")).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            total[name] = number(total.get(name)) + number(value) if is_number else total.get(name, value)
    if "usd" in total:
        total["usd"] = round(number(total["usd"]), 6)
    merged["total"] = total
    # Each machine counts only its own spending.
    budgets = [
        {**row, "machine": machine.name} for machine, answer in answers for row in objects(answer.get("budgets"))
    ]
    if budgets:
        merged["budgets"] = budgets
    left_out = sum(number(answer.get("leftOut")) for _, answer in answers)
    if left_out:
        merged["leftOut"] = left_out
    return {**merged, **_errors(answers)}


def _errors(answers: Answers) -> dict[str, Any]:
    """What a machine could not read, which is not the same as missing data."""
    errors = [(machine, error) for machine, answer in answers if (error := _object(answer.get("error")))]
    if not errors:
        return {}
    message = " ".join(f"{machine.name}: {error.get('message', '')}" for machine, error in errors)
    return {"error": {**errors[0][1], "message": message}}


# -- resources and completions ----------------------------------------------------------------------------------------


def merged_contents(uri: str, first: JsonObject, contents: Answers, silent: Sequence[Silent]) -> dict[str, Any]:
    """The contents of a resource about all sessions: the list, or the costs. Each machine returned its page of the
    list. `first` is the answer of one machine, with all other fields."""
    merged = merged_costs(contents) if "costs" in uri.partition("?")[0] else _merged_page(contents)
    if silent:
        merged[_UNANSWERED] = [each.row for each in silent]
    content = {
        **(objects(first.get("contents")) or [{}])[0],
        "uri": uri,
        "text": json.dumps(merged, ensure_ascii=False),
    }
    return {**first, "contents": [content]}


def _merged_page(answers: Answers) -> dict[str, Any]:
    page = merged_sessions(answers, 0, len(_rows(answers)))
    offsets = [offset for _, answer in answers if isinstance(offset := answer.get("nextOffset"), int)]
    page.pop("nextOffset", None)
    return {**page, **({"nextOffset": max(offsets)} if offsets else {})}


def json_of(answer: JsonObject) -> dict[str, Any]:
    """The object in a resource's text content; empty without one."""
    for content in objects(answer.get("contents")):
        with suppress(ValueError, TypeError):
            value = json_text.decode(str(content.get("text")))
            if isinstance(value, dict):
                return value
    return {}


def merged_resources(answers: Answers, silent: Sequence[Silent]) -> dict[str, Any]:
    """The resources of all machines. Those that every machine has are listed once; the others name their machine."""
    listed: dict[str, dict[str, Any]] = {}
    for machine, answer in answers:
        for resource in objects(answer.get("resources")):
            uri = str(resource.get("uri"))
            if not uri.startswith("claude-session:///"):
                listed.setdefault(uri, resource)
                continue
            description = f"{resource.get('description') or ''} on {machine.name}".strip()
            meta = {**_object(resource.get("_meta")), "machine": machine.name}
            listed.setdefault(uri, {**resource, "description": description, "_meta": meta})
    first = answers[0][1]
    meta = {**_object(first.get("_meta")), **({_UNANSWERED: [each.row for each in silent]} if silent else {})}
    return {**first, "resources": [*listed.values()], **({"_meta": meta} if meta else {})}


def merged_completions(answers: Answers) -> dict[str, Any]:
    """The values that any machine offers, without duplicates."""
    completions = [_object(answer.get("completion")) for _, answer in answers]
    offered = [each for completion in completions if isinstance(each := completion.get("values"), list)]
    unique = [*dict.fromkeys(value for values in offered for value in values if isinstance(value, str))]
    shown = unique[:_MAX_COMPLETIONS]
    more = len(shown) < len(unique) or any(completion.get("hasMore") for completion in completions)
    return {**answers[0][1], "completion": {"values": shown, "total": len(unique), "hasMore": more}}
