"""One established connection to a server: requests, cached lists, and the questions of the server to people.

Servers of the protocol with a handshake ask in the middle of a call (`CallsInFlight`). Those of 2026-07-28 return a
result that says what they need, and the request is sent again with the answers (`request_with_input`).

A server with a handshake announces changed lists by itself, and is asked for each resource. One of 2026-07-28 tells
only on a stream that it is asked for (`subscriptions/listen`), which it may end at any time: it is asked again then,
with growing pauses, and everything that was listed before counts as stale (`ServerChanges`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from ..core.model.question import AskPerson
from ..core.model.tool_names import SKILLS
from .config_entry import ServerConfig
from .streams import JsonObject, send_unchecked, writable_params
from .tools import trim_description, trim_tools

_MAX_ROUNDS = 10
_LONGEST_UNCLEAR = 60.0
_NOT_CLEAR = "Several callers share this connection, so it is unclear which one to ask. Repeat the call."
_NO_MODEL = "None of the callers offers a model that could answer."
_current_call: "ContextVar[CallInFlight | None]" = ContextVar("current_call", default=None)

SendAgain = Callable[[JsonObject], Awaitable[JsonObject]]
"""Sends a request with these members added to its params."""


async def cancel_elicitation(params: JsonObject) -> JsonObject:
    """Cancels every question: for callers that have no person to ask."""
    return {"action": "cancel"}


class MovedElsewhere(Exception):
    """The call was given up on a connection that several callers share; it is to be sent again on another."""


@dataclass(frozen=True, slots=True)
class Requester:
    """Who makes a request, and in which directory; None where that does not matter."""

    name: str = ""
    directory: str | None = None


ANONYMOUS = Requester()

OnLog = Callable[[JsonObject], None]
"""Takes the params of a log message (`notifications/message`); must not wait."""


@dataclass(frozen=True, slots=True)
class CallerSide:
    """What reaches whoever waits for a request, until it is answered; None stands for what they cannot take."""

    on_progress: ProgressFnT | None = None
    ask: AskPerson | None = None
    """Puts a question to a person: from the params of `elicitation/create` to its result."""
    sample: AskPerson | None = None
    """Has the caller's model answer: from the params of `sampling/createMessage` to its result."""
    on_log: OnLog | None = None
    log_level: str | None = None
    """From which level on log messages are wanted, where a request has to say so."""


NO_SIDE = CallerSide()


@dataclass(eq=False, slots=True)
class CallInFlight:
    """One request that waits for its answer, who made it, and what reaches them meanwhile."""

    requester: Requester
    side: CallerSide
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    moved: bool = False


class CallsInFlight:
    """Who can be asked, and told, for the calls in flight on one connection.

    A server that asks in mid-call does not say for which call. Over HTTP the question comes in the context of its
    call. On a pipe it is clear when all calls in flight are of one caller. Otherwise the question waits until they are:
    the call that it belongs to does not end without an answer. When every call waits for an answer, none of them would
    end; then all of them are given up with `MovedElsewhere`. A question never reaches the wrong person. All of this is
    for the first question of a server only: callers that come later have connections of their own.
    """

    def __init__(self, on_question: Callable[[], Awaitable[None]]) -> None:
        self._on_question = on_question
        self._calls: list[CallInFlight] = []
        self._served: set[str] = set()
        """The names of all who have made a call on this connection."""
        self._unclear = 0
        self._changed = asyncio.Event()

    @contextmanager
    def during_call(self, requester: Requester, side: CallerSide) -> Iterator[None]:
        """Within the block, what the server asks and tells may go to `side`.

        Raises MovedElsewhere where the call was given up.
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
        """Answers `elicitation/create` of the server."""
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
        """Answers `sampling/createMessage` of the server with the model of the caller."""
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
        """Hands a log message to the caller that it is for: the one in whose `context` it came or, on a pipe, the only
        one that has ever made a call there. One that may be about somebody else's call is for nobody, also if that call
        is over: a server may log later."""
        call = context.get(_current_call) if context is not None else None
        if call is None and len(self._served - {ANONYMOUS.name}) == 1:
            call = next((call for call in self._calls if call.side.on_log is not None), None)
        if call is not None and call.side.on_log is not None:
            call.side.on_log(params)

    async def _asked_side(self, takes: Callable[[CallerSide], bool]) -> CallerSide:
        """The side of the call that the server asks about. Raises TimeoutError where it stays unclear which that is."""
        possible = list(self._calls)  # calls that begin later cannot be the one that asks
        # Learned before it is answered: whoever comes next has a connection of its own already.
        await self._on_question()
        call = _current_call.get() or await self._asking_call(possible, takes)
        return call.side if call is not None else NO_SIDE

    async def _asking_call(
        self, possible: list[CallInFlight], takes: Callable[[CallerSide], bool]
    ) -> CallInFlight | None:
        """The call that a question on a pipe belongs to, once that is clear; None if there is none, or no more.

        Raises TimeoutError after `_LONGEST_UNCLEAR` seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LONGEST_UNCLEAR
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
                # A call that has ended meanwhile cannot be the one that asks.
                possible = [call for call in possible if call in self._calls]
        finally:
            self._unclear -= 1
        # Of several calls of one caller, one that can be asked.
        return next((call for call in possible if takes(call.side)), None)


def wants_input(result: JsonObject) -> bool:
    """Whether a result is not final, but says what the server needs to know first."""
    return result.get("resultType") == "input_required"


async def request_with_input(send: SendAgain, side: CallerSide, roots: Callable[[], JsonObject]) -> JsonObject:
    """Sends a request, and again with the answers of the caller's `side` for as long as its result wants input.

    A refusal that says which addresses a person has to open first (-32042) is the same: they are shown, and the
    request is sent again once the person has agreed to all of them. Raises MCPError where the server wants something
    else, where the person did not agree, or after `_MAX_ROUNDS` rounds.
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


# -- client session ---------------------------------------------------------------------------------------------------


LISTS = {
    "tools": ("list_tools", "tools"),
    "resources": ("list_resources", "resources"),
    "templates": ("list_resource_templates", "resource_templates"),
    "prompts": ("list_prompts", "prompts"),
}
"""From what a server lists to the SDK's method for it, and where its result has the items."""
LIST_CHANGES = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}
"""From a notification to the lists that it makes stale."""

_MAX_PAGES = 100
_TASK_TTL_MS = 86_400_000
"""For how long a server is asked to keep a task: as long as anybody may wait for it."""
_CANCEL_TIMEOUT = 2.0
_UNCHANGED: TypeAdapter[Any] = TypeAdapter(Any)
_HOP_PREFIX = "io.modelcontextprotocol/"
"""Keys of `_meta` with this prefix are about one connection, and are not passed on to the next."""


class _AnyRequest(types.Request[dict[str, Any] | None, str]):
    """A request of any method."""


class UpstreamClient:
    """Made by the task that owns the connection, and used by any task.

    Lists are fetched once and kept until they are forgotten; callers that ask at the same time share one answer.
    """

    def __init__(self, session: ClientSession, config: ServerConfig, calls: CallsInFlight) -> None:
        self._session = session
        self._config = config
        self._calls = calls
        self._lists: dict[str, list[Any]] = {}
        self._fetching = {kind: asyncio.Lock() for kind in LISTS}
        self._version = dict.fromkeys(self._fetching, 0)
        self._task_tools: set[str] = set()
        """The tools that run only as tasks of the server's."""
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
        """Sends a request of any method and returns its result unchanged; what the server asks and tells meanwhile goes
        to `side`. A tool that runs only as a task is called as one, and its result waited for.

        Raises MCPError with what the server answered, or for params that cannot be written, and MovedElsewhere where
        the request is to be sent again on a connection of the caller's own.
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
        raise MovedElsewhere  # the block does so by itself; a type checker cannot know

    async def _run_task(self, params: JsonObject, on_progress: ProgressFnT | None) -> JsonObject:
        """Calls a tool as a task (2025-11-25) and returns the task's result. Who is cancelled cancels the task."""
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
            # Shielded: the task would run on with nobody to take its result.
            with anyio.move_on_after(_CANCEL_TIMEOUT, shield=True), suppress(MCPError):
                await send_unchecked(self._session, "tasks/cancel", task_id)
            raise

    async def set_log_level(self, level: str) -> None:
        """Has a server with a handshake log from this level on; one that cannot, or refuses, is left as it is."""
        if self.capabilities.logging is not None and not self.is_modern:
            with suppress(MCPError):
                await self.request("logging/setLevel", {"level": level})

    async def notify(self, method: str, params: JsonObject) -> None:
        """Sends a notification of any method."""
        notification = types.Notification[dict[str, Any], str](method=method, params=writable_params(params))
        await self._session.send_notification(notification)  # type: ignore[arg-type] # any method may go out

    def forget_lists(self, *kinds: str) -> list[str]:
        """Forgets lists that are stale, those being fetched too; returns which of them were known to anybody."""
        known = [kind for kind in kinds if kind in self._lists or self._fetching[kind].locked()]
        for kind in kinds:
            self._lists.pop(kind, None)
            self._version[kind] += 1
        return known

    async def tools(self) -> list[types.Tool]:
        """The tools that the configuration lets through, as it names them."""
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
        """The entries of `skills/list` that name a skill, as the server gave them; asked for anew each time, since no
        server tells when they change."""
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
        async with self._fetching[kind]:  # callers at the same time share one answer
            if kind in self._lists:
                return self._lists[kind]
            version = self._version[kind]
            items: list[Any] = []
            cursor = None
            # Bounded: a server may turn pages for ever.
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
    """Whether an entry names a skill by the address of its `SKILL.md`, and says what files it has."""
    if not isinstance(entry, dict) or not isinstance(entry.get("frontmatter"), dict):
        return False
    files = entry.get("resources")
    return str(entry.get("uri")).endswith("/SKILL.md") and (files == "dynamic" or isinstance(files, list))


def _for_next_hop(params: JsonObject) -> JsonObject:
    """The params without what `_meta` says about the connection that they came on."""
    meta = params.get("_meta")
    if not meta:
        return params
    kept = {key: value for key, value in meta.items() if key != "progressToken" and not key.startswith(_HOP_PREFIX)}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


# -- changes that a server tells of ------------------------------------------------------------------------------------


_LISTEN_TIMEOUT = 5.0
"""Seconds that somebody who follows a resource waits for the server to listen to it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_LASTING = 10.0
"""Seconds after which a stream counts as one that worked: the pauses begin anew when it has ended."""
_REFUSALS = frozenset({types.METHOD_NOT_FOUND, types.INVALID_REQUEST, types.INVALID_PARAMS})
"""With these a server says that it has no such stream, and would say so again."""


class ServerChanges:
    """What is followed at one server, on the connection that there is and on each that comes after it."""

    def __init__(self, forget_lists: Callable[..., None], log_level: Callable[[], str | None]) -> None:
        """`forget_lists` is called with the lists that may have changed with nobody told; `log_level` says from which
        level on a server is to log, if anybody has said that."""
        self._forget_lists = forget_lists
        self._log_level = log_level
        self._followed: set[str] = set()
        self._follow_changed = asyncio.Event()
        self._listening = anyio.CancelScope()
        self._listened_to: set[str] = set()
        """The resources whose changes the open stream tells of."""
        self._stream_changed = asyncio.Event()
        """Of the next time that a stream is opened or ends."""

    async def follow(self, client: UpstreamClient, uri: str) -> None:
        """Asks for changes of a resource. Returns when the server has agreed, or after `_LISTEN_TIMEOUT` seconds where
        it is still to be asked on a stream. Raises MCPError where it refuses."""
        if not client.is_modern:
            await client.request("resources/subscribe", {"uri": uri})
            # Only what the server has taken: every new connection is asked for it again.
            self._followed.add(uri)
            return
        if uri not in self._followed:
            # Before the stream is ended: the next one is opened with what is in the set.
            self._followed.add(uri)
            self._follow_changed.set()
            self._listening.cancel()
        with anyio.move_on_after(_LISTEN_TIMEOUT):
            while uri not in self._listened_to:
                await self._stream_changed.wait()

    async def follow_again(self, client: UpstreamClient) -> None:
        """Asks a server with a handshake for the changes that an earlier connection was asked for, and to log."""
        level = self._log_level()
        if level is not None:
            await client.set_log_level(level)
        for uri in sorted(self._followed):
            # One that is refused now must not keep the others from being followed.
            with suppress(MCPError):
                await client.request("resources/subscribe", {"uri": uri})

    async def listen(self, client: Client) -> None:
        """Keeps a stream open to a server without a handshake; what comes on it arrives as notifications. A server that
        has none is asked again only when there is something else to ask for."""
        pause = _FIRST_PAUSE
        while True:
            # Before the set is read: an address that is added from here on sets it again.
            self._follow_changed.clear()
            opened = anyio.current_time()
            try:
                with anyio.CancelScope() as self._listening, suppress(SubscriptionLost):
                    await self._read_stream(client)
            except MCPError as error:
                if error.code in _REFUSALS:
                    await self._follow_changed.wait()
            finally:
                self._now_listening_to(set())
            if self._follow_changed.is_set():
                continue  # ended by us, to be asked for more
            if anyio.current_time() - opened > _LASTING:
                pause = _FIRST_PAUSE
            with anyio.move_on_after(pause):
                await self._follow_changed.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read_stream(self, client: Client) -> None:
        """Opens one stream and reads it to its end; waits where there is nothing to ask for."""
        capabilities = client.server_capabilities
        tools, prompts, resources = (
            bool(offered and offered.list_changed)
            for offered in (capabilities.tools, capabilities.prompts, capabilities.resources)
        )
        if not (tools or prompts or resources or self._followed):
            await self._follow_changed.wait()
            return
        asked_for = set(self._followed)
        async with client.listen(
            tools_list_changed=tools,
            prompts_list_changed=prompts,
            resources_list_changed=resources,
            resource_subscriptions=sorted(asked_for),
        ) as subscription:
            self._now_listening_to(asked_for)
            self._forget_lists(*LISTS)  # changes from before the stream were announced to nobody
            async for _ in subscription:
                pass

    def _now_listening_to(self, uris: set[str]) -> None:
        self._listened_to = uris
        changed, self._stream_changed = self._stream_changed, asyncio.Event()
        changed.set()
