"""A keeper that was frozen finds requests late: they change nothing that was decided meanwhile."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest

from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.keeper import Keeper, KeeperOwnership
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.nats_client import Msg
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.tickets import new_seed
from tests.support.waiting import HANG_SECONDS

from .conftest import in_own_task
from .test_push import inbox_of


@dataclass
class KeptFleet:
    """A keeper, and a machine called m with the claims that it has sent."""

    bucket: OwnershipBucket
    machine: FleetConnection
    claims: list[Msg]

    def process(self, run: str) -> KeeperOwnership:
        """The machine's view from one of its processes."""
        return KeeperOwnership(self.machine, "m", run)

    async def replayed(self, claim: Msg, headers: dict[str, str] | None = None) -> dict[str, object]:
        answer = await self.machine.client.request(claim.subject, claim.data, timeout=HANG_SECONDS, headers=headers)
        return dict(json.loads(answer.data))

    async def holder(self) -> Holding:
        found = await self.bucket.read("s1")
        assert found is not None
        return found


@pytest.fixture
async def kept(fleet: FleetConnection) -> AsyncIterator[KeptFleet]:
    bucket = await OwnershipBucket.opened(fleet)
    claims: list[Msg] = []

    async def note(message: Msg) -> None:
        claims.append(message)

    async with AsyncExitStack() as stack:
        await fleet.client.subscribe(names.keeper("m", "claim"), cb=note)
        await stack.enter_async_context(in_own_task(Keeper(fleet, bucket, new_seed()).serving()))
        yield KeptFleet(bucket, replace(fleet, client=await inbox_of(fleet, "m", stack)), claims)


async def test_a_late_claim_does_not_take_a_session_from_its_own_holder(kept: KeptFleet) -> None:
    process = kept.process("first")
    await process.claim("s1", "alice", "m")
    held = await process.claim("s1", "alice", "m")  # the answer to the first one was lost
    assert held.epoch == 2
    answer = await kept.replayed(kept.claims[0])
    assert "error" not in answer
    assert await kept.holder() == held
    assert (await process.confirm(held)).epoch == 2


async def test_a_claim_of_an_earlier_process_is_refused(kept: KeptFleet, fleet: FleetConnection) -> None:
    await kept.process("first").claim("s1", "alice", "m")
    leases = await fleet.jetstream.key_value(names.MACHINES)
    await leases.put("m", json.dumps({"run": "second"}).encode())
    held = await kept.process("second").claim("s1", "alice", "m")
    answer = await kept.replayed(kept.claims[0])
    assert answer["error"] == "LeaseLapsed"
    assert await kept.holder() == held


async def test_a_request_after_its_deadline_changes_nothing(kept: KeptFleet) -> None:
    process = kept.process("first")
    held = await process.claim("s1", "alice", "m")
    assert float((kept.claims[0].headers or {})["Fleet-Deadline"]) > time.time()
    later = {**json.loads(kept.claims[0].data), "number": 2}
    claim = Msg(kept.machine.client, subject=kept.claims[0].subject, data=json.dumps(later).encode())
    answer = await kept.replayed(claim, {"Fleet-Deadline": str(time.time() - 60)})
    assert answer["error"] == "RequestExpired"
    assert await kept.holder() == held


async def test_a_machine_whose_clock_is_far_off_the_keepers_is_served(kept: KeptFleet) -> None:
    process = kept.process("first")
    await process.claim("s1", "alice", "m")
    assert process._ahead is not None
    process._ahead -= 3600  # as if another keeper had answered before
    assert (await process.claim("s1", "alice", "m")).epoch == 2
