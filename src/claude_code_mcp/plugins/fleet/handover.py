"""Moves sessions between machines: one machine gives a session away or is gone, and another machine takes it.

A session is given away when its turn has ended, its process is gone, and the fleet's stores have all of it:
conversation, record and tree. Only then is the holding released: a machine that fails half way still has the session,
and a machine that dies has stored everything that the next one needs. A message that arrives meanwhile waits. The check
of the holding before its turn then refuses it and names the machine that has the session.

Taking a session can be interrupted at any point and repeated. The order is: close the stores to earlier holders, write
the conversation to this machine's disk, write keys and spending, and write the record last. From then on the session
exists here. Nothing is run: the next message resumes the session, as after a restart of its server.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy, SessionNotFound
from ...core.git import Git
from ...core.model.caller import Caller
from ...core.model.events import AuditEvent, AuditKind, Event, TurnEnded, TurnStarted
from ...core.model.outcome import Outcome, OutcomeCode
from ...core.private_files import private_directory
from ...core.service import Service
from ...core.sessions.stored.session_stores import Stores
from ...core.state.database import Database
from ...core.state.session_marks import Mark
from ...core.state.session_records import SessionRecord
from ...core.transcripts.transcript_lines import open_regular
from ...core.transcripts.transcripts import SessionFiles, read_lines
from .hooks import NO_HOOKS, Hooks, set_up
from .leases import Holding, Holdings
from .machine_server import Taken
from .records import GivenNames, RecordStore, SessionDocument, UnansweredQuestion, put_keys_and_spending
from .session_copy import FleetReplica
from .transcript_mirror import is_subagent, local_files
from .transcripts import FleetUnavailable, TranscriptStore
from .working_trees import TreeRef, TreeRefused, TreeStore

log = logging.getLogger(__name__)

_MAX_NAMED = 5
_MAX_COPY = 120.0
_MAX_ATTEMPTS, _LET_GO_PAUSE = 200, 0.05


@dataclass(frozen=True, slots=True)
class AdoptedSession:
    """A session that this machine now holds."""

    record: SessionRecord
    turn_lost: bool
    """Whether a turn was running on the previous machine and ended with it (`machine_lost`)."""
    without_tree: str | None = None
    """Why its working tree is missing: it continues in an empty directory."""
    tree_behind: bool = False
    """Whether its files were not saved after its last turn: the tree is from before that turn."""
    setup_failed: str = ""
    """Why the repository's set-up command was not run or failed."""
    superseded: str | None = None
    """The path of an older transcript of this machine with entries that the fleet does not have."""


CheckRecord = Callable[[SessionRecord, SessionRecord | None], None]
"""Rejects a record that another machine wrote; also receives this machine's data about the session."""


class Adoption:
    """Takes sessions over for one machine."""

    def __init__(self, transcripts: TranscriptStore, records: RecordStore, database: Database) -> None:
        self._transcripts = transcripts
        self._records = records
        self._database = database

    async def adopt(
        self, session_id: str, holding: Holding, stores: Stores, cwd: str, check: CheckRecord
    ) -> AdoptedSession:
        """Makes a session that this machine holds resumable in the directory `cwd`. `stores` are the session owner's on
        this machine.

        Raises SessionNotFound if the fleet has no record of it, the errors of `RecordStore.whole_record` if its secrets
        are unavailable, PermissionDenied if `check` rejects the record, LostSession if another machine has a later
        epoch, FleetUnavailable if NATS does not answer; each before anything is written here.
        """
        known = await asyncio.to_thread(stores.recorder.records.read, session_id)
        check(await self._records.whole_record(await self._records.read(session_id)), known)
        # Both stores first: from here on an earlier holder cannot add data behind the data that is read.
        await self._transcripts.fence(session_id, holding)
        document = await self._records.take_over(session_id, holding)
        files = await self._transcripts.load_all(session_id)
        if "" not in files and document.record.model_turns:
            raise SessionNotFound(f"The conversation of session {session_id} is not in the fleet.")
        record = await self._records.whole_record(document)
        # Again: an earlier holder could write another record until the stores were closed to it.
        check(record, known)
        adopted = await asyncio.to_thread(self._write, document, record, stores, cwd, files)
        await self._records.put(adopted.record, holding)
        return adopted

    def _write(
        self,
        document: SessionDocument,
        record: SessionRecord,
        stores: Stores,
        cwd: str,
        files: Mapping[str, list[dict[str, Any]]],
    ) -> AdoptedSession:
        records, projects = stores.recorder.records, stores.transcripts.projects
        superseded = self._keep_unknown(record.session_id, stores, files)
        # Only file names that the CLI uses: another machine's stored data is untrusted.
        safe = {path: entries for path, entries in files.items() if not path or is_subagent(path)}
        if safe:
            files_here = SessionFiles(records.config_dir, projects)
            files_here.put(record.session_id, cwd, safe)
            _put_names(record.session_id, document.names, stores, files_here)
        put_keys_and_spending(self._database, document)
        here = records.read(record.session_id)
        lost = record.running_since is not None
        changes: dict[str, Any] = {
            # Higher than the revision on either machine, so that an older record never replaces a newer one.
            "revision": max(record.revision, here.revision if here is not None else 0) + 1,
            "cwd": os.path.realpath(cwd),
            # Not pinned, whatever the other machine wrote: a session that arrives here is not pinned to its machine.
            "options": record.options.model_copy(update={"worktree": False, "stay_on_machine": False}),
            "running_since": None,
        }
        if lost:
            changes |= {"outcome": _lost_turn(record, document.questions), "result_cut": False, "used_at": time.time()}
        record = record.model_copy(update=changes)
        records.write(record)
        without_tree = (document.tree_flaw or "It was never saved.") if document.tree is None else None
        # A lost turn is reported as lost, together with the work that it has done.
        behind = document.tree is not None and document.tree_behind and not lost
        return AdoptedSession(record, lost, without_tree, behind, superseded=superseded)

    def _keep_unknown(self, session_id: str, stores: Stores, files: Mapping[str, list[dict[str, Any]]]) -> str | None:
        """An older transcript of this machine may have lines of a turn that the fence cut off: they are set aside,
        never lost and never mixed in."""
        path = stores.transcripts.path_of(session_id)
        if path is None:
            return None
        known = {entry.get("uuid") for entry in files.get("", ())}
        if all(line.get("uuid") in known for line in read_lines(path) if line.get("uuid")):
            return None
        place = private_directory(Path(self._database.directory) / "fleet" / "superseded")
        target = place / f"{session_id}-{time.time_ns()}.jsonl"
        # A copy: the two directories may lie on different disks.
        with open_regular(str(path)) as old, open(target, "xb", opener=partial(os.open, mode=0o600)) as kept:
            shutil.copyfileobj(old, kept)
        log.warning("an older transcript of session %s was moved to %s", session_id, target)
        return str(target)


def _put_names(session_id: str, called: GivenNames | None, stores: Stores, files: SessionFiles) -> None:
    """Restores a session's title, tag and marks. Title and tag are also in its conversation if that came from another
    machine. Blocks."""
    entry = stores.catalog.find(session_id)
    if called is None or entry is None:
        return
    if called.title and called.title != entry.title:
        files.set_title(session_id, called.title)
    if called.tag and called.tag != entry.tag:
        files.set_tag(session_id, called.tag)
    for mark, on in ((Mark.PINNED, called.pinned), (Mark.ARCHIVED, called.archived)):
        stores.catalog.marks.set(session_id, mark, on)


def _lost_turn(record: SessionRecord, questions: tuple[UnansweredQuestion, ...]) -> Outcome:
    began = datetime.fromtimestamp(record.running_since or 0, UTC).isoformat(timespec="seconds")
    detail = (
        f"The turn that started at {began} was lost with its machine; it may have done part of its work. The session "
        "continues from the last entry that the machine sent."
    )
    if questions:
        named = "; ".join(question.title for question in questions[:_MAX_NAMED])
        detail += f" {len(questions)} open question(s) ended without an answer: {named}."
    return Outcome(OutcomeCode.MACHINE_LOST, detail=detail)


# -- giving and taking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReleasedSession:
    """A session that this machine released."""

    session_id: str
    principal: str
    tree: TreeRef | None


class SessionMover:
    """Releases and takes sessions for one machine."""

    def __init__(
        self,
        service: Service,
        replica: FleetReplica,
        records: RecordStore,
        trees: TreeStore,
        adoption: Adoption,
        holdings: Holdings,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._service = service
        self._replica = replica
        self._records = records
        self._trees = trees
        self._adoption = adoption
        self._holdings = holdings
        self._hooks = hooks
        self._unsaved: dict[str, str] = {}
        """Sessions whose turn ended after their tree was saved, with their owners."""
        self._saving: dict[str, asyncio.Task[None]] = {}
        self.handed_over: set[str] = set()
        """Released sessions that no other machine has confirmed yet: until then they stay in this machine's lists and
        costs."""

    async def save_tree(self, session_id: str, cwd: str, caller: Caller) -> TreeRef:
        """Stores the session's current tree and refers to it in the session's next document. Raises the errors of
        `TreeStore.save`."""
        before = self._records.trees.get(session_id)
        git = Git(self._service.relocation.environment_of(caller).launcher.home, (cwd,))
        previous = TreeRef.read(before) if before is not None else None
        try:
            ref = await self._trees.save(git, cwd, session_id, previous)
        except TreeRefused as error:
            self._records.tree_flaws[session_id] = error.message
            self._records.trees_behind.discard(session_id)
            raise
        self._records.trees[session_id] = ref.model_dump()
        self._records.tree_flaws.pop(session_id, None)
        self._records.trees_behind.discard(session_id)
        return ref

    # -- after each turn ----------------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """As an observer of the service: saves the tree after each turn, before the next one begins."""
        if isinstance(event, TurnStarted):
            # Set at the beginning of the turn: if this machine dies later, the files may be newer than the saved tree.
            self._records.trees_behind.add(session_id)
        if isinstance(event, TurnEnded) and self._replica.holding_of(session_id) is not None:
            self._unsaved[session_id] = owner
            if session_id not in self._saving:
                self._saving[session_id] = self._service.start_task(self._save_trees(session_id))

    def act(self, act: AuditEvent) -> None:
        """As an observer of the service: a cancelled session is removed permanently."""
        if act.kind is AuditKind.CANCELLED and act.session_id is not None:
            found = [each.cwd for each in self._service.sessions(principal=None) if each.id == act.session_id]
            for cwd in found:
                self._service.start_task(self._hooks.post_session(act.session_id, "cancelled", cwd))

    async def saved(self, session_id: str) -> None:
        """Waits until the trees of all ended turns are saved or could not be."""
        while (saving := self._saving.get(session_id)) is not None:
            await asyncio.wait([saving])

    async def _save_trees(self, session_id: str) -> None:
        try:
            # A turn that ends while a tree is being saved triggers another save.
            while (owner := self._unsaved.pop(session_id, None)) is not None:
                await self._save_after_turn(session_id, Caller(owner))
        finally:
            self._saving.pop(session_id, None)

    async def _save_after_turn(self, session_id: str, caller: Caller) -> None:
        try:
            session = self._service.session(session_id, principal=caller.principal)
            # Only between turns: files that change while they are saved would not match any single moment.
            async with session.at_rest():
                await self.save_tree(session_id, session.cwd, caller)
        except SessionBusy:
            return  # the next turn has begun and triggers a save at its end
        except TreeRefused:
            pass  # the document says why
        except ClaudeCodeError as error:
            log.warning("the working tree of session %s was not saved: %s", session_id, error.message)
            return
        self._replica.document_changed(session_id)

    # -- moving -------------------------------------------------------------------------------------------------------

    async def give(
        self, session_id: str, caller: Caller, *, interrupt: bool = False, without_tree: bool = False
    ) -> ReleasedSession:
        """Releases a session of this machine: the next machine that claims it has it. Raises SessionBusy during a turn,
        unless it is to be interrupted; TreeRefused if its tree cannot be saved exactly, unless it is to stay behind;
        LostSession if this machine no longer holds it; InvalidArgument for a pinned session. In these cases it stays
        here."""
        session = await self._service.find(session_id, caller=caller)
        if session.owner != caller.principal:
            raise PermissionDenied("Only its owner can move a session.", session_id=session.id)
        if session.options.stay_on_machine:
            raise InvalidArgument(f"Session {session.id} is pinned to its machine.", session_id=session.id)
        deps = self._service.relocation.environment_of(caller)
        # A session that began before this server started, or in a terminal, is not held by this server yet.
        await self._replica.admit(session.id, session.owner)
        holding = self._replica.holding_of(session.id)
        if holding is None:
            raise SessionBusy(f"Session {session.id} is not held by this machine.", session_id=session.id)
        if interrupt:
            await session.interrupt()
        async with session.at_rest(without_process=True):
            tree = None
            try:
                tree = await self.save_tree(session.id, session.cwd, caller)
            except TreeRefused:
                if not without_tree:
                    raise
            files = partial(local_files, deps.stores.transcripts, session.id, session.cwd)
            self._replica.catch_up(session.id, files)
            # After the tree, which the document names. The document is written last and is complete.
            await deps.stores.recorder.save(session)
            await self._copied(session.id)
            # Inside the block: a waiting message begins its turn only when this machine no longer holds the session.
            await self._holdings.release(holding)
        await self._let_go(session.id)
        self._replica.forget(session.id)
        self._records.trees.pop(session.id, None)
        self._records.tree_flaws.pop(session.id, None)
        self._records.trees_behind.discard(session.id)
        self.handed_over.add(session.id)
        # Concurrently with the rest of the move: the session has left, whatever the hook does.
        self._service.start_task(self._hooks.post_session(session.id, "moved", session.cwd))
        return ReleasedSession(session.id, session.owner, tree)

    async def _let_go(self, session_id: str) -> None:
        """Forgets a released session. Waiting messages are refused first, one by one; it is released whatever they
        do."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                await self._service.relocation.forget_moved_session(session_id)
                return
            except SessionBusy:
                await asyncio.sleep(_LET_GO_PAUSE)
        log.warning("session %s was released while a caller here still waits for it", session_id)

    async def _copied(self, session_id: str) -> None:
        """Waits until the fleet has everything, up to a limit: a session with waiting messages stays here."""
        try:
            async with asyncio.timeout(_MAX_COPY):
                await self._replica.complete(session_id)
        except TimeoutError:
            raise FleetUnavailable("The fleet did not store everything in time; the session stays here.") from None
        if self._replica.behind(session_id):
            raise FleetUnavailable("The fleet's stores do not respond; the session stays here.")

    async def take(
        self,
        session_id: str,
        principal: str,
        directory: str,
        *,
        older_tree: bool = False,
    ) -> AdoptedSession:
        """Takes a released session, or one of an offline machine, and its tree into `directory`. `older_tree` accepts
        the last saved tree if the latest could not be saved. Raises the errors of `claim`, `TreeStore.restore` and
        `Adoption.adopt`; the session is then free for others, and restored files stay."""
        holding = await self._holdings.claim(session_id, principal, taking=True)
        try:
            document = await self._records.read(session_id)
            if document.record.owner != principal:
                raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
            deps = self._service.relocation.environment_of(Caller(principal))
            cwd, setup_failed = directory, ""
            if document.tree is not None and document.tree_flaw is not None and not older_tree:
                raise TreeRefused(
                    f"The working tree of session {session_id} could not be saved after its last turn: "
                    f"{document.tree_flaw} The saved one is older than the conversation and is used only on request."
                )
            if document.tree is not None:
                ref = TreeRef.read(document.tree)
                checkout = partial(self._hooks.checkout, session_id, ref)
                cwd = await self._trees.restore(Git(deps.launcher.home, (directory,)), ref, directory, checkout)
                setup_failed = await set_up(self._service, Caller(principal), os.path.realpath(directory))  # noqa: ASYNC240 - made by us
                # The next save builds on this tree and stores only the changes.
                self._records.trees[session_id] = ref.model_dump()

            def check(record: SessionRecord, known: SessionRecord | None) -> None:
                own = None if known is None else known.options
                self._service.check_record_of_machine(principal, directory, record.options, own)

            adopted = await self._adoption.adopt(session_id, holding, deps.stores, cwd, check)
            # Last: if this machine dies earlier, no machine mistakes the partial data for the session.
            await self._holdings.arrived(holding)
            self._service.start_task(self._service.relocation.arrived())
            return replace(adopted, setup_failed=setup_failed)
        except BaseException:
            # Shielded: a session without a holder that every machine refuses would be lost.
            await asyncio.shield(self._holdings.release(holding))
            raise


class SessionTaker:
    """Takes over sessions of offline machines."""

    def __init__(self, mover: SessionMover, holdings: Holdings, directory: Path) -> None:
        self._mover = mover
        self._holdings = holdings
        self._directory = directory
        self._locks: dict[str, anyio.Lock] = {}
        self._taken: dict[str, tuple[int, float, Taken]] = {}
        """The losses of recently taken sessions, with epoch and time: an answer may be lost and requested again."""

    async def take(self, session_id: str, principal: str) -> Taken:
        """`TakeSession` of `machine_server.py`; for a session that this machine already has, the previous answer."""
        lock = self._locks.setdefault(session_id, anyio.Lock())
        try:
            # One at a time: several messages may have found the session's machine gone.
            async with lock:
                held = self._holdings.held(session_id)
                # A session with this epoch is already here. It may be unconfirmed since this machine came back.
                if held is not None:
                    claimed = await self._holdings.claim(session_id, principal, taking=held.arriving)
                    if claimed.epoch == held.epoch and not claimed.arriving:
                        epoch, _, taken = self._recently_taken().get(session_id, (0, 0.0, Taken()))
                        return taken if epoch == held.epoch else Taken()
                taken = await self._take(session_id, principal)
                if (held := self._holdings.held(session_id)) is not None:
                    self._recently_taken()[session_id] = held.epoch, time.monotonic(), taken
                return taken
        finally:
            if not lock.locked():
                self._locks.pop(session_id, None)

    def _recently_taken(self) -> dict[str, tuple[int, float, Taken]]:
        oldest = time.monotonic() - _REMEMBERED_SECONDS
        self._taken = {key: each for key, each in self._taken.items() if each[1] > oldest}
        return self._taken

    async def _take(self, session_id: str, principal: str) -> Taken:
        directory = await asyncio.to_thread(_new_directory, self._directory, session_id)
        try:
            adopted = await self._mover.take(session_id, principal, str(directory))
        except BaseException:
            with suppress(OSError):  # part of the tree is already there
                directory.rmdir()
            raise
        log.info("session %s continues here, in %s", session_id, adopted.record.cwd)
        outcome = adopted.record.outcome
        lost = outcome.detail if adopted.turn_lost and outcome is not None else ""
        older = _OLDER_TREE if adopted.tree_behind else ""
        return Taken(lost, adopted.without_tree or "", older, adopted.setup_failed)


_REMEMBERED_SECONDS = 60.0
"""The time that a gateway allows for one answer."""
_OLDER_TREE = (
    "The previous machine was lost before it saved the files of the last turn: they are as they were before that turn."
)


def _new_directory(parent: Path, session_id: str) -> Path:
    """An empty, never used directory for the tree of an arriving session. Blocks."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = 1
    while True:
        directory = parent / (session_id if number == 1 else f"{session_id}-{number}")
        try:
            os.mkdir(directory, 0o700)
            return directory
        except FileExistsError:
            number += 1
