"""A call that continues as a task after its client got a response."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from pydantic import TypeAdapter, ValidationError

from ..core.model.text import iso
from ..core.state.task_records import TaskRecord, TaskRecords

log = logging.getLogger(__name__)


_POLL_INTERVAL_MS = 1000
_MAX_LISTED_KEYS = 100
_ANSWER: TypeAdapter[types.ElicitResult] = TypeAdapter(types.ElicitResult)


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
