"""The stores of a fleet, on a real NATS server."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest
from nats.js.errors import APIError
from nats.js.kv import KeyValue

from claude_code_mcp.plugins.fleet import connection as fleet_connection
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import (
    MIN_LEASE_SECONDS,
    FleetConnection,
    FleetUnreachable,
    connect,
    create_stores,
    read_lease_seconds,
)
from claude_code_mcp.plugins.fleet.host import connect_to_host, hosting
from claude_code_mcp.plugins.fleet.nats_server import executable, running
from tests.support.ports import free_port
from tests.support.waiting import HANG_SECONDS


async def test_a_second_machine_finds_the_stores_as_they_are(fleet: FleetConnection) -> None:
    sessions = await fleet.jetstream.key_value(names.SESSIONS)
    await sessions.put("s1", b"held")
    await create_stores(fleet)
    assert (await sessions.get("s1")).value == b"held"


async def length_of_leases(fleet: FleetConnection) -> float:
    return await read_lease_seconds(await fleet.jetstream.key_value(names.MACHINES))


@pytest.mark.parametrize("lease_seconds", [None])
async def test_leases_are_lengthened_at_once_and_shortened_when_no_machine_has_one(
    fleet: FleetConnection, caplog: pytest.LogCaptureFixture
) -> None:
    assert await length_of_leases(fleet) == MIN_LEASE_SECONDS
    machines = await fleet.jetstream.key_value(names.MACHINES)
    await machines.put("a", b"{}")
    await create_stores(fleet, lease_seconds=30)
    assert await length_of_leases(fleet) == 30
    await create_stores(fleet)
    assert await length_of_leases(fleet) == 30, "another gateway that sets none"
    await create_stores(fleet, lease_seconds=10)
    assert await length_of_leases(fleet) == 30, "the machine counts with it"
    assert "keep their length of 30 s" in caplog.text
    assert (await machines.get("a")).value == b"{}"
    await machines.delete("a")  # it has left
    await create_stores(fleet, lease_seconds=10)
    assert await length_of_leases(fleet) == 10


async def test_leases_are_not_shortened_for_a_machine_that_comes_in_the_same_moment(
    fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines, read = await fleet.jetstream.key_value(names.MACHINES), fleet_connection.entries_of

    async def read_before_it_comes(bucket: KeyValue) -> list[KeyValue.Entry]:
        found = await read(bucket)
        await machines.put("a", b"{}")
        return found

    monkeypatch.setattr(fleet_connection, "entries_of", read_before_it_comes)
    await create_stores(fleet, lease_seconds=10)
    assert await length_of_leases(fleet) == 60
    assert (await machines.get("a")).value == b"{}"


async def test_a_stale_writer_is_refused_by_the_stream(fleet: FleetConnection) -> None:
    subject = names.transcript("s1")
    first = await fleet.jetstream.publish(subject, b"1", headers={"Nats-Expected-Last-Subject-Sequence": "0"})
    stale = {"Nats-Expected-Last-Subject-Sequence": "0"}
    with pytest.raises(APIError) as refused:
        await fleet.jetstream.publish(subject, b"2", headers=stale)
    assert refused.value.err_code == 10071
    assert first.seq == 1


async def test_no_machine_can_wipe_the_leases_of_the_others(fleet: FleetConnection) -> None:
    """A header on an ordinary write empties a whole bucket of NATS's making."""
    machines = await fleet.jetstream.key_value(names.MACHINES)
    await machines.put("a", b"alive")
    with pytest.raises(APIError, match="rollup"):
        await fleet.jetstream.publish(names.entry(names.MACHINES, "b"), b"", headers={"Nats-Rollup": "all"})
    assert (await machines.get("a")).value == b"alive"


async def test_a_server_that_a_killed_fleet_up_has_left_is_ended_before_the_next_one(tmp_path: Path) -> None:
    """Two of them on one store would let two machines hold one session."""
    async with running(tmp_path):
        pass  # its configuration is there now
    command = [executable(), "-c", str(tmp_path / "nats.conf")]
    left = await asyncio.to_thread(subprocess.Popen, command, stderr=subprocess.DEVNULL)
    async with running(tmp_path) as server:
        assert left.poll() is not None
        assert server.pid != left.pid
        await (await connect(server.url)).close()


async def test_a_server_that_is_not_there_is_not_waited_for() -> None:
    with pytest.raises(FleetUnreachable, match="cannot be reached"):
        await connect(f"nats://127.0.0.1:{free_port()}")


async def test_closing_during_a_reconnect_does_not_cancel_the_closing_task(tmp_path: Path) -> None:
    async with hosting(tmp_path, host="127.0.0.1", port=-1) as host:
        connection = await connect_to_host(tmp_path)
        # It does not answer the end of a TLS connection: the attempt to reconnect waits for that.
        os.kill(host.server.pid, signal.SIGSTOP)
        try:
            await connection.client.force_reconnect()
            await asyncio.sleep(0)  # the attempt has begun
            await connection.abandon()
        finally:
            os.kill(host.server.pid, signal.SIGCONT)
    assert connection.client.is_closed


async def test_a_connection_is_closed_with_what_cannot_be_sent_any_more(tmp_path: Path) -> None:
    async with hosting(tmp_path, host="127.0.0.1", port=-1):
        connection = await connect_to_host(tmp_path)
        attempted = asyncio.Event()

        async def note(_: Exception) -> None:
            attempted.set()

        connection.client._error_cb = note
    async with asyncio.timeout(HANG_SECONDS):
        await attempted.wait()  # and failed: the server is gone
    await connection.client.publish("fleet.nothing", b"x")
    await connection.close()
    assert connection.client.is_closed


@pytest.mark.parametrize("words", ["Authorization Violation", "Slow Consumer", "maximum connections exceeded"])
async def test_an_error_of_an_open_connection_only_interrupts_it(words: str) -> None:
    """A server says such a thing right before it closes a connection, whenever it likes: a real one not on demand."""
    connections = 0
    back = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        reconnected = connections > 1
        writer.write(b'INFO {"server_id": "x", "version": "2.10.0", "max_payload": 1048576, "headers": true}\r\n')
        async for line in reader:
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"SUB") and not reconnected:
                writer.write(f"-ERR '{words}'\r\n".encode())
                break
        writer.close()

    async def on_message(_: object) -> None: ...

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        connection = await connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        connection.when_reconnected.append(back.set)
        await connection.client.subscribe("a", cb=on_message)
        async with asyncio.timeout(HANG_SECONDS):
            await back.wait()
        assert connections == 2
        assert connection.client.is_connected
        assert not connection.refused.is_set()
        await connection.abandon()


@pytest.mark.parametrize("text", ["", "a.b", "*", ">", "a b", "a" * 65])
def test_subject_wildcards_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="subject"):
        names.token(text)
