"""A running machine of a fleet: the ordinary server, the copies of its sessions, its lease, and its interface for
gateways.

It is shut down in reverse order of its start: the lease outlives the sessions, whose copies are completed before the
lease is released, so that no machine takes a session that still runs here. Turns are paused before the lease ends,
resume when it is regained, or end because another machine took the session.
"""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy
from ...core.model.caller import LOCAL_CALLER, Caller
from ...core.model.text import count_of
from ...core.processes.process_trees import kill_trees, pause_trees, resume_trees
from ...core.service import Service
from ...core.state.session_marks import Marks
from ...core.state.session_records import SessionRecord
from ...core.state.state_directory import database_in
from ...server.server import McpServer
from .connection import FleetConnection
from .handover import Adoption, SessionMover, SessionTaker
from .hooks import NO_HOOKS, Hooks
from .keeper import MAX_REQUESTED, KeeperOwnership, KeptSecrets
from .leases import RENEWAL_SECONDS, Holding, Holdings, MachineLease, Ownership, Turns
from .machine_server import MachineServer
from .machines import Machine, MachineReport
from .page_link import answer_page
from .push_receivers import MachinePush
from .records import GivenNames, RecordStore
from .removals import MachineRemovals
from .session_copy import FleetReplica, OrphanedCopies
from .settings import FleetSettings
from .transcripts import TranscriptStore
from .working_trees import TreeStore

log = logging.getLogger(__name__)

_REMOVALS_SECONDS = 60.0
"""Seconds after which a machine asks for removals: gateways report them at once, unless the report was lost."""


class MachineRemoved(PermissionDenied):
    """The fleet no longer accepts this machine's key."""


@asynccontextmanager
async def joined(
    connection: FleetConnection,
    machine: Machine,
    ownership: Ownership,
    turns: Turns,
    count_sessions: Callable[[], int] = lambda: 0,
) -> AsyncIterator[Holdings]:
    """Is a member of the fleet until the end of the block; when it begins, others can see this machine. Raises
    MachineRemoved, also later, when the machine's key is revoked: its holdings are lost with its lease, so everything
    within the block is cancelled."""
    lease = MachineLease(connection, machine.id, MachineReport(machine, count_sessions))
    holdings = Holdings(lease, ownership, turns)
    removed = False
    async with lease.kept(), anyio.create_task_group() as tasks:

        async def end_when_refused() -> None:
            nonlocal removed
            await connection.refused.wait()
            removed = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_refused)
        yield holdings
        tasks.cancel_scope.cancel()
    if removed:
        raise MachineRemoved("The fleet no longer accepts this machine's key: it was removed.")


# -- turns ------------------------------------------------------------------------------------------------------------


_LOST = (
    "This machine was disconnected from the fleet, and another one took over the session, which continues there. Part "
    "of the turn's work may be done."
)


class MachineTurns:
    """The `Turns` of a machine that runs sessions. Does nothing until it has a service."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._holdings: Holdings | None = None
        self._replica: FleetReplica | None = None
        self._hooks = NO_HOOKS

    def bind(self, service: Service, holdings: Holdings, replica: FleetReplica, hooks: Hooks) -> None:
        """Pauses and ends these sessions from now on."""
        self._service, self._holdings, self._replica, self._hooks = service, holdings, replica, hooks

    def running_turns(self) -> list[tuple[str, str]]:
        """This machine's sessions that it worked on since its start, with their directories."""
        if self._service is None or self._holdings is None:
            return []
        holdings = self._holdings
        sessions = self._service.sessions(principal=None)
        own = [each for each in sessions if holdings.held(each.id) is not None or each.options.stay_on_machine]
        return [(each.id, each.cwd) for each in own]

    @property
    def busy(self) -> int:
        """How many sessions are at work."""
        if self._service is None:
            return 0
        return sum(session.busy for session in self._service.sessions(principal=None))

    def pause(self) -> None:
        """Suspends the processes of all sessions that this machine holds."""
        pause_trees(self._held_processes())

    def kill_paused(self) -> None:
        """Kills the processes of all sessions that this machine holds: a suspended process does not end on request."""
        kill_trees(self._held_processes())

    def _held_processes(self) -> list[int]:
        if self._service is None or self._holdings is None:
            return []
        holdings = self._holdings
        sessions = [each for each in self._service.sessions(principal=None) if holdings.held(each.id) is not None]
        return [pid for session in sessions if (pid := session.pid) is not None]

    async def resume(self, holding: Holding) -> None:
        """Resumes the session's processes."""
        pid = self._pid(holding.session_id)
        if pid is not None:
            resume_trees([pid])

    async def end(self, holding: Holding) -> None:
        """Kills the session's processes, ends its turn with `machine_lost`, and removes its data from memory."""
        await self._end(holding.session_id)

    def lost(self, session_id: str) -> None:
        """A write showed that another machine has the session."""
        if self._service is not None:
            self._service.start_task(self._end(session_id))

    async def _end(self, session_id: str) -> None:
        service, replica = self._service, self._replica
        if service is None or replica is None:
            return
        pid = self._pid(session_id)
        directories = [each.cwd for each in service.sessions(principal=None) if each.id == session_id]
        if pid is not None:
            # First: not one more command may run. The end of the process is reported only after the turn has ended.
            kill_trees([pid])
        try:
            await service.relocation.lose(session_id, _LOST)
        except SessionBusy as error:
            log.warning("%s", error.message)  # a caller waits to send it a message and will be refused
        replica.forget(session_id)
        replica.note_elsewhere([session_id])
        for directory in directories:
            service.start_task(self._hooks.post_session(session_id, "lost", directory))

    def _pid(self, session_id: str) -> int | None:
        if self._service is None:
            return None
        found = [each.pid for each in self._service.sessions(principal=None) if each.id == session_id]
        return found[0] if found else None


# -- a machine at work ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineParts:
    """What a machine serves to gateways: its MCP server, and the routes for their consoles."""

    server: McpServer
    pages: ASGIApp | None = None


ServerWith = Callable[[FleetReplica], AbstractAsyncContextManager[MachineParts]]
"""Creates the ordinary server of this machine, which reports its sessions to the replica."""

_WHOLE_HISTORY = 64 << 20
"""Bytes up to which a repository's history is stored with a session's tree. For a larger repository with a remote, only
the history that the remote lacks is stored: such a tree can be restored only where the rest was fetched."""
_SHOWN_LOST = 20
_LAST_COPIES = 10.0
"""Seconds for the output of the last turns to leave a machine that stops, while the fleet answers."""


@asynccontextmanager
async def running_machine(
    connection: FleetConnection, machine: Machine, ownership: Ownership, settings: Settings, server_with: ServerWith
) -> AsyncIterator[Service]:
    """Is a machine of the fleet until the end of the block; when it begins, gateways can reach it. Yields its service.
    Raises the errors of `joined`, also later."""
    turns = MachineTurns()
    async with (
        joined(connection, machine, ownership, turns, lambda: turns.busy) as holdings,
        _serving(connection, machine, settings, server_with, turns, holdings) as service,
    ):
        yield service


@asynccontextmanager
async def _serving(
    connection: FleetConnection,
    machine: Machine,
    settings: Settings,
    server_with: ServerWith,
    turns: MachineTurns,
    holdings: Holdings,
) -> AsyncIterator[Service]:
    machine_id = machine.id
    database = database_in(settings.state_dir)
    transcripts = TranscriptStore(connection)
    records = RecordStore(connection, database, KeptSecrets(connection, machine_id))
    replica = FleetReplica(transcripts, records, holdings.held, turns.lost, holdings.claim, holdings.note_staying)
    fleet = settings.section(FleetSettings)
    hooks = Hooks(fleet.fleet_hooks, os.environ)
    left: list[tuple[str, str]] = []
    try:
        async with server_with(replica) as parts:
            server, service = parts.server, parts.server.service
            pages = partial(answer_page, pages=parts.pages) if parts.pages is not None else None
            turns.bind(service, holdings, replica, hooks)
            adoption = Adoption(transcripts, records, database)
            trees = TreeStore(connection, complete_below=_WHOLE_HISTORY)
            mover = SessionMover(service, replica, records, trees, adoption, holdings, hooks)
            records.names_of = partial(_names_of, service)
            service.observe(replica)
            service.observe(mover)
            service.relocation.release_for_move = mover.give
            keeper = KeeperOwnership(connection, machine_id)
            push = _notifying(service, keeper, machine.name) if pages is not None else None
            taking = SessionTaker(mover, holdings, fleet.fleet_directory)
            library = service.relocation.environment_of(LOCAL_CALLER).stores.library
            copies = OrphanedCopies(Marks(database), records, transcripts, keeper, machine_id, library.record_of)
            removals = MachineRemovals(
                keeper, database, library.owners, lambda principal: server.end_caller(principal, _nothing)
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_find_elsewhere, keeper, holdings, mover, replica, service)
                tasks.start_soon(_note_staying, holdings, service)
                tasks.start_soon(_release_lost, keeper, copies, holdings, service)
                # Before gateways reach this machine: a person who was removed and invited again has begun nothing here
                # yet.
                await tasks.start(_follow_removals, connection, removals, holdings)
                tasks.start_soon(_update_copies, copies, holdings, replica, service)
                await tasks.start(
                    MachineServer(
                        connection,
                        machine_id,
                        server,
                        take=taking.take,
                        ended=removals.ended,
                        answer_page=pages,
                        run=machine.run,
                    ).serve
                )
                try:
                    yield service
                finally:
                    left = turns.running_turns()
                    if holdings.lapses is None:
                        turns.kill_paused()
                    if push is not None:
                        push.close()
                    tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            # Their processes have ended by now. The lease is still valid, so no other machine has them yet.
            await asyncio.gather(*(hooks.post_session(session_id, "shutdown", cwd) for session_id, cwd in left))
            silent = asyncio.ensure_future(connection.until_silent())
            await replica.close(_LAST_COPIES if holdings.lapses is not None else 0, unless=silent)
            silent.cancel()


def _notifying(service: Service, keeper: KeeperOwnership, machine: str) -> MachinePush:
    """Notifies people of events here, at the receivers that they registered at a gateway."""
    push = MachinePush(service, keeper, service.settings.state_dir / "web", machine)
    service.observe(push)
    push.serve_at("fleet")  # the keeper knows where their pages are
    return push


async def _find_elsewhere(
    keeper: KeeperOwnership, holdings: Holdings, mover: SessionMover, replica: FleetReplica, service: Service
) -> None:
    """Tells the replica which sessions on this machine's disk other machines hold. Checks at the start, after each
    lapse of the lease (only then can they be taken) and after sessions were released. The holdings also detect sessions
    that were running here at once."""
    records, looked = service.relocation.environment_of(LOCAL_CALLER).stores.recorder.records, -1
    while True:
        lapses = holdings.lapses
        mover.handed_over -= {session_id for session_id in mover.handed_over if holdings.held(session_id) is not None}
        if lapses is not None and (lapses != looked or mover.handed_over):
            try:
                known = sorted(mover.handed_over if lapses == looked else await asyncio.to_thread(records.summaries))
                for at in range(0, len(known), MAX_REQUESTED):
                    found = await keeper.ask("elsewhere", sessions=known[at : at + MAX_REQUESTED])
                    # Sessions claimed here during the request belong to this machine.
                    elsewhere = [each for each in found if holdings.held(each) is None]
                    replica.note_elsewhere(elsewhere)
                    mover.handed_over.difference_update(elsewhere)
                looked = lapses
            except (ClaudeCodeError, OSError) as problem:
                log.debug("cannot read yet which sessions other machines have: %s", problem)
        await anyio.sleep(RENEWAL_SECONDS)


async def _release_lost(keeper: KeeperOwnership, copies: OrphanedCopies, holdings: Holdings, service: Service) -> None:
    """Releases sessions whose record and conversation this machine lost since its last run, so that they continue from
    the fleet's copy. Looks for them once, when the fleet answers."""

    def is_lost(holding: Holding) -> bool:
        stores = service.relocation.environment_of(Caller(holding.principal)).stores
        return (
            stores.recorder.records.read(holding.session_id) is None and stores.catalog.find(holding.session_id) is None
        )

    while True:
        if holdings.lapses is not None:
            try:
                lost, deleted = [], set(await copies.left())
                for holding in await keeper.held():
                    if not await asyncio.to_thread(is_lost, holding):
                        continue
                    # Deleted here on purpose: `_update_copies` removes the copy. A deletion may be in progress.
                    deleted.update(await copies.left())
                    if holding.session_id in deleted:
                        continue
                    # A session that this process claimed meanwhile has another epoch, and this call does not release
                    # it.
                    if holdings.held(holding.session_id) is None:
                        await keeper.release(holding)
                        lost.append(holding.session_id)
                if lost:
                    shown = ", ".join(lost[:_SHOWN_LOST]) + (", …" if len(lost) > _SHOWN_LOST else "")
                    log.warning(
                        "this machine has lost the data of %s; the fleet continues from its copy: %s",
                        count_of(len(lost), "session"),
                        shown,
                    )
                return
            except InvalidArgument:  # from a keeper of an earlier version
                return
            except (ClaudeCodeError, OSError) as problem:
                log.debug("cannot read yet which sessions this machine has lost: %s", problem)
        await anyio.sleep(RENEWAL_SECONDS)


async def _note_staying(holdings: Holdings, service: Service) -> None:
    """Tells the fleet about pinned sessions that it does not know yet: those with a new id, and those created while it
    did not answer."""
    while True:
        for session in service.sessions(principal=None):
            if session.options.stay_on_machine:
                await holdings.note_staying(session.id, session.owner)  # no effect if it is already noted
        await anyio.sleep(RENEWAL_SECONDS)


async def _follow_removals(
    connection: FleetConnection,
    removals: MachineRemovals,
    holdings: Holdings,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Ends everything of people who were removed while this machine was offline: checked at the start, after each lapse
    of the lease and each interruption, and periodically. It has started after the first check, or if no keeper
    answered."""
    looked, next_look, has_started = (-1, -1), 0.0, False
    reconnections = 0

    def note_reconnection() -> None:
        nonlocal reconnections
        reconnections += 1

    connection.when_reconnected.append(note_reconnection)
    while True:
        lapses = holdings.lapses
        now_at = lapses if lapses is not None else -1, reconnections
        if lapses is not None and (now_at != looked or anyio.current_time() >= next_look):
            try:
                await removals.catch_up()
                looked, next_look = now_at, anyio.current_time() + _REMOVALS_SECONDS
            except InvalidArgument as problem:  # from a keeper of an earlier version, which records no removals
                log.warning("cannot read which callers were removed in the meantime: %s", problem)
                looked, next_look = now_at, math.inf
            except (ClaudeCodeError, OSError) as problem:
                log.debug("cannot read yet which callers were removed in the meantime: %s", problem)
        if not has_started:
            has_started = True
            task_status.started()
        await anyio.sleep(RENEWAL_SECONDS)


async def _nothing() -> None:
    return None


async def _names_of(service: Service, record: SessionRecord) -> GivenNames:
    """A session's title, tag and marks on this machine."""
    stores = service.relocation.environment_of(Caller(record.owner)).stores
    entry = await stores.threads.run(stores.catalog.find, record.session_id)
    if entry is None:
        return GivenNames()
    return GivenNames(title=entry.title or "", tag=entry.tag or "", pinned=entry.pinned, archived=entry.archived)


async def _update_copies(copies: OrphanedCopies, holdings: Holdings, replica: FleetReplica, service: Service) -> None:
    """Updates the fleet's copies after others deleted or renamed sessions on this machine's disk, shortly after that or
    as soon as the fleet answers."""
    while True:
        if holdings.lapses is not None:
            with suppress(OSError):  # not readable now: retried later
                for session_id in await copies.left():
                    await _remove_orphaned_copy(copies, holdings, replica, service, session_id)
                for session_id in await copies.renamed():
                    try:
                        await copies.rename(session_id)
                    except (ClaudeCodeError, OSError) as problem:
                        log.debug("the copy of session %s still has its old title and tag: %s", session_id, problem)
        await anyio.sleep(RENEWAL_SECONDS)


async def _remove_orphaned_copy(
    copies: OrphanedCopies, holdings: Holdings, replica: FleetReplica, service: Service, session_id: str
) -> None:
    try:
        if await copies.was_deleted(session_id):
            await service.relocation.forget_moved_session(session_id)
            replica.forget(session_id)  # before the copy is removed: a pending write would recreate it
        removed, held = await copies.remove(session_id), holdings.held(session_id)
        if removed and held is not None:
            await holdings.release(held)
    except (ClaudeCodeError, OSError) as problem:
        log.debug("the copy of session %s, which was deleted here, is not removed yet: %s", session_id, problem)
