"""One established connection to a server: requests, cached lists, and the server's questions to people.

Servers of the handshake protocol ask during a call (`CallsInFlight`). Those of 2026-07-28 return a result that requests
input, and the request is sent again with the answers (`request_with_input`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ..core.model.question import AskPerson
from ..core.model.text import clip
from ..core.model.tool_names import SKILLS
from .config_entry import ServerConfig
from .streams import JsonObject, send_unchecked, writable_params

_MAX_ROUNDS = 10
_MAX_UNCLEAR = 60.0
_NOT_CLEAR = "Several callers share this connection, so it is unclear which one to ask. Repeat the call."
_NO_MODEL = "None of the callers offers a model that could answer."
_current_call: "ContextVar[CallInFlight | None]" = ContextVar("current_call", default=None)

SendAgain = Callable[[JsonObject], Awaitable[JsonObject]]
"""Sends a request with these members added to its params."""


async def cancel_elicitation(params: JsonObject) -> JsonObject:
    """Cancel every question, for callers that have no person to ask."""
    return {"action": "cancel"}


class MovedElsewhere(Exception):
    """The call was abandoned on a connection that several callers share; send it again on a separate one."""


@dataclass(frozen=True, slots=True)
class Requester:
    """The caller of a request, and its directory; None where that does not matter."""

    name: str = ""
    directory: str | None = None


ANONYMOUS = Requester()

OnLog = Callable[[JsonObject], None]
"""Receives the params of a log message (`notifications/message`); must not block."""


@dataclass(frozen=True, slots=True)
class CallerSide:
    """The callbacks of a waiting caller, until its request is answered; None for unsupported ones."""

    on_progress: ProgressFnT | None = None
    ask: AskPerson | None = None
    """Asks a person: from the params of `elicitation/create` to its result."""
    sample: AskPerson | None = None
    """Asks the caller's model: from the params of `sampling/createMessage` to its result."""
    on_log: OnLog | None = None
    log_level: str | None = None
    """The minimum level of log messages, if a request must name one."""


NO_SIDE = CallerSide()


@dataclass(eq=False, slots=True)
class CallInFlight:
    """One request in flight, its caller, and the caller's callbacks."""

    requester: Requester
    side: CallerSide
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    moved: bool = False


class CallsInFlight:
    """Routes a server's questions and logs to the calls in flight on one connection.

    A server that asks during a call does not name the call. Over HTTP the question arrives in the context of its call.
    On a pipe the caller is known only if all calls in flight have the same one. Otherwise the question waits until that
    is so: its own call does not end without an answer, the others do. If every call waits for an answer, all of them
    are abandoned with `MovedElsewhere`. A question never reaches the wrong person. This concerns only a server's first
    question: later callers get separate connections.
    """

    def __init__(self, on_question: Callable[[], Awaitable[None]]) -> None:
        self._on_question = on_question
        self._calls: list[CallInFlight] = []
        self._served: set[str] = set()
        """The names of all callers on this connection."""
        self._unclear = 0
        self._changed = asyncio.Event()

    @contextmanager
    def during_call(self, requester: Requester, side: CallerSide) -> Iterator[None]:
        """Context in which the server's questions and messages may go to `side`.

        Raises MovedElsewhere if the call was abandoned.
        """
        call = CallInFlight(requester, side)
        token = _current_call.set(call)
        self._calls.append(call)
        self._served.add(requester.name)
        try:
            with call.scope:
                yield
        finally:
            self._calls.remove(call)
            _current_call.reset(token)
            self._changed.set()
        # After the scope, which has caught its own cancellation.
        if call.moved:
            raise MovedElsewhere

    @property
    def directories(self) -> set[str]:
        """The directories of the calls in flight."""
        return {call.requester.directory for call in self._calls if call.requester.directory is not None}

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer `elicitation/create` of the server."""
        try:
            side = await self._asked_side(lambda side: side.ask is not None)
        except TimeoutError:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NOT_CLEAR)
        ask = side.ask or cancel_elicitation
        answer = await ask(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        try:
            return types.ElicitResult.model_validate(answer)
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The answer is not valid.")

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Answer `sampling/createMessage` of the server with the model of the caller."""
        try:
            side = await self._asked_side(lambda side: side.sample is not None)
        except TimeoutError:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NOT_CLEAR)
        if side.sample is None:
            return types.ErrorData(code=types.INVALID_REQUEST, message=_NO_MODEL)
        try:
            answer = await side.sample(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if params.tools is not None or params.tool_choice is not None:
                return types.CreateMessageResultWithTools.model_validate(answer)
            return types.CreateMessageResult.model_validate(answer)
        except MCPError as error:
            return error.error
        except ValidationError:
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The answer is not valid.")

    def pass_on_log(self, params: JsonObject, context: Context | None) -> None:
        """Pass a log message to its caller: the one in whose `context` it arrived or, on a pipe, the only caller there
        has ever been. A message that may concern another caller's call is dropped, even if that call is over: a server
        may log later."""
        call = context.get(_current_call) if context is not None else None
        if call is None and len(self._served - {ANONYMOUS.name}) == 1:
            call = next((call for call in self._calls if call.side.on_log is not None), None)
        if call is not None and call.side.on_log is not None:
            call.side.on_log(params)

    async def _asked_side(self, takes: Callable[[CallerSide], bool]) -> CallerSide:
        """The side of the call that the server's question belongs to. Raises TimeoutError if that stays unclear."""
        possible = list(self._calls)  # calls that begin later cannot be the asking one
        # Recorded before the answer: the next caller already gets a separate connection.
        await self._on_question()
        call = _current_call.get() or await self._asking_call(possible, takes)
        return call.side if call is not None else NO_SIDE

    async def _asking_call(
        self, possible: list[CallInFlight], takes: Callable[[CallerSide], bool]
    ) -> CallInFlight | None:
        """The call that a question on a pipe belongs to, once that is clear; None if there is none (any more).

        Raises TimeoutError after `_MAX_UNCLEAR` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _MAX_UNCLEAR
        self._unclear += 1
        try:
            possible = [call for call in possible if call in self._calls]
            while len({call.requester for call in possible}) > 1:
                if self._unclear >= len(possible):
                    for call in possible:
                        call.moved = True
                        call.scope.cancel()
                    return None
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), max(0.0, deadline - loop.time()))
                # A call that has ended in the meantime cannot be the one that asks.
                possible = [call for call in possible if call in self._calls]
        finally:
            self._unclear -= 1
        # Of several calls of one caller, one that can be asked.
        return next((call for call in possible if takes(call.side)), None)


def wants_input(result: JsonObject) -> bool:
    """Whether a result is not final but requests input."""
    return result.get("resultType") == "input_required"


async def request_with_input(send: SendAgain, side: CallerSide, roots: Callable[[], JsonObject]) -> JsonObject:
    """Send a request, and repeat it with the answers of the caller's `side` while its result requests input.

    An error that names URLs for a person to open first (-32042) is handled the same way: they are shown, and the
    request is sent again once the person has agreed to all of them. Raises MCPError if the server requests something
    else, if the person did not agree, or after `_MAX_ROUNDS` rounds.
    """
    answers: JsonObject = {}
    for _ in range(_MAX_ROUNDS):
        try:
            result = await send(answers)
        except MCPError as error:
            if not await _addresses_opened(error, side.ask or cancel_elicitation):
                raise
            continue
        if not wants_input(result):
            return result
        requests = (result.get("inputRequests") or {}).items()
        answers = {"inputResponses": {key: await _input(request, side, roots) for key, request in requests}}
        if result.get("requestState") is not None:
            answers["requestState"] = result["requestState"]
    raise MCPError(types.INTERNAL_ERROR, f"The server asked for input more than {_MAX_ROUNDS} times.")


async def _input(request: JsonObject, side: CallerSide, roots: Callable[[], JsonObject]) -> JsonObject:
    method, params = request.get("method"), request.get("params") or {}
    if method == "roots/list":
        return roots()
    if method == "elicitation/create":
        return await (side.ask or cancel_elicitation)(params)
    if method == "sampling/createMessage" and side.sample is not None:
        return await side.sample(params)
    raise MCPError(types.INVALID_REQUEST, f"The server requested {method}, which this client does not support.")


async def _addresses_opened(error: MCPError, ask: AskPerson) -> bool:
    """Whether the error names addresses, and a person has agreed to open every one of them."""
    data = error.error.data
    wanted = data.get("elicitations") if isinstance(data, dict) else None
    if error.code != types.URL_ELICITATION_REQUIRED or not isinstance(wanted, list) or not wanted:
        return False
    for address in wanted:
        answer = await ask({**address, "mode": "url"}) if isinstance(address, dict) else {}
        if answer.get("action") != "accept":
            return False
    return True


LISTS = {
    "tools": ("list_tools", "tools"),
    "resources": ("list_resources", "resources"),
    "templates": ("list_resource_templates", "resource_templates"),
    "prompts": ("list_prompts", "prompts"),
}
"""Maps a kind of list to the SDK's method and the result field with the items."""

MAX_DESCRIPTION = 2048
_MAX_PAGES = 100
_TASK_TTL_MS = 86_400_000
"""How long a server is asked to keep a task: as long as a caller may wait for it."""
_CANCEL_TIMEOUT = 2.0
_UNCHANGED: TypeAdapter[Any] = TypeAdapter(Any)
_HOP_PREFIX = "io.modelcontextprotocol/"
"""Keys of `_meta` with this prefix concern one connection, and are not forwarded to the next."""


class _AnyRequest(types.Request[dict[str, Any] | None, str]):
    """A request of any method."""


class UpstreamClient:
    """The client of one connection: created by the task that owns it, used by any task.

    Lists are fetched once and cached until invalidated; concurrent callers share one answer.
    """

    def __init__(self, session: ClientSession, config: ServerConfig, calls: CallsInFlight) -> None:
        self._session = session
        self._config = config
        self._calls = calls
        self._lists: dict[str, list[Any]] = {}
        self._fetching = {kind: asyncio.Lock() for kind in LISTS}
        self._version = dict.fromkeys(self._fetching, 0)
        self._task_tools: set[str] = set()
        """The tools that run only as tasks of the server."""
        self.capabilities = session.server_capabilities or types.ServerCapabilities()
        self.server_info = session.server_info
        self.protocol_version = session.protocol_version or ""
        self.is_modern = self.protocol_version in MODERN_PROTOCOL_VERSIONS
        self.instructions = trim_description(session.instructions)
        self.ended = asyncio.Event()
        """Set when the transport is closed; `end_reason` says why then."""
        self.end_reason = ""

    @property
    def known_tools(self) -> int | None:
        """How many tools there are; None while they have not been listed."""
        tools = self._lists.get("tools")
        return None if tools is None else len(tools)

    async def request(
        self, method: str, params: JsonObject, side: CallerSide = NO_SIDE, requester: Requester = ANONYMOUS
    ) -> JsonObject:
        """Send a request of any method and return its result unchanged; the server's questions and messages in the
        meantime go to `side`. A tool that runs only as a task is called as one, and its result awaited.

        Raises MCPError with the server's error or for params that cannot be written, and MovedElsewhere if the request
        must be sent again on a separate connection.
        """
        params = _for_next_hop(writable_params(params))
        if side.log_level is not None and self.is_modern:
            params = {**params, "_meta": {**params.get("_meta", {}), types.LOG_LEVEL_META_KEY: side.log_level}}
        with self._calls.during_call(requester, side):
            if method == "tools/call":
                if self.capabilities.tasks is not None:
                    await self.tools()  # which shows those that run as tasks
                if str(params.get("name")) in self._task_tools:
                    return await self._run_task(params, side.on_progress)
            request = _AnyRequest(method=method, params=params)
            result: JsonObject = await self._session.send_request(
                request, _UNCHANGED, progress_callback=side.on_progress
            )
            return result
        raise MovedElsewhere  # the context raises it already; a type checker cannot know

    async def _run_task(self, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Call a tool as a task (2025-11-25) and return the task's result. Cancelling the caller cancels the task."""
        task_params = {**params, "task": {"ttl": _TASK_TTL_MS}}
        created = await send_unchecked(self._session, "tools/call", task_params, on_progress)
        task = created.get("task")
        if not isinstance(task, dict):
            return created
        task_id = {"taskId": task.get("taskId")}
        try:
            # Answered when the task has ended.
            return await send_unchecked(self._session, "tasks/result", task_id)
        except asyncio.CancelledError:
            # Shielded: otherwise the task would keep running without a receiver.
            with anyio.move_on_after(_CANCEL_TIMEOUT, shield=True), suppress(MCPError):
                await send_unchecked(self._session, "tasks/cancel", task_id)
            raise

    async def set_log_level(self, level: str) -> None:
        """Set the log level of a server with a handshake; errors are ignored."""
        if self.capabilities.logging is not None and not self.is_modern:
            with suppress(MCPError):
                await self.request("logging/setLevel", {"level": level})

    async def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification of any method."""
        notification = types.Notification[dict[str, Any], str](method=method, params=writable_params(params))
        await self._session.send_notification(notification)  # type: ignore[arg-type] # any method may go out

    def forget_lists(self, *kinds: str) -> list[str]:
        """Invalidate stale lists, including those being fetched; return which of them any caller had seen."""
        known = [kind for kind in kinds if kind in self._lists or self._fetching[kind].locked()]
        for kind in kinds:
            self._lists.pop(kind, None)
            self._version[kind] += 1
        return known

    async def tools(self) -> list[types.Tool]:
        """The tools that the configuration allows, under their configured names."""
        return [] if self.capabilities.tools is None else await self._list("tools")

    async def resources(self) -> list[types.Resource]:
        return [] if self.capabilities.resources is None else await self._list("resources")

    async def templates(self) -> list[types.ResourceTemplate]:
        if self.capabilities.resources is None:
            return []
        try:
            return await self._list("templates")
        except MCPError as error:
            if error.code == types.METHOD_NOT_FOUND:
                return []
            raise

    async def prompts(self) -> list[types.Prompt]:
        return [] if self.capabilities.prompts is None else await self._list("prompts")

    async def skills(self) -> list[JsonObject]:
        """The entries of `skills/list` that name a skill, unchanged; fetched again each time, because servers do not
        announce changes."""
        items: list[JsonObject] = []
        params: JsonObject = {}
        for _ in range(_MAX_PAGES if SKILLS in (self.capabilities.extensions or {}) else 0):
            page = await self.request("skills/list", params)
            listed = page.get("skills")
            items += [each for each in listed if is_skill(each)] if isinstance(listed, list) else []
            params = {"cursor": page.get("nextCursor")}
            if not isinstance(params["cursor"], str):
                break
        return items

    async def _list(self, kind: str) -> list[Any]:
        method, attribute = LISTS[kind]
        async with self._fetching[kind]:  # concurrent callers share one answer
            if kind in self._lists:
                return self._lists[kind]
            version = self._version[kind]
            items: list[Any] = []
            cursor = None
            # Bounded: a server may return pages forever.
            for _ in range(_MAX_PAGES):
                page = await getattr(self._session, method)(params=types.PaginatedRequestParams(cursor=cursor))
                items += getattr(page, attribute)
                cursor = page.next_cursor
                if cursor is None:
                    break
            if kind == "tools":
                as_tasks = (tool for tool in items if tool.execution and tool.execution.task_support == "required")
                self._task_tools = {tool.name for tool in as_tasks}
                items = trim_tools(items, self._config)
            if self._version[kind] == version:  # otherwise it was forgotten while it was fetched
                self._lists[kind] = items
            return items


def is_skill(entry: object) -> bool:
    """Whether an entry names a skill by the address of its `SKILL.md`, and lists its files."""
    if not isinstance(entry, dict) or not isinstance(entry.get("frontmatter"), dict):
        return False
    files = entry.get("resources")
    return str(entry.get("uri")).endswith("/SKILL.md") and (files == "dynamic" or isinstance(files, list))


def _for_next_hop(params: JsonObject) -> JsonObject:
    """The params without the `_meta` entries about their connection."""
    meta = params.get("_meta")
    if not meta:
        return params
    kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(_HOP_PREFIX)}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def trim_description(text: str | None) -> str | None:
    """A description or instruction of at most `MAX_DESCRIPTION` characters; some servers send megabytes."""
    return None if text is None else clip(text, MAX_DESCRIPTION, "… [truncated]")


def trim_tools(tools: list[types.Tool], config: ServerConfig) -> list[types.Tool]:
    """The tools that the configuration allows, with configured names and descriptions, without fields that clients
    reject."""
    shown = [_trim_tool(tool, config) for tool in tools if config.allows(tool.name)]
    # A tool whose own name was configured for another tool cannot be called by it any more.
    taken = {override.name for override in config.tool_overrides.values() if override.name is not None}
    return [tool for tool, own in shown if tool.name != own or own not in taken or config.own_name(own) == own]


def _trim_tool(tool: types.Tool, config: ServerConfig) -> tuple[types.Tool, str]:
    """The tool as clients see it, and its own name."""
    changes: dict[str, Any] = {}
    override = config.tool_overrides.get(tool.name)
    if override is not None:
        changes = override.model_dump(exclude_none=True)
    description = changes.get("description", tool.description)
    if description is not None and len(description) > MAX_DESCRIPTION:
        changes["description"] = trim_description(description)
    if tool.execution is not None:  # the hub runs tasks itself; clients do not see them
        changes["execution"] = None
    if tool.output_schema is not None and tool.output_schema.get("type") != "object":
        changes["output_schema"] = None
    return (tool.model_copy(update=changes) if changes else tool), tool.name
