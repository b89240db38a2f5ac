"""A machine's interface to gateways: each connection over NATS is a client of the ordinary MCP server.

A gateway requests a connection at `names.opening` and names its principal: a connection for MCP, or for one request to
its console (`page_link.py`). The machine trusts it, because NATS permissions decide who may publish there. The caller
has the directory and environment of this machine's server, like callers over HTTP. Messages from the server carry the
id of the request that they belong to, so that the gateway can pass them to its sender.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import mcp_types as types
from anyio.abc import TaskStatus
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from ...core import json_text
from ...core.errors import ClaudeCodeError
from ...core.model.caller import LOCAL
from ...server.sdk import NotificationLines, sound_line
from ...server.transports.stdio import Inbox, LineConnection, Outbox, line_streams
from . import names
from .connection import FleetConnection
from .nats_client import Msg, NatsError
from .removals import NotedRemoval
from .wire import Wire, WireBroken, open_wire

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

PROTOCOL: Final = 1
"""The protocol version between gateways and machines; both sides must have the same."""
MAX_CONNECTIONS: Final = 1024
_SHARES = 4
"""The share of a machine's connections that one principal may have, except for the machine's own user."""
_MAX_NAME = 1000
_CONNECTION, _PAGE, _END_CALLER, _ASSIGN, _TAKE = "connection", "page", "end_caller", "assign", "take"


def opening_request(connection_id: str, principal: str, groups: Collection[str] = ()) -> bytes:
    """Asks a machine for a connection of a principal with these groups at the gateway."""
    return _opening(_CONNECTION, connection_id, principal, groups)


def page_request(connection_id: str, principal: str, groups: Collection[str] = ()) -> bytes:
    """Asks a machine for a connection for one request of a principal to a gateway's console."""
    return _opening(_PAGE, connection_id, principal, groups)


def _opening(ask: str, connection_id: str, principal: str, groups: Collection[str]) -> bytes:
    asked = {"ask": ask, "protocol": PROTOCOL, "connection": connection_id, "principal": principal}
    return json.dumps({**asked, "groups": [*groups]}).encode()


def ending_request(principal: str, removal: NotedRemoval | None = None) -> bytes:
    """Tells a machine that a principal was removed: everything of theirs ends. `removal`: as recorded for offline
    machines."""
    asked = {"ask": _END_CALLER, "protocol": PROTOCOL, "principal": principal}
    return json.dumps({**asked, **({"removal": asdict(removal)} if removal is not None else {})}).encode()


def assigning_request(principal: str, groups: Collection[str]) -> bytes:
    """Tells a machine a principal's current groups."""
    return json.dumps({"ask": _ASSIGN, "protocol": PROTOCOL, "principal": principal, "groups": [*groups]}).encode()


def taking_request(session_id: str, principal: str) -> bytes:
    """Asks a machine to take over a session whose machine is offline."""
    return json.dumps({"ask": _TAKE, "protocol": PROTOCOL, "principal": principal, "session": session_id}).encode()


def run_in(reply: bytes) -> str:
    """The process of a machine that opened a connection (`Machine.run`); empty if unknown."""
    run = json_text.decode(reply).get("run")
    return run if isinstance(run, str) else ""


def refusal_in(reply: bytes) -> str:
    """Why a machine refuses a request; empty if it does not."""
    try:
        return str(json_text.decode(reply).get("refused") or "")
    except (ValueError, AttributeError):
        return "its answer cannot be parsed"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a session lost with its previous machine, for the caller whose message continues it."""

    lost_turn: str = ""
    """About the turn that was running there; empty if none was."""
    without_tree: str = ""
    """Why its working tree is missing; empty if it is not."""
    older_tree: str = ""
    """How the tree is older than the conversation; empty if it is not."""
    setup_failed: str = ""
    """Why the repository's set-up command was not run or failed; empty otherwise."""

    def notices(self) -> list[str]:
        """Each of them as a sentence, the turn first."""
        without = (
            f"The session continues in an empty directory because its files could not be moved: {self.without_tree}"
            if self.without_tree
            else ""
        )
        return [each for each in (self.lost_turn, without, self.older_tree, self.setup_failed) if each]


def taken_in(reply: bytes) -> Taken:
    """The report of a machine that took a session over."""
    answer = json_text.decode(reply)
    return Taken(**{name: str(answer.get(name) or "") for name in Taken.__slots__})


TakeSession = Callable[[str, str], Awaitable[Taken]]
"""Takes a session of a principal over. Raises ClaudeCodeError if that is impossible."""
CallerEnded = Callable[[str, NotedRemoval], Awaitable[None]]
"""Records that a principal's removal was carried out here."""
AnswerPage = Callable[[Wire, str], Awaitable[None]]
"""Answers one request of a principal to a gateway's console."""


class MachineService(Protocol):
    """What the service must provide about callers."""

    async def admit(self, principal: str, groups: Collection[str], /) -> str | None: ...

    def assign(self, principal: str, groups: Collection[str], /) -> None: ...

    async def why_restart_for(self, principal: str, /) -> str | None: ...


class MachineBackend(Protocol):
    """What is served to gateways: an `McpServer`."""

    @property
    def service(self) -> MachineService: ...

    async def serve(self, inbox: Inbox, outbox: Outbox, /) -> None: ...

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None: ...


class _Refused(Exception):
    """The request is refused; the text is the reason."""


class MachineServer:
    """Answers the gateways' requests to one machine."""

    def __init__(
        self,
        connection: FleetConnection,
        machine_id: str,
        server: MachineBackend,
        *,
        take: TakeSession | None = None,
        ended: CallerEnded | None = None,
        answer_page: AnswerPage | None = None,
        run: str = "",
        most: int = MAX_CONNECTIONS,
    ) -> None:
        """`take` is called for a session of an offline machine when its next message will be sent here. `run` is the
        one in the machine's reports."""
        self._connection = connection
        self._machine_id = machine_id
        self._server = server
        self._take = take
        self._ended = ended
        self._answer_page = answer_page
        self._opened = json.dumps({"run": run}).encode()
        self._most = most
        self._open: dict[str, str] = {}
        """The principal of each open connection."""

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serves gateways until cancelled. Then every connection ends; sessions continue. It has started when gateways
        can reach it."""
        async with anyio.create_task_group() as tasks:

            async def asked(message: Msg) -> None:
                # One task for each request: admission may read the disk, and other requests must not wait for that.
                tasks.start_soon(self._answer, message)

            subscription = await self._connection.client.subscribe(names.opening(self._machine_id), cb=asked)
            try:
                await self._connection.flushed()
                task_status.started()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True), suppress(NatsError):
                    await subscription.unsubscribe()

    async def _answer(self, message: Msg) -> None:
        asked: dict[str, Any] = {}
        try:
            asked = _read(message.data)
            if asked["ask"] == _END_CALLER:
                await self._server.end_caller(asked["principal"], _nothing)
                if asked["removal"] is not None and self._ended is not None:
                    await self._ended(asked["principal"], asked["removal"])
                await message.respond(b"{}")
            elif asked["ask"] == _TAKE:
                taken = await self._take_over(asked["session"], asked["principal"])
                await message.respond(json.dumps(asdict(taken)).encode())
            elif asked["ask"] == _ASSIGN:
                await self._admit(asked["principal"], asked["groups"])
                await message.respond(b"{}")
            else:
                await self._serve(message, **asked)
        except _Refused as reason:
            with suppress(NatsError):
                await message.respond(json.dumps({"refused": str(reason)}).encode())
        except NatsError as error:
            log.warning("could not answer a gateway (%s): %s", _described(asked), error)
        except Exception:
            log.exception("a gateway's request failed (%s)", _described(asked))  # other requests continue

    async def _serve(self, message: Msg, ask: str, connection: str, principal: str, groups: list[str]) -> None:
        """One connection, from its opening to its end."""
        if ask == _PAGE and self._answer_page is None:
            raise _Refused("it has no console")
        if connection in self._open:
            raise _Refused("the connection is open already")
        if len(self._open) >= self._most:
            raise _Refused(f"it has reached its limit of {self._most} connections")
        # Each stream of a page uses one connection on every machine: one principal must not take all connections.
        most = self._most if principal == LOCAL else max(1, self._most // _SHARES)
        if sum(each == principal for each in self._open.values()) >= most:
            raise _Refused(f"{principal} has reached its limit of {most} connections to it")
        self._open[connection] = principal
        try:
            await self._admit(principal, groups)
            sends = names.to_gateway(self._machine_id, connection)
            receives = names.to_machine(self._machine_id, connection)
            async with open_wire(self._connection.client, sends=sends, receives=receives) as wire:
                # After the subscription, on the same connection: NATS has it before the gateway has this answer.
                await message.respond(self._opened)
                if ask == _PAGE and self._answer_page is not None:
                    await self._answer_page(wire, principal)
                    return
                with _acting_as(principal):
                    async with line_streams(_GatewayClient(wire, principal), direct=True) as (inbox, outbox):
                        await self._server.serve(inbox, outbox)
        finally:
            self._open.pop(connection, None)

    async def _take_over(self, session_id: str, principal: str) -> Taken:
        if self._take is None:
            raise _Refused("it does not take over sessions")
        await self._admit(principal, [])
        try:
            return await self._take(session_id, principal)
        except ClaudeCodeError as problem:
            raise _Refused(problem.message) from None
        except OSError as problem:  # for example a full disk: the gateway must get an answer
            log.warning("session %s could not be taken over: %s", session_id, problem)
            raise _Refused(f"its files cannot be written: {problem.strerror or type(problem).__name__}") from None

    async def _admit(self, principal: str, groups: list[str]) -> None:
        service = self._server.service
        if groups:
            reason = await service.admit(principal, groups)
            if reason is not None:
                raise _Refused(reason)
            service.assign(principal, groups)
        elif principal != LOCAL and (reason := await service.why_restart_for(principal)) is not None:
            raise _Refused(reason)


def _read(data: bytes) -> dict[str, Any]:
    """Parses a gateway's request. Raises _Refused if it is invalid."""
    try:
        asked = json.loads(data)
        if asked.get("protocol") != PROTOCOL:
            raise _Refused(f"it speaks version {PROTOCOL} of the fleet's protocol; use the same version everywhere")
        principal, groups = asked["principal"], asked.get("groups", [])
        if not isinstance(principal, str) or not 0 < len(principal) <= _MAX_NAME:
            raise _Refused("the principal name is missing")
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise _Refused("the groups cannot be parsed")
        if asked["ask"] == _END_CALLER:
            noted = asked.get("removal")  # a gateway of an earlier version records none
            removal = NotedRemoval(str(noted["bucket"]), int(noted["number"])) if noted is not None else None
            return {"ask": _END_CALLER, "principal": principal, "removal": removal}
        if asked["ask"] == _ASSIGN:
            return {"ask": _ASSIGN, "principal": principal, "groups": groups}
        if asked["ask"] == _TAKE:
            return {"ask": _TAKE, "principal": principal, "session": names.token(asked["session"])}
        ask = _PAGE if asked["ask"] == _PAGE else _CONNECTION
        connection = names.token(asked["connection"])
        return {"ask": ask, "connection": connection, "principal": principal, "groups": groups}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _Refused("the request cannot be parsed") from None


def _described(asked: Mapping[str, Any]) -> str:
    """A description of the request for the log: the principal, and the connection or session."""
    fields = ("principal", "connection", "session")
    return ", ".join([str(asked.get("ask")), *(f"{field} {asked[field]}" for field in fields if field in asked)])


@contextmanager
def _acting_as(principal: str) -> "Iterator[None]":
    """Within the block, and in tasks started in it, requests are the principal's."""
    if principal == LOCAL:  # the user of the machine, who needs no token anywhere
        yield
        return
    user = AuthenticatedUser(AccessToken(token="", client_id=principal, scopes=[]))
    token = auth_context_var.set(user)
    try:
        yield
    finally:
        auth_context_var.reset(token)


async def _nothing() -> None:
    return None


class _GatewayClient(LineConnection):
    """The connection as the server's transport sees it: each line to the gateway begins with the id of its request, if
    it has one, and a tab."""

    def __init__(self, wire: Wire, principal: str) -> None:
        super().__init__()
        self._wire = wire
        self._principal = principal
        self.output = _WireOutput(wire)

    async def line(self) -> bytes:
        try:
            line = await self._wire.line()
        except WireBroken as broken:
            log.info("a connection of a gateway for %s ended: %s", self._principal, broken.message)
            return b""
        return b"" if line is None else line + b"\n"

    async def send(self, item: SessionMessage) -> None:
        metadata = item.metadata
        related = metadata.related_request_id if isinstance(metadata, ServerMessageMetadata) else None
        prefix = b"\t" if related is None else b"%b\t" % str(related).encode()
        if isinstance(item, NotificationLines):
            await self._write_out(b"".join([b"%b%b\n" % (prefix, line) for line in item.lines]))
            return
        try:
            await self._write_out(prefix + sound_line(item.message))
        except ValueError as error:
            log.error("a message to a gateway for %s was dropped: %s", self._principal, error)

    async def write(self, message: types.JSONRPCMessage) -> None:
        await self.send(SessionMessage(message))


class _WireOutput:
    """The destination of lines to the gateway."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def write(self, data: bytes) -> None:
        self._wire.write(data)

    async def drain(self) -> None:
        try:
            await self._wire.drain()
        except WireBroken as broken:
            raise ConnectionError(broken.message) from None

    async def close(self) -> None:
        """Does nothing: the opener closes the connection."""
