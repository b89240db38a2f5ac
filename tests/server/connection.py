"""A connected client that tests can share: it lives on a loop and thread of its own, and every reply is checked."""

import asyncio
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import mcp_types as types
from mcp import Client
from mcp.client import ClientRequestContext

from tests.support.tool_schemas import strict
from tests.support.waiting import HANG_SECONDS

LONG = HANG_SECONDS
CODES = {
    "INVALID_ARGUMENT",
    "SESSION_NOT_FOUND",
    "SESSION_BUSY",
    "PERMISSION_DENIED",
    "TIMEOUT",
    "CANCELLED",
    "LIMIT_REACHED",
    "CLI_NOT_FOUND",
    "UPSTREAM_UNAVAILABLE",
}


@dataclass(frozen=True)
class Reply:
    """The result of a tool call."""

    raw: types.CallToolResult

    @property
    def data(self) -> dict[str, Any]:
        assert not self.raw.is_error, self.text
        return dict(self.raw.structured_content or {})

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.raw.content if isinstance(part, types.TextContent))

    @property
    def code(self) -> str | None:
        """The code of a refusal; None for a success."""
        return str((self.raw.structured_content or {})["error"]["code"]) if self.raw.is_error else None

    @property
    def refusal(self) -> str:
        assert self.raw.is_error, self.text
        return str((self.raw.structured_content or {})["error"]["message"])

    @property
    def session(self) -> str:
        return str(self.data["sessionId"])

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def question(self) -> dict[str, Any]:
        """The one open question."""
        (question,) = self.data["pendingInputs"]
        return dict(question)


@dataclass
class Dialog:
    """A form that the client was asked to show."""

    params: types.ElicitRequestFormParams
    loop: asyncio.AbstractEventLoop
    outcome: "asyncio.Future[types.ElicitResult]"
    withdrawn: threading.Event = field(default_factory=threading.Event)

    @property
    def message(self) -> str:
        return self.params.message

    @property
    def fields(self) -> dict[str, Any]:
        return dict(self.params.requested_schema["properties"])

    def accept(self, **content: Any) -> None:
        """The person fills the form in; a client checks that before it answers."""
        jsonschema.validate(content, dict(self.params.requested_schema))
        self._settle("accept", content)

    def decline(self) -> None:
        self._settle("decline", None)

    def cancel(self) -> None:
        self._settle("cancel", None)

    def _settle(self, action: Any, content: dict[str, Any] | None) -> None:
        result = types.ElicitResult(action=action, content=content)
        self.loop.call_soon_threadsafe(self.outcome.set_result, result)


class Connection:
    """`open_client` gets the callback for dialogs; with `can_be_asked` it is to be given to the client."""

    def __init__(
        self, open_client: Callable[[Any], AbstractAsyncContextManager[Client]], *, can_be_asked: bool
    ) -> None:
        self._open_client = open_client
        self._can_be_asked = can_be_asked
        self._dialogs: queue.Queue[Dialog] = queue.Queue()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)

    def __enter__(self) -> "Connection":
        self._thread.start()
        self._ready.result(LONG)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._leave.set)
            self._thread.join(LONG)

    async def _live(self) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._open_client(self._elicit if self._can_be_asked else None) as self.client:
                self.tools = {tool.name: tool for tool in (await self.client.list_tools()).tools}
                self._ready.set_result(None)
                await self._leave.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _elicit(self, _: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        dialog = Dialog(params, self._loop, self._loop.create_future())
        self._dialogs.put(dialog)
        try:
            return await dialog.outcome
        except asyncio.CancelledError:
            dialog.withdrawn.set()
            raise

    def dialog(self, timeout: float = LONG) -> Dialog:
        """The next form that is shown."""
        return self._dialogs.get(timeout=timeout)

    @property
    def no_dialog(self) -> bool:
        return self._dialogs.empty()

    def start(self, tool: str, /, **arguments: Any) -> "Future[Reply]":
        """A call that is left open."""
        return asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)

    def call(self, tool: str, /, **arguments: Any) -> Reply:
        """A call and its reply, checked against what the tool promises."""
        return self.start(tool, **arguments).result(LONG)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Reply:
        reply = Reply(await self.client.call_tool(tool, arguments))
        check(self.tools[tool], reply)
        return reply

    # -- the tools, in the words of the tests -----------------------------------------------------------------

    def create(self, prompt: str, **arguments: Any) -> Reply:
        return self.call("claude_create_session", prompt=prompt, **arguments)

    def send(self, session_id: str, message: str, **arguments: Any) -> Reply:
        return self.call("claude_send_message", sessionId=session_id, message=message, **arguments)

    def look(self, session_id: str, **arguments: Any) -> Reply:
        return self.call("claude_get_status", sessionId=session_id, **arguments)

    def respond(self, asked: Reply, decision: str, **arguments: Any) -> Reply:
        """Answers the one question in a report."""
        question = asked.question["inputId"]
        return self.call("claude_respond", sessionId=asked.session, inputId=question, decision=decision, **arguments)

    def interrupt(self, session_id: str) -> Reply:
        return self.call("claude_interrupt", sessionId=session_id)

    def sessions(self, **arguments: Any) -> list[dict[str, Any]]:
        return list(self.call("claude_list_sessions", **arguments).data["sessions"])


@cache
def _validator(schema: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema))


def check(tool: types.Tool, reply: Reply) -> None:
    """Structured content fits the schema; a refusal has a code, and neither carries a traceback."""
    if tool.output_schema is not None:
        _validator(json.dumps(strict(tool.output_schema))).validate(reply.raw.structured_content)
    assert "Traceback" not in reply.text
    if reply.raw.is_error:
        assert reply.code in CODES
        assert reply.text == f"Error [{reply.code}]: {reply.refusal}"
