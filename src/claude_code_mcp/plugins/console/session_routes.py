"""The routes for sessions, shares, questions, costs and MCP servers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from ...core.audit.past_waits import past_waits
from ...core.errors import InvalidArgument, SessionNotFound
from ...core.model.events import TurnStarted
from ...core.model.question import Question
from ...core.model.text import csv_of, iso
from ...core.questions.presentation import original_answer, without_secrets
from ...core.service import PendingTurn, Service
from ...core.sessions.callers.session_access import Access
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import session_row
from ...core.state.spending import Period
from ...core.transcripts.conversation_pages import MAX_PREVIEW, Extent
from ...core.transcripts.cost_table import Grouping, Split
from ...core.transcripts.timeline import Timeline, logged_waits
from ...server.tools.answer_arguments import AnswerTexts, ModeAfterPlan, answer_from
from ...server.tools.arguments import Arguments, Images, Name, Text, name_as_written
from ...server.tools.cost_report import TeamGrouping, budget_rows, cost_report, report_on_all_callers
from ...server.tools.manage_session import MARKS, release_for_move, steer_limit
from ...server.tools.output import dump
from ...server.tools.session_report import interruption, status_of
from ...server.tools.sessions import CreateSession, session_options
from ...server.web_answers import (
    ANSWER_HEADERS,
    NoArguments,
    answer,
    arguments_of,
    flag_of,
    number_of,
    session_id_of,
    text_of,
)
from .event_frames import item_fields, most_urgent_first, page_row, question_row, session_in_memory, turn_row
from .guard import WebUser

if TYPE_CHECKING:
    from ...hub.hub import Hub
    from ...hub.servers import ServerStatus
    from ...server.server import HubOrPlaceholder

_MAX_ROWS = 200
_MAX_TURNS = 50
_PAGE = 400_000
"""Approximate characters of a page of turns."""
_MAX_FILES = 30
_MAX_FOUND = 100
_USUAL_COMMANDS = ("clear", "compact", "context", "cost", "init")
_REPEATED = 200
"""Events that are repeated if the beginning of a turn is no longer in the log."""


class ListRoute(NamedTuple):
    """A route whose answer has rows in one field. A fleet's gateway merges the rows of all machines."""

    path: str
    field: str
    sorted_by: str = ""
    """The field by which rows of several machines are sorted; without one, by machine."""


QUESTIONS = ListRoute("/questions", "questions", sorted_by="openedAt")
BUDGETS = ListRoute("/budgets", "budgets")
LISTS = (QUESTIONS, BUDGETS)


class SendArguments(Arguments):
    message: str = ""
    images: Images | None = None
    message_key: Name | None = None


class ForkArguments(Arguments):
    message: Text | None = None
    images: Images | None = None
    at_message: Name | None = None
    title: str | None = None


class ManageArguments(Arguments):
    action: Literal[
        "rename",
        "tag",
        "model",
        "mode",
        "pin",
        "unpin",
        "archive",
        "unarchive",
        "delete",
        "move",
        "on_limit",
        "continue",
    ]
    text: str | None = None
    confirm: bool | None = None
    wait: bool | None = None


class ExportArguments(Arguments):
    format: Literal["markdown", "html"] = "markdown"


def number_in_path(request: Request, name: str) -> int:
    number = str(request.path_params[name])
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise InvalidArgument(f"{name}: must be a number.", field=name)
    return int(number)


class SessionRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # -- reading --------------------------------------------------------------------------------------------------

    async def list(self, request: Request, user: WebUser) -> Response:
        text, project = text_of(request, "text"), text_of(request, "project", 4096)
        archived = flag_of(request, "archived")
        limit, offset = (
            number_of(request, "limit", 50, 1, _MAX_ROWS) or 50,
            number_of(request, "offset", 0, 0, 10**9) or 0,
        )
        stored, redactor = self._service.stored, self._service.redaction
        found, more = await stored.page(
            caller=user.caller,
            project=project,
            limit=limit,
            offset=offset,
            text=text,
            whole=flag_of(request, "whole"),
            archived=archived,
        )
        plain = not offset and text is None and project is None and not archived
        active, _ = await stored.page(caller=user.caller, limit=_MAX_ROWS, active=True) if plain else ([], None)
        # The number of search results is unknown in advance.
        counted = more is not None and text is None and project is None
        listed = {
            "attention": redactor.data(most_urgent_first(map(page_row, active))),
            "sessions": redactor.data([page_row(row) for row in found]),
            "nextOffset": more,
            "total": await stored.count(caller=user.caller, archived=archived) if counted else None,
        }
        return answer(listed)

    async def show(self, request: Request, user: WebUser) -> Response:
        session = await self._service.find(session_id_of(request), caller=user.caller)
        entry = await self._service.stored.entry(session.id, caller=user.caller)
        redactor = self._service.redaction
        outcome = None if session.busy else session.outcome
        usage = session.usage.total
        failed = outcome if outcome is not None and not outcome.ok else None
        details = {
            "permissionMode": session.options.permission_mode or "default",
            "result": outcome.result if outcome is not None else None,
            "error": {"code": str(failed.code), "message": failed.detail} if failed is not None else None,
            "tokens": {
                "input": usage.all_input_tokens,
                "output": usage.output_tokens,
            },
            "turnCount": session.model_turns,
            "runsElsewhere": session.runs_elsewhere,
            "queuedMessages": [
                {"messageId": message.id, "text": message.text, "images": len(message.images)}
                for message in session.queued_messages
            ],
        }
        known = session_in_memory(self._service, user.principal, session.id)
        sharing = self._service.access.sharing(session.id, user.principal)
        row = {**page_row(session_row(entry, session, sharing=sharing)), "inMemory": known is session}
        asked = (self._service.access.question_for(question, user.principal) for question in session.questions)
        questions = [question_row(question, redactor) for question in asked]
        return answer({"session": redactor.data(row), "questions": questions, **redactor.data(details)})

    async def turns(self, request: Request, user: WebUser) -> Response:
        session_id, service = session_id_of(request), self._service
        before, limit = number_of(request, "before", None, 1, 10**9), number_of(request, "limit", 10, 1, _MAX_TURNS)
        session = session_in_memory(self._service, user.principal, session_id)
        cursor = _where_to_begin(session) if session is not None else None  # before the transcript is read
        try:
            read = await service.stored.page_before(
                session_id,
                None if before is None else str(before),
                Extent(_PAGE, most_turns=limit or 10, longest_result=MAX_PREVIEW),
                caller=user.caller,
                agent=text_of(request, "agent"),
            )
        except SessionNotFound:
            if session is None:
                raise
            # A session in memory has no transcript until its process has written one.
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

    async def timeline(self, request: Request, user: WebUser) -> Response:
        """When the last turns ran and waited for a person."""
        session_id = session_id_of(request)
        session = session_in_memory(self._service, user.principal, session_id)
        logged = logged_waits(session.events, session.questions) if session is not None else {}
        settings = self._service.settings
        if settings.audit_file != "off":
            trail = FilePath(settings.audit_file or settings.state_dir / "audit.jsonl")
            past = await self._service.caller_threads.run(user.principal, partial(past_waits, trail, session_id))
            logged = past | logged
        try:
            read = await self._service.stored.timeline(session_id, logged, caller=user.caller)
            return answer(self._service.redaction.data(asdict(read)))
        except SessionNotFound:
            if session is None:
                raise
            return answer(asdict(Timeline()))  # its process has not written a transcript yet

    async def image(self, request: Request, user: WebUser) -> Response:
        """An image in a prompt."""
        turn, number = number_in_path(request, "turn"), number_in_path(request, "image")
        found = await self._service.stored.prompt_image(session_id_of(request), turn, number, caller=user.caller)
        return answer({"image": f"data:{found.media_type};base64,{found.data}"})

    async def item(self, request: Request, user: WebUser) -> Response:
        number = number_in_path(request, "turn")
        session_id, item_id = session_id_of(request), str(request.path_params["item"])
        found = await self._service.stored.item(
            session_id, number, item_id, caller=user.caller, agent=text_of(request, "agent")
        )
        session = session_in_memory(self._service, user.principal, session_id)
        return answer({"item": item_fields(found, session.cwd if session is not None else "")})

    async def commands(self, request: Request, user: WebUser) -> Response:
        """A session's slash commands, as reported by its process; the usual ones before that."""
        session = await self._service.find(session_id_of(request), caller=user.caller)
        names = self._service.redaction.data([*session.activity.commands])
        return answer({"commands": sorted(names) or [*_USUAL_COMMANDS]})

    async def files(self, request: Request, user: WebUser) -> Response:
        """Files in a session's directory whose path contains this text, shortest first."""
        text = (text_of(request, "text") or "").lower()
        found = await self._service.stored.files(session_id_of(request), caller=user.caller)
        hits = sorted((path for path in found if text in path.lower()), key=lambda path: _closeness(path, text))
        return answer({"files": self._service.redaction.data(hits[:_MAX_FILES])})

    async def find(self, request: Request, user: WebUser) -> Response:
        """Where a text occurs in a conversation."""
        text = text_of(request, "text")
        if text is None:
            raise InvalidArgument("text: required.", field="text")
        found = await self._service.stored.find(session_id_of(request), text, _MAX_FOUND, caller=user.caller)
        return answer({"found": [{"turn": hit.turn, "itemId": hit.item_id, "excerpt": hit.excerpt} for hit in found]})

    # -- changing -------------------------------------------------------------------------------------------------

    async def create(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, CreateSession)
        try:
            options = session_options(arguments)
            images = arguments.images or ()
            turn = await self._service.create(
                arguments.prompt, options, caller=user.caller, images=images, key=arguments.message_key
            )
        except InvalidArgument as error:
            name_as_written(error, arguments, self._service.settings)
            raise
        return self._accepted(turn, 201)

    async def send(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, SendArguments)
        session_id = session_id_of(request)
        turn = await self._service.send(
            session_id,
            arguments.message,
            caller=user.caller,
            images=arguments.images or (),
            key=arguments.message_key,
        )
        return self._accepted(turn, 202)

    async def message(self, request: Request, user: WebUser) -> Response:
        """The status of an accepted message: queued, taken, dropped, or unknown without a trace."""
        message_id = str(request.path_params["message"])
        state = await self._service.message_state(session_id_of(request), message_id, caller=user.caller)
        return answer({"messageId": message_id, "state": state})

    async def withdraw(self, request: Request, user: WebUser) -> Response:
        """Withdraws a message that no turn has taken yet; returns its complete text."""
        message_id = str(request.path_params["message"])
        message = await self._service.withdraw(session_id_of(request), message_id, caller=user.caller)
        text = self._service.redaction.text(message.text) if message is not None else None
        return answer({"messageId": message_id, "withdrawn": message is not None, "text": text})

    async def interrupt(self, request: Request, user: WebUser) -> Response:
        await arguments_of(request, NoArguments)
        done = await self._service.interrupt(session_id_of(request), caller=user.caller)
        redactor = self._service.redaction
        # Unabridged: the page puts the messages back into the input box.
        dropped = [{"messageId": message.id, "text": redactor.text(message.text)} for message in done.dropped]
        return answer({**dump(interruption(done.session, (), redactor)), "droppedMessages": dropped})

    async def cancel(self, request: Request, user: WebUser) -> Response:
        await arguments_of(request, NoArguments)
        session = await self._service.cancel(session_id_of(request), caller=user.caller)
        return answer({"sessionId": session.id, "status": status_of(session)})

    async def fork(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, ForkArguments)
        session_id = session_id_of(request)
        if arguments.message is None:
            if arguments.at_message is not None:
                raise InvalidArgument("atMessage: a message to continue with is required.", field="atMessage")
            copy = await self._service.stored.copy(session_id, caller=user.caller, title=arguments.title)
            return answer({"sessionId": copy, "status": None}, 201)
        turn = await self._service.fork(
            session_id,
            arguments.message,
            caller=user.caller,
            at_message=arguments.at_message,
            images=arguments.images or (),
        )
        return self._accepted(turn, 201)

    async def manage(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, ManageArguments)
        session_id, stored, caller = session_id_of(request), self._service.stored, user.caller
        match arguments.action:
            case "rename":
                title = await stored.rename(session_id, arguments.text or "", caller=caller)
                message = f"The title is {title!r}." if title else "The session has no title."
            case "tag":
                tag = await stored.tag(session_id, arguments.text or "", caller=caller)
                message = f"The tag is {tag!r}." if tag else "The session has no tag."
            case "model" | "mode":
                value = (arguments.text or "").strip() or None
                change = {"model" if arguments.action == "model" else "permission_mode": value}
                await stored.reconfigure(session_id, change, caller=caller)
                message = f"The {arguments.action} is {value or 'the default'}."
            case "delete":
                if not arguments.confirm:
                    raise InvalidArgument("confirm: required to delete a session.", field="confirm")
                await stored.delete(session_id, caller=caller)
                message = "The session was deleted."
            case "on_limit" | "continue":
                managed = await steer_limit(self._service, caller, session_id, arguments.action, arguments.text)
                message = managed.message or ""
            case "move":
                wait, without_tree = bool(arguments.wait), bool(arguments.confirm)
                session_id = await release_for_move(
                    self._service, caller, session_id, wait=wait, without_tree=without_tree
                )
                message = "The session is free; no machine holds it."
            case action:
                mark, on = MARKS[action]
                await stored.mark(session_id, mark, on, caller=caller)
                message = f"The session is {'' if on else 'no longer '}{mark}."
        return answer({"sessionId": session_id, "message": self._service.redaction.text(message)})

    async def export(self, request: Request, user: WebUser) -> Response:
        """A conversation as one text for download. Its temporary file is removed."""
        arguments, session_id = await arguments_of(request, ExportArguments), session_id_of(request)
        path = await self._service.stored.export(session_id, arguments.format, caller=user.caller)
        text = await asyncio.to_thread(_taken, path)
        return answer({"name": path.name, "text": text})

    def _accepted(self, turn: PendingTurn, status: int) -> Response:
        state = {"sessionId": turn.session.id, "status": status_of(turn.session)}
        return answer({**state, "messageId": turn.message_id, "repeated": turn.repeated}, status)


def _taken(path: FilePath) -> str:
    """A file's text; removes the file."""
    try:
        return path.read_text(encoding="utf-8")
    finally:
        path.unlink(missing_ok=True)


def _closeness(path: str, text: str) -> tuple[bool, int, str]:
    """Names with this prefix first, then short ones."""
    name = path.rstrip("/").rpartition("/")[2]
    return not name.lower().startswith(text), len(path), path


def _where_to_begin(session: Session) -> str:
    """Just before the latest turn, whose work may not be in the transcript yet."""
    events = session.events
    started = events.latest(TurnStarted, 1)
    if started:
        return events.cursor(started[0].seq - 1)
    seq = events.last_seq if not session.turns else max(events.restored_seq, events.last_seq - _REPEATED)
    return events.cursor(seq)


# -- sharing routes ----------------------------------------------------------------------------------------------------


class ShareArguments(Arguments):
    access: Literal["watch", "answer"] = "watch"


class SharingRoutes:
    """The handlers. A session's owner changes its shares; everyone who may watch it sees them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request, user: WebUser) -> Response:
        return await self._answer(session_id_of(request), user)

    async def give(self, request: Request, user: WebUser) -> Response:
        arguments, session_id = await arguments_of(request, ShareArguments), session_id_of(request)
        await self._service.stored.share(
            session_id, str(request.path_params["grantee"]), Access(arguments.access), caller=user.caller
        )
        return await self._answer(session_id, user)

    async def take_back(self, request: Request, user: WebUser) -> Response:
        session_id = session_id_of(request)
        await self._service.stored.unshare(session_id, str(request.path_params["grantee"]), caller=user.caller)
        return await self._answer(session_id, user)

    async def _answer(self, session_id: str, user: WebUser) -> Response:
        shares = (await self._service.stored.sharing(session_id, caller=user.caller)).shares
        rows = [{"with": share.grantee, "access": str(share.access), "since": iso(share.at)} for share in shares]
        return answer({"owner": shares[0].owner if shares else user.principal, "shares": rows})


# -- question routes --------------------------------------------------------------------------------------------------


CHANNEL = "web"
"""The channel of an answer, as shown to others."""


class QuestionAnswer(Arguments):
    decision: Literal["allow", "deny"]
    reason: str | None = None
    scope: Literal["once", "session"] | None = None
    answers: AnswerTexts | None = None
    updated_input: dict[str, Any] | None = None
    permission_mode: ModeAfterPlan | None = None


class QuestionRoutes:
    """The handlers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, _: Request, user: WebUser) -> Response:
        sessions = self._service.sessions(principal=user.principal)
        questions = [question for session in sessions for question in session.questions]
        rows = [self._row(question, user) for question in questions]
        return answer({QUESTIONS.field: sorted(rows, key=lambda row: str(row[QUESTIONS.sorted_by]))})

    async def show(self, request: Request, user: WebUser) -> Response:
        question = self._question(request, user)
        return answer({"question": self._row(question, user)})

    def _row(self, question: Question, user: WebUser) -> dict[str, Any]:
        return question_row(self._service.access.question_for(question, user.principal), self._service.redaction)

    async def answer(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, QuestionAnswer)
        decided = answer_from(arguments.decision, arguments)
        # No await from here on to the answer itself.
        question = self._question(request, user)
        shown = without_secrets(question, self._service.redaction)
        session = self._service.respond(
            question.session_id,
            question.id,
            original_answer(question, shown, decided),
            principal=user.principal,
            by=CHANNEL,
            client=user.device,
            person=user.sign_in is not None,  # a token alone belongs to a program
        )
        await session.saved()  # permissions for the session outlive this process
        return answer({"sessionId": session.id, "status": status_of(session)})

    def _question(self, request: Request, user: WebUser) -> Question:
        """The open question in the path. Raises QuestionClosed, with the reason, if it is not open."""
        session = self._service.session(session_id_of(request), principal=user.principal)
        question_id = str(request.path_params["question"])
        found = next((question for question in session.questions if question.id == question_id), None)
        if found is None:
            raise self._service.broker.why_closed(session.id, question_id)
        return found


# -- overview routes --------------------------------------------------------------------------------------------------


_DAY_LENGTH = len("2026-11-01")
_MAX_WAIT = 30.0
"""Seconds; proxies and browsers cut off connections that are silent for a minute."""


class SteerArguments(Arguments):
    action: Literal["reconnect", "enable", "disable", "authenticate"]
    redirect: str | None = None


async def _until_connected(hub: "Hub", server: str) -> None:
    changed = asyncio.Event()
    unwatch = hub.watch(server, lambda _: changed.set())
    try:
        async with asyncio.timeout(_MAX_WAIT):
            while hub.status(server)[0].state != "connected":
                await changed.wait()
                changed.clear()  # no await between this and the check
    except TimeoutError:
        pass
    finally:
        unwatch()


def _choice_of(request: Request, name: str, choices: tuple[str, ...]) -> str:
    """The query's choice, or the first one."""
    chosen = text_of(request, name) or choices[0]
    if chosen not in choices:
        raise InvalidArgument(f"{name}: must be one of {', '.join(choices)}.", field=name)
    return chosen


class OverviewRoutes:
    """The handlers."""

    def __init__(self, service: Service, find_hub: "Callable[[], Hub | None]") -> None:
        self._service = service
        self._find_hub = find_hub

    def handlers(self) -> list[tuple[str, str, Callable[[Request, WebUser], Awaitable[Response]]]]:
        """By method and path below `/api`."""
        return [
            ("GET", "/costs", self.costs),
            ("GET", BUDGETS.path, self.budgets),
            ("GET", "/mcp-servers", self.servers),
            ("POST", "/mcp-servers/{server}", self.steer),
        ]

    async def costs(self, request: Request, user: WebUser) -> Response:
        """The user's own costs, or with `of=everybody` everyone's, if the policy allows it."""
        by, since = text_of(request, "by") or "day", text_of(request, "since") or ""
        everybody = _choice_of(request, "of", ("own", "everybody")) == "everybody"
        groupings = (*get_args(Grouping), *(get_args(TeamGrouping) if everybody else ()))
        if by not in groupings:
            raise InvalidArgument(f"by: must be one of {', '.join(groupings)}.", field="by")
        if since and not (len(since) == _DAY_LENGTH and since.replace("-", "").isdigit()):
            raise InvalidArgument("since: must be a day such as 2026-11-01.", field="since")
        project = text_of(request, "project", 4096)
        is_table = text_of(request, "format") == "csv"
        chosen = _choice_of(request, "split", ("none", *get_args(Split)))
        split = None if is_table or chosen == "none" else cast("Split", chosen)
        if everybody:
            per = cast("Period", _choice_of(request, "per", ("month", "day")))
            grouping = cast("Grouping | TeamGrouping", by)
            report = await report_on_all_callers(
                self._service, user.caller, grouping, per=per, since=since, split=split
            )
        else:
            wanted = {"since": since, "project": project, "split": split}
            report = await cost_report(self._service, user.caller, cast("Grouping", by), **wanted)
        shown = self._service.redaction.data(dump(report))
        if is_table:
            headers = {**ANSWER_HEADERS, "Content-Disposition": f'attachment; filename="costs-by-{by}.csv"'}
            return Response(csv_of(shown["lines"]), headers=headers, media_type="text/csv")
        return answer(shown)

    async def budgets(self, _: Request, user: WebUser) -> Response:
        """The user's budgets, own and of groups, and their spending."""
        return answer({BUDGETS.field: await budget_rows(self._service, user.caller)})

    def _hub_of(self, user: WebUser) -> "Hub | None":
        """The user's separate hub, or the shared one."""
        own = cast("HubOrPlaceholder | None", self._service.hubs_by_principal.get(user.caller.principal))
        return self._find_hub() if own is None else own.opened

    async def servers(self, request: Request, user: WebUser) -> Response:
        """The servers; with `waitFor`, once that one is connected, or after half a minute."""
        hub, awaited = self._hub_of(user), text_of(request, "waitFor")
        if hub is None:
            return answer({"servers": [], "problems": []})
        if awaited is not None:
            await _until_connected(hub, awaited)
        return answer(self._reports(hub.status(), hub.problems))

    async def steer(self, request: Request, user: WebUser) -> Response:
        arguments, hub = await arguments_of(request, SteerArguments), self._hub_of(user)
        name = str(request.path_params["server"])
        if hub is None:
            raise InvalidArgument("This server has no hub.")
        with self._service.policy_for(user.caller).steering(arguments.action, name):
            if arguments.action == "authenticate":
                return await self._sign_in(hub, name, arguments.redirect)
            match arguments.action:
                case "reconnect":
                    status = await hub.reconnect(name)
                case "enable":
                    status = hub.enable(name)
                case "disable":
                    status = hub.disable(name)
        return answer(self._reports([status]))

    async def _sign_in(self, hub: "Hub", name: str, redirect: str | None) -> Response:
        """The sign-in address, unredacted, because it contains no secrets of others."""
        from ...server.tools.hub_admin import sign_in  # noqa: PLC0415 - loads the hub

        report = dump(await sign_in(self._service, hub, name, redirect))
        url = report.pop("url", None)
        return answer({"servers": [], **self._service.redaction.data(report), "url": url})

    def _reports(self, statuses: "list[ServerStatus]", problems: Sequence[object] = ()) -> dict[str, Any]:
        from ...server.tools.hub_admin import server_reports  # noqa: PLC0415 - loads the hub

        report = {"servers": [], "problems": [], **dump(server_reports(statuses, problems))}
        return dict(self._service.redaction.data(report))
