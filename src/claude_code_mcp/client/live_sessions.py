"""What a person does with sessions: find them by a part of the id or by title, watch, answer, message, end them.

All of it through the tools that every client has. `LiveSessions` is for any thread; a method returns when the server
has answered.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ..errors import InvalidArgument, SessionNotFound
from ..model.question import Question, kind_of
from ..model.text import visible
from ..shared.client import CallFailed, McpClient

_WAIT = 50.0
"""Seconds that one call may wait; the loop around it has no end."""
_MOST = 500
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUSY = frozenset({"running", "waiting_for_input"})
Report = dict[str, Any]
"""What `claude_get_status` returns."""


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


def is_busy(report: Mapping[str, Any]) -> bool:
    """Whether a turn runs or waits for an answer."""
    return report.get("status") in _BUSY


class LiveSessions:
    """The sessions of one server."""

    def __init__(self, client: McpClient) -> None:
        self._client = client

    # -- finding ----------------------------------------------------------------------------------------------

    def live(self) -> list[dict[str, Any]]:
        """Every session that the server has in memory: those that ask first, then those at work, then the newest."""
        sessions: list[dict[str, Any]] = self._client.call("claude_list_sessions", active=True, limit=_MOST)["sessions"]
        order = {"waiting_for_input": 0, "running": 1}
        return sorted(sessions, key=lambda session: order.get(session.get("activeStatus", ""), 2))

    def stored(self, text: str = "", limit: int = 50) -> list[dict[str, Any]]:
        """The newest sessions, on disk or in memory, or those with a text in title, prompts or path."""
        wanted = {"text": text} if text else {}
        listed: list[dict[str, Any]] = self._client.call("claude_list_sessions", limit=limit, **wanted)["sessions"]
        return listed

    def find(self, name: str) -> str:
        """The id of the one session with this beginning of an id or this title, in memory or on disk.
        SessionNotFound if there is none or several."""
        if _ID.fullmatch(name.lower()):
            return name.lower()
        if not name.strip():
            raise InvalidArgument("The session needs a name: an id, the beginning of one, or a title.")
        for listed in (self.live, lambda: self._mentioning(name)):
            found = _named(listed(), name)
            if len(found) > 1:
                names = ", ".join(session["sessionId"][:8] for session in found[:5])
                raise SessionNotFound(f"{len(found)} sessions fit {name!r}: {names}. More of the id is needed.")
            if found:
                return str(found[0]["sessionId"])
        raise SessionNotFound(f"No session has an id that begins with {name!r}, or this title.")

    def _mentioning(self, text: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._client.call("claude_list_sessions", text=text, limit=_MOST)["sessions"]
        return listed

    # -- questions --------------------------------------------------------------------------------------------

    def questions(self) -> list[OpenQuestion]:
        """Every open question of the sessions in memory, with its whole input."""
        asking = [session for session in self.live() if session.get("asks")]
        return [question for session in asking for question in self.questions_of(session)]

    def questions_of(self, session: Mapping[str, Any]) -> list[OpenQuestion]:
        """The open questions of one listed session."""
        try:
            report = self.status(session["sessionId"], outputLines=0)
            return list(self.questions_in(report, session))
        except CallFailed:
            return []  # it was ended meanwhile

    def questions_in(self, report: Report, session: Mapping[str, Any] | None = None) -> Iterator[OpenQuestion]:
        """The questions of a report. One that is closed before all of it was read is left out."""
        cut = {part["part"] for part in report.get("truncated") or ()}
        for entry in self._pending(report, cut):
            tool_input = entry["toolInput"]
            if entry["inputId"] in cut:
                try:
                    tool_input = json.loads(self.part(report["sessionId"], entry["inputId"]))
                except CallFailed:
                    continue
            yield _open_question(entry, tool_input, session or {"sessionId": report["sessionId"]})

    def _pending(self, report: Report, cut: set[str]) -> list[dict[str, Any]]:
        """The entries of a report, and those that did not fit into it."""
        entries: list[dict[str, Any]] = list(report.get("pendingInputs") or ())
        more = next((part for part in report.get("truncated") or () if part["part"] == "pendingInputs"), None)
        while more is not None:
            page = self.status(report["sessionId"], part="pendingInputs", offset=more["nextOffset"])
            entries += page.get("pendingInputs") or ()
            truncated = page.get("truncated") or ()
            cut.update(part["part"] for part in truncated)
            more = next((part for part in truncated if part["part"] == "pendingInputs"), None)
        return entries

    def question(self, name: str) -> OpenQuestion:
        """The one open question with this beginning of its id, or of the one session of this name that asks just one.
        SessionNotFound if there is none or several."""
        questions = self.questions()
        wanted = name.lower().removeprefix("q-")
        found = [question for question in questions if wanted and question.id.removeprefix("q-").startswith(wanted)]
        if not found:
            named = {session["sessionId"] for session in _named([question.session for question in questions], name)}
            found = [question for question in questions if question.session["sessionId"] in named]
        if len(found) != 1:
            problem = "No open question has" if not found else f"{len(found)} open questions have"
            raise SessionNotFound(
                f"{problem} the id or the session {name!r}; `claude-code-mcp questions` shows what is asked."
            )
        return found[0]

    def answer(self, question: OpenQuestion, decision: Mapping[str, Any]) -> Report:
        """Gives the arguments of `claude_respond` to a question; CallFailed if it is no longer open."""
        identity = {"sessionId": question.session["sessionId"], "inputId": question.id}
        return self._client.call("claude_respond", **identity, **decision)

    # -- one session ------------------------------------------------------------------------------------------

    def status(self, session_id: str, **arguments: Any) -> Report:
        return self._client.call("claude_get_status", sessionId=session_id, **arguments)

    def part(self, session_id: str, part: str) -> str:
        """All of a part that a report has cut."""
        text, offset = "", 0
        while True:
            page = self.status(session_id, part=part, offset=offset)["part"]
            text += str(page["text"])
            if "nextOffset" not in page:
                return text
            offset = page["nextOffset"]

    def result(self, report: Report) -> str:
        """The final text of a report, whole."""
        if any(part["part"] == "result" for part in report.get("truncated") or ()):
            return self.part(report["sessionId"], "result")
        return str(report.get("result") or "")

    def lines(self, report: Report) -> list[str]:
        """The lines of output of a report, each whole as long as the server keeps it."""
        lines: list[str] = list(report.get("recentOutput") or ())
        for cut in report.get("truncated") or ():
            mark = f'; part "{cut["part"]}" has all]]'
            for number, line in enumerate(lines):
                if cut["part"].startswith("output:") and line.endswith(mark):
                    lines[number] = self.part(report["sessionId"], cut["part"])
        return lines

    def follow(self, session_id: str, cursor: str | None = None, lines: int = 0) -> Iterator[Report]:
        """A report now, with all output behind the cursor or the last `lines`, and one after every change, without
        end."""
        known = {"cursor": cursor} if cursor is not None else {"outputLines": lines}
        report = self.status(session_id, **known)
        while True:
            yield report
            wait = {} if report.get("hasMore") else {"waitSeconds": _WAIT, "anyChange": True}
            report = self.status(report["sessionId"], cursor=report["nextCursor"], **wait)

    def settled(self, session_id: str, question_id: str, cursor: str | None) -> str:
        """How a question was closed that was open at that cursor: who answered it, and what; empty if that is not
        known."""
        while True:
            page = self._read(f"claude-session:///{session_id}/events", cursor=cursor)
            for event in page["events"]:
                if event.get("inputId") == question_id and event["type"] != "question":
                    return _closure(event)
            if not page.get("hasMore"):
                return ""
            cursor = page["nextCursor"]

    def feed(self, session_id: str, cursor: str | None = None, wait: int = 0) -> Report:
        """What happened behind a cursor, or since the last turn began: whole messages and what is being written. Waits
        so many seconds for something."""
        return self._read(f"claude-session:///{session_id}/events", full=1, wait=wait, cursor=cursor)

    def items(self, session_id: str, before: str | None = None) -> Report:
        """A page of what was said and done, from the end backwards; none of a session that has said nothing yet."""
        return self._read(f"claude-session:///{session_id}/turns", before=before)

    def subscribe(self, uri: str) -> None:
        """Has the client notified when this resource changes."""
        self._client.request("resources/subscribe", uri=uri)

    def unsubscribe(self, uri: str) -> None:
        self._client.request("resources/unsubscribe", uri=uri)

    def costs(self, by: str) -> Report:
        return self._read("claude-sessions:///costs", by=by)

    def _read(self, address: str, **query: object) -> Report:
        """A resource of ours that is JSON."""
        wanted = urlencode({name: value for name, value in query.items() if value is not None})
        read = self._client.request("resources/read", uri=f"{address}?{wanted}" if wanted else address)
        content: Report = json.loads(read["contents"][0]["text"])
        return content

    # -- looking after sessions and servers -------------------------------------------------------------------

    def manage(self, session_id: str, action: str, **more: Any) -> Report:
        return self._client.call("claude_manage_session", sessionId=session_id, action=action, **more)

    def servers(self, action: str = "list", server: str | None = None) -> Report:
        """The MCP servers of the hub."""
        named = {"server": server} if server is not None else {}
        return self._client.call("claude_mcp_servers", action=action, **named)

    def takes(self, tool: str, argument: str) -> bool:
        """Whether the server's tool has this argument."""
        tools = self._client.request("tools/list")["tools"]
        schemas = (entry.get("inputSchema") or {} for entry in tools if entry["name"] == tool)
        return any(argument in (schema.get("properties") or {}) for schema in schemas)

    def create(self, prompt: str, **options: Any) -> Report:
        return self._client.call("claude_create_session", prompt=prompt, **options)

    def send(self, session_id: str, message: str) -> Report:
        return self._client.call("claude_send_message", sessionId=session_id, message=message)

    def interrupt(self, session_id: str) -> Report:
        return self._client.call("claude_interrupt", sessionId=session_id)

    def cancel(self, session_id: str) -> Report:
        return self._client.call("claude_code_session", action="cancel", sessionId=session_id)

    def transcript(self, session_id: str, *, full: bool = False, cursor: str = "1") -> Iterator[Report]:
        """The pages of a conversation from that turn on."""
        following: str | None = cursor
        while following is not None:
            page = self._client.call("claude_read_session", sessionId=session_id, cursor=following, full=full)
            yield page
            following = page.get("nextCursor")


def _closure(event: Mapping[str, Any]) -> str:
    """How a question was closed, for people."""
    verdict = {"allow": "allowed", "deny": "denied"}.get(str(event.get("decision")), str(event["type"]))
    client = f" ({event['client']})" if event.get("client") else ""
    return visible(f"{verdict} by {event.get('by') or 'nobody'}{client}")


def _named(sessions: list[Any], name: str) -> list[Any]:
    """Those whose id begins with the name; if there are none, those with that title."""
    by_id = [session for session in sessions if session["sessionId"].startswith(name.lower())]
    title = " ".join(name.lower().split())
    return by_id or [
        session for session in sessions if " ".join(session.get("displayText", "").lower().split()) == title
    ]


def _open_question(entry: Mapping[str, Any], tool_input: Mapping[str, Any], session: Mapping[str, Any]) -> OpenQuestion:
    question = Question(
        id=entry["inputId"],
        session_id=session["sessionId"],
        kind=kind_of(entry["toolName"]),
        tool_name=entry["toolName"],
        tool_input=tool_input,
        description=entry["description"],
        reason=entry.get("reason"),
        blocked_path=entry.get("blockedPath"),
        modes=tuple(entry.get("modes") or ()),
        session_rules=tuple(entry.get("sessionRules") or ()),
    )
    return OpenQuestion(question, session, bool(entry.get("canAllowForSession")), entry.get("expiresAt"))
