"""Calls that continue as tasks (`io.modelcontextprotocol/tasks`), for clients that declare the extension.

A call of such a client starts like every call. When it starts waiting for a turn (`Call.detach`), the task is written
to disk and returned as the result of the call; the rest of the call continues in the background. The tools are unaware
of this: a question that ends a round becomes an input request of the task, under the id of the question, and the
client's `tasks/update` starts the next round as a repeated call would. So a task follows its turn, and answers from
other channels count here too.

A task belongs to the caller that started it; for others it does not exist. After a restart it is restored from its
record: with its result if it had ended, otherwise with the outcome of its session.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER
from mcp_types.jsonrpc import HEADER_MISMATCH, MISSING_REQUIRED_CLIENT_CAPABILITY
from pydantic import Field, TypeAdapter, ValidationError

from ..core.errors import SessionNotFound
from ..core.model.caller import Caller
from ..core.model.text import iso
from ..core.service import Service
from ..core.sessions.callers.session_access import Access
from ..core.state.task_records import ENDED, TaskRecord, TaskRecords
from .client_capabilities import TASKS_EXTENSION, can_be_asked, declares_tasks
from .rounds import RoundState
from .sdk import Context
from .tools.call import Call

log = logging.getLogger(__name__)

_POLL_INTERVAL_MS = 1000
_MAX_LISTED_KEYS = 100
_ANSWER: TypeAdapter[types.ElicitResult] = TypeAdapter(types.ElicitResult)
CallReply = types.CallToolResult | types.InputRequiredResult
Round = Callable[[Call], Awaitable[CallReply]]
"""Runs one round of a tool's call. Refusals are results; MCPError is an error of the protocol."""


class TaskParams(types.RequestParams):
    task_id: str = Field(max_length=100)


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


@dataclass(eq=False)
class Task:
    """A call that may continue after its client got a response. The call itself starts the task with `Call.detach`."""

    record: TaskRecord
    records: TaskRecords
    on_begun: "Callable[[Task], None]"
    on_change: "Callable[[Task], None]"
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    input_requests: dict[str, Any] = field(default_factory=dict)
    """The open questions in wire format, by key."""
    _question_of: dict[str, str] = field(default_factory=dict)
    """The question of each key ever used: a key is never reused."""
    _responses: dict[str, types.ElicitResult] = field(default_factory=dict)
    _answered: asyncio.Event = field(default_factory=asyncio.Event)
    run: "asyncio.Task[None] | None" = None
    cancelling: bool = False

    @property
    def is_begun(self) -> bool:
        return self.begun.is_set()

    async def begin(self, session_id: str | None, message_id: str | None) -> None:
        """Continue the call as a task. On return the task is on disk; a second call does nothing.

        If it cannot be written (OSError) the call stays an ordinary one that its client waits for.
        """
        if self.is_begun:
            return
        record = self.record.model_copy(update={"session_id": session_id, "message_id": message_id})
        try:
            await asyncio.to_thread(self.records.write, record)
        except OSError as error:
            log.warning(
                "%s of %s runs without a task: its record cannot be written: %s", record.tool, record.owner, error
            )
            return
        self.record = record
        # In the table before the response: the client may request the task at once.
        self.on_begun(self)
        self.begun.set()

    def ask(self, requests: Mapping[str, types.InputRequest]) -> None:
        """Note that the round ended with these questions."""
        shown = {}
        for question_id, request in requests.items():
            key = next((key for key in self.input_requests if self._question_of[key] == question_id), None)
            if key is None:
                uses = sum(1 for used in self._question_of.values() if used == question_id)
                key = question_id if not uses else f"{question_id}.{uses + 1}"
                self._question_of[key] = question_id
            shown[key] = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.input_requests = shown
        self.changed("input_required")

    def respond(self, responses: Mapping[str, Any]) -> None:
        """Take the client's answers; unknown keys and invalid answers are ignored."""
        for key in list(responses)[:_MAX_LISTED_KEYS]:
            if key in self.input_requests:
                try:
                    answer = _ANSWER.validate_python(responses[key])
                except ValidationError:
                    continue
                del self.input_requests[key]
                self._responses[self._question_of[key]] = answer
        if self._responses:
            self.changed("input_required" if self.input_requests else "working")
            self._answered.set()

    async def next_responses(self, change: Coroutine[Any, Any, Any] | None) -> Mapping[str, types.ElicitResult]:
        """Wait for the client's answers, or for a `change` of the questions elsewhere."""
        # Both are cancelled below: the one that did not finish would wait forever.
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._answered.wait())]
        if change is not None:
            waits.append(asyncio.ensure_future(change))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._answered.clear()
        responses, self._responses = self._responses, {}
        return responses

    def changed(self, status: str, **more: Any) -> None:
        """Set a new status and publish it."""
        self.record = self.record.model_copy(update={"status": status, "updated_at": time.time(), **more})
        self.on_change(self)

    def listing(self) -> dict[str, Any]:
        """The complete task, as in `tasks/get` and `notifications/tasks`."""
        waiting = {"inputRequests": self.input_requests} if self.record.status == "input_required" else {}
        return {**in_full(self.record), **waiting}


def brief(record: TaskRecord) -> dict[str, Any]:
    """The fields that every representation of a task has."""
    return {
        "taskId": record.task_id,
        "status": record.status,
        "createdAt": iso(record.created_at),
        "lastUpdatedAt": iso(record.updated_at),
        "ttlMs": record.ttl_ms,
        "pollIntervalMs": _POLL_INTERVAL_MS,
    }


def in_full(record: TaskRecord) -> dict[str, Any]:
    """The fields of `brief`, with the result or error of the task."""
    ends = {"result": record.result, "error": record.error}
    return {**brief(record), **{name: value for name, value in ends.items() if value is not None}}


def missing_capability() -> MCPError:
    """The error for a client that asks for tasks without having declared them."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        "The client does not declare the tasks extension.",
        {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
    )


class Tasks:
    """The tasks of a server: starts them, and answers the requests about them."""

    def __init__(
        self, service: Service, principal: Callable[[], str], publish: Callable[[str, str, Any], None]
    ) -> None:
        """`publish` is called with the owner, the task's id and the whole task whenever one has changed."""
        self.service = service
        self._principal = principal
        self._publish = publish
        self.records = TaskRecords(service.state)
        self._tasks: dict[str, Task] = {}
        """The tasks running in this server, and those that ended here without a written record."""

    def register(self, server: Server[Any]) -> None:
        """Offer tasks on a server of the SDK."""
        server.extensions[TASKS_EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    def _begun(self, task: Task) -> None:
        if not self._tasks:
            self.service.start_task(self._clean_up())
        self._tasks[task.record.task_id] = task

    async def _clean_up(self) -> None:
        await asyncio.to_thread(self.records.clean_up, self.service.settings.task_ttl_ms)

    def publish(self, task: Task) -> None:
        if task.is_begun:
            self._publish(task.record.owner, task.record.task_id, task.listing)

    async def start(self, call: Call, tool: str, round_: Round) -> "CallReply | dict[str, Any]":
        """Run a call. Return its task as soon as it becomes one, or its reply if that comes first."""
        now = time.time()
        record = TaskRecord(
            task_id=secrets.token_urlsafe(24),
            owner=call.principal,
            tool=tool,
            created_at=now,
            updated_at=now,
            ttl_ms=self.service.settings.task_ttl_ms,
        )
        task = Task(record, self.records, self._begun, self.publish)
        # A task outlives its connection, as its client requested.
        call = replace(call, task=task, on_disconnect="keep")
        first = asyncio.ensure_future(round_(call))
        begun = asyncio.ensure_future(task.begun.wait())
        try:
            await asyncio.wait({first, begun}, return_when=asyncio.FIRST_COMPLETED)
            if task.is_begun:
                task.run = self.service.start_task(self._finish(task, call, round_, first))
        finally:
            begun.cancel()
            if not task.is_begun:
                # A call that has not become a task ends with the request of its client.
                first.cancel()
        return {"resultType": "task", **brief(task.record)} if task.is_begun else first.result()

    async def _finish(self, task: Task, call: Call, round_: Round, first: "asyncio.Future[CallReply]") -> None:
        """Run the rest of the call, round by round, and record its end."""
        try:
            reply = await first
            while isinstance(reply, types.InputRequiredResult):
                call = await self._next_round(task, call, reply)
                reply = await round_(call)
        except asyncio.CancelledError:
            if not task.cancelling:
                raise  # the server stops; the record says that the task was running
            end: dict[str, Any] = {"status": "cancelled"}
        except MCPError as error:
            end = {"status": "failed", "error": {"code": error.code, "message": error.message}}
        else:
            result = reply.model_dump(mode="json", by_alias=True, exclude_none=True)
            result.pop("resultType", None)
            # An abandoned turn also ends with a result.
            end = {"status": "cancelled"} if task.cancelling else {"status": "completed", "result": result}
        task.input_requests = {}
        await self._end(task, **end)

    async def _next_round(self, task: Task, call: Call, asked: types.InputRequiredResult) -> Call:
        """After a round that ended with questions, wait for the input of the next one."""
        requests = asked.input_requests or {}
        state = RoundState.from_json(asked.request_state)
        responses: Mapping[str, types.ElicitResult] = {}
        if task.record.session_id is None:
            task.ask(requests)
            responses = await task.next_responses(None)
        elif requests.keys() <= {question.id for question in call.dialogs.undismissed_questions(state.session or "")}:
            # No await between this check and the start of the wait, so no change is missed.
            change = call.dialogs.wait_for_change()
            task.ask(requests)
            responses = await task.next_responses(change)
        if responses:
            task.changed("input_required" if task.input_requests else "working")
        return replace(call, responses=responses, state=state, offsets={})

    async def _end(self, task: Task, status: str, **more: Any) -> None:
        """Write the record, then publish the end."""
        ended = task.record.model_copy(update={"status": status, "updated_at": time.time(), **more})
        try:
            await asyncio.to_thread(self.records.write, ended)
        except (OSError, ValueError) as error:
            log.warning("cannot record the end of task %s of %s: %s", ended.task_id, ended.owner, error)
        else:
            self._tasks.pop(ended.task_id, None)
        task.record = ended
        self.publish(task)

    def end_of(self, principal: str) -> None:
        """End the tasks of a principal; those that wait for a turn end with it."""
        for task in self._tasks.values():
            if task.record.owner == principal and task.record.status not in ENDED and not task.cancelling:
                task.cancelling = True
                if task.record.session_id is None and task.run is not None:
                    task.run.cancel()

    def end_unshared(self) -> None:
        """End the tasks of former grantees; the turn belongs to the session and continues."""
        owners = {session.id: session.owner for session in self.service.sessions(principal=None)}
        for task in self._tasks.values():
            record = task.record
            if record.session_id is None or record.status in ENDED or task.cancelling or task.run is None:
                continue
            session_id = self.service.current_id(record.session_id)
            owner = owners.get(session_id, record.owner)
            if not self.service.access.may(session_id, owner, record.owner, Access.WATCH):
                task.cancelling = True
                task.run.cancel()

    async def _get(self, context: Context, params: TaskParams) -> dict[str, Any]:
        found = await self._find(context, params)
        if isinstance(found, Task):
            return {"resultType": "complete", **found.listing()}
        return {"resultType": "complete", **in_full(found)}

    async def _update(self, context: Context, params: UpdateParams) -> dict[str, Any]:
        found = await self._find(context, params)
        if isinstance(found, Task):
            session_id = found.record.session_id
            # The forms were built for the client that started the task; this connection may be another one.
            if session_id and not can_be_asked(context) and self.service.needs_person(session_id, found.record.owner):
                raise MCPError(types.INVALID_REQUEST, "Only a person may answer this, in a client that shows forms.")
            found.respond(params.input_responses)
        return {"resultType": "complete"}

    async def _cancel(self, context: Context, params: TaskParams) -> dict[str, Any]:
        """Interrupt the turn of the task, or the call itself if it has no turn. A finished task stays unchanged."""
        found = await self._find(context, params)
        if isinstance(found, Task) and found.record.status not in ENDED and not found.cancelling:
            # Before any await: the turn, and with it the task, may end while it is being interrupted.
            found.cancelling = True
            if not await self._give_up_turn(found.record) and found.run is not None:
                found.run.cancel()
        return {"resultType": "complete"}

    async def _give_up_turn(self, record: TaskRecord) -> bool:
        """End the turn of a task, which ends the task; return whether there was one."""
        if record.session_id is None or record.message_id is None:
            return False
        session = await self.service.find(record.session_id, caller=Caller(record.owner))
        message = session.delivery(record.message_id)
        if message is None or message.outcome.done():
            return False
        await session.give_up_message(message)
        return True

    async def _find(self, context: Context, params: TaskParams) -> Task | TaskRecord:
        """A task of the caller: running here, or its record."""
        if not declares_tasks(context):
            raise missing_capability()
        _check_header(context, params.task_id)
        principal = self._principal()
        task = self._tasks.get(params.task_id)
        if task is not None and task.record.owner == principal:
            return task
        record = await asyncio.to_thread(self.records.read, params.task_id, principal)
        if record is None:
            raise MCPError(types.INVALID_PARAMS, "There is no such task.")
        return record if record.status in ENDED else await self._after_restart(record)

    async def _after_restart(self, record: TaskRecord) -> TaskRecord:
        """Determine the state of an unfinished task. It continues if its session runs in another server; otherwise that
        server stopped during the turn, and the result says so and how to continue. Raises errors that prevent this: a
        temporary error must not be recorded as the end of the task."""
        text = "The server was stopped while this task ran."
        if record.session_id is not None:
            try:
                session = await self.service.find(record.session_id, caller=Caller(record.owner))
            except SessionNotFound as error:
                text += f" {error.message}"
            else:
                if session.runs_elsewhere:
                    return record
                text += f" Session {session.id} can be continued."
        result = {"content": [{"type": "text", "text": text}], "isError": True}
        if record.session_id is not None:
            result["structuredContent"] = {
                "sessionId": record.session_id,
                "error": {"code": "INTERNAL", "message": text},
            }
        ended = record.model_copy(update={"status": "completed", "updated_at": time.time(), "result": result})
        await asyncio.to_thread(self.records.write, ended)
        return ended


def _check_header(context: Context, task_id: str) -> None:
    """Over HTTP the id is also in a header, for intermediaries that route by it; both must match."""
    headers = getattr(context.request, "headers", None)
    if headers is not None and headers.get(MCP_NAME_HEADER) != task_id:
        raise MCPError(
            HEADER_MISMATCH, f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter"
        )
