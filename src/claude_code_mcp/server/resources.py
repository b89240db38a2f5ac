"""Sessions as resources: `claude-sessions:///` is the list of them, `claude-session:///{id}` one of them.

    claude-sessions:///{?offset,text}                             the list, newest first
    claude-sessions:///costs{?by,since}                           what they cost
    claude-session:///{id}{?part,offset}                          status and result, as `claude_get_status` has them
    claude-session:///{id}/transcript{?cursor,full,thinking,agent}    the conversation, in pages
    claude-session:///{id}/turns{?before,agent}                   the same as JSON items, from the end backwards
    claude-session:///{id}/events{?cursor,full,lines,wait}        what happened, from a cursor on
    claude-session:///{id}/questions{?offset}                     what waits for an answer

Every one of them is the caller's view: what is somebody else's is as unknown as what does not exist. Long ones are read
in pages: the content names the cursor or offset of the next page. Secrets are taken out.

What happens is told in short, or whole for programs that draw it. A page of everything, with what is being written,
begins behind a cursor, or with the last turn, and may be waited for. Whoever asks again when it has drawn a page gets
all that came meanwhile in one: the log merges fragments, so that a slow reader costs neither side memory. With `lines`
such a page has the lines of output instead of whole messages, for programs that print them.
"""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ..core.errors import ClaudeCodeError, InvalidArgument, SessionNotFound
from ..core.model.events import (
    BudgetWarned,
    Event,
    Gap,
    Message,
    MessageJoined,
    Output,
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
)
from ..core.model.options import Caller, is_session_id
from ..core.model.text import clip_line, cut, iso, visible
from ..core.questions.presentation import Redaction
from ..core.service import Service
from ..core.sessions.session import SessionView
from ..core.transcripts.cost_table import Grouping
from ..core.transcripts.event_log import EventReader
from ..core.transcripts.transcript_export import Detail
from ..core.transcripts.transcript_reader import ConversationPage, Extent
from . import app_page
from .tools.library import cost_report
from .tools.output import dump
from .tools.paging import ResultParts, read_part
from .tools.pending_inputs import pending_inputs
from .tools.session_report import limit_info, report, retrying_line, silent_seconds, status_of
from .tools.sessions import session_list

View = Literal["status", "transcript", "turns", "events", "questions", "list", "costs"]
LIST = "claude-sessions:///"
_SESSION = "claude-session:///"
_COSTS = f"{LIST}costs"
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
        f"{_SESSION}{{id}}/events{{?cursor,full,lines,wait}}",
        "What happened in a session; with full, whole messages since the last turn began, with lines, "
        "its output and the line that is being written; wait: seconds",
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
    return uri.startswith((_SESSION, LIST)) or uri == app_page.URI


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
        lines = _is_on(query, "lines")
        if not lines and not _is_on(query, "full"):
            return event_page(session, cursor)
        return await feed_page(session, cursor, _number(query, "wait"), self._service.redaction, lines=lines)

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


# -- what happens, as JSON --------------------------------------------------------------------------------------------


LONGEST_WAIT = 55.0
_FEED_PAGE = 200_000
"""Characters of a page, roughly."""
ITEMS = Extent(_FEED_PAGE)
"""Of a page of what was before."""
_LONGEST_PROMPT = 100_000
_TOOL_FIELDS = ("name", "input", "status", "result", "diff", "agent")
_SHORT_PAGE = 24_000
_MAX_WRITTEN = 20_000
"""Characters that are shown of a line that is being written: it is sent from its beginning each time."""
_LONGEST_TEXT = 4000
"""Characters of a text in an event in short."""
Shown = tuple[dict[str, Any] | None, int]
"""The fields of an event, None if it is not shown, and the number that a reader has reached with it."""


def event_page(session: SessionView, cursor: str | None) -> dict[str, Any]:
    """What happened behind a cursor in short, or all that is kept, as far as it fits on a page. After a cursor from
    before the session was last loaded all that is kept comes again, and `restarted` says so."""
    start = _position(session, cursor) if cursor else 0
    page = _page(session, start or 0, _SHORT_PAGE, lambda event: (_in_short(event), event.seq))
    return page | ({"restarted": True} if start is None else {})


async def feed_page(
    session: SessionView, cursor: str | None, wait: float, redactor: Redaction, *, lines: bool = False
) -> dict[str, Any]:
    """All that happened behind a cursor, as far as it fits, and how the session stands; without a cursor, since the
    last turn began. If there is nothing, waits for something, at most `wait` seconds. After a cursor of another log it
    starts over, and `restarted` says so. With `lines`, the page has lines of output instead of whole messages, and the
    unfinished line from its beginning instead of fragments."""
    log = session.events
    position = _position(session, cursor) if cursor else None
    known = not cursor or position is not None
    turns = log.latest(TurnStarted, 1)
    start = position if position is not None else turns[0].seq - 1 if turns else log.restored_seq

    def read() -> dict[str, Any]:
        if lines:
            return _line_page(session, start, redactor)
        return _page(session, start, _FEED_PAGE, partial(_whole, log=log, redactor=redactor))

    page = read()
    if wait and not page["events"] and known:
        # Nothing is awaited between the page and the subscription: no event is missed.
        with contextlib.suppress(TimeoutError), session.events.subscribe() as happening:
            async with asyncio.timeout(min(wait, LONGEST_WAIT)):
                async for event in happening:
                    if lines or not isinstance(event, Output):
                        page = read()
                        if page["events"]:
                            break
    return page | {"session": _summary(session)} | ({} if known else {"restarted": True})


def _position(session: SessionView, cursor: str) -> int | None:
    """The event that a cursor names; None if it is of another log."""
    try:
        return session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier page.", field="cursor") from None


def _page(session: SessionView, start: int, most: int, show: Callable[[Event], Shown]) -> dict[str, Any]:
    """The events behind `start`, with at most so many characters, but at least one if any is shown."""
    shown: list[dict[str, Any]] = []
    left, reached, more = most, start, False
    for event in session.events.after(start):
        fields, end = show(event)
        if fields is not None:
            entry = {"seq": end, "at": iso(event.at), **fields}
            left -= len(json.dumps(entry, ensure_ascii=False, default=str))
            if left < 0 and shown:
                more = True
                break
            shown.append(entry)
        reached = end
    return {"sessionId": session.id, "events": shown, "nextCursor": session.events.cursor(reached), "hasMore": more}


def _whole(event: Event, log: EventReader, redactor: Redaction) -> Shown:
    """An event with whole messages and prompts; lines that say the same in words are not shown."""
    match event:
        case PartialRun():
            return _fragment(event, log, redactor)
        case Message():
            return {"type": "message", "message": event.raw}, event.seq
        case TurnStarted():
            prompt = cut(event.prompt, _LONGEST_PROMPT)
            fields = {"type": "turn_started", "turn": event.number, "messageId": event.message_id, "prompt": prompt}
            return fields, event.seq
        case MessageJoined():
            text = cut(event.text, _LONGEST_PROMPT)
            return {"type": "message_joined", "messageId": event.message_id, "text": text}, event.seq
        case Output() | Partial():
            return None, event.seq
    return _in_short(event), event.seq


def _line_page(session: SessionView, start: int, redactor: Redaction) -> dict[str, Any]:
    """Lines of output and other events, then the unfinished line if it has grown."""

    def show(event: Event) -> Shown:
        match event:
            case Output():
                return {"type": "output", "kind": event.kind, "line": event.line}, event.seq
            case PartialRun() if event.kind == "text":
                return {"type": "writing"}, event.seq
            case PartialRun() | Message():
                return None, event.seq
        return _whole(event, session.events, redactor)

    page = _page(session, start, _FEED_PAGE, show)
    has_grown = any(event["type"] == "writing" for event in page["events"])
    page["events"] = [event for event in page["events"] if event["type"] != "writing"]
    if has_grown and not page["hasMore"]:
        line = session.readable_lines.unfinished(_MAX_WRITTEN)
        # The end of it may be the beginning of a secret.
        shown = line[: len(line) - redactor.held_back(line)]
        if shown:
            page["events"].append({"type": "writing", "text": shown})
    return page


def _fragment(run: PartialRun, log: EventReader, redactor: Redaction) -> Shown:
    """What is being written. The end of it is held back while it may be the beginning of a secret; of the input of a
    tool, which is nothing to read before it is whole, only the length is told."""
    parts, end = run.parts, run.seq
    if end == log.last_seq:
        held = redactor.held_back("".join(parts))
        while held > 0 and parts:
            held -= len(parts[-1])
            parts, end = parts[:-1], end - 1
    text = "".join(parts)
    if not text:
        return None, end
    shown: Mapping[str, Any] = {"size": len(text)} if run.kind == "partial_json" else {"text": text}
    return {"type": "fragment", "kind": run.kind, **shown}, end


def _in_short(event: Event) -> dict[str, Any] | None:  # noqa: PLR0911, PLR0912 - one line for each kind
    """What is shown of an event; None for fragments and for what other events say in readable lines."""
    match event:
        case Output():
            return {"type": "output", "line": cut(event.line, _LONGEST_TEXT)}
        case StateChanged():
            return {"type": "state", "state": str(event.state), "detail": cut(event.detail, _LONGEST_TEXT)}
        case TurnStarted():
            return {"type": "turn_started", "turn": event.number, "prompt": cut(event.prompt, _LONGEST_TEXT)}
        case MessageJoined():
            return {"type": "message_joined", "text": cut(event.text, _LONGEST_TEXT)}
        case TurnEnded():
            outcome = event.outcome
            text = cut(outcome.result or outcome.detail, _LONGEST_TEXT)
            # Of a failure the detail says more than the result, such as what to type.
            reason = cut(outcome.detail, _LONGEST_TEXT) if outcome.result else ""
            more = {"detail": reason} if reason and reason != text else {}
            return {"type": "turn_ended", "turn": event.number, "code": str(outcome.code), "result": text, **more}
        case QuestionOpened():
            question = event.question
            description = cut(question.description, _LONGEST_TEXT)
            return {"type": "question", "inputId": question.id, "tool": question.tool_name, "description": description}
        case QuestionSettled():
            answer = event.resolution.answer
            decision = None if answer is None else "allow" if answer.allow else "deny"
            closure, by = str(event.resolution.closure), event.resolution.by
            whose = {"by": by} | ({"client": event.resolution.client} if event.resolution.client else {})
            return {"type": closure, "inputId": event.question.id, "decision": decision, **whose}
        case Retrying():
            return {"type": "retrying", "attempt": event.attempt, "status": event.status}
        case BudgetWarned():
            return {"type": "budget", "warning": event.line}
        case WaitChanged():
            return {"type": "limit", **(event.wait.as_json() if event.wait is not None else {"over": True})}
        case UsageReported():
            return {"type": "plan_usage", **event.plan.as_json()}
        case Stalled():
            return {"type": "stalled", "seconds": event.seconds}
        case ProcessChanged():
            return {"type": "process", "change": event.change}
        case Gap():
            return {"type": "gap", "first": event.first}
    return None


def _summary(session: SessionView) -> dict[str, Any]:
    """What a status line shows of a session."""
    usage, limit = session.usage.total, limit_info(session, None if session.busy else session.outcome)
    fields = {
        "status": status_of(session),
        "workingDirectory": session.cwd,
        "model": session.options.model,
        "permissionMode": session.options.permission_mode,
        "costUsd": round(session.usage.cost_usd, 6),
        "inputTokens": usage.all_input_tokens,
        "outputTokens": usage.output_tokens,
        "turnStarted": None if session.turn_seconds is None else time.time() - session.turn_seconds,
        "retrying": retrying_line(session),
        "stalledSeconds": silent_seconds(session) if session.stalled else None,
        "queued": session.queued,
        "onLimit": session.options.on_limit,
        "limit": None if limit is None else dump(limit),
        "planUsage": session.activity.plan.as_json() if session.activity.plan is not None else None,
        "questions": [question.id for question in session.questions],
    }
    return {name: value for name, value in fields.items() if value is not None}


# -- what was before ----------------------------------------------------------------------------------------------


def item_rows(page: ConversationPage) -> list[dict[str, Any]]:
    """The rows of a page: what was said and done, oldest first, each with the id that messages have too."""
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
                # That of its line: what the CLI names it by while it happens.
                item_id, fields = item.id.partition(":")[0], {"text": item.text}
            rows.append({"kind": item.kind, "turn": number, "id": item_id, **fields})
    return rows
