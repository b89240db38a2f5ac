"""The gateway: an MCP server whose requests are answered by the machines of a fleet.

It keeps nothing that is needed later: which machine holds a session is in the fleet's bucket, and what a machine gives
out to be brought back (tasks, calls that wait for an answer) bears the machine's id. A client that loses one gateway
goes on at another; sessions do not notice.

Requests pass as they are, as a middleware of the SDK's server, in front of its own handlers: there is no second
definition of tools, tasks or resources here, and both revisions of the protocol are the machines'. What machines tell
and ask during a request goes to the client that made it, on the stream of that request.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from .. import __version__
from ..config import Settings
from ..errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionNotFound, UpstreamUnavailable
from ..model.caller import ClientEnvironment
from ..model.outcome import OutcomeCode
from ..server import sdk
from ..server.contents import refusing_handlers
from ..server.sdk import Context
from ..server.server import NAME, offers_sessions, principal, refusal, tools_of, without_person
from ..server.tools import base
from ..server.tools.context import TASKS_EXTENSION, instructions
from ..server.transports.http_streams import OpenStreams
from ..server.transports.running_calls import RunningCalls
from ..server.transports.stdio import Inbox, Outbox
from . import merging, names
from .connection import FleetConnection
from .gateway_client import MOST_FOLLOWED, GatewayClient
from .gateway_service import GatewayService
from .leases import HeldElsewhere
from .listening import Listening
from .machine_link import MachineLink, MachineUnavailable, Notification
from .machine_server import Taken, assigning_request, ending_request, refusal_in, taken_in, taking_request
from .merging import Silent
from .routing import (
    ABOUT_A_MACHINE,
    ABOUT_ALL,
    BEGINNING,
    LABELS_SCHEMA,
    MACHINE_SCHEMA,
    FleetView,
    Goal,
    MachineIdentity,
    PlacementRequest,
    RequestRoute,
    find_machine,
    route,
    with_machine,
)

log = logging.getLogger(__name__)

Choose = Callable[[Sequence[Any], PlacementRequest], MachineIdentity]
_OWN_METHODS = frozenset({"initialize", "server/discover", "ping", "tools/list", "logging/setLevel"})
_CAPABILITIES = types.CLIENT_CAPABILITIES_META_KEY
_ENVELOPE = frozenset({types.PROTOCOL_VERSION_META_KEY, types.CLIENT_INFO_META_KEY, _CAPABILITIES})
_NOTICE_SECONDS = 5.0
_TAKING_SECONDS = 55.0
"""In which a machine takes a session over, with its tree; NATS lets it answer for a minute."""


class Gateway:
    """One gateway, for any number of clients on any transport that serves an `McpServer`."""

    def __init__(self, connection: FleetConnection, fleet: FleetView, choose: Choose, settings: Settings) -> None:
        self._connection = connection
        self._fleet = fleet
        self._choose = choose
        self._settings = settings
        self._shared: dict[str, GatewayClient] = {}
        """By principal, for requests of 2026-07-28."""
        self._clients: set[GatewayClient] = set()
        """Those with a handshake."""
        self.streams = OpenStreams(self._stream_opened)
        self.running_tool: Callable[[], AbstractContextManager[object]] = nullcontext
        """Around each call of a tool; a transport may end the call by leaving it."""
        self.service = GatewayService(settings, self._assigned)
        self._leaving = False

    def join_calls(self, running: RunningCalls) -> None:
        """Requests a minute and shares are the machines' to judge; a call that runs ends with its caller."""
        self.running_tool = running.running_tool

    # -- as a server --------------------------------------------------------------------------------------------

    async def serve(self, inbox: Inbox, outbox: Outbox, environment: ClientEnvironment | None = None) -> None:
        """Serves one connection until the client ends it. Sessions run in the environments of their machines."""
        server = self.server(environment)
        await server.run(inbox, outbox, server.create_initialization_options())

    def server(self, _: ClientEnvironment | None = None) -> Server[Any]:
        """A lowlevel server of the SDK that says of itself what the server of a machine says."""
        # Never reached: the middleware is in front of them. They say what this server has.
        handlers = refusing_handlers(UpstreamUnavailable("No machine was asked."))
        server = sdk.ChangingServer(
            NAME,
            version=__version__,
            title="Claude Code",
            instructions=f"{instructions(self._settings)}\n{_ABOUT_MACHINES}",
            lifespan=_no_lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=_unreached,
            on_subscriptions_listen=_unreached,
            **(handlers if offers_sessions(self._settings) else {}),
        )
        server.extensions[TASKS_EXTENSION] = {}
        if offers_sessions(self._settings):
            server.extensions[base.EXTENSION] = {}
        server.middleware[:] = [self._forward]
        return server

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None:
        """A caller is one no more: its connections here end, and every machine ends what it has of them."""
        shared = self._shared.pop(name, None)
        for client in [*([shared] if shared is not None else []), *self._clients]:
            if client.principal == name:
                client.close()
        await calls_over()
        await self._notify_machines(ending_request(name), f"that {name} is no caller any more")

    def _assigned(self, name: str, groups: Collection[str]) -> None:
        """A caller is in other groups: what they may do changes at every machine."""
        self.service.start_task(self._notify_machines(assigning_request(name, groups), f"in which groups {name} is"))

    async def _notify_machines(self, request: bytes, what: str) -> None:
        async def notify(machine: MachineIdentity) -> None:
            try:
                await self._connection.client.request(names.opening(machine.id), request, timeout=_NOTICE_SECONDS)
            except (NatsError, TimeoutError) as error:
                log.error("machine %s was not told %s: %r", machine.name, what, error)

        await asyncio.gather(*(notify(machine) for machine in self._fleet.machines()))

    async def follow_machines(self) -> None:
        """Ends the connections to machines that are gone, until it is cancelled. Their silence would show it too, but
        later, and who waits for one is told at once."""
        while True:
            await self._fleet.changed()
            # Nothing is awaited from here to the next wait: no change is missed.
            present = {machine.id for machine in self._fleet.machines()}
            for client in (*self._clients, *self._shared.values()):
                client.keep_links_to(present)

    def leave(self) -> None:
        """This gateway is about to end: its requests are cut off from now on, and not cancelled. To be called before
        the transports are stopped."""
        self._leaving = True

    async def close(self) -> None:
        """Ends every connection to a machine, and the tasks of this gateway."""
        self.leave()
        clients = (*self._clients, *self._shared.values())
        for client in clients:
            client.close()
        # Waited for: machines hear of the end now, and not when they miss the signs of life.
        await asyncio.gather(*(client.closed() for client in clients))
        await self.service.close()

    @cached_property
    def _listing(self) -> types.ListToolsResult:
        listed = [tool.listing() for tool in tools_of(self._settings).values()]
        for tool in listed:
            added: dict[str, Any] = {}
            if tool.name in BEGINNING | ABOUT_ALL | ABOUT_A_MACHINE:
                added["machine"] = MACHINE_SCHEMA
            if tool.name in BEGINNING:
                added["labels"] = LABELS_SCHEMA
            tool.input_schema = {
                **tool.input_schema,
                "properties": {**tool.input_schema.get("properties", {}), **added},
            }
        return types.ListToolsResult(tools=listed)

    async def _list_tools(self, _: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return self._listing

    # -- who asks -----------------------------------------------------------------------------------------------

    def _client(self, context: Context) -> GatewayClient:
        who = principal()
        groups = partial(self.service.groups_of, who)
        if sdk.is_modern(context.protocol_version):
            if who not in self._shared:
                self._shared[who] = GatewayClient(self._connection.client, who, groups, None)
            return self._shared[who]
        if context.session.client_params is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid request parameters", "")  # before the handshake
        return sdk.once_per_connection(context, lambda: self._new_client(context, who, groups), self._disconnected)

    def _new_client(self, context: Context, who: str, groups: Callable[[], Collection[str]]) -> GatewayClient:
        connection = sdk.connection_id(context)
        client = GatewayClient(
            self._connection.client,
            who,
            groups,
            context,
            lambda: context.request is None or self.streams.is_open(connection),
        )
        self._clients.add(client)
        return client

    def _disconnected(self, client: GatewayClient) -> None:
        self._clients.discard(client)
        client.close()

    def _stream_opened(self, connection: str) -> None:
        for client in self._clients:
            if client.connection == connection:
                client.stream_opened()

    # -- requests -----------------------------------------------------------------------------------------------

    async def _forward(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware: has machines answer."""
        context = ctx  # the SDK says how the parameter is called
        if context.method in _OWN_METHODS:
            return await call_next(context)
        if context.request_id is None:
            if context.method == "notifications/roots/list_changed" and context.session.client_params is not None:
                for link in self._client(context).open_links:
                    link.notify(context.method, context.params or {})
            return await call_next(context)
        client = self._client(context)
        client.calls.append(context)
        client.stream_opened()
        try:
            with self.running_tool():
                return await self._answer(client, context)
            # Reached only if the transport has ended the call, which the context leaves quietly.
            raise MCPError(types.INVALID_REQUEST, "The caller's token is no longer valid.")
        except ClaudeCodeError as error:
            return _refused(context, error)
        except (NatsError, TimeoutError) as error:
            log.warning("%s was refused: %r", context.method, error)
            return _refused(context, UpstreamUnavailable("The fleet cannot be reached just now."))
        except MCPError:
            raise
        except Exception:
            log.exception("%s failed", context.method)
            return _refused(
                context, ClaudeCodeError("Something went wrong inside the gateway; its log has the details.")
            )
        finally:
            client.calls.remove(context)

    async def _answer(self, client: GatewayClient, context: Context) -> dict[str, Any]:
        params = dict(context.params or {})
        if context.request is not None:
            params = _without_person(params)
        if context.method == "subscriptions/listen":
            return await Listening(self._fleet, client, context, params).run()
        target = route(context.method, params, client.principal)
        if context.method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._follow(client, context, target)
        if target.goal is Goal.ALL:
            return await self._ask_all(client, context, target)
        taken = Taken()
        if target.continues:
            machine, taken = await self._continuing(client, context, target.key)
        else:
            machine = await self._machine(client, context, target)
        return _with_losses(await self._ask(client, context, machine, target), taken)

    async def _machine(self, client: GatewayClient, context: Context, target: RequestRoute) -> MachineIdentity:
        """The one machine that a request is for."""
        machines = self._machines()
        match target.goal:
            case Goal.SESSION:
                return await self._holder(client, context, target.key)
            case Goal.NEW:
                assert target.placement is not None
                return await self._chosen(machines, target.placement, target.message_key)
            case Goal.MACHINE if target.key or len(machines) > 1:
                return find_machine(machines, target.key)
        return machines[0]

    def _machines(self) -> Sequence[MachineIdentity]:
        machines = self._fleet.machines()
        if not machines:
            raise UpstreamUnavailable("No machine of the fleet is there now.")
        return machines

    async def _chosen(
        self, machines: Sequence[MachineIdentity], placement: PlacementRequest, key: str | None
    ) -> MachineIdentity:
        """A machine for a new session: with a message key always the one that was chosen first for that key."""
        if key is None:
            return self._choose(machines, placement)
        bucket = await self._connection.jetstream.key_value(names.KEYS)
        name = hashlib.sha256(f"{placement.principal}\0{key}".encode()).hexdigest()
        try:
            # Looked for before a machine is chosen: all may be full by now, and a repeated call needs no room.
            first = await bucket.get(name)
        except KeyNotFoundError:
            chosen = self._choose(machines, placement)
            with suppress(KeyWrongLastSequenceError):
                await bucket.create(name, chosen.id.encode())
                return chosen
            first = await bucket.get(name)  # another gateway was faster
        return self._chosen_before((first.value or b"").decode(), machines)

    def _chosen_before(self, first: str, machines: Sequence[MachineIdentity]) -> MachineIdentity:
        found = next((machine for machine in machines if machine.id == first), None)
        if found is None:
            raise MachineUnavailable(
                f"The call with this messageKey went to machine {first}, which is not there now; whether it was done "
                "is not known.",
                machine=first,
            )
        return found

    async def _holder(self, client: GatewayClient, context: Context, session_id: str) -> MachineIdentity:
        """The machine that holds a session or, if none ever did, the one that has it on its disk. Raises
        MachineUnavailable if it is gone."""
        machines = self._machines()
        holder = await self._fleet.holder(session_id)
        if holder is None:
            return await self._found_on_disk(client, context, machines, session_id)
        return self._present(holder, _gone(session_id, holder))

    async def _continuing(
        self, client: GatewayClient, context: Context, session_id: str
    ) -> tuple[MachineIdentity, Taken]:
        """The machine that goes on with a session: its holder, or if that is gone another one, which takes it over.
        Returns also what was lost with the machine before."""
        try:
            return await self._holder(client, context, session_id), Taken()
        except MachineUnavailable as gone:
            return await self._taken_over(client.principal, session_id, gone.message)

    async def _taken_over(self, principal: str, session_id: str, gone: str) -> tuple[MachineIdentity, Taken]:
        """Another machine for a session, once that has taken it over. Raises MachineUnavailable if it cannot."""
        chosen = self._choose(self._machines(), PlacementRequest(principal))
        try:
            # Before the machine is asked: it may read nothing of a session that it was not given.
            holding = await self._fleet.give(session_id, principal, chosen.id)
        except PermissionDenied:
            # As for one that does not exist: nobody can find out which ids are in use.
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id) from None
        except HeldElsewhere as taken:
            return self._present(taken.holding.machine, gone), Taken()
        request = taking_request(session_id, principal)
        try:
            reply = await self._connection.client.request(names.opening(chosen.id), request, timeout=_TAKING_SECONDS)
            refused = refusal_in(reply.data)
        except (NatsError, TimeoutError):
            refused = "It does not answer."
        if not refused:
            return chosen, taken_in(reply.data)
        if holding is not None:
            # Unless the machine has claimed it: a session that is said to be where it is not would be lost.
            await self._fleet.take_back(holding)
        # Another gateway may have been faster: then it is where that one has brought it.
        holder = await self._fleet.holder(session_id)
        return self._present(holder, f"{gone} Machine {chosen.name} cannot take it over: {refused}"), Taken()

    def _present(self, holder: str | None, gone: str) -> MachineIdentity:
        found = next((machine for machine in self._machines() if machine.id == holder), None)
        if found is None:
            raise MachineUnavailable(gone, machine=holder or "")
        return found

    async def _found_on_disk(
        self, client: GatewayClient, context: Context, machines: Sequence[MachineIdentity], session_id: str
    ) -> MachineIdentity:
        """The machine that lists the session, the most recent if several do; any one otherwise, which refuses it."""
        if len(machines) == 1:
            return machines[0]
        params = {"uri": f"claude-sessions:///?text={session_id}", **_envelope(context)}
        answers, silent = await self._gather(client, "resources/read", dict.fromkeys((m.id for m in machines), params))
        found = [
            (str(row.get("timestamp")), number)
            for number, (_, answer) in enumerate(answers)
            for row in merging.json_of(answer).get("sessions") or ()
            if row.get("sessionId") == session_id
        ]
        if found:
            return answers[max(found)[1]][0]
        if silent:
            raise MachineUnavailable(
                f"No machine that answers has session {session_id}; these did not answer: "
                + ", ".join(each.machine.name for each in silent)
            )
        return machines[0]

    # -- one machine --------------------------------------------------------------------------------------------

    async def _ask(
        self, client: GatewayClient, context: Context, machine: MachineIdentity, target: RequestRoute
    ) -> dict[str, Any]:
        link = await client.link(machine)

        async def notified(notifications: list[Notification]) -> None:
            if sdk.takes_lines(context):
                await sdk.send_lines(context, [each.line for each in notifications])
            else:
                await sdk.send_all(context, [(each.method, each.params) for each in notifications])

        result = await link.request(
            context.method, target.params, context, notified, lambda: not self._is_cancelled(context)
        )
        return _marked(result, machine)

    def _is_cancelled(self, context: Context) -> bool:
        """Whether a request that ends here early is to end at its machine: if its client has cancelled it, over HTTP in
        2026-07-28 also by closing the response. A client or a gateway that only goes away ends nothing."""
        closed_to_cancel = context.request is not None and sdk.is_modern(context.protocol_version)
        return sdk.cancelled_by_client(context) or (closed_to_cancel and not self._leaving)

    async def _follow(self, client: GatewayClient, context: Context, target: RequestRoute) -> dict[str, Any]:
        """Subscribes a client with a handshake, or ends that; repeated at a machine whose connection was lost."""
        uri = str(target.params.get("uri"))
        if target.goal is Goal.ALL:
            result, at = await self._ask_all(client, context, target), ""
        else:
            machine = await self._machine(client, context, target)
            result, at = await self._ask(client, context, machine, target), machine.id
        if context.method == "resources/unsubscribe":
            client.followed.pop(uri, None)
        elif len(client.followed) < MOST_FOLLOWED:
            client.followed[uri] = at
        return result

    # -- all machines -------------------------------------------------------------------------------------------

    async def _ask_all(self, client: GatewayClient, context: Context, target: RequestRoute) -> dict[str, Any]:
        method, machines = context.method, self._machines()
        params = _for_each_machine(method, target.params)
        answers, silent = await self._gather(client, method, {machine.id: params for machine in machines})
        if not answers:
            raise MachineUnavailable("No machine answers. " + " ".join(each.reason for each in silent))
        silent += [Silent(machine, f"Machine {machine.name} is not there.") for machine in self._fleet.gone()]
        if method == "tools/call":
            arguments = target.params.get("arguments") or {}
            holders = {id_: await self._fleet.holder(id_) for id_ in merging.repeated_sessions(answers)}
            there = {machine.id for machine, _ in answers}
            merging.only_at_holders(answers, {id_: holder for id_, holder in holders.items() if holder in there})
            return merging.merged_tool(str(target.params.get("name")), arguments, answers, silent)
        if method == "resources/read":
            uri = str(target.params.get("uri"))
            return merging.merged_contents(uri, answers, silent)
        if method == "resources/list":
            return merging.merged_resources(answers, silent)
        if method == "completion/complete":
            return merging.merged_completions(answers, silent)
        return answers[0][1]

    async def _gather(
        self, client: GatewayClient, method: str, params: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[tuple[MachineIdentity, dict[str, Any]]], list[Silent]]:
        """What each machine answers, and which do not. An error that all of them answer is raised."""
        machines = [machine for machine in self._machines() if machine.id in params]
        errors: list[MCPError] = []

        async def ask(machine: MachineIdentity) -> dict[str, Any] | Silent:
            try:
                link = await client.link(machine)
                if method == "tools/call" and params[machine.id].get("name") == "claude_list_sessions":
                    return await _listed(link, params[machine.id])
                return await link.request(method, params[machine.id])
            except MachineUnavailable as problem:
                return Silent(machine, problem.message)
            except MCPError as error:
                errors.append(error)
                return Silent(machine, error.message)

        replies = await asyncio.gather(*(ask(machine) for machine in machines))
        if errors and len(errors) == len(replies):
            raise errors[0]
        both = zip(machines, replies, strict=True)
        answers = [(machine, reply) for machine, reply in both if isinstance(reply, dict)]
        return answers, [reply for reply in replies if isinstance(reply, Silent)]


_ABOUT_MACHINES = (
    "Sessions run on the machines of a fleet, and each says on which. With machine or labels you say where a new one "
    "begins."
)


def _refused(context: Context, error: ClaudeCodeError) -> dict[str, Any]:
    """The error as a machine would answer it: a call of a tool has a refusal as its result. Raises MCPError for other
    requests."""
    if context.method != "tools/call":
        code = types.INVALID_PARAMS if isinstance(error, InvalidArgument) else types.INTERNAL_ERROR
        raise MCPError(code, error.message, {"code": error.code, **error.data}) from None
    refused = refusal(error).model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**refused, "resultType": "complete"} if sdk.is_modern(context.protocol_version) else refused


def _marked(result: dict[str, Any], machine: MachineIdentity) -> dict[str, Any]:
    """A machine's result with the machine in what is to be brought back to it, and in what is about a session."""
    if isinstance(result.get("requestState"), str):
        result["requestState"] = with_machine(machine.id, result["requestState"])
    if isinstance(result.get("taskId"), str):
        result["taskId"] = with_machine(machine.id, result["taskId"])
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and isinstance(structured.get("sessionId"), str):
        structured["machine"] = machine.name
    return result


def _gone(session_id: str, holder: str) -> str:
    if not holder:
        return f"No machine holds session {session_id} just now."
    return f"Session {session_id} is on machine {holder}, which is not there now."


def _with_losses(result: dict[str, Any], taken: Taken) -> dict[str, Any]:
    """A result that tells, beside what it is about, what the session has lost with its last machine."""
    structured, notices = result.get("structuredContent"), []
    if not isinstance(structured, dict):
        return result
    if taken.lost_turn:
        code = OutcomeCode.MACHINE_LOST.value
        structured["lostTurn"] = {"code": code, "detail": taken.lost_turn}
        notices.append(f"{code}: {taken.lost_turn}")
    if taken.without_tree:
        structured["withoutTree"] = taken.without_tree
        notices.append(f"The session goes on in an empty directory; its files did not come along: {taken.without_tree}")
    result["content"] = [*result.get("content", ()), *({"type": "text", "text": text} for text in notices)]
    return result


def _for_each_machine(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What every machine is asked, so that a page of all can be made of their answers. Progress is not asked for: that
    of many machines is no progress."""
    sent = dict(params)
    if isinstance(sent.get("_meta"), dict):
        sent["_meta"] = {key: value for key, value in sent["_meta"].items() if key != "progressToken"}
    return sent


async def _listed(link: MachineLink, params: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a machine lists up to the end of the page that is asked for: which of it is on that page is known
    when all machines have answered."""
    arguments = params.get("arguments") or {}
    page = merging.page_of(arguments)
    if page is None:
        return await link.request("tools/call", params)  # which refuses it
    wanted = sum(page)
    rows: list[Any] = []
    result: dict[str, Any] = {}
    while len(rows) < wanted:
        part = {**arguments, "offset": len(rows), "limit": min(wanted - len(rows), merging.MOST_OF_ONE)}
        result = await link.request("tools/call", {**params, "arguments": part})
        structured = result.get("structuredContent") or {}
        rows += structured.get("sessions") or []
        if result.get("isError") or structured.get("nextOffset") is None:
            break
    return {**result, "structuredContent": {**(result.get("structuredContent") or {}), "sessions": rows}}


def _envelope(context: Context) -> dict[str, Any]:
    """What a request of 2026-07-28 says of its client, for a request that the gateway makes on its behalf."""
    meta = (context.params or {}).get("_meta")
    kept = {key: value for key, value in meta.items() if key in _ENVELOPE} if isinstance(meta, Mapping) else {}
    return {"_meta": kept} if kept else {}


def _without_person(params: dict[str, Any]) -> dict[str, Any]:
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or not isinstance(meta.get(_CAPABILITIES), Mapping):
        return params
    return {**params, "_meta": {**meta, _CAPABILITIES: without_person(meta[_CAPABILITIES])}}


async def _unreached(_: Context, __: Any) -> Any:
    raise MCPError(types.INTERNAL_ERROR, "No machine was asked.")


@asynccontextmanager
async def _no_lifespan(_: Server[Any]) -> AsyncIterator[None]:
    yield None
