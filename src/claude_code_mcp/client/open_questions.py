"""Open questions of sessions: all, those in a report, one by its name; answering them, and how they were closed.

A question is always whole here: input that a report has cut is read in pages before anybody is shown the question.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import SessionNotFound
from ..model.question import FileChange, Question, kind_of
from ..model.text import visible
from ..shared.client import CallFailed
from .live_sessions import LiveSessions, named
from .resource_reader import Report


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question with all of its input, as it may be answered now."""

    question: Question
    session: Mapping[str, Any]
    """The listed session that asks it."""
    for_session: bool
    """Whether an allowance can be given for the rest of the session."""
    expires_at: str | None = None

    @property
    def id(self) -> str:
        return self.question.id


class OpenQuestions:
    """The questions of the sessions of one server."""

    def __init__(self, sessions: LiveSessions) -> None:
        self._sessions = sessions

    def all(self) -> list[OpenQuestion]:
        """Every open question of the sessions in memory, with its whole input."""
        asking = [session for session in self._sessions.live() if session.get("asks")]
        return [question for session in asking for question in self.of(session)]

    def of(self, session: Mapping[str, Any]) -> list[OpenQuestion]:
        """The open questions of one listed session."""
        try:
            report = self._sessions.status(session["sessionId"], outputLines=0)
            return list(self.within(report, session))
        except CallFailed:
            return []  # it was ended meanwhile

    def within(self, report: Report, session: Mapping[str, Any] | None = None) -> Iterator[OpenQuestion]:
        """The questions of a report. One that is closed before all of it was read is left out."""
        cut = {part["part"] for part in report.get("truncated") or ()}
        for entry in self._pending(report, cut):
            tool_input = entry["toolInput"]
            if entry["inputId"] in cut:
                try:
                    tool_input = json.loads(self._sessions.part(report["sessionId"], entry["inputId"]))
                except CallFailed:
                    continue
            yield _open_question(entry, tool_input, session or {"sessionId": report["sessionId"]})

    def _pending(self, report: Report, cut: set[str]) -> list[dict[str, Any]]:
        """The entries of a report, and those that did not fit into it."""
        entries: list[dict[str, Any]] = list(report.get("pendingInputs") or ())
        more = next((part for part in report.get("truncated") or () if part["part"] == "pendingInputs"), None)
        while more is not None:
            page = self._sessions.status(report["sessionId"], part="pendingInputs", offset=more["nextOffset"])
            entries += page.get("pendingInputs") or ()
            truncated = page.get("truncated") or ()
            cut.update(part["part"] for part in truncated)
            more = next((part for part in truncated if part["part"] == "pendingInputs"), None)
        return entries

    def find(self, name: str) -> OpenQuestion:
        """The one open question with this beginning of its id, or of the one session of this name that asks just one.
        SessionNotFound if there is none or several."""
        questions = self.all()
        wanted = name.lower().removeprefix("q-")
        found = [question for question in questions if wanted and question.id.removeprefix("q-").startswith(wanted)]
        if not found:
            asking = {session["sessionId"] for session in named([question.session for question in questions], name)}
            found = [question for question in questions if question.session["sessionId"] in asking]
        if len(found) != 1:
            problem = "No open question has" if not found else f"{len(found)} open questions have"
            raise SessionNotFound(
                f"{problem} the id or the session {name!r}; `claude-code-mcp questions` shows what is asked."
            )
        return found[0]

    def answer(self, question: OpenQuestion, decision: Mapping[str, Any]) -> Report:
        """Gives the arguments of `claude_respond` to a question; CallFailed if it is no longer open."""
        return self._sessions.respond(question.session["sessionId"], question.id, decision)

    def closure(self, session_id: str, question_id: str, cursor: str | None) -> str:
        """How a question was closed that was open at that cursor: who answered it, and what; empty if that is not
        known."""
        while True:
            page = self._sessions.resources.read(f"claude-session:///{session_id}/events", cursor=cursor)
            for event in page["events"]:
                if event.get("inputId") == question_id and event["type"] != "question":
                    return _closure(event)
            if not page.get("hasMore"):
                return ""
            cursor = page["nextCursor"]


def _closure(event: Mapping[str, Any]) -> str:
    """How a question was closed, for people."""
    verdict = {"allow": "allowed", "deny": "denied"}.get(str(event.get("decision")), str(event["type"]))
    client = f" ({event['client']})" if event.get("client") else ""
    return visible(f"{verdict} by {event.get('by') or 'nobody'}{client}")


def _open_question(entry: Mapping[str, Any], tool_input: Mapping[str, Any], session: Mapping[str, Any]) -> OpenQuestion:
    diff, note = entry.get("fileDiff") or "", entry.get("fileNote") or ""
    question = Question(
        id=entry["inputId"],
        session_id=session["sessionId"],
        kind=kind_of(entry["toolName"]),
        tool_name=entry["toolName"],
        tool_input=tool_input,
        description=entry["description"],
        reason=entry.get("reason"),
        blocked_path=entry.get("blockedPath"),
        change=FileChange(diff, note) if diff or note else None,
        modes=tuple(entry.get("modes") or ()),
        session_rules=tuple(entry.get("sessionRules") or ()),
    )
    return OpenQuestion(question, session, bool(entry.get("canAllowForSession")), entry.get("expiresAt"))
