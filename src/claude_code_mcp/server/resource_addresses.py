"""The URIs of sessions as resources.

| URI | content |
| --- | --- |
| claude-sessions:///{?offset,text} | the list, newest first |
| claude-sessions:///costs{?by,since} | their costs |
| claude-session:///{id}{?part,offset} | status and result, as in `claude_get_status` |
| claude-session:///{id}/transcript{?cursor,full,thinking,agent} | the conversation, in pages |
| claude-session:///{id}/turns{?before,agent} | the conversation as JSON items, newest first |
| claude-session:///{id}/events{?cursor,full,lines,wait} | the events after a cursor |
| claude-session:///{id}/questions{?offset} | the open questions |
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ..core.model.session_id import is_session_id
from . import app_page

View = Literal["status", "transcript", "turns", "events", "questions", "list", "costs"]
LIST = "claude-sessions:///"
_SESSION = "claude-session:///"
COSTS = f"{LIST}costs"
_ADDRESS = re.compile(r"claude-session:///([^/?#]{36})(?:/(transcript|turns|events|questions))?", re.ASCII)
_QUERY: Mapping[View, frozenset[str]] = {
    "status": frozenset({"part", "offset"}),
    "transcript": frozenset({"cursor", "full", "thinking", "agent"}),
    "turns": frozenset({"before", "agent"}),
    "events": frozenset({"cursor", "full", "lines", "wait"}),
    "questions": frozenset({"offset"}),
    "list": frozenset({"offset", "text"}),
    "costs": frozenset({"by", "since"}),
}
_MAX_ADDRESS = 4096
JSON_TYPE, MARKDOWN_TYPE = "application/json", "text/markdown"
TEMPLATES = (
    ("claude-session", f"{_SESSION}{{id}}{{?part,offset}}", "A session's status, result and cost", JSON_TYPE),
    (
        "claude-session-transcript",
        f"{_SESSION}{{id}}/transcript{{?cursor,full,thinking,agent}}",
        "The conversation of a session, in pages; cursor -1 is the last turn",
        MARKDOWN_TYPE,
    ),
    (
        "claude-session-turns",
        f"{_SESSION}{{id}}/turns{{?before,agent}}",
        "The conversation as JSON, newest turns first; with agent, a subagent's conversation",
        JSON_TYPE,
    ),
    (
        "claude-session-events",
        f"{_SESSION}{{id}}/events{{?cursor,full,lines,wait}}",
        "The events of a session; full: complete messages since the last turn started; lines: its output, including "
        "the unfinished line; wait: seconds",
        JSON_TYPE,
    ),
    (
        "claude-session-questions",
        f"{_SESSION}{{id}}/questions{{?offset}}",
        "The open questions of a session",
        JSON_TYPE,
    ),
    ("claude-sessions", f"{LIST}{{?offset,text}}", "Sessions on this machine, newest first", JSON_TYPE),
    ("claude-session-costs", f"{COSTS}{{?by,since}}", "Costs by day, project, model or session", JSON_TYPE),
)


@dataclass(frozen=True, slots=True)
class ResourceAddress:
    """A parsed URI of this server."""

    view: View
    session_id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The address without a page."""
        if self.view in ("list", "costs"):
            return LIST if self.view == "list" else COSTS
        return f"{_SESSION}{self.session_id}" + ("" if self.view == "status" else f"/{self.view}")

    def page(self, **query: object) -> str:
        """The address of another page."""
        return f"{self.uri}?{urlencode({**self.query, **query})}"


def is_own(uri: str) -> bool:
    """Whether an address or template belongs to this server itself, not to a hub server."""
    return uri.startswith((_SESSION, LIST)) or uri == app_page.URI


def parse(uri: str) -> ResourceAddress | None:
    """Parse an address; None if it is not valid."""
    plain, _, rest = uri.partition("?")
    found = _ADDRESS.fullmatch(plain)
    view: View
    if plain in (LIST, COSTS):
        view, session_id = ("list" if plain == LIST else "costs"), ""
    elif found is not None and is_session_id(found[1]):
        view, session_id = found[2] or "status", found[1].lower()  # type: ignore[assignment]  # the pattern has these
    else:
        return None
    try:
        if len(uri) > _MAX_ADDRESS:
            return None
        query = dict(parse_qsl(rest, strict_parsing=bool(rest), keep_blank_values=True, max_num_fields=10))
    except ValueError:
        return None
    return ResourceAddress(view, session_id, query) if query.keys() <= _QUERY[view] else None


def unknown(uri: str) -> MCPError:
    """The error for an address that is unknown to this caller."""
    return MCPError(types.INVALID_PARAMS, f"Unknown resource: {uri[:200]}", {"uri": uri[:200]})
