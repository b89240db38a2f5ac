"""The routes on sessions: list, read, start, message, steer. Each does what the MCP tool for it does, for the signed-in
person: the same checks of owner and policy, the same audit trail."""

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidArgument, SessionNotFound
from ..model.events import TurnStarted
from ..model.session_ids import is_session_id
from ..server.tools.base import Arguments, Images, Name, Text, dump, name_as_written
from ..server.tools.library import MARKS
from ..server.tools.sessions import CreateSession, session_options
from ..server.tools.status import interruption, status_of
from ..service import Service
from ..sessions.session import Session
from ..store.conversation_pages import LONGEST_PREVIEW, Extent
from .answers import answer, arguments_of, flag_of, number_of, text_of
from .event_frames import item_fields
from .feeds import session_in_memory
from .guard import WebCaller
from .rows import listed_row, most_urgent_first, question_row, turn_row

_MOST_ROWS = 200
_MOST_TURNS = 50
_PAGE = 400_000
"""Characters of a page of turns, roughly."""
_REPEATED = 200
"""Events that are repeated where the beginning of a turn is not in the log any more."""


class SendArguments(Arguments):
    message: Text
    images: Images | None = None


class ForkArguments(Arguments):
    message: Text | None = None
    at_message: Name | None = None
    title: str | None = None


class ManageArguments(Arguments):
    action: Literal["rename", "tag", "pin", "unpin", "archive", "unarchive", "delete"]
    text: str | None = None
    confirm: bool | None = None


class Nothing(Arguments):
    """An empty object."""


def session_id_of(request: Request) -> str:
    """The session in the path; SessionNotFound for what can be none."""
    session_id = str(request.path_params["session"])
    if not is_session_id(session_id):
        raise SessionNotFound("There is no such session.")
    return session_id.lower()


class SessionRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # -- looking --------------------------------------------------------------------------------------------------

    async def list(self, request: Request, caller: WebCaller) -> Response:
        text, project = text_of(request, "text"), text_of(request, "project", 4096)
        archived = flag_of(request, "archived")
        limit, offset = (
            number_of(request, "limit", 50, 1, _MOST_ROWS) or 50,
            number_of(request, "offset", 0, 0, 10**9) or 0,
        )
        entries = await self._service.catalogue(
            owner=caller.principal,
            project=project,
            limit=limit + 1,
            offset=offset,
            text=text,
            whole=flag_of(request, "whole"),
            archived=archived,
        )
        plain = not offset and text is None and project is None and not archived
        attention = await self._rows(caller, await self._in_memory(caller)) if plain else []
        more = offset + limit if len(entries) > limit else None
        rows = await self._rows(caller, entries[:limit])
        return answer({"attention": most_urgent_first(attention), "sessions": rows, "nextOffset": more})

    async def _in_memory(self, caller: WebCaller) -> Any:
        return await self._service.catalogue(owner=caller.principal, limit=_MOST_ROWS, active=True)

    async def _rows(self, caller: WebCaller, entries: Any) -> Any:
        in_memory = {session.id: session for session in self._service.sessions(owner=caller.principal)}
        states = await self._service.last_states((entry.session_id for entry in entries), owner=caller.principal)
        redactor = self._service.redaction
        return [
            listed_row(entry, in_memory.get(entry.session_id), states.get(entry.session_id), redactor)
            for entry in entries
        ]

    async def show(self, request: Request, caller: WebCaller) -> Response:
        session = await self._service.find(session_id_of(request), owner=caller.principal)
        entry = await self._service.stored.entry(session.id, owner=caller.principal)
        redactor = self._service.redaction
        outcome = None if session.busy else session.outcome
        usage = session.usage.total
        failed = outcome if outcome is not None and not outcome.ok else None
        details = {
            "permissionMode": session.options.permission_mode or "default",
            "result": outcome.result if outcome is not None else None,
            "error": {"code": str(failed.code), "message": failed.detail} if failed is not None else None,
            "tokens": {
                "input": usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens,
                "output": usage.output_tokens,
            },
            "turnCount": session.model_turns,
            "runsElsewhere": session.runs_elsewhere,
        }
        known = session_in_memory(self._service, caller.principal, session.id)
        row = {**listed_row(entry, session, None, redactor), "inMemory": known is session}
        questions = [question_row(question, redactor) for question in session.questions]
        return answer({"session": row, "questions": questions, **redactor.data(details)})

    async def turns(self, request: Request, caller: WebCaller) -> Response:
        session_id, service = session_id_of(request), self._service
        before, limit = number_of(request, "before", None, 1, 10**9), number_of(request, "limit", 10, 1, _MOST_TURNS)
        session = session_in_memory(self._service, caller.principal, session_id)
        cursor = _where_to_begin(session) if session is not None else None  # before the transcript is read
        try:
            read = await service.stored.page_before(
                session_id,
                None if before is None else str(before),
                Extent(_PAGE, most_turns=limit or 10, longest_result=LONGEST_PREVIEW),
                owner=caller.principal,
                agent=text_of(request, "agent"),
            )
        except SessionNotFound:
            if session is None:
                raise
            none = {"sessionId": session.id, "title": "", "total": 0, "first": 1, "turns": []}
            return answer({**none, "agents": [], "leftBehind": 0, "cursor": cursor})
        cwd, parts = session.cwd if session is not None else "", read.page.parts
        return answer(
            {
                "sessionId": read.session_id,
                "title": read.title,
                "total": read.turns,
                "first": parts[0].number if parts else min(before or read.turns + 1, read.turns + 1),
                "turns": [turn_row(part.number, part.turn, cwd) for part in parts],
                "agents": [*read.agents],
                "leftBehind": read.left_behind,
                "cursor": cursor,
            }
        )

    async def item(self, request: Request, caller: WebCaller) -> Response:
        number = str(request.path_params["turn"])
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise InvalidArgument("turn: must be a number.", field="turn")
        session_id, item_id = session_id_of(request), str(request.path_params["item"])
        found = await self._service.stored.item(
            session_id, int(number), item_id, owner=caller.principal, agent=text_of(request, "agent")
        )
        session = session_in_memory(self._service, caller.principal, session_id)
        return answer({"item": item_fields(found, session.cwd if session is not None else "")})

    # -- doing ----------------------------------------------------------------------------------------------------

    async def create(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, CreateSession)
        try:
            options = session_options(arguments)
            images = arguments.images or ()
            turn = await self._service.create(arguments.prompt, options, owner=caller.principal, images=images)
        except InvalidArgument as error:
            name_as_written(error, arguments, self._service.settings)
            raise
        return self._state(turn.session, 201)

    async def send(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, SendArguments)
        session_id = session_id_of(request)
        turn = await self._service.send(
            session_id, arguments.message, owner=caller.principal, images=arguments.images or ()
        )
        return self._state(turn.session, 202)

    async def interrupt(self, request: Request, caller: WebCaller) -> Response:
        await arguments_of(request, Nothing)
        done = await self._service.interrupt(session_id_of(request), owner=caller.principal)
        report = dump(interruption(done.session, done.dropped, self._service.redaction))
        return answer({"droppedMessages": [], **report})

    async def cancel(self, request: Request, caller: WebCaller) -> Response:
        await arguments_of(request, Nothing)
        return self._state(await self._service.cancel(session_id_of(request), owner=caller.principal))

    async def fork(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, ForkArguments)
        session_id, principal = session_id_of(request), caller.principal
        if arguments.message is None:
            if arguments.at_message is not None:
                raise InvalidArgument("atMessage: needs a message to go on with.", field="atMessage")
            copy = await self._service.stored.copy(session_id, owner=principal, title=arguments.title)
            return answer({"sessionId": copy, "status": None}, 201)
        turn = await self._service.fork(session_id, arguments.message, owner=principal, at_message=arguments.at_message)
        return self._state(turn.session, 201)

    async def manage(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, ManageArguments)
        session_id, stored, owner = session_id_of(request), self._service.stored, caller.principal
        match arguments.action:
            case "rename":
                title = await stored.rename(session_id, arguments.text or "", owner=owner)
                message = f"Its title is {title!r}." if title else "It has no title."
            case "tag":
                tag = await stored.tag(session_id, arguments.text or "", owner=owner)
                message = f"Its tag is {tag!r}." if tag else "It has no tag."
            case "delete":
                if not arguments.confirm:
                    raise InvalidArgument("confirm: a session is deleted only with confirm.", field="confirm")
                await stored.delete(session_id, owner=owner)
                message = "It is deleted."
            case action:
                mark, on = MARKS[action]
                await stored.mark(session_id, mark, on, owner=owner)
                message = f"It is {'' if on else 'no longer '}{mark}."
        return answer({"sessionId": session_id, "message": self._service.redaction.text(message)})

    def _state(self, session: Session, status: int = 200) -> Response:
        return answer({"sessionId": session.id, "status": status_of(session)}, status)


def _where_to_begin(session: Session) -> str:
    """Just before the latest turn: what it has done may not be in the transcript yet."""
    events = session.events
    started = events.latest(TurnStarted, 1)
    if started:
        return events.cursor(started[0].seq - 1)
    seq = events.last_seq if not session.turns else max(events.restored_seq, events.last_seq - _REPEATED)
    return events.cursor(seq)
