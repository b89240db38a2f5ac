"""The operator's own NATS: three servers on loopback, with files of credentials, of which one is killed."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.fleet_places import FleetPlaces, call
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.transcripts import FleetUnavailable, TranscriptStore
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.support.waiting import HANG_SECONDS


async def times_stored(connection: FleetConnection, session_id: str, said: str) -> int:
    """How often the fleet has this message, as soon as it has it: a new leader takes its time."""
    async with asyncio.timeout(HANG_SECONDS):
        while True:
            with suppress(FleetUnavailable):
                entries = (await TranscriptStore(connection).load_all(session_id))[""]
                if count := sum(said in str(entry) for entry in entries if entry.get("type") == "user"):
                    return count
            await asyncio.sleep(0.2)


@pytest.mark.soak
@pytest.mark.parametrize("killed", ["leader", "another"])
async def test_a_session_continues_when_one_of_three_servers_is_killed(
    tmp_path: Path, model: ScriptedModelThread, killed: str
) -> None:
    fleet = FleetPlaces(tmp_path, model.url, 3, ("north", "south"))
    gateway, runner = fleet.machines
    await asyncio.to_thread(fleet.start)
    try:
        done, made = await call(
            gateway, "claude_create_session", prompt=script("remember the word heron", "yes"), machine="south",
            workingDirectory=str(runner.project), waitSeconds=50,
        )  # fmt: skip
        assert done, made
        connection = await fleet.connected()
        stream = await connection.jetstream.stream_info(names.TRANSCRIPTS)
        assert stream.config.num_replicas == 3
        assert stream.cluster is not None
        leader = int(str(stream.cluster.leader).removeprefix("nats-"))
        fleet.servers[leader if killed == "leader" else (leader + 1) % 3].kill()
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                done, answer = await call(
                    gateway, "claude_send_message", sessionId=made["sessionId"], message=script("go on", "here"),
                    messageKey="k", waitSeconds=50,
                )  # fmt: skip
                if done and answer.get("status") == "completed":
                    break
                await asyncio.sleep(0.2)
        assert (answer["result"], answer["machine"]) == ("here", "south")
        # With two of three servers it is stored as with all.
        assert await times_stored(connection, made["sessionId"], "go on") == 1
        await connection.abandon()
    finally:
        await asyncio.to_thread(fleet.stop)
