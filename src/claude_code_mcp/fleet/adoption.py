"""Taking a session over: what its last holder left in the fleet's stores becomes a session of this machine.

The order is that in which it can be interrupted anywhere and be done again: the stores are closed to earlier holders,
the conversation is written to this machine's disk, then keys and spending, and last the record, from which on the
session exists here. Nothing is run: the next message resumes the session, as after a restart of its server.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import SessionNotFound
from ..model.outcome import Outcome, OutcomeCode
from ..private_files import private_directory
from ..sessions.dependencies import Stores
from ..sessions.replica import is_subagent
from ..state.database import Database
from ..state.session_records import SessionRecord
from ..store.transcript_lines import open_regular
from ..store.transcripts import SessionFiles, read_lines
from .records import RecordStore, SessionDocument, UnansweredQuestion, put_beside, with_secrets
from .sealing import SealingKey
from .transcripts import SessionHolding, TranscriptStore

log = logging.getLogger(__name__)

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Adopted:
    """A session that is this machine's now."""

    record: SessionRecord
    turn_lost: bool
    """Whether a turn was running on the machine before, which ended with it (`machine_lost`)."""
    ended_questions: tuple[UnansweredQuestion, ...]
    """Those that nobody had answered; they can be answered no more."""
    without_tree: str | None = None
    """Why its working tree did not come along: it goes on in an empty directory."""
    superseded: str | None = None
    """Where an older transcript of this machine was put that has entries which the fleet does not know."""


class Adoption:
    """Takes sessions over for one machine."""

    def __init__(
        self, transcripts: TranscriptStore, records: RecordStore, database: Database, key: SealingKey | None = None
    ) -> None:
        """`key` opens what was sealed for this machine."""
        self._key = key
        self._transcripts = transcripts
        self._records = records
        self._database = database

    async def adopt(
        self,
        session_id: str,
        holding: SessionHolding,
        stores: Stores,
        cwd: str,
        secrets: Mapping[str, Any] | None = None,
    ) -> Adopted:
        """Makes a session that this machine holds one that its server can resume in the directory `cwd`.

        `stores` are those of the session's owner on this machine; `secrets` are the options that hold secrets, where
        they were left out. Raises SessionNotFound if the fleet has no record of it, InvalidArgument if such options are
        missing, LostSession if another machine has a later epoch, FleetUnavailable if NATS does not answer; each of
        them before anything is written here.
        """
        document = await self._records.read(session_id)
        secrets = {**self._unsealed(document), **(secrets or {})}
        with_secrets(document, secrets)
        # Both stores first: from here on nothing of an earlier holder can come in behind what is read.
        await self._transcripts.fence(session_id, holding)
        document = await self._records.take_over(session_id, holding)
        files = await self._transcripts.load_all(session_id)
        if "" not in files and document.record.model_turns:
            raise SessionNotFound(f"The conversation of session {session_id} is not in the fleet.")
        record = with_secrets(document, secrets)
        adopted = await asyncio.to_thread(self._write, document, record, stores, cwd, files)
        await self._records.put(adopted.record, holding)
        return adopted

    def _unsealed(self, document: SessionDocument) -> dict[str, Any]:
        if self._key is None or self._key.machine_id not in document.sealed:
            return {}
        return self._key.unseal(document.record.session_id, document.sealed[self._key.machine_id])

    def _write(
        self,
        document: SessionDocument,
        record: SessionRecord,
        stores: Stores,
        cwd: str,
        files: Mapping[str, list[dict[str, Any]]],
    ) -> Adopted:
        records, projects = stores.recorder.records, stores.transcripts.projects
        superseded = self._keep_unknown(record.session_id, stores, files)
        # Only names that the CLI gives to its files: what another machine stored is a claim too.
        safe = {path: entries for path, entries in files.items() if not path or is_subagent(path)}
        if safe:
            SessionFiles(records.config_dir, projects).put(record.session_id, cwd, safe)
        put_beside(self._database, document)
        here = records.read(record.session_id)
        lost = record.running_since is not None
        changes: dict[str, Any] = {
            # Later than whatever either machine has written: an older record never replaces a newer one.
            "revision": max(record.revision, here.revision if here is not None else 0) + 1,
            "cwd": os.path.realpath(cwd),
            "options": record.options.model_copy(update={"worktree": False}),
            "running_since": None,
        }
        if lost:
            changes |= {"outcome": _lost_turn(record, document.questions), "result_cut": False, "used_at": time.time()}
        record = record.model_copy(update=changes)
        records.write(record)
        without_tree = (document.tree_flaw or "It was never saved.") if document.tree is None else None
        return Adopted(record, lost, document.questions, without_tree, superseded)

    def _keep_unknown(self, session_id: str, stores: Stores, files: Mapping[str, list[dict[str, Any]]]) -> str | None:
        """An older transcript of this machine may have lines of a turn that was cut off by the fence: they are put
        aside, never lost and never mixed in."""
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
        log.warning("an older transcript of session %s was put into %s", session_id, target)
        return str(target)


def _lost_turn(record: SessionRecord, questions: tuple[UnansweredQuestion, ...]) -> Outcome:
    began = datetime.fromtimestamp(record.running_since or 0, UTC).isoformat(timespec="seconds")
    detail = (
        f"The turn that began at {began} was lost with the machine that ran it. What it had done by then may be done; "
        "the session goes on from the last entry that had left that machine."
    )
    if questions:
        named = "; ".join(question.title for question in questions[:_MOST_NAMED])
        detail += f" {len(questions)} open question(s) ended without an answer: {named}."
    return Outcome(OutcomeCode.MACHINE_LOST, detail=detail)
