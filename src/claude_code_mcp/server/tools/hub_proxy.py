"""Tools of the hub's servers as this server's own, and everything that passes between client and server during a call.

A call passes the policy first. Where the policy neither allows nor denies it, a person is asked through the client's
dialogs. There is no session here whose queue could hold the question, so a client that cannot ask is refused. Every
call is audited, when it was refused and when it is over.

On connections of the 2025 protocol a question of the server becomes a request to the client while the call waits, and
one round is enough. On 2026-07-28 the call returns with the question and the client repeats it with the answer, each
time as another round. The call at the server goes on in between: a server of the older protocol waits for its answer
in the middle of it. Questions for the client's model (sampling) go the same way; progress and log messages are sent on
the stream of the round.

A result that is too long for a model's context is saved to a file, for clients that can read it.
"""

import asyncio
import contextlib
import json
import secrets
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, TypeAdapter, ValidationError

from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, UpstreamUnavailable
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.options import LOCAL, Caller
from ...core.model.question import Answer, AskPerson, Question, Resolution, Scope
from ...core.model.text import visible
from ...core.model.tool_names import prefix_of
from ...core.private_files import private_directory, replace_file
from ...core.questions.presentation import form_without_secrets
from ...core.service import Service
from ...hub.client_session import CallerSide
from ...hub.hub import CallCounts, Hub, HubTool
from ...hub.tools import ToolIndex, is_long, with_long_parts_saved
from ...hub.transports import UNREACHABLE
from .. import sdk
from ..client_capabilities import can_be_asked, can_open_addresses, can_sample
from .call import Call
from .progress import progress_callback
from .waiting import first_of

CallReply = types.CallToolResult | types.InputRequiredResult
Start = Callable[["ProxiedCall"], Awaitable[CallReply]]
"""Begins the call at the server."""

PAUSED_CALL = "conversation"
"""The key in the state of a call under which a later round finds the paused call."""
_QUESTION = "question"
_CANCELLED = {"action": "cancel"}
_ANSWERS = (types.ElicitResult, types.CreateMessageResult, types.CreateMessageResultWithTools)
_LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)
_MOST_LOGGED = 1000
"""Log messages that wait for the client of a call to read them; more are left out."""
_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)
_LIST_TIMEOUT = 5.0
"""Seconds that a server has to connect before the tools are listed without it."""

_CHARACTERS_PER_TOKEN = 4
_KEPT = 7 * 86_400.0
"""Seconds for which the file of a long result is kept."""
_PERMISSION = "question"
"""The key in the state of a call under which the next round finds the question whether it is permitted."""


# -- whether a call is permitted --------------------------------------------------------------------------------------


def rule_on_call(service: Service, principal: str, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
    """What the rules say of a call that no session makes; None if a person must be asked."""
    return service.answer_by_rule(principal, service.settings.default_cwd or "", tool, arguments)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The answer to whether a call may be made, and `by` which channel it came: a rule is `policy`."""

    answer: Answer
    by: str


class PermissionQuestions:
    """The questions that are open, each for one call of one client."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rulings: dict[str, asyncio.Future[Ruling]] = {}
        """By question."""

    async def ask(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Ruling | types.InputRequiredResult:
        """The answer of a person, or the question as the result of the call for a client that takes it so."""
        place = f"hub:{call.caller.key}"  # stands in for a session's id
        question_id = call.state.get(_PERMISSION)
        if isinstance(question_id, str):
            return self._returned_answer(call, place, question_id)
        if not (call.returns_questions or call.can_ask):
            return _denial(
                f"{name} needs somebody's permission, and this client cannot ask. A rule in the policy can allow it: "
                f'allow = ["{name}"].'
            )
        question = self._open_question(place, name, arguments)
        if call.returns_questions:
            return call.dialogs.as_result(place, [question], call.offsets, question=question.id)
        call.dialogs.follow(place)
        try:
            with call.dialogs.waiting(place, call.context.request_id, call.context.session):
                return await self._wait_for_answer(call, place, question)
        finally:
            # Also when the call is cancelled: nobody could use the answer any more.
            self._close_question(question.id)

    def _open_question(self, place: str, name: str, arguments: Mapping[str, Any]) -> Question:
        settled: asyncio.Future[Ruling] = asyncio.get_running_loop().create_future()

        def settle(question: Question, resolution: Resolution, _: Mapping[str, Any] | None) -> None:
            if not settled.done():
                answer = resolution.answer
                settled.set_result(Ruling(answer, resolution.by) if answer is not None else _denial(resolution.detail))

        always = {"type": "addRules", "rules": [{"toolName": name}], "behavior": "allow", "destination": "session"}
        question = self._service.broker.open(place, name, arguments, settle, suggestions=[always], of_client=True)
        self._rulings[question.id] = settled
        # A client that takes the question as a result may never come back: then it is closed after its expiry.
        asyncio.get_running_loop().call_later(
            2 * self._service.settings.permission_timeout, self._close_question, question.id
        )
        return question

    def _returned_answer(self, call: Call, place: str, question_id: str) -> Ruling | types.InputRequiredResult:
        """The client came back: with the answer, for the next page of the question, or too late."""
        before = call.offsets.get(question_id)
        call.accept_forms(place)
        still_open = [question for question in call.dialogs.undismissed(place) if question.id == question_id]
        if still_open and call.offsets.get(question_id) != before:
            return call.dialogs.as_result(place, still_open, call.offsets, question=question_id)
        settled = self._rulings.get(question_id)
        ruling = settled.result() if settled is not None and settled.done() else _denial()
        self._close_question(question_id)
        return ruling

    async def _wait_for_answer(self, call: Call, place: str, question: Question) -> Ruling:
        """Waits for the answer. A dismissed dialog is a denial: no session waits here that could be answered later."""
        settled = self._rulings[question.id]
        while not settled.done():
            await first_of(settled, call.dialogs.wait_for_change())
            if not settled.done() and question not in call.dialogs.undismissed(place):
                return _denial()
        return settled.result()

    def _close_question(self, question_id: str) -> None:
        self._service.broker.withdraw(question_id, "the call is over")
        self._rulings.pop(question_id, None)


def _denial(reason: str = "") -> Ruling:
    return Ruling(Answer(allow=False, message=reason or "Nobody allowed it."), "nobody")


# -- the call at the server -------------------------------------------------------------------------------------------


class CallRounds:
    """Runs calls in rounds, and keeps those that wait for their clients to come back, each for `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._paused: dict[str, ProxiedCall] = {}

    async def resume(self, call: Call) -> CallReply:
        """A later round, which goes on with the paused call that its state names. InvalidArgument if that was given
        up."""
        # Taken out: an answer is for one round, and the timer finds nothing any more.
        proxied = self._paused.pop(str(call.state[PAUSED_CALL]), None)
        if proxied is None:
            raise InvalidArgument("This call is no longer waiting for an answer; call the tool again.")
        proxied.answer(call.responses.get(_QUESTION))
        return await self.run(call, proxied)

    async def run(self, call: Call, proxied: "ProxiedCall") -> CallReply:
        """One round of a call: until its result, or until a question that the client is to answer."""
        question = await proxied.wait(call)
        if question is None:
            return proxied.work.result()
        key = secrets.token_hex(8)
        self._paused[key] = proxied
        asyncio.get_running_loop().call_later(self._timeout, self._give_up, key)
        return types.InputRequiredResult(
            input_requests={_QUESTION: question},
            request_state=json.dumps({PAUSED_CALL: key}),
        )

    def end_of(self, principal: str) -> None:
        """Gives up the calls of a caller that wait for it."""
        for key in [key for key, proxied in self._paused.items() if proxied.principal == principal]:
            self._give_up(key)

    def _give_up(self, key: str) -> None:
        proxied = self._paused.pop(key, None)
        if proxied is not None:
            proxied.work.cancel()


class ProxiedCall:
    """One call at a server of the hub. What the server asks and tells meanwhile passes through `side` to the client.

    Where the client takes questions as the result of a call, one ends the current `wait`, and the server waits until
    `answer` is called.
    """

    def __init__(self, call: Call, server: str, start: Start) -> None:
        self._call = call
        self._server = server
        self._question: asyncio.Future[types.InputRequest] = _future()
        self._answer: asyncio.Future[dict[str, Any] | None] = _future()
        self._logged: deque[dict[str, Any]] = deque()
        self._sending: asyncio.Future[None] | None = None
        self._waited_for = False
        """Whether a round of the client's is under way, on whose stream it can be told something."""
        level = _log_level(call)
        self.side = CallerSide(
            on_progress=self._report_progress if call.wants_progress else None,
            ask=self._pause_for_person if call.takes_rounds else _client_asker(call),
            sample=_sampler(call, self._answered),
            on_log=partial(self._log, level) if level is not None else None,
            log_level=level,
        )
        self.principal = call.principal
        self.work = asyncio.ensure_future(start(self))
        """The call at the server, with its result."""
        self.work.add_done_callback(_retrieve_exception)

    async def wait(self, call: Call) -> types.InputRequest | None:
        """Waits, in the round `call`, for the end of the server's call (None) or for its next question. When this is
        cancelled, so is the server's call."""
        self._call, self._waited_for = call, True
        self._send_logged()
        waiting: set[asyncio.Future[Any]] = {self.work, self._question}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # What was logged before the result, or the question, is told before it.
            if self._sending is not None:
                await asyncio.wait([self._sending])
        except asyncio.CancelledError:
            self.work.cancel()
            raise
        finally:
            self._waited_for = False
        # The end counts first: nobody waits for the answer to a question any more then.
        return None if self.work.done() else self._question.result()

    def answer(self, response: object) -> None:
        """The client came back with its response to the question."""
        # Both futures are renewed before the answer is passed on: the server may ask again as soon as it has it.
        waiting, self._answer, self._question = self._answer, _future(), _future()
        waiting.set_result(_payload(response) if isinstance(response, _ANSWERS) else None)

    # -- what the server asks and tells -------------------------------------------------------------------------

    async def _report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Reports progress to the client, on the stream of the current round."""
        report = progress_callback(self._call)
        if report is not None:
            await report(progress, total, message)

    async def _pause_for_person(self, params: dict[str, Any]) -> dict[str, Any]:
        try:
            question = _PARAMS.validate_python(params)
        except ValidationError:
            return _CANCELLED
        if not _takes(self._call, params):
            return _CANCELLED
        question = question.model_copy(update={"message": visible(question.message)})
        return await self._answered(types.ElicitRequest(params=question)) or _CANCELLED

    async def _answered(self, question: types.InputRequest) -> dict[str, Any] | None:
        """Ends the current round with a question, and waits for the answer that the next round brings; None where it
        brings none. Questions of one call that come together follow one another, a round for each."""
        # Shielded here and below: the server may take its question back, and the client answers it all the same.
        while self._question.done():  # the client has another one
            await asyncio.shield(self._answer)
        self._question.set_result(question)
        return await asyncio.shield(self._answer)

    def _log(self, lowest: str, params: Mapping[str, Any]) -> None:
        """Takes a log message for the client, which it gets on the stream of its call."""
        level = params.get("level")
        wanted = level in _LEVELS and _LEVELS.index(level) >= _LEVELS.index(lowest)
        # Bounded: a client may be slower to read than a server to log.
        if wanted and len(self._logged) < _MOST_LOGGED:
            logger = params.get("logger")
            named = {**params, "logger": f"{self._server}: {logger}" if logger else self._server}
            self._logged.append(self._call.service.redaction.data(named))
            self._send_logged()

    def _send_logged(self) -> None:
        if self._logged and self._waited_for and (self._sending is None or self._sending.done()):
            self._sending = asyncio.ensure_future(self._send_all_logged())

    async def _send_all_logged(self) -> None:
        while self._logged and self._waited_for:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # the client has left
                await sdk.send_notification(self._call.context, "notifications/message", self._logged.popleft())


def _log_level(call: Call) -> str | None:
    """From which level on the client wants log messages; None where it wants none."""
    if sdk.is_modern(call.context.protocol_version):
        level = (call.context.meta or {}).get(types.LOG_LEVEL_META_KEY)
        return level if level in _LEVELS else None
    return call.dialogs.log_level or _LEVELS[0]


def _sampler(call: Call, pause: Callable[[types.InputRequest], Awaitable[dict[str, Any] | None]]) -> AskPerson | None:
    """Has the client's model answer, through a request or as a question that ends the round; None where it has none.
    What the model is asked, and whether, is for the client to decide, as with every server of its own."""
    if not can_sample(call.context):
        return None

    async def sample(params: dict[str, Any]) -> dict[str, Any]:
        asked = types.CreateMessageRequestParams.model_validate(call.service.redaction.data(params))
        request = types.CreateMessageRequest(params=asked)
        if call.takes_rounds:
            answer = await pause(request)
            if answer is None:
                raise MCPError(types.INVALID_REQUEST, "The client's model has not answered.")
            return answer
        related = ServerMessageMetadata(related_request_id=call.context.request_id)
        with_tools = asked.tools is not None or asked.tool_choice is not None
        kind = types.CreateMessageResultWithTools if with_tools else types.CreateMessageResult
        return _payload(await call.context.session.send_request(request, kind, metadata=related))

    return sample


def _client_asker(call: Call) -> AskPerson:
    """Asks through a request to the client, on the stream of the call; cancels what the client does not take."""

    async def ask(params: dict[str, Any]) -> dict[str, Any]:
        session, request_id = call.context.session, call.context.request_id
        if not session.can_send_request or not _takes(call, params):
            return _CANCELLED
        message = visible(call.service.redaction.text(str(params.get("message", ""))))
        if params.get("mode") == "url":
            id_ = str(params.get("elicitationId", ""))
            return _payload(await session.elicit_url(message, str(params.get("url", "")), id_, request_id))
        schema = params.get("requestedSchema") or {"type": "object", "properties": {}}
        clean = form_without_secrets(schema, call.service.redaction)
        return _payload(await session.elicit_form(message, clean, request_id))

    return ask


def _takes(call: Call, params: Mapping[str, Any]) -> bool:
    """Whether the client has said that it takes a question of this kind: a form, or an address to open."""
    return can_open_addresses(call.context) if params.get("mode") == "url" else can_be_asked(call.context)


def _payload(result: BaseModel) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _retrieve_exception(work: "asyncio.Future[Any]") -> None:
    """Keeps asyncio from logging the failure of a call that was given up."""
    if not work.cancelled():
        work.exception()


# -- all tools --------------------------------------------------------------------------------------------------------


class HubProxy:
    """Lists and calls the tools. What a person allowed a caller for good is remembered as long as the server runs."""

    def __init__(self, hub: Hub, service: Service) -> None:
        self._hub = hub
        self._service = service
        self._allowed: set[tuple[str, str]] = set()
        self._questions = PermissionQuestions(service)
        self._tools: dict[str, dict[str, HubTool]] = {}
        """By caller, as of its last listing: the tools by the names that they have here. A server may have other tools
        on the connection of one caller than on that of another."""
        self._index: tuple[list[HubTool], ToolIndex] = ([], ToolIndex(()))
        """The words of the tools, and the tools that they were read from."""
        self._rounds = CallRounds(service.settings.permission_timeout)
        self._counts: defaultdict[tuple[str, str], CallCounts] = defaultdict(CallCounts)
        """By principal and server."""

    def end_of(self, principal: str) -> None:
        """The caller is gone: calls that wait for it are given up, and what it was allowed for good is forgotten."""
        self._rounds.end_of(principal)
        self.client_left(Caller(principal))
        for key in [key for key in self._counts if key[0] == principal]:
            del self._counts[key]

    def client_left(self, caller: Caller) -> None:
        """A client is gone: what was remembered for it is forgotten."""
        self._allowed = {entry for entry in self._allowed if entry[0] != caller.key}
        self._tools.pop(caller.key, None)

    # -- tools ------------------------------------------------------------------------------------------------

    async def listing(self, caller: Caller) -> list[types.Tool]:
        """The tools that the caller may use, under the names they have here. A server that does not connect in time is
        left out, and so is a tool that the policy denies whatever its arguments are."""
        tools = await self._refresh(caller)
        return [
            entry.tool.model_copy(update={"name": name}) for name, entry in tools.items() if self._listed(caller, name)
        ]

    async def find(self, caller: Caller, query: str) -> list[types.Tool]:
        """The tools that the caller may use and that have a word of the query, the best first; as in the listing."""
        tools, index = await self._indexed(list((await self._refresh(caller)).values()))
        ranked = (tools[number] for number in index.ranked(query))
        return [
            entry.tool.model_copy(update={"name": entry.name}) for entry in ranked if self._listed(caller, entry.name)
        ]

    def tools_by_server(self, caller: Caller) -> dict[str, int]:
        """How many tools of each server the caller may use, as of its last listing."""
        tools = self._tools.get(caller.key, {})
        return dict(Counter(entry.server for name, entry in tools.items() if self._listed(caller, name)))

    async def _indexed(self, tools: list[HubTool]) -> tuple[list[HubTool], ToolIndex]:
        """The index of the tools, made anew where they have changed."""
        index = self._index
        if index[0] != tools:
            texts = [
                (f"{tool.server} {tool.tool.name}", tool.tool.description, tool.tool.input_schema) for tool in tools
            ]
            # Kept with the tools that it was made of: others may have been listed while the thread ran.
            index = self._index = tools, await asyncio.to_thread(ToolIndex, texts)
        return index

    async def _refresh(self, caller: Caller) -> dict[str, HubTool]:
        listed = await self._hub.tools(timeout=_LIST_TIMEOUT, caller=caller.key, directory=_directory(caller))
        tools = self._tools[caller.key] = {entry.name: entry for entry in listed}
        return tools

    def _listed(self, caller: Caller, name: str) -> bool:
        answer = rule_on_call(self._service, caller.principal, name, {})
        return answer is None or answer.allow

    async def knows(self, caller: Caller, name: str) -> bool:
        """Whether there is such a tool. A server that is still starting, and whose it must be, is waited for. Raises
        UpstreamUnavailable where that server cannot be had."""
        if name in self._tools.get(caller.key, {}):
            return True
        tools = await self._refresh(caller)
        if name in tools:
            return True
        listed = {entry.server for entry in tools.values()}
        waited_for = [each for each in self._hub.servers if each not in listed and name.startswith(prefix_of(each))]
        for server in waited_for:
            await self._hub.tools(server, timeout=None, caller=caller.key, directory=_directory(caller))
        return bool(waited_for) and name in await self._refresh(caller)

    # -- calls ------------------------------------------------------------------------------------------------

    async def call(self, name: str, call: Call, arguments: Mapping[str, Any]) -> CallReply:
        """Calls the tool, once that is permitted. Raises PermissionDenied if it is not, UpstreamUnavailable, and
        MCPError if there is no such tool, or no longer when a person has permitted it."""
        if PAUSED_CALL in call.state:  # the state is sealed for this very call, which was permitted when it began
            return await self._rounds.resume(call)
        unknown = MCPError(types.INVALID_PARAMS, f"Unknown tool: {name[:100]}")
        if not await self.knows(call.caller, name):
            raise unknown
        ruling = await self._ruling(call, name, arguments)
        if isinstance(ruling, types.InputRequiredResult):
            return ruling
        # Looked up only now: while a person was asked, the tools may have been listed again without this one.
        entry = self._tools.get(call.caller.key, {}).get(name)
        if not ruling.answer.allow:
            self._audit(call, entry, name, arguments, ruling, {"reason": ruling.answer.message})
            raise PermissionDenied(ruling.answer.message or f"{name} was denied.")
        if entry is None:
            raise unknown
        start = partial(self._run, call, entry, arguments, ruling)
        return await self._rounds.run(call, ProxiedCall(call, entry.server, start))

    async def _ruling(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Ruling | types.InputRequiredResult:
        """Whether the call is permitted and who says so; or the question to a person, as the result of the call."""
        # The rules first: what a person has allowed for good may be denied since.
        answer = rule_on_call(self._service, call.principal, name, arguments)
        if answer is not None:
            return Ruling(answer, "policy")
        if (call.caller.key, name) in self._allowed:
            return Ruling(Answer(allow=True, scope=Scope.SESSION), "earlier answer")
        ruling = await self._questions.ask(call, name, arguments)
        if isinstance(ruling, Ruling) and ruling.answer.allow and ruling.answer.scope is Scope.SESSION:
            self._allowed.add((call.caller.key, name))
        return ruling

    async def _run(
        self, call: Call, entry: HubTool, arguments: Mapping[str, Any], ruling: Ruling, proxied: ProxiedCall
    ) -> CallReply:
        """The call at the server to its end. Raises UpstreamUnavailable, also with what the server answered."""
        began = time.monotonic()
        report: dict[str, Any] = {"outcome": "cancelled"}
        try:
            counts = self._counts[call.principal, entry.server]
            with counts.counted(entry.server, self._hub.limits(entry.server)):
                result = await self._hub.call(
                    entry.server,
                    entry.tool.name,
                    arguments,
                    caller=call.caller.key,
                    directory=_directory(call.caller),
                    side=proxied.side,
                )
            report = {"outcome": "ok", "size": _size(result)}
            if isinstance(result, types.CallToolResult) and result.is_error:
                report["outcome"] = "error"
        except MCPError as error:
            report = {"outcome": "error", "code": error.code}
            what = "did not answer" if error.code == UNREACHABLE else "answered with an error"
            raise UpstreamUnavailable(f"The MCP server {entry.server!r} {what}: {error.message}") from None
        except ValidationError:
            report = {"outcome": "error"}
            raise UpstreamUnavailable(
                f"The answer of the MCP server {entry.server!r} does not follow the protocol."
            ) from None
        except ClaudeCodeError as error:
            report = {"outcome": "failed", "code": error.code}
            raise
        finally:
            report["duration_ms"] = round(1000 * (time.monotonic() - began))
            self._audit(call, entry, entry.name, arguments, ruling, report)
        # A client elsewhere could not read a file of ours: it gets the result as the server gave it.
        if call.principal != LOCAL or isinstance(result, types.InputRequiredResult):
            return result
        limit = self._service.settings.mcp_output_tokens * _CHARACTERS_PER_TOKEN
        # A short text without structured content is what most results are; it needs no closer look.
        if (report["size"] <= limit and result.structured_content is None) or not is_long(result, limit):
            return result
        promised = entry.tool.output_schema is not None
        return await asyncio.to_thread(with_long_parts_saved, result, limit, self._save, keep_structured=promised)

    def _audit(
        self,
        call: Call,
        entry: HubTool | None,
        name: str,
        arguments: Mapping[str, Any],
        ruling: Ruling,
        report: Mapping[str, Any],
    ) -> None:
        details = {
            "server": entry.server if entry is not None else None,
            "tool": entry.tool.name if entry is not None else name,
            "decision": "allow" if ruling.answer.allow else "deny",
            "by": ruling.by,
            "arguments": arguments,
            **report,
        }
        self._service.audit(AuditEvent(AuditKind.HUB_CALLED, call.principal, details=details))

    def _save(self, text: str, ending: str) -> str:
        """Keeps a long part of a result in a file, as Claude Code itself does, and returns its path."""
        directory = private_directory(self._service.settings.state_dir / "mcp" / "results")
        for old in directory.iterdir():
            with contextlib.suppress(OSError):  # another server may remove it at the same time
                if time.time() - old.stat().st_mtime > _KEPT:
                    old.unlink()
        file = directory / f"{uuid.uuid4().hex}{ending}"
        replace_file(file, self._service.redaction.text(text).encode("utf-8", "replace"))
        return str(file)


def _directory(caller: Caller) -> str | None:
    return caller.environment.directory if caller.environment is not None else None


def _size(result: CallReply) -> int:
    """Characters of text, and of encoded data, in a result."""
    blocks = [] if isinstance(result, types.InputRequiredResult) else result.content
    parts = [block.resource if isinstance(block, types.EmbeddedResource) else block for block in blocks]
    return sum(len(getattr(part, name, None) or "") for part in parts for name in ("text", "data", "blob"))
