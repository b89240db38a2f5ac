"""What a person does with sessions: find them by a part of the id or by title, watch, message and end them.

All of it through the tools that every client has. `LiveSessions` is for any thread; a method returns when the server
has answered.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InvalidArgument, SessionNotFound
from ..shared.client import McpClient, NotRunning
from .resource_reader import Report, ResourceReader

_WAIT = 50.0
"""Seconds that one call may wait; the loop around it has no end."""
_MOST = 500
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BUSY = frozenset({"running", "waiting_for_input"})


def is_busy(report: Mapping[str, Any]) -> bool:
    """Whether a turn runs or waits for an answer."""
    return report.get("status") in _BUSY


class LiveSessions:
    """The sessions of one server."""

    def __init__(self, client: McpClient) -> None:
        self._client = client
        self._schemas: dict[str, Mapping[str, Any]] = {}
        """The arguments of the server's tools, once they were asked for."""
        self._unanswered: dict[tuple[str, str], str] = {}
        """The keys of messages that may have been accepted or not, by session and text."""
        self.resources = ResourceReader(client)

    # -- finding ----------------------------------------------------------------------------------------------

    def live(self) -> list[dict[str, Any]]:
        """Every session that the server has in memory: those that ask first, then those at work, then the newest."""
        sessions: list[dict[str, Any]] = self._client.call("claude_list_sessions", active=True, limit=_MOST)["sessions"]
        order = {"waiting_for_input": 0, "running": 1}
        return sorted(sessions, key=lambda session: order.get(session.get("activeStatus", ""), 2))

    def stored(self, text: str = "", limit: int = 50, *, whole: bool = False) -> list[dict[str, Any]]:
        """The newest sessions, on disk or in memory, or those with a text in title, prompts or path; with `whole`,
        anywhere in the conversation."""
        wanted = {"text": text, **({"whole": True} if whole else {})} if text else {}
        listed: list[dict[str, Any]] = self._client.call("claude_list_sessions", limit=limit, **wanted)["sessions"]
        return listed

    def find(self, name: str) -> str:
        """The id of the one session with this beginning of an id or this title, in memory or on disk.
        SessionNotFound if there is none or several."""
        if _ID.fullmatch(name.lower()):
            return name.lower()
        if not name.strip():
            raise InvalidArgument("The session needs a name: an id, the beginning of one, or a title.")
        # Those in memory first: with many sessions on disk a beginning that is unique among the running ones should do.
        for listed in (self.live, lambda: self._mentioning(name)):
            found = named(listed(), name)
            if len(found) > 1:
                names = ", ".join(session["sessionId"][:8] for session in found[:5])
                raise SessionNotFound(f"{name!r} is ambiguous ({len(found)} matches: {names}): use a longer prefix.")
            if found:
                return str(found[0]["sessionId"])
        raise SessionNotFound(f"No session has an id that begins with {name!r}, or this title.")

    def _mentioning(self, text: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self._client.call("claude_list_sessions", text=text, limit=_MOST)["sessions"]
        return listed

    # -- one session ------------------------------------------------------------------------------------------

    def status(self, session_id: str, **arguments: Any) -> Report:
        return self._client.call("claude_get_status", sessionId=session_id, **arguments)

    def part(self, session_id: str, part: str) -> str:
        """The whole text of a part that a report has cut, read in pages."""
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
            # With more at hand there is nothing to wait for, and waiting would hold it back.
            wait = {} if report.get("hasMore") else {"waitSeconds": _WAIT, "anyChange": True}
            # The id of the report: a session that was cleared meanwhile goes on under another one.
            report = self.status(report["sessionId"], cursor=report["nextCursor"], **wait)

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

    def has_bypass(self) -> bool:
        """Whether the permission mode bypassPermissions may be used; CallFailed if the server has no such switch."""
        return bool(self.switch_bypass(None).get("allowBypass"))

    def switch_bypass(self, on: bool | None) -> Report:
        """Switches it on or off; None only reports which it is."""
        action = "get_config" if on is None else "enable_bypass" if on else "disable_bypass"
        return self._client.call("claude_code_configure", action=action)

    def create(self, prompt: str, **options: Any) -> Report:
        return self._once("", prompt, "claude_create_session", prompt=prompt, **options)

    def send(self, session_id: str, message: str) -> Report:
        return self._once(session_id, message, "claude_send_message", sessionId=session_id, message=message)

    def _once(self, session_id: str, message: str, tool: str, /, **arguments: Any) -> Report:
        """Sends a message with a key of its own. One whose answer was lost keeps the key, so that the same text, sent
        again by whoever could not know, counts once."""
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
        """The pages of a conversation from that turn on."""
        following: str | None = cursor
        while following is not None:
            page = self._client.call("claude_read_session", sessionId=session_id, cursor=following, full=full)
            yield page
            following = page.get("nextCursor")


def named(sessions: list[Any], name: str) -> list[Any]:
    """The sessions whose id begins with the name; if there are none, those with that title."""
    by_id = [session for session in sessions if session["sessionId"].startswith(name.lower())]
    title = " ".join(name.lower().split())
    return by_id or [
        session for session in sessions if " ".join(session.get("displayText", "").lower().split()) == title
    ]
