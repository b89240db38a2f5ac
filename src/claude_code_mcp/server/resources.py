"""Sessions as resources: `claude-sessions:///` is the list of them, `claude-session:///{id}` one of them.

    claude-sessions:///{?offset,text}                             the list, newest first
    claude-sessions:///costs{?by,since}                           what they cost
    claude-session:///{id}{?part,offset}                          status and result, as `claude_get_status` has them
    claude-session:///{id}/transcript{?cursor,full,thinking,agent}    the conversation, in pages
    claude-session:///{id}/turns{?before,agent}                   the same as JSON items, from the end backwards
    claude-session:///{id}/events{?cursor,full,wait}              what happened, from a cursor on
    claude-session:///{id}/questions{?offset}                     what waits for an answer

Every one of them is the caller's view: what is somebody else's is as unknown as what does not exist. Long ones are read
in pages: the content names the cursor or offset of the next page. Secrets are taken out.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ..errors import ClaudeCodeError, InvalidArgument, SessionNotFound
from ..model.caller import Caller
from ..model.options import is_session_id
from ..model.text import clip_line, iso, visible
from ..service import Service
from ..sessions.session import SessionView
from ..store.cost_table import Grouping
from ..store.transcript_export import Detail
from .session_feed import ITEMS, event_page, feed_page, item_rows
from .tools import base
from .tools.base import ResultParts, dump, read_part
from .tools.library import cost_report
from .tools.sessions import session_list
from .tools.status import pending_inputs, report

View = Literal["status", "transcript", "turns", "events", "questions", "list", "costs"]
LIST = "claude-sessions:///"
_SESSION = "claude-session:///"
_COSTS = f"{LIST}costs"
_ADDRESS = re.compile(r"claude-session:///([^/?#]{36})(?:/(transcript|turns|events|questions))?", re.ASCII)
_QUERY: Mapping[View, frozenset[str]] = {
    "status": frozenset({"part", "offset"}),
    "transcript": frozenset({"cursor", "full", "thinking", "agent"}),
    "turns": frozenset({"before", "agent"}),
    "events": frozenset({"cursor", "full", "wait"}),
    "questions": frozenset({"offset"}),
    "list": frozenset({"offset", "text"}),
    "costs": frozenset({"by", "since"}),
}
_LONGEST_ADDRESS = 4096
_PAGE = 24_000
"""Characters of a page of a transcript."""
_NEWEST = 20
_LONGEST_TITLE = 100
_MOST_LISTED = 50
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_JSON, _MARKDOWN = "application/json", "text/markdown"
_TEMPLATES = (
    ("claude-session", f"{_SESSION}{{id}}{{?part,offset}}", "A session's status, result and cost", _JSON),
    (
        "claude-session-transcript",
        f"{_SESSION}{{id}}/transcript{{?cursor,full,thinking,agent}}",
        "What was said and done in a session, in pages; cursor -1 is the last turn",
        _MARKDOWN,
    ),
    (
        "claude-session-turns",
        f"{_SESSION}{{id}}/turns{{?before,agent}}",
        "The conversation as JSON, from its end backwards; with agent, that of a subagent",
        _JSON,
    ),
    (
        "claude-session-events",
        f"{_SESSION}{{id}}/events{{?cursor,full,wait}}",
        "What happened in a session; with full, whole messages since the last turn began; wait: seconds",
        _JSON,
    ),
    (
        "claude-session-questions",
        f"{_SESSION}{{id}}/questions{{?offset}}",
        "What a session waits to be answered",
        _JSON,
    ),
    ("claude-sessions", f"{LIST}{{?offset,text}}", "Sessions on this machine, newest first", _JSON),
    ("claude-session-costs", f"{_COSTS}{{?by,since}}", "Costs by day, project, model or session", _JSON),
)


@dataclass(frozen=True, slots=True)
class ResourceAddress:
    """What a URI of ours means."""

    view: View
    session_id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        """The address of the whole, without a page."""
        if self.view in ("list", "costs"):
            return LIST if self.view == "list" else _COSTS
        return f"{_SESSION}{self.session_id}" + ("" if self.view == "status" else f"/{self.view}")

    def page(self, **query: object) -> str:
        """The address of another page."""
        return f"{self.uri}?{urlencode({**self.query, **query})}"


def is_own(uri: str) -> bool:
    """Whether an address, or the template of one, is of this server itself and of no server of the hub."""
    return uri.startswith((_SESSION, LIST)) or uri == base.URI


def parse(uri: str) -> ResourceAddress | None:
    """The meaning of an address; None if it has none."""
    plain, _, rest = uri.partition("?")
    found = _ADDRESS.fullmatch(plain)
    view: View
    if plain in (LIST, _COSTS):
        view, session_id = ("list" if plain == LIST else "costs"), ""
    elif found is not None and is_session_id(found[1]):
        view, session_id = found[2] or "status", found[1].lower()  # type: ignore[assignment]  # the pattern has these
    else:
        return None
    try:
        if len(uri) > _LONGEST_ADDRESS:
            return None
        query = dict(parse_qsl(rest, strict_parsing=bool(rest), keep_blank_values=True, max_num_fields=10))
    except ValueError:
        return None
    return ResourceAddress(view, session_id, query) if query.keys() <= _QUERY[view] else None


def unknown(uri: str) -> MCPError:
    """The error for an address that means nothing to this caller."""
    return MCPError(types.INVALID_PARAMS, f"Unknown resource: {uri[:200]}", {"uri": uri[:200]})


class SessionResources:
    """Lists and reads. Everything raises MCPError."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def listing(self, caller: Caller) -> list[types.Resource]:
        """The list, the costs, the sessions that run and the newest of the others."""
        in_memory = self._service.sessions(principal=caller.principal)
        live = [session for session in in_memory if session.live][:_MOST_LISTED]
        newest = await self._service.catalogue(caller=caller, limit=_NEWEST)
        known = {entry.session_id for entry in newest}
        fixed = [
            _resource(LIST, "Claude Code sessions", "Sessions on this machine, newest first"),
            _resource(_COSTS, "Claude Code costs", "What the sessions on this machine have cost, by day"),
        ]
        redact = self._service.redaction.text
        running = [
            _of_session(session.id, redact(session.first_prompt or ""), session.cwd, session.used_at)
            for session in live
            if session.id not in known
        ]
        others = [
            _of_session(
                entry.session_id,
                redact(entry.title or entry.first_prompt or ""),
                redact(entry.project),
                entry.last_used,
            )
            for entry in newest
        ]
        return [*fixed, *running, *others]

    def templates(self) -> list[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(name=name, uri_template=uri, description=description, mime_type=mime_type)
            for name, uri, description, mime_type in _TEMPLATES
        ]

    async def check(self, uri: str, caller: Caller) -> ResourceAddress:
        """The address of something that can be followed; the error for an unknown one if there is no such thing."""
        address = parse(uri)
        if address is None or address.query:
            raise unknown(uri)
        if address.session_id:
            try:
                await self._service.find(address.session_id, caller=caller)
            except ClaudeCodeError as error:
                raise self._refusal(error, uri) from None
        return address

    async def read(self, uri: str, caller: Caller) -> types.ReadResourceResult:
        if uri == base.URI:
            return base.contents()
        address = parse(uri)
        if address is None:
            raise unknown(uri)
        try:
            if address.view == "transcript":
                return await self._transcript(uri, address, caller)
            data = await self._data(address, caller)
        except ClaudeCodeError as error:
            raise self._refusal(error, uri) from None
        text = json.dumps(self._service.redaction.data(data), ensure_ascii=False)
        return _contents(uri, text, _JSON)

    def _refusal(self, error: ClaudeCodeError, uri: str) -> MCPError:
        if isinstance(error, SessionNotFound):
            return unknown(uri)
        code = types.INVALID_PARAMS if isinstance(error, InvalidArgument) else types.INTERNAL_ERROR
        return MCPError(code, self._service.redaction.text(error.message), {"code": error.code, "uri": uri[:200]})

    # -- views --------------------------------------------------------------------------------------------------

    async def _transcript(self, uri: str, address: ResourceAddress, caller: Caller) -> types.ReadResourceResult:
        query = address.query
        page = await self._service.stored.read(
            address.session_id,
            caller=caller,
            cursor=query.get("cursor", "1"),
            size=_PAGE,
            detail=Detail(full=_is_on(query, "full"), thinking=_is_on(query, "thinking")),
            agent=query.get("agent"),
        )
        if page.next_cursor is None:
            return _contents(uri, page.text, _MARKDOWN, turns=page.turns)
        following = address.page(cursor=page.next_cursor)
        text = f"{page.text}\n\n[more: {following}]"
        return _contents(uri, text, _MARKDOWN, turns=page.turns, nextCursor=page.next_cursor, next=following)

    async def _data(self, address: ResourceAddress, caller: Caller) -> dict[str, Any]:
        query = address.query
        if address.view == "list":
            offset, text = _number(query), query.get("text") or None
            return dump(await session_list(self._service, caller, offset=offset, text=text))
        if address.view == "costs":
            return dump(await cost_report(self._service, caller, _grouping(query), since=_day(query)))
        if address.view == "turns":
            found = await self._service.stored.page_before(
                address.session_id, query.get("before"), ITEMS, caller=caller, agent=query.get("agent")
            )
            return {"sessionId": address.session_id, "items": item_rows(found.page), "previous": found.page.previous}
        session = await self._service.find(address.session_id, caller=caller)
        if address.view == "events":
            return await self._events(session, query)
        if address.view == "questions":
            parts = ResultParts(self._service.redaction)
            asked = [self._service.access.as_asked_of(each, caller.principal) for each in session.questions]
            inputs = [dump(entry) for entry in pending_inputs(asked, parts, _number(query))]
            return {"sessionId": session.id, "pendingInputs": inputs, "truncated": parts.truncated or []}
        return self._status(session, address, caller)

    async def _events(self, session: SessionView, query: Mapping[str, str]) -> dict[str, Any]:
        cursor = query.get("cursor")
        if not _is_on(query, "full"):
            return event_page(session, cursor)
        return await feed_page(session, cursor, _number(query, "wait"), self._service.redaction)

    def _status(self, session: SessionView, address: ResourceAddress, caller: Caller) -> dict[str, Any]:
        redactor = self._service.redaction
        if "part" in address.query:
            page = read_part(session, address.query["part"], _number(address.query), redactor)
            return {"sessionId": session.id, "part": page}
        sharing = self._service.access.sharing(session.id, caller.principal)
        entry = dump(report(session, redactor, lines=0, asked_as=address.session_id, sharing=sharing))
        entry.pop("recentOutput", None)
        return {**entry, "workingDirectory": session.cwd, "live": session.live}


# -- parts --------------------------------------------------------------------------------------------------------


def _contents(uri: str, text: str, mime_type: str, **meta: Any) -> types.ReadResourceResult:
    content = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text, _meta=meta or None)
    return types.ReadResourceResult(contents=[content])


def _resource(uri: str, name: str, description: str) -> types.Resource:
    return types.Resource(uri=uri, name=name, description=description, mime_type=_JSON)


def _of_session(session_id: str, title: str, project: str, used_at: float) -> types.Resource:
    name = clip_line(visible(title), _LONGEST_TITLE) or session_id
    return types.Resource(
        uri=ResourceAddress("status", session_id).uri,
        name=name,
        description=project,
        mime_type=_JSON,
        annotations=types.Annotations(last_modified=iso(used_at)),
    )


def _is_on(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("1", "true")


def _number(query: Mapping[str, str], name: str = "offset") -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 13):
        raise InvalidArgument(f"{name}: must be a number.", field=name)
    return int(text)


def _grouping(query: Mapping[str, str]) -> Grouping:
    wanted = query.get("by", "day")
    if wanted not in get_args(Grouping):
        raise InvalidArgument("by: must be session, project, model or day.", field="by")
    return wanted  # type: ignore[return-value]  # one of these


def _day(query: Mapping[str, str]) -> str:
    wanted = query.get("since", "")
    if wanted and _DAY.fullmatch(wanted) is None:
        raise InvalidArgument("since: must be a day such as 2026-11-01.", field="since")
    return wanted
