"""Routes requests of a gateway's clients to machines: chooses the machines that answer, builds the requests that are
sent to them, and combines their answers.

Stateless: the fleet's bucket says which machine holds a session, and everything a machine hands out to be returned
later (tasks, calls that wait for an answer) contains the machine's id. A session whose machine is gone moves to another
one with its next message, before the message is sent there.
"""

import asyncio
import hashlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from ...core.errors import ClaudeCodeError, PermissionDenied, SessionBusy, SessionNotFound, UpstreamUnavailable
from ...core.model.outcome import OutcomeCode
from ...core.redaction import Redactor
from ...server import sdk
from ...server.client_capabilities import without_person
from ...server.sdk import Context
from . import merged_results, names
from .connection import FleetConnection
from .gateway_client import MAX_FOLLOWED, GatewayClient, Listening
from .leases import HeldByOtherMachine
from .live_fleet import LiveFleet
from .machine_link import MachineLink, MachineUnavailable, Notification
from .machine_server import Taken, refusal_in, taken_in, taking_request
from .machines import FleetMember
from .merged_results import Silent
from .nats_client import KeyNotFoundError, KeyWrongLastSequenceError, NatsError
from .records import AbsentRecords, AbsentSession
from .routing import (
    MANAGING,
    Goal,
    MachineIdentity,
    PlacementRequest,
    RequestRoute,
    directory_in,
    find_machine,
    route,
    with_machine,
)

log = logging.getLogger(__name__)

Choose = Callable[[Sequence[Any], PlacementRequest], MachineIdentity]
ReportPosition = Callable[[int, int], Awaitable[None]]
"""Receives the position of a new session in the queue, from 1, and the queue's length."""
Place = Callable[[PlacementRequest, ReportPosition], Awaitable[MachineIdentity]]
"""Chooses a machine for a new session, waiting if needed; reports the position."""
OnDisk = Callable[[Sequence[MachineIdentity]], Awaitable[MachineIdentity]]
"""The machine that has a session on its disk that no machine ever held; any machine if none has it."""
ReleaseForMove = Callable[[MachineIdentity], Awaitable[str]]
"""Makes a machine release a session; returns the id under which it continues. Raises on failure."""
_CAPABILITIES = types.CLIENT_CAPABILITIES_META_KEY
_ENVELOPE = frozenset({types.PROTOCOL_VERSION_META_KEY, types.CLIENT_INFO_META_KEY, _CAPABILITIES})
CONTINUES_HINT = "The next message continues it on another machine, with its history and the last saved files."
HOLDER_ONLY_HINT = "Only the machine that has it can change its title, tag and marks, or delete it."
_PINNED_HINT = "It is pinned to that machine and continues when the machine is back."
_MAX_ABSENT = 2000
"""Maximum number of a principal's sessions on offline machines whose copies are read for a list."""
_WAITS_PAUSE = 5.0
"""Maximum seconds between checks for usage-limit waits that have ended: a machine may have gone meanwhile."""
_TAKING_SECONDS = 27.0
"""Half the seconds that a machine has to take over a session with its tree; NATS allows a minute for the answer."""


class PinnedToMachine(UpstreamUnavailable):
    """A session's machine is offline and no other one can continue it; therefore not a MachineUnavailable."""


class Dispatch:
    """Lets machines answer the requests of all clients of one gateway."""

    def __init__(
        self, connection: FleetConnection, fleet: LiveFleet, choose: Choose, place: Place | None = None
    ) -> None:
        """Without `place`, a new session is refused where `choose` refuses it."""
        self._connection = connection
        self._fleet = fleet
        self._choose = choose
        self._place = place
        self._absent_records = AbsentRecords(connection)
        self._redactor = Redactor()
        self._moving: dict[str, MachineIdentity] = {}
        """Session → the machine that it is being moved to."""
        self.leaving = False
        """Whether the gateway is about to stop: requests that are cut off from then on continue on their machines."""

    async def answer(self, client: GatewayClient, context: Context) -> dict[str, Any]:
        """The result of a request. Raises ClaudeCodeError, MCPError, or NATS errors."""
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
        if target.move_to:
            return await self._move(client, context, target)
        taken = Taken()
        try:
            machine = await self._machine(client, context, target)
        except MachineUnavailable as gone:
            if target.goal is Goal.SESSION and not target.continues:
                why = f"{HOLDER_ONLY_HINT} " if target.params.get("name") == MANAGING else ""
                raise MachineUnavailable(f"{gone.message} {why}{CONTINUES_HINT}", **gone.data) from None
            if not target.continues:
                raise
            machine, taken = await self.taken_over(client.principal, target.key, gone.message)
        try:
            return _with_losses(await self._ask(client, context, machine, target), taken)
        except UpstreamUnavailable as error:
            # The session is already on its new machine: a repeated request finds it there and does not report the
            # losses.
            _, notices = _losses(taken)
            if not notices:
                raise
            raise type(error)(" ".join([error.message, *notices]), **error.data) from error

    async def _machine(self, client: GatewayClient, context: Context, target: RequestRoute) -> MachineIdentity:
        """The single machine that a request is for."""
        machines = self.machines()
        match target.goal:
            case Goal.SESSION:
                return await self.holder(target.key, partial(self._found_on_disk, client, context, target.key))
            case Goal.NEW:
                assert target.placement is not None
                steps = itertools.count(1)

                async def report(position: int, length: int) -> None:
                    message = f"Waiting for a machine: number {position} of {length}."
                    await _report_progress(context, next(steps), message)

                return await self.chosen(target.placement, target.message_key, report)
            case Goal.MACHINE if target.key or len(machines) > 1:
                return find_machine(machines, target.key)
        return machines[0]

    def machines(self) -> Sequence[MachineIdentity]:
        """The machines that are online, at least one. Raises UpstreamUnavailable."""
        machines = self._fleet.machines()
        if not machines:
            raise UpstreamUnavailable("No machine of the fleet is connected.")
        return machines

    async def chosen(self, placement: PlacementRequest, key: str | None, report: ReportPosition) -> MachineIdentity:
        """A machine for a new session; the same message key always gets the same machine."""
        if key is None:
            return await self._placed(placement, report)
        bucket = await self._connection.jetstream.key_value(names.KEYS)
        name = hashlib.sha256(f"{placement.principal}\0{key}".encode()).hexdigest()
        try:
            # Looked up before a machine is chosen: all machines may be full by now, and a repeated call needs no free
            # slot.
            first = await bucket.get(name)
        except KeyNotFoundError:
            chosen = await self._placed(placement, report)
            with suppress(KeyWrongLastSequenceError):
                await bucket.create(name, chosen.id.encode())
                return chosen
            first = await bucket.get(name)  # another gateway was faster
        machine_id = (first.value or b"").decode()
        return self._present(
            machine_id,
            f"The call with this messageKey went to machine {machine_id}, which is offline; it is not known whether "
            "it was carried out.",
        )

    async def _placed(self, placement: PlacementRequest, report: ReportPosition) -> MachineIdentity:
        if self._place is None:
            return self._choose(self.machines(), placement)
        return await self._place(placement, report)

    async def holder(self, session_id: str, on_disk: OnDisk) -> MachineIdentity:
        """The machine that holds a session. If no machine ever held it, the machine that has it on its disk. Raises
        MachineUnavailable if that machine is gone, PinnedToMachine if no other machine can continue the session."""
        machines = self.machines()
        holder = await self._fleet.holder(session_id)
        if holder is None:
            return await on_disk(machines)
        name = next((machine.name for machine in self._fleet.gone() if machine.id == holder), holder)
        is_gone = f"Session {session_id} is on machine {name}, which is offline."
        is_there = any(machine.id == holder for machine in self.machines())
        if holder and not is_there and await self._fleet.stays(session_id):
            raise PinnedToMachine(f"{is_gone} {_PINNED_HINT}", machine=holder)
        return self._present(holder, is_gone if holder else f"No machine holds session {session_id} at the moment.")

    async def taken_over(self, principal: str, session_id: str, gone: str) -> tuple[MachineIdentity, Taken]:
        """Another machine for a session, after it took the session over. Raises MachineUnavailable if it cannot."""
        # A message to a session that is being moved goes to the target of the move.
        chosen = self._moving.get(session_id) or self._choose(self.machines(), PlacementRequest(principal))
        try:
            # Before the machine is asked: it may read no part of a session that it was not given.
            holding = await self._fleet.give(session_id, principal, chosen.id)
        except PermissionDenied:
            # The same error as for a missing session, so that a caller cannot find out which ids are in use.
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id) from None
        except HeldByOtherMachine as taken:
            chosen = self._present(taken.holding.machine, gone)
            if not taken.holding.arriving:
                return chosen, Taken()
            # Another gateway gave it to that machine, and that gateway died or is still moving it: ask the machine for
            # the rest. The machine may receive this request twice.
            holding = taken.holding
        request = taking_request(session_id, principal)
        try:
            reply = await self._answer_of(chosen, request)
            refused = refusal_in(reply)
        except asyncio.CancelledError:
            if holding is not None:  # the machine may never have been asked
                await asyncio.shield(self._fleet.take_back(holding))
            raise
        except (NatsError, TimeoutError):
            refused = "It does not respond."
        if not refused:
            return chosen, taken_in(reply)
        if holding is not None:
            # Does nothing if the machine has claimed the session: recording another holder would lose the session.
            await self._fleet.take_back(holding)
        # Another gateway may have been faster: then the session is on the machine that it chose.
        holder = await self._fleet.holder(session_id)
        return self._present(holder, f"{gone} Machine {chosen.name} cannot take it over: {refused}"), Taken()

    async def continue_waiting(self) -> None:
        """Moves sessions of offline machines when their usage-limit wait ends; the new machine sees that. Never
        returns."""
        while True:
            pause = _WAITS_PAUSE
            try:
                holdings = (await self._fleet.absent(None))[:_MAX_ABSENT]
                owners = {holding.session_id: holding.principal for holding in holdings}
                alive = [machine.id for machine in self._fleet.machines()]
                for found in await self._absent_records.read(holdings, alive):
                    if found.continues_at is None:
                        continue
                    remaining = found.continues_at - time.time()
                    if remaining > 0:
                        pause = min(pause, remaining)
                        continue
                    try:
                        await self.taken_over(owners[found.session_id], found.session_id, "Its machine is offline.")
                    except ClaudeCodeError as refused:
                        log.info("session %s cannot continue after its usage limit yet: %s", found.session_id, refused)
            except (NatsError, TimeoutError) as problem:
                log.info("cannot read which sessions wait for a usage limit: %r", problem)
            await asyncio.sleep(pause)

    async def _answer_of(self, machine: MachineIdentity, request: bytes) -> bytes:
        """The answer of a machine that is to take a session. Asks again without an answer, because the machine repeats
        it."""
        ask = partial(self._connection.client.request, names.opening(machine.id), request, timeout=_TAKING_SECONDS)
        try:
            return (await ask()).data
        except TimeoutError:
            return (await ask()).data

    def _present(self, machine_id: str | None, gone: str) -> MachineIdentity:
        """The machine with this id. Raises MachineUnavailable with the sentence `gone` if it is offline."""
        found = next((machine for machine in self.machines() if machine.id == machine_id), None)
        if found is None:
            raise MachineUnavailable(gone, machine=machine_id or "")
        return found

    async def _found_on_disk(
        self, client: GatewayClient, context: Context, session_id: str, machines: Sequence[MachineIdentity]
    ) -> MachineIdentity:
        """The machine that lists the session, the most recent of several; otherwise any machine, which will refuse
        it."""
        if len(machines) == 1:
            return machines[0]
        params = {"uri": f"claude-sessions:///?text={session_id}", **_envelope(context)}
        answers, silent = await self._gather(client, machines, "resources/read", params)
        found = [
            (str(row.get("timestamp")), number)
            for number, (_, answer) in enumerate(answers)
            for row in merged_results.json_of(answer).get("sessions") or ()
            if row.get("sessionId") == session_id
        ]
        if found:
            return answers[max(found)[1]][0]
        if silent:
            # Not a MachineUnavailable: the fleet has no copy of a session that no machine ever held, so no other
            # machine can take it over.
            raise UpstreamUnavailable(
                f"No reachable machine has session {session_id}; these did not respond: "
                + ", ".join(each.machine.name for each in silent)
            )
        return machines[0]

    # -- moving a session ---------------------------------------------------------------------------------------

    async def _move(self, client: GatewayClient, context: Context, target: RequestRoute) -> dict[str, Any]:
        refused: dict[str, Any] = {}

        async def release_for_move(source: MachineIdentity) -> str:
            nonlocal refused
            result = await self._ask(client, context, source, target)
            structured = result.get("structuredContent")
            if result.get("isError") or not isinstance(structured, dict):
                refused = result
                raise MachineUnavailable("The machine does not release it.")
            return str(structured.get("sessionId"))

        on_disk = partial(self._found_on_disk, client, context, target.key)
        try:
            move = await self.move(client.principal, target.key, target.move_to, on_disk, release_for_move)
        except MachineUnavailable:
            if refused:
                return refused
            raise
        return _with_losses(_moved(context, move), move.taken)

    async def move(
        self, principal: str, session_id: str, wanted: str, on_disk: OnDisk, release_for_move: ReleaseForMove
    ) -> "SessionMove":
        """Moves a session to another machine: its holder releases it, the other takes it. The holder changes by
        compare-and-swap, from the machine to none to the other one. If anything fails in between, the fleet already has
        all of the session, and its next message continues it."""
        asked_for, goal = session_id, self._goal(wanted, principal)
        source: MachineIdentity | None = None
        gone = f"No machine holds session {session_id} at the moment."
        try:
            source = await self.holder(session_id, on_disk)
        except MachineUnavailable as problem:
            gone = problem.message  # no machine can release it, and none can be asked
        if source is not None and source.id == goal.id:
            return SessionMove(session_id, goal, f"It is already on machine {goal.name}.")
        if self._moving.setdefault(session_id, goal) is not goal:
            raise SessionBusy(f"Session {session_id} is already being moved.", session_id=session_id)
        try:
            if source is not None:
                # The id under which the session continues, which differs if the session was cleared.
                session_id = await release_for_move(source)
                self._moving[session_id] = goal
            taken = await self._given_to(goal, source, principal, session_id, gone)
        finally:
            self._moving.pop(asked_for, None)
            self._moving.pop(session_id, None)
        return SessionMove(session_id, goal, f"It is on machine {goal.name} now.", taken)

    def _goal(self, wanted: str, principal: str) -> MachineIdentity:
        """The target machine. Raises InvalidArgument if it is unknown, MachineUnavailable if it is offline, and the
        errors of choosing a machine."""
        machines = self.machines()
        if not any(wanted in (machine.id, machine.name) for machine in machines):
            for machine in self._fleet.gone():
                if wanted in (machine.id, machine.name):
                    raise MachineUnavailable(f"Machine {machine.name} is offline.", machine=machine.id)
        found = find_machine(machines, wanted)
        return self._choose([found], PlacementRequest(principal, found.id))

    async def _given_to(
        self, goal: MachineIdentity, source: MachineIdentity | None, principal: str, session_id: str, gone: str
    ) -> Taken:
        """Makes the machine take the session; on failure the previous one gets it back, with all files in place."""
        try:
            machine, taken = await self.taken_over(principal, session_id, gone)
            if machine.id == goal.id:
                return taken
            problem = f"Session {session_id} is on machine {machine.name} now: another gateway was faster."
        except (MachineUnavailable, NatsError, TimeoutError) as refused:
            problem = str(refused)
        if source is not None:
            # If the other machine has the session after all, or this one is gone as well, the holder stays unchanged.
            with suppress(HeldByOtherMachine, PermissionDenied, NatsError, TimeoutError):
                await self._fleet.return_to_source(session_id, principal, source.id)
                problem += f" It stays on machine {source.name}."
        raise MachineUnavailable(f"The session was not moved. {problem}", machine=goal.id)

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
        """Whether a request that ends early here must end on its machine: if its client cancelled it, over HTTP in
        2026-07-28 also by closing the response. A client or gateway that merely disconnects ends nothing."""
        closed_to_cancel = context.request is not None and sdk.is_modern(context.protocol_version)
        return sdk.cancelled_by_client(context) or (closed_to_cancel and not self.leaving)

    async def _follow(self, client: GatewayClient, context: Context, target: RequestRoute) -> dict[str, Any]:
        """Subscribes a client with a handshake, or unsubscribes it; repeated on a machine whose connection was lost."""
        uri = str(target.params.get("uri"))
        if target.goal is Goal.ALL:
            result, at = await self._ask_all(client, context, target), ""
        else:
            machine = await self._machine(client, context, target)
            result, at = await self._ask(client, context, machine, target), machine.id
        if context.method == "resources/unsubscribe":
            client.followed.pop(uri, None)
        elif len(client.followed) < MAX_FOLLOWED:
            client.followed[uri] = at
        return result

    # -- all machines -------------------------------------------------------------------------------------------

    async def _ask_all(self, client: GatewayClient, context: Context, target: RequestRoute) -> dict[str, Any]:
        method, params = context.method, dict(target.params)
        if isinstance(params.get("_meta"), dict):
            # Progress is not requested: the progress of several machines cannot be combined.
            params["_meta"] = {key: value for key, value in params["_meta"].items() if key != "progressToken"}
        answers, silent = await self._gather(client, self.machines(), method, params)
        if not answers:
            raise MachineUnavailable("No machine responds. " + " ".join(each.reason for each in silent))
        silent += [Silent(machine, f"Machine {machine.name} is offline.") for machine in self._fleet.gone()]
        if method == "tools/call":
            name, arguments = str(params.get("name")), params.get("arguments") or {}
            absent: list[tuple[MachineIdentity, dict[str, Any]]] = []
            page = merged_results.page_of(arguments) if name == "claude_list_sessions" else None
            if page is not None:
                absent = merged_results.absent_answers(await self.absent(client.principal, arguments), 0, sum(page))
            structured = [(machine, answer.get("structuredContent")) for machine, answer in answers]
            await self.keep_holders_rows([*structured, *absent])
            return merged_results.merged_tool(name, arguments, answers, silent, absent)
        if method == "resources/read":
            contents = [(machine, merged_results.json_of(answer)) for machine, answer in answers]
            if (wanted := merged_results.list_query(str(params.get("uri")))) is not None:
                found = await self.absent(client.principal, wanted)
                contents += merged_results.absent_answers(found, wanted["offset"], merged_results.USUAL_ROWS)
            await self.keep_holders_rows(contents)
            return merged_results.merged_contents(str(params.get("uri")), answers[0][1], contents, silent)
        if method == "resources/list":
            return merged_results.merged_resources(answers, silent)
        if method == "completion/complete":
            return merged_results.merged_completions(answers)
        return answers[0][1]

    async def absent(self, principal: str, wanted: Mapping[str, Any]) -> list[tuple[MachineIdentity, AbsentSession]]:
        """The sessions of a principal on offline machines, each with its machine, for a list with these filters."""
        machines = [*self._fleet.machines(), *self._fleet.gone()]
        names_of = {machine.id: machine for machine in machines}
        holdings = await self._fleet.absent(principal)
        if len(holdings) > _MAX_ABSENT:
            log.warning("%s has %d sessions on offline machines; not all are listed", principal, len(holdings))
        alive = [machine.id for machine in self._fleet.machines()]
        found = await self._absent_records.read(holdings[:_MAX_ABSENT], alive)
        listed = [each for each in found if _is_wanted(each, wanted)]
        return [
            (
                names_of.get(each.machine) or FleetMember(each.machine, each.machine or "none"),
                # The machine that would have redacted known secrets is gone: redact at least texts that look like
                # secrets.
                replace(each, title=self._redactor.text(each.title), tag=self._redactor.text(each.tag)),
            )
            for each in listed
        ]

    async def keep_holders_rows(self, answers: Sequence[tuple[MachineIdentity, Any]]) -> None:
        """Lists a session that several machines list only for its holder, if that is among them."""
        there = {machine.id for machine, _ in answers}
        for session_id in merged_results.repeated_sessions(answers):
            holder = await self._fleet.holder(session_id)
            if holder in there:
                merged_results.leave_to(holder, session_id, answers)

    async def _gather(
        self, client: GatewayClient, machines: Sequence[MachineIdentity], method: str, params: Mapping[str, Any]
    ) -> tuple[list[tuple[MachineIdentity, dict[str, Any]]], list[Silent]]:
        """The answers of all machines, and the machines without one. A machine is asked again if its connection breaks.
        Raises an error that all of them return."""
        errors: list[MCPError] = []

        async def read(link: MachineLink) -> dict[str, Any]:
            if method == "tools/call" and params.get("name") == "claude_list_sessions":
                return await _listed(link, params)
            return await link.request(method, params)

        async def ask(machine: MachineIdentity) -> dict[str, Any] | Silent:
            try:
                link = await client.link(machine)
                try:
                    return await read(link)
                except MachineUnavailable:
                    # A broken connection says nothing about the machine, and requests to all machines only read: ask
                    # again.
                    return await read(await client.link(machine))
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


def _is_wanted(session: AbsentSession, wanted: Mapping[str, Any]) -> bool:
    text, project = wanted.get("text"), directory_in(wanted)
    if session.archived is not bool(wanted.get("archived")):
        return False
    if text and str(text).casefold() not in f"{session.session_id} {session.directory} {session.title}".casefold():
        return False
    if project and session.directory.rstrip("/\\") != str(project).rstrip("/\\"):
        return False
    return session.was_active or not wanted.get("active")


@dataclass(frozen=True, slots=True)
class SessionMove:
    """A session that was moved, or was already there."""

    session_id: str
    machine: MachineIdentity
    message: str
    taken: Taken = field(default_factory=Taken)


def _moved(context: Context, move: SessionMove) -> dict[str, Any]:
    result = types.CallToolResult(
        content=[types.TextContent(type="text", text=move.message)],
        structured_content={"sessionId": move.session_id, "message": move.message},
    ).model_dump(mode="json", by_alias=True, exclude_none=True)
    complete = {"resultType": "complete"} if sdk.is_modern(context.protocol_version) else {}
    return _marked({**result, **complete}, move.machine)


def _marked(result: dict[str, Any], machine: MachineIdentity) -> dict[str, Any]:
    """A machine's result, with the machine's id in everything that will be returned to it and in everything about a
    session."""
    if isinstance(result.get("requestState"), str):
        result["requestState"] = with_machine(machine.id, result["requestState"])
    if isinstance(result.get("taskId"), str):
        result["taskId"] = with_machine(machine.id, result["taskId"])
    structured = result.get("structuredContent")
    if isinstance(structured, dict) and isinstance(structured.get("sessionId"), str):
        structured["machine"] = machine.name
    return result


def _with_losses(result: dict[str, Any], taken: Taken) -> dict[str, Any]:
    """A result with the losses of the session on its previous machine."""
    structured = result.get("structuredContent")
    if isinstance(structured, dict):
        fields, notices = _losses(taken)
        structured |= {**fields, "notices": notices} if notices else {}
        result["content"] = [*result.get("content", ()), *({"type": "text", "text": text} for text in notices)]
    return result


def _losses(taken: Taken) -> tuple[dict[str, Any], list[str]]:
    """A session's losses on its previous machine, as result fields and as sentences."""
    named = {"withoutTree": taken.without_tree, "olderTree": taken.older_tree, "setupFailed": taken.setup_failed}
    fields: dict[str, Any] = {name: sentence for name, sentence in named.items() if sentence}
    notices = taken.notices()
    if taken.lost_turn:
        code = OutcomeCode.MACHINE_LOST.value
        fields["lostTurn"] = {"code": code, "detail": taken.lost_turn}
        notices[0] = f"{code}: {notices[0]}"
    return fields, notices


async def _listed(link: MachineLink, params: Mapping[str, Any]) -> dict[str, Any]:
    """All rows of a machine up to the end of the requested page: which ones belong to the page is known when all
    machines have answered."""
    arguments = params.get("arguments") or {}
    page = merged_results.page_of(arguments)
    if page is None:
        return await link.request("tools/call", params)  # the machine refuses it
    wanted = sum(page)
    rows: list[Any] = []
    result: dict[str, Any] = {}
    while len(rows) < wanted:
        part = {**arguments, "offset": len(rows), "limit": min(wanted - len(rows), merged_results.MAX_PER_MACHINE)}
        result = await link.request("tools/call", {**params, "arguments": part})
        found = result.get("structuredContent")
        structured = found if isinstance(found, dict) else {}
        more = merged_results.objects(structured.get("sessions"))
        rows += more
        # Stop without rows, whatever the machine reports: a machine that announces rows and sends none would be asked
        # forever.
        if result.get("isError") or structured.get("nextOffset") is None or not more:
            break
    return {**result, "structuredContent": {**structured, "sessions": rows}}


async def _report_progress(context: Context, step: int, message: str) -> None:
    """Reports progress to the client, if it wants any. Stays below 1, because later reports from the machine must be
    higher."""
    token = ((context.params or {}).get("_meta") or {}).get("progressToken")
    if token is not None:
        params = {"progressToken": token, "progress": 1 - 1 / (step + 1), "message": message}
        await sdk.send_all(context, [("notifications/progress", params)])


def _envelope(context: Context) -> dict[str, Any]:
    """The client information of a 2026-07-28 request, for requests that the gateway makes on its behalf."""
    meta = (context.params or {}).get("_meta")
    kept = {key: value for key, value in meta.items() if key in _ENVELOPE} if isinstance(meta, Mapping) else {}
    return {"_meta": kept} if kept else {}


def _without_person(params: dict[str, Any]) -> dict[str, Any]:
    meta = params.get("_meta")
    if not isinstance(meta, Mapping) or not isinstance(meta.get(_CAPABILITIES), Mapping):
        return params
    return {**params, "_meta": {**meta, _CAPABILITIES: without_person(meta[_CAPABILITIES])}}
