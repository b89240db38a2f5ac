"""Sessions as resources: `claude-sessions:///` is the list, `claude-session:///{id}` is one session.

Every resource is the caller's view: for another caller's session the error is the same as for a missing one. Long
resources are read in pages: the content names the cursor or offset of the next page. Secrets are removed.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast, get_args

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ..core.errors import ClaudeCodeError, InvalidArgument, SessionNotFound
from ..core.model.caller import Caller
from ..core.model.text import clip_line, iso, visible
from ..core.service import Service
from ..core.transcripts.conversation_pages import ConversationPage, Extent
from ..core.transcripts.cost_table import Grouping
from ..core.transcripts.transcript_export import Detail
from . import app_page
from .event_pages import event_page, feed_page
from .resource_addresses import COSTS, JSON_TYPE, LIST, MARKDOWN_TYPE, TEMPLATES, ResourceAddress, parse, unknown
from .tools.cost_report import cost_report
from .tools.list_sessions import session_list
from .tools.output import dump
from .tools.paging import ResultParts, read_part
from .tools.session_report import pending_inputs, report

_PAGE = 24_000
"""Maximum characters of a page of a transcript."""
_TURNS_PAGE = Extent(200_000)
"""The size of a page of a conversation."""
_TOOL_FIELDS = ("name", "input", "status", "result", "diff", "agent")
_NEWEST = 20
_MAX_TITLE = 100
_MAX_LISTED = 50
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class SessionResources:
    """Lists and reads the resources. All methods raise MCPError."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def listing(self, caller: Caller) -> list[types.Resource]:
        """The list, the costs, the running sessions and the newest other sessions."""
        in_memory = self._service.sessions(principal=caller.principal)
        live = [session for session in in_memory if session.live][:_MAX_LISTED]
        newest = await self._service.stored.entries(caller=caller, limit=_NEWEST)
        known = {entry.session_id for entry in newest}
        fixed = [
            _resource(LIST, "Claude Code sessions", "Sessions on this machine, newest first"),
            _resource(COSTS, "Claude Code costs", "What the sessions on this machine have cost, by day"),
        ]
        redact = self._service.redaction.text
        running = [
            _of_session(session.id, redact(session.first_prompt or ""), session.shown_directory, session.used_at)
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
            for name, uri, description, mime_type in TEMPLATES
        ]

    async def check(self, uri: str, caller: Caller) -> ResourceAddress:
        """Parse the URI of a resource to follow. Raises the error for an unknown resource if it does not exist."""
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
        if uri == app_page.URI:
            return app_page.contents()
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
        return _contents(uri, text, JSON_TYPE)

    def _refusal(self, error: ClaudeCodeError, uri: str) -> MCPError:
        if isinstance(error, SessionNotFound):
            return unknown(uri)
        code = types.INVALID_PARAMS if isinstance(error, InvalidArgument) else types.INTERNAL_ERROR
        return MCPError(code, self._service.redaction.text(error.message), {"code": error.code, "uri": uri[:200]})

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
            return _contents(uri, page.text, MARKDOWN_TYPE, turns=page.turns)
        following = address.page(cursor=page.next_cursor)
        text = f"{page.text}\n\n[more: {following}]"
        return _contents(uri, text, MARKDOWN_TYPE, turns=page.turns, nextCursor=page.next_cursor, next=following)

    async def _data(self, address: ResourceAddress, caller: Caller) -> dict[str, Any]:
        """Any view except the transcript, as JSON."""
        service, query, redactor = self._service, address.query, self._service.redaction
        if address.view == "list":
            text = query.get("text") or None
            return dump(await session_list(service, caller, offset=_number(query), text=text))
        if address.view == "costs":
            by, since = query.get("by", "day"), query.get("since", "")
            if by not in get_args(Grouping):
                raise InvalidArgument("by: must be session, project, model or day.", field="by")
            if since and _DAY.fullmatch(since) is None:
                raise InvalidArgument("since: must be a day such as 2026-11-01.", field="since")
            return dump(await cost_report(service, caller, cast("Grouping", by), since=since))
        if address.view == "turns":
            found = await service.stored.page_before(
                address.session_id, query.get("before"), _TURNS_PAGE, caller=caller, agent=query.get("agent")
            )
            return {"sessionId": address.session_id, "items": _item_rows(found.page), "previous": found.page.previous}
        session = await service.find(address.session_id, caller=caller)
        if address.view == "events":
            cursor, lines = query.get("cursor"), _is_on(query, "lines")
            if not lines and not _is_on(query, "full"):
                return event_page(session, cursor)
            return await feed_page(session, cursor, _number(query, "wait"), redactor, lines=lines)
        if address.view == "questions":
            parts = ResultParts(redactor)
            asked = [service.access.question_for(each, caller.principal) for each in session.questions]
            inputs = [dump(entry) for entry in pending_inputs(asked, parts, _number(query))]
            return {"sessionId": session.id, "pendingInputs": inputs, "truncated": parts.truncated or []}
        if "part" in query:
            return {"sessionId": session.id, "part": read_part(session, query["part"], _number(query), redactor)}
        sharing = service.access.sharing(session.id, caller.principal)
        entry = dump(report(session, redactor, lines=0, asked_as=address.session_id, sharing=sharing))
        entry.pop("recentOutput", None)
        return {**entry, "workingDirectory": session.shown_directory, "live": session.live}


def _contents(uri: str, text: str, mime_type: str, **meta: Any) -> types.ReadResourceResult:
    content = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text, _meta=meta or None)
    return types.ReadResourceResult(contents=[content])


def _resource(uri: str, name: str, description: str) -> types.Resource:
    return types.Resource(uri=uri, name=name, description=description, mime_type=JSON_TYPE)


def _of_session(session_id: str, title: str, project: str, used_at: float) -> types.Resource:
    name = clip_line(visible(title), _MAX_TITLE) or session_id
    return types.Resource(
        uri=ResourceAddress("status", session_id).uri,
        name=name,
        description=project,
        mime_type=JSON_TYPE,
        annotations=types.Annotations(last_modified=iso(used_at)),
    )


def _is_on(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "") in ("1", "true")


def _number(query: Mapping[str, str], name: str = "offset") -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 13):
        raise InvalidArgument(f"{name}: must be a number.", field=name)
    return int(text)


def _item_rows(page: ConversationPage) -> list[dict[str, Any]]:
    """The items on a page of a conversation, oldest first, each with the id that messages also use."""
    rows: list[dict[str, Any]] = []
    for number, turn in ((part.number, part.turn) for part in page.parts):
        if turn.prompt is not None:
            message_id = turn.message_id or ""
            rows.append({"kind": "prompt", "turn": number, "id": message_id, "at": turn.at, "text": turn.prompt})
        for item in turn.items:
            if item.kind == "tool":
                item_id = item.id
                fields = {name: value for name in _TOOL_FIELDS if (value := getattr(item, name))}
            else:
                # The id of its line, which the CLI uses while it happens.
                item_id, fields = item.id.partition(":")[0], {"text": item.text}
            rows.append({"kind": item.kind, "turn": number, "id": item_id, **fields})
    return rows
