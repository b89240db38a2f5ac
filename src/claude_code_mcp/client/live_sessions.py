"""Operations on sessions and their questions for people, through the tools and resources that every client has.

Sessions are found by a part of the id or by title, watched, messaged and ended. A question is always complete here:
input that a report has truncated is read in pages before the question is shown.

Everything is thread-safe; a method returns when the server has answered.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ..core.errors import InvalidArgument, SessionNotFound
from ..core.model.question import FileChange, Question, kind_of
from ..core.model.session_id import is_session_id
from ..core.model.states import BUSY_STATUSES
from ..core.model.text import clip_line, visible
from ..core.questions.kinds import Reaction, kind_class
from ..core.sessions.stored.session_row import SessionRow
from .connections import CallFailed, McpClient, NotRunning

Report = dict[str, Any]
"""The server's report on a session, as JSON."""


class ResourceReader:
    """The resources of one server. Thread-safe, like its client."""

    def __init__(self, client: McpClient) -> None:
        self._client = client

    def feed(self, session_id: str, cursor: str | None = None, wait: int = 0) -> Report:
        """The events after a cursor, or since the last turn began: whole messages and unfinished text. Waits up to
        `wait` seconds for an event."""
        return self.read(f"claude-session:///{session_id}/events", full=1, wait=wait, cursor=cursor)

    def printed_feed(self, session_id: str, cursor: str | None = None, wait: int = 0) -> Report:
        """The same with lines of output instead of messages, and with the unfinished line."""
        return self.read(f"claude-session:///{session_id}/events", lines=1, wait=wait, cursor=cursor)

    def items(self, session_id: str, before: str | None = None, agent: str | None = None) -> Report:
        """A page of the conversation of a session or its subagent, from the end backwards; empty for a session without
        messages."""
        return self.read(f"claude-session:///{session_id}/turns", before=before, agent=agent)

    def subscribe(self, uri: str) -> None:
        """Subscribe the client to changes of this resource."""
        self._client.request("resources/subscribe", uri=uri)

    def unsubscribe(self, uri: str) -> None:
        self._client.request("resources/unsubscribe", uri=uri)

    def costs(self, by: str) -> Report:
        return self.read("claude-sessions:///costs", by=by)

    def read(self, address: str, **query: object) -> Report:
        """Read one of our JSON resources."""
        wanted = urlencode({name: value for name, value in query.items() if value is not None})
        read = self._client.request("resources/read", uri=f"{address}?{wanted}" if wanted else address)
        content: Report = json.loads(read["contents"][0]["text"])
        return content


_WAIT = 50.0
"""Seconds that one call may wait; the loop around it is endless."""
_PACE = 0.05
"""Seconds between two reads of an unfinished line."""
_COUNTERS = frozenset({"costUsd", "inputTokens", "outputTokens", "stalledSeconds", "planUsage", "turnStarted"})
"""Frequently changing fields of a session's summary, which need no new report."""
_OUTPUT = frozenset({"output", "writing"})
"""Events that do not change a session's state."""
_MAX_LISTED = 500
_MAX_MACHINE = 60


def machine_name(session: SessionRow) -> str:
    """The machine of a listed session, safe to display; empty without a fleet."""
    return visible(clip_line(session.machine_text, _MAX_MACHINE))


def is_busy(report: Mapping[str, Any]) -> bool:
    """Whether a turn runs or waits for an answer."""
    return report.get("status") in BUSY_STATUSES


def losses(report: Mapping[str, Any]) -> list[str]:
    """The losses of a session that this call continues on another machine, one sentence each; otherwise empty."""
    return [str(each) for each in report.get("notices") or ()]


class LiveSessions:
    """The sessions of one server."""

    def __init__(self, client: McpClient) -> None:
        self._client = client
        self._schemas: dict[str, Mapping[str, Any]] = {}
        """The arguments of the server's tools, once requested."""
        self._unanswered: dict[tuple[str, str], str] = {}
        """The keys of messages whose acceptance is unknown, by session and text."""
        self.resources = ResourceReader(client)

    # -- finding ----------------------------------------------------------------------------------------------

    def live(self) -> list[SessionRow]:
        """Every session in the server's memory or waiting for a usage limit: first those with questions, then the
        working ones, then the newest."""
        order = {"waiting_for_input": 0, "running": 1}
        return sorted(self._list(active=True, limit=_MAX_LISTED), key=lambda row: order.get(row.active_status or "", 2))

    def stored(self, text: str = "", limit: int = 50, *, whole: bool = False) -> list[SessionRow]:
        """The newest sessions, on disk or in memory, or those with a text in title, prompts or path; with `whole`,
        anywhere in the conversation."""
        wanted = {"text": text, **({"whole": True} if whole else {})} if text else {}
        return self._list(limit=limit, **wanted)

    def _list(self, **wanted: Any) -> list[SessionRow]:
        listed = self._client.call("claude_list_sessions", **wanted)["sessions"]
        return [SessionRow.from_json(row) for row in listed]

    def find(self, name: str) -> str:
        """The id of the one session with this beginning of an id or this title, in memory or on disk.
        SessionNotFound if there is none or several."""
        if is_session_id(name):
            return name.lower()
        if not name.strip():
            raise InvalidArgument("Name the session: its id, the start of its id, or its title.")
        # Sessions in memory first: with many sessions on disk, a prefix that is unique among the running ones is
        # enough.
        for listed in (self.live, lambda: self._list(text=name, limit=_MAX_LISTED)):
            found = named(listed(), name)
            if len(found) > 1:
                names = ", ".join(session.session_id[:8] for session in found[:5])
                raise SessionNotFound(f"{name!r} is ambiguous ({len(found)} matches: {names}): use a longer prefix.")
            if found:
                return found[0].session_id
        raise SessionNotFound(f"No session has an id that begins with {name!r}, or this title.")

    # -- one session ------------------------------------------------------------------------------------------

    def status(self, session_id: str, **arguments: Any) -> Report:
        return self._client.call("claude_get_status", sessionId=session_id, **arguments)

    def part(self, session_id: str, part: str) -> str:
        """The whole text of a part that a report has truncated, read in pages."""
        text, offset = "", 0
        while True:
            page = self.status(session_id, part=part, offset=offset)["part"]
            text += str(page["text"])
            if "nextOffset" not in page:
                return text
            offset = page["nextOffset"]

    def result(self, report: Report) -> str:
        """The complete final text of a report."""
        if any(part["part"] == "result" for part in report.get("truncated") or ()):
            return self.part(report["sessionId"], "result")
        return str(report.get("result") or "")

    def lines(self, report: Report) -> list[str]:
        """The lines of output of a report, each complete if the server still has it."""
        lines: list[str] = list(report.get("recentOutput") or ())
        for cut in report.get("truncated") or ():
            mark = f'; part "{cut["part"]}" has all of it]]'
            for number, line in enumerate(lines):
                if cut["part"].startswith("output:") and line.endswith(mark):
                    lines[number] = self.part(report["sessionId"], cut["part"])
        return lines

    def follow(self, session_id: str, cursor: str | None = None, lines: int = 0) -> Iterator[Report]:
        """A report now, with all output after the cursor or the last `lines`, and another after every change,
        endlessly."""
        known = {"cursor": cursor} if cursor is not None else {"outputLines": lines}
        report = self.status(session_id, **known)
        while True:
            yield report
            # If more is available there is nothing to wait for, and waiting would delay it.
            wait = {} if report.get("hasMore") else {"waitSeconds": _WAIT, "anyChange": True}
            # The id in the report: a session that was cleared meanwhile continues under another one.
            report = self.status(report["sessionId"], cursor=report["nextCursor"], **wait)

    def watch(self, session_id: str, cursor: str | None = None, lines: int = 0) -> Iterator[Report]:
        """A report now and another after every change, endlessly, each with the `events` read with it: output, the
        unfinished line, messages. Begins after the cursor, or with the last turn; with `lines`, with the last lines of
        output.

        A report can be newer than its events: `hasMore` says that more events follow.
        """
        if lines:
            report = self.status(session_id, outputLines=lines)
            yield report
            session_id, cursor = report["sessionId"], report["nextCursor"]
        try:
            page = self.resources.printed_feed(session_id, cursor)
        except CallFailed:  # a server of an earlier version
            yield from self.follow(session_id, cursor or "0")
            return
        stood: Mapping[str, Any] | None = None
        while True:
            kinds = {event["type"] for event in page["events"]}
            stands = {name: value for name, value in page["session"].items() if name not in _COUNTERS}
            if stands != stood or kinds - _OUTPUT:
                stood = stands
                report = self.status(page["sessionId"], outputLines=0)
            has_more = page["hasMore"] or is_busy(stands)
            yield {**report, "recentOutput": [], "events": page["events"], "hasMore": has_more}
            if "writing" in kinds:
                time.sleep(_PACE)
            wait = 0 if page["hasMore"] else int(_WAIT)
            page = self.resources.printed_feed(page["sessionId"], page["nextCursor"], wait)

    # -- looking after sessions and servers -------------------------------------------------------------------

    def manage(self, session_id: str, action: str, **more: Any) -> Report:
        return self._client.call("claude_manage_session", sessionId=session_id, action=action, **more)

    def servers(self, action: str = "list", server: str | None = None) -> Report:
        """The MCP servers of the hub."""
        named = {"server": server} if server is not None else {}
        return self._client.call("claude_mcp_servers", action=action, **named)

    def takes(self, tool: str, argument: str) -> bool:
        """Whether the server's tool has this argument."""
        if not self._schemas:
            tools = self._client.request("tools/list")["tools"]
            self._schemas = {entry["name"]: (entry.get("inputSchema") or {}).get("properties") or {} for entry in tools}
        return argument in self._schemas.get(tool, {})

    def is_in_fleet(self) -> bool:
        """Whether sessions run on the machines of a fleet, and can be moved. Determined by a tool that every server
        lists: the tool that moves sessions is listed only on request."""
        return any(self.takes(tool, "machine") for tool in ("claude_create_session", "claude_code"))

    def has_bypass(self) -> bool:
        """Whether the permission mode bypassPermissions may be used; CallFailed if the server has no such switch."""
        return bool(self.switch_bypass(None).get("allowBypass"))

    def switch_bypass(self, on: bool | None) -> Report:
        """Switch it on or off; None only reports the current setting."""
        action = "get_config" if on is None else "enable_bypass" if on else "disable_bypass"
        return self._client.call("claude_code_configure", action=action)

    def create(self, prompt: str, **options: Any) -> Report:
        return self._once("", prompt, "claude_create_session", prompt=prompt, **options)

    def send(self, session_id: str, message: str) -> Report:
        """Send a message. It may make a session of a fleet continue on another machine: see `losses`."""
        return self._once(session_id, message, "claude_send_message", sessionId=session_id, message=message)

    def _once(self, session_id: str, message: str, tool: str, /, **arguments: Any) -> Report:
        """Send a message with a unique key. A message whose answer was lost keeps its key, so that the same text is
        accepted only once if the user sends it again."""
        if not self.takes(tool, "messageKey"):  # a server of an earlier version
            return self._client.call(tool, **arguments)
        key = self._unanswered.pop((session_id, message), None) or str(uuid.uuid4())
        try:
            return self._client.call(tool, **arguments, messageKey=key)
        except NotRunning:
            self._unanswered[session_id, message] = key
            raise

    def respond(self, session_id: str, question_id: str, decision: Mapping[str, Any]) -> Report:
        return self._client.call("claude_respond", sessionId=session_id, inputId=question_id, **decision)

    def interrupt(self, session_id: str) -> Report:
        return self._client.call("claude_interrupt", sessionId=session_id)

    def cancel(self, session_id: str) -> Report:
        return self._client.call("claude_code_session", action="cancel", sessionId=session_id)

    def transcript(self, session_id: str, *, full: bool = False, cursor: str = "1") -> Iterator[Report]:
        """The pages of a conversation, beginning at the turn `cursor`."""
        following: str | None = cursor
        while following is not None:
            page = self._client.call("claude_read_session", sessionId=session_id, cursor=following, full=full)
            yield page
            following = page.get("nextCursor")


def named(sessions: Sequence[SessionRow], name: str) -> list[SessionRow]:
    """The sessions whose id begins with the name; if there are none, those with that title."""
    by_id = [session for session in sessions if session.session_id.startswith(name.lower())]
    title = " ".join(name.lower().split())
    return by_id or [session for session in sessions if " ".join((session.display_text or "").lower().split()) == title]


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question with its complete input, and its possible answers."""

    question: Question
    session: SessionRow
    """The listed session that asks it."""
    for_session: bool
    """Whether an allowance can be given for the rest of the session."""
    expires_at: str | None = None

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def reactions(self) -> frozenset[Reaction]:
        """The answers that it takes."""
        return kind_class(self.question.kind).reactions(self.question, for_session=self.for_session)


class OpenQuestions:
    """The questions of the sessions of one server."""

    def __init__(self, sessions: LiveSessions) -> None:
        self._sessions = sessions

    def all(self) -> list[OpenQuestion]:
        """Every open question of the sessions in memory, with its whole input."""
        asking = [session for session in self._sessions.live() if session.asks]
        return [question for session in asking for question in self.of(session)]

    def of(self, session: SessionRow) -> list[OpenQuestion]:
        """The open questions of one listed session."""
        try:
            report = self._sessions.status(session.session_id, outputLines=0)
            return list(self.within(report, session))
        except CallFailed:
            return []  # it was ended in the meantime

    def within(self, report: Report, session: SessionRow | None = None) -> Iterator[OpenQuestion]:
        """The questions of a report, except those closed before they were completely read."""
        cut = {part["part"] for part in report.get("truncated") or ()}
        for entry in self._pending(report, cut):
            tool_input = entry["toolInput"]
            if entry["inputId"] in cut:
                try:
                    tool_input = json.loads(self._sessions.part(report["sessionId"], entry["inputId"]))
                except CallFailed:
                    continue
            yield _open_question(entry, tool_input, session or SessionRow(session_id=report["sessionId"]))

    def _pending(self, report: Report, cut: set[str]) -> list[dict[str, Any]]:
        """The entries of a report, including those that did not fit into it."""
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
        """The open question whose id begins with `name`, or the only question of the session with this name.
        SessionNotFound if there is none or several."""
        questions = self.all()
        wanted = name.lower().removeprefix("q-")
        found = [question for question in questions if wanted and question.id.removeprefix("q-").startswith(wanted)]
        if not found:
            asking = {session.session_id for session in named([question.session for question in questions], name)}
            found = [question for question in questions if question.session.session_id in asking]
        if len(found) != 1:
            problem = "No open question has" if not found else f"{len(found)} open questions have"
            raise SessionNotFound(
                f"{problem} the id or session {name!r}; `claude-code-mcp questions` lists open questions."
            )
        return found[0]

    def answer(self, question: OpenQuestion, decision: Mapping[str, Any]) -> Report:
        """Answer a question with these arguments of `claude_respond`; CallFailed if it is no longer open."""
        return self._sessions.respond(question.session.session_id, question.id, decision)

    def closure(self, session_id: str, question_id: str, cursor: str | None) -> str:
        """How a question that was open at that cursor was closed: who answered it, and the answer; empty if unknown."""
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
    return visible(f"{verdict} by {event.get('by') or 'no one'}{client}")


def _open_question(entry: Mapping[str, Any], tool_input: Mapping[str, Any], session: SessionRow) -> OpenQuestion:
    diff, note = entry.get("fileDiff") or "", entry.get("fileNote") or ""
    question = Question(
        id=entry["inputId"],
        session_id=session.session_id,
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
