"""Machines for the tests of moving sessions: services with separate homes and state on one fleet."""

import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.handover import Adoption, SessionMover
from claude_code_mcp.plugins.fleet.hooks import NO_HOOKS, Hooks
from claude_code_mcp.plugins.fleet.keeper import KeptSecrets
from claude_code_mcp.plugins.fleet.leases import Holding, Holdings
from claude_code_mcp.plugins.fleet.records import RecordStore
from claude_code_mcp.plugins.fleet.session_copy import FleetReplica
from claude_code_mcp.plugins.fleet.transcripts import TranscriptStore
from claude_code_mcp.plugins.fleet.working_trees import TreeStore
from claude_code_mcp.testing import Sandbox
from tests.conftest import RUN
from tests.support.parts import service_parts


def held(session_id: str, machine: str, epoch: int) -> Holding:
    """A session in the hands of a machine."""
    return Holding(session_id, machine, epoch, "", 0)


@dataclass
class Ledger:
    """Who holds which session: what the leases of the fleet decide, for tests of what comes after the decision."""

    held: dict[str, Holding] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)

    def claim(self, session_id: str, machine: str) -> Holding:
        found = self.held.get(session_id)
        if found is not None and found.machine != machine:
            raise SessionBusy(f"held by {found.machine}")
        if found is None:
            found = self.held[session_id] = held(session_id, machine, self.released.get(session_id, 0) + 1)
        return found

    def release(self, session_id: str) -> None:
        """Given away, or its machine is gone."""
        self.released[session_id] = self.held.pop(session_id).epoch


class LedgerHoldings(Holdings):
    """The ledger as one machine uses it. Sessions that are begun here are this machine's."""

    def __init__(self, ledger: Ledger, machine: str) -> None:
        self._ledger, self._machine = ledger, machine
        self.known: dict[str, Holding] = {}

    async def claim(self, session_id: str, principal: str, *, taking: bool = False) -> Holding:
        # As leases do: what a machine believes to hold it does not ask for again, though another may have it by now.
        if taking or session_id not in self.known:
            self.known[session_id] = self._ledger.claim(session_id, self._machine)
        return self.known[session_id]

    async def arrived(self, holding: Holding) -> Holding:
        return holding

    async def release(self, holding: Holding) -> None:
        self.known.pop(holding.session_id)
        self._ledger.release(holding.session_id)

    def held(self, session_id: str) -> Holding | None:
        return self.known.get(session_id)

    def holding_of(self, session_id: str) -> Holding | None:
        if session_id not in {*self.known, *self._ledger.held, *self._ledger.released}:
            self.known[session_id] = self._ledger.claim(session_id, self._machine)
        return self.known.get(session_id)


class OpenSeal(KeptSecrets):
    """Seals nothing, for tests without a keeper that are about something else."""

    def __init__(self) -> None: ...

    async def seal(self, session_id: str, secrets: Mapping[str, Any]) -> str:
        return json.dumps({session_id: secrets})

    async def unseal(self, session_id: str, sealed: str) -> dict[str, Any]:
        return dict(json.loads(sealed)[session_id])


@dataclass
class Machine:
    name: str
    sandbox: Sandbox
    service: Service
    transcripts: TranscriptStore
    records: RecordStore
    replica: FleetReplica
    trees: TreeStore
    mover: SessionMover
    holdings: LedgerHoldings
    lost: list[str]

    def local_transcript(self, session_id: str) -> Path:
        [found] = (self.sandbox.home / ".claude" / "projects").rglob(f"{session_id}.jsonl")
        return found


@contextlib.asynccontextmanager
async def machine(
    name: str,
    fleet: FleetConnection,
    ledger: Ledger,
    root: Path,
    model_url: str,
    secrets: KeptSecrets | None = None,
    hooks: Hooks = NO_HOOKS,
    policy: Policy | None = None,
    **settings: Any,
) -> AsyncIterator[Machine]:
    sandbox = Sandbox(root / name, model_url)
    given = load_settings({}, **{"state_dir": sandbox.root / "state", **settings})
    database = database_in(given.state_dir)
    transcripts, records = TranscriptStore(fleet), RecordStore(fleet, database, secrets or OpenSeal())
    holdings, lost = LedgerHoldings(ledger, name), list[str]()
    replica = FleetReplica(transcripts, records, holdings.holding_of, lost.append, holdings.claim)
    environment = sandbox.environment(**{RUN: os.environ[RUN]})
    try:
        async with Service(given, environment, replica=replica, policy=policy, **service_parts()) as service:
            service.observe(replica)
            trees = TreeStore(fleet)
            adoption = Adoption(transcripts, records, database)
            mover = SessionMover(service, replica, records, trees, adoption, holdings, hooks)
            service.observe(mover)
            yield Machine(name, sandbox, service, transcripts, records, replica, trees, mover, holdings, lost)
    finally:
        await replica.close(10)
