"""Who gets in, and what a key lets its holder do: tried with real keys at a real server."""

import asyncio
import itertools
import json
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied
from claude_code_mcp.plugins.fleet import enrollment, names
from claude_code_mcp.plugins.fleet.connection import FleetConnection, FleetUnreachable, PlainText, connect
from claude_code_mcp.plugins.fleet.enrollment import ask_operator, join
from claude_code_mcp.plugins.fleet.host import Host, connect_to_host, hosting
from claude_code_mcp.plugins.fleet.keeper import KeeperOwnership
from claude_code_mcp.plugins.fleet.leases import VALID_PART, HeldByOtherMachine, Holding, Holdings, MachineLease
from claude_code_mcp.plugins.fleet.machines import Members
from claude_code_mcp.plugins.fleet.nats_server import ServerConfiguration, client_context, server_certificate
from claude_code_mcp.plugins.fleet.store_keeper import KeeperJetStream, access_to, store_request
from claude_code_mcp.plugins.fleet.tickets import (
    KeyRing,
    MachineKey,
    Ticket,
    connect_machine,
    machine_id_of,
    new_seed,
    public_key,
)
from claude_code_mcp.plugins.fleet.transcripts import TranscriptStore
from tests.plugins.fleet.conftest import in_own_task
from tests.support.waiting import HANG_SECONDS, until_true


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with in_own_task(hosting(tmp_path / "host", host="127.0.0.1", port=-1, lease_seconds=60)) as host:
        yield host


@pytest.fixture
async def machines(host: Host, tmp_path: Path) -> AsyncIterator[tuple[FleetConnection, FleetConnection]]:
    """Two machines that were let in, `a` and `b`."""
    keys = [await join(await host.enrollment.ticket(), tmp_path / name / "machine.json", name) for name in "ab"]
    connections = [await connect_machine(key) for key in keys]
    yield connections[0], connections[1]
    for connection in connections:
        await connection.abandon()  # within a limit: one that was cut off may be in the middle of a new attempt


def id_of(connection: FleetConnection) -> str:
    prefix = bytes(connection.client._inbox_prefix).decode()
    return prefix.removeprefix("_INBOX_")


class NoTurns:
    def pause(self) -> None:
        pass

    async def resume(self, holding: Holding) -> None:
        pass

    async def end(self, holding: Holding) -> None:
        pass


# -- tickets ----------------------------------------------------------------------------------------------------------


async def test_a_ticket_becomes_a_key_that_never_left_the_machine(host: Host, tmp_path: Path) -> None:
    ticket = await host.enrollment.ticket()
    seen: list[bytes] = []

    async def see(message: object) -> None:
        seen.append(message.data)  # type: ignore[attr-defined]

    await host.connection.client.subscribe(">", cb=see)
    await host.connection.flushed()
    file = tmp_path / "joined" / "machine.json"
    key = await join(Ticket.parse(str(ticket)), file, "laptop")
    assert key.admitted
    assert MachineKey.load(file) == key
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert any(public_key(key.seed).encode() in data for data in seen)
    assert not any(key.seed.encode() in data for data in seen)
    kept = (tmp_path / "host" / "server" / "keys.json").read_text()
    assert public_key(key.seed) in kept
    assert key.seed not in kept
    assert ticket.seed not in kept
    members = await (await Members.opened(host.connection)).all()
    assert {member.id: member.name for member in members}[key.machine_id] == "laptop"


async def test_a_ticket_is_used_once(host: Host, tmp_path: Path) -> None:
    ticket = await host.enrollment.ticket()
    await join(ticket, tmp_path / "first.json", "first")
    with pytest.raises((FleetUnreachable, PermissionDenied)):
        await join(ticket, tmp_path / "second.json", "second")
    assert [member.name for member in await (await Members.opened(host.connection)).all()].count("second") == 0


async def test_one_of_two_machines_with_one_ticket_joins(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The others are cut off with the ticket that was used up, and do not wait for an answer.
    monkeypatch.setattr(enrollment, "_REQUEST_SECONDS", 2 * HANG_SECONDS)
    ticket = await host.enrollment.ticket()
    tries = (join(ticket, tmp_path / f"{number}.json", f"m{number}") for number in range(4))
    async with asyncio.timeout(HANG_SECONDS):
        results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, MachineKey) for result in results) == 1


async def test_machine_detects_admission_after_a_lost_answer(host: Host, tmp_path: Path) -> None:
    ticket, file = await host.enrollment.ticket(), tmp_path / "machine.json"
    key = await join(ticket, file, "laptop")
    replace(key, admitted=False).save(file)  # as it was before the answer
    assert await join(ticket, file, "laptop") == key
    assert await join(ticket, file, "laptop") == key  # as a service manager starts it again
    with pytest.raises(InvalidArgument, match="fleet"):
        await join(await host.enrollment.ticket(), file, "laptop")


async def test_requests_are_answered_before_the_server_reloads_its_keys(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    asked, answering = asyncio.Event(), asyncio.Event()

    async def answer(message: Msg) -> None:
        asked.set()
        await answering.wait()
        await message.respond(b"here")

    machine, client = machines[0], host.connection.client
    async with machine.answering({names.opening(id_of(machine)): answer}):
        request = asyncio.create_task(client.request(names.opening(id_of(machine)), b"", timeout=HANG_SECONDS))
        await asked.wait()
        ticket = asyncio.create_task(host.enrollment.ticket())
        await until_true(lambda: client.requests._paused is not None)
        later = asyncio.create_task(client.request(names.opening(id_of(machine)), b"", timeout=HANG_SECONDS))
        answering.set()
        assert (await request).data == b"here"
        await ticket
        assert (await later).data == b"here"


def test_expired_ticket_is_refused(tmp_path: Path) -> None:
    keys = KeyRing.opened(tmp_path / "keys.json")
    ticket = keys.issue("tls://127.0.0.1:1", "", now=1000.0)
    assert len(keys.users(now=1001.0)) == 2
    with pytest.raises(PermissionDenied, match="expired"):
        keys.admit(ticket.id, public_key(new_seed()), "late", now=1000.0 + 3600)
    assert len(keys.users(now=1000.0 + 3600)) == 1


@pytest.mark.parametrize("key", ["", "U", "x" * 56, "UA" + "A" * 54, '"}]}'])
def test_invalid_public_key_never_reaches_the_configuration(tmp_path: Path, key: str) -> None:
    keys = KeyRing.opened(tmp_path / "keys.json")
    ticket = keys.issue("tls://127.0.0.1:1", "")
    with pytest.raises(InvalidArgument):
        keys.admit(ticket.id, key, "evil")
    assert KeyRing.opened(tmp_path / "keys.json").machines == {}


@pytest.mark.parametrize("text", ["", "fleet1.", "fleet1.e30", "fleet1.%%%", "hello", "fleet1.WzEsMiwzLDRd"])
def test_invalid_ticket_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Ticket.parse(text)
    assert not text or text not in refused.value.message


def test_a_damaged_file_of_keys_is_no_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    KeyRing.opened(file)
    file.write_text("{")
    with pytest.raises(InvalidArgument, match="damaged"):
        KeyRing.opened(file)
    assert file.read_text() == "{"


async def test_a_machine_that_is_removed_is_cut_off_at_once_and_stays_out(
    host: Host, machines: tuple[FleetConnection, FleetConnection], tmp_path: Path
) -> None:
    a, b = machines
    operator = await connect_to_host(tmp_path / "host")
    await ask_operator(operator, "remove", machine=id_of(a))
    async with asyncio.timeout(HANG_SECONDS):
        await a.refused.wait()
    key = MachineKey.load(tmp_path / "a" / "machine.json")
    assert key is not None
    with pytest.raises(FleetUnreachable):
        await connect_machine(key)
    assert b.client.is_connected
    assert await KeeperOwnership(b, id_of(b)).read("s1") is None
    with pytest.raises(InvalidArgument):
        await ask_operator(operator, "remove", machine=id_of(a))
    await operator.close()


async def test_machines_and_their_keys_are_still_there_after_a_restart(tmp_path: Path) -> None:
    async with hosting(tmp_path / "host", host="127.0.0.1", port=-1) as first:
        key = await join(await first.enrollment.ticket(), tmp_path / "machine.json", "laptop")
        own = first.machine.machine_id
    async with hosting(tmp_path / "host", host="127.0.0.1", port=-1) as second:
        assert second.machine.machine_id == own
        machine = await connect_machine(replace(key, address=second.server.url))
        assert await KeeperOwnership(machine, key.machine_id).read("s1") is None
        await machine.close()


async def test_a_second_fleet_in_the_same_place_is_refused(host: Host, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="already"):
        async with hosting(tmp_path / "host", host="127.0.0.1", port=-1):
            pass


# -- TLS --------------------------------------------------------------------------------------------------------------


async def test_the_server_says_nothing_in_the_clear(host: Host) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", host.server.port)
    writer.write(b'CONNECT {"verbose":true}\r\nPING\r\n')
    async with asyncio.timeout(HANG_SECONDS):
        assert not (await reader.read()).startswith((b"INFO", b"+OK", b"PONG"))
    writer.close()


async def test_server_with_another_certificate_authority_is_refused(host: Host, tmp_path: Path) -> None:
    other = server_certificate(tmp_path / "other")
    key = replace(host.machine, authority=other.authority)
    with pytest.raises(FleetUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        await connect_machine(key)


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_server_beyond_loopback_has_tls_and_keys(listen: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="TLS"):
        ServerConfiguration(tmp_path, host=listen).text()
    certificate = server_certificate(tmp_path)
    with pytest.raises(InvalidArgument, match="keys"):
        ServerConfiguration(tmp_path, host=listen, certificate=certificate).text()
    assert json.loads(ServerConfiguration(tmp_path, host=listen, certificate=certificate, users=[]).text())["tls"]


@pytest.mark.parametrize("url", ["nats://192.0.2.1:4222", "192.0.2.1", "nats://127.0.0.1,nats://example.org"])
async def test_unencrypted_connections_beyond_loopback_are_refused(url: str) -> None:
    with pytest.raises(PlainText):
        await connect(url)


def test_the_key_of_the_authority_is_kept_nowhere(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["authority.pem", "server-key.pem", "server.pem"]
    if sys.platform != "win32":
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    client_context((tmp_path / "authority.pem").read_text())


# -- a stolen key -----------------------------------------------------------------------------------------------------


class StolenKey:
    """A machine's key in the hands of somebody who uses NATS directly, and what the server says to it."""

    def __init__(self, connection: FleetConnection) -> None:
        self.connection = connection
        self.refusals: list[str] = []
        self._numbers = itertools.count()

        async def note(error: Exception) -> None:
            self.refusals.append(str(error).lower())

        connection.client._error_cb = note

    async def refused(self, kind: str, subject: str) -> bool:
        """Whether the server has refused what was sent last. Something behind it certainly is refused."""
        marker = f"refused.in.any.case.{next(self._numbers)}"
        await self.connection.client.publish(marker)
        await until_true(lambda: any(marker in refusal for refusal in self.refusals))
        return any(f'{kind} "{subject.lower()}"' in refusal for refusal in self.refusals)

    async def publish(self, subject: str) -> bool:
        """Whether the server has taken it."""
        await self.connection.client.publish(subject)
        return not await self.refused("publish to", subject)

    async def subscribe(self, subject: str) -> bool:
        subscription = await self.connection.client.subscribe(subject)
        allowed = not await self.refused("subscription to", subject)
        if allowed:
            await subscription.unsubscribe()
        return allowed


async def test_a_stolen_key_is_refused_everything_but_its_own(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    stolen, own, other = StolenKey(machines[0]), id_of(machines[0]), id_of(machines[1])
    publishes = {
        names.entry(names.MACHINES, own): False,
        f"fleet.keeper.{own}.report.lease": True,
        f"fleet.gateway.{own}.c.x": True,
        names.keeper(own, "read"): True,
        names.entry(names.MACHINES, other): False,
        names.entry(names.SESSIONS, "s1"): False,
        names.entry(names.RECORDS, "s1"): False,
        names.entry(names.MEMBERS, own): False,
        names.entry(names.KEYS, "k"): False,
        names.entry(names.PUSH, "p"): False,
        names.transcript("s1"): False,
        f"$O.{names.TREES}.C.x": False,
        names.opening(own): False,
        names.opening(other): False,
        names.to_machine(other, "c"): False,
        names.to_gateway(other, "c"): False,
        names.keeper(other, "claim"): False,
        f"fleet.keeper.{other}.report.lease": False,
        f"fleet.keeper.{other}.put.{names.transcript('s1')}": False,
        names.operating("ticket"): False,
        names.operating("remove"): False,
        names.joining("t-1"): False,
        f"{names.inbox(other)}.x": False,
        f"{names.inbox('operator')}.x": False,
        "_INBOX.x": False,
        "$JS.API.INFO": False,
        f"$JS.API.STREAM.INFO.{names.TRANSCRIPTS}": False,
        f"$JS.API.STREAM.DELETE.{names.TRANSCRIPTS}": False,
        f"$JS.API.STREAM.PURGE.KV_{names.MACHINES}": False,
        f"$JS.API.STREAM.MSG.GET.KV_{names.SESSIONS}": False,
        f"$JS.API.DIRECT.GET.KV_{names.MACHINES}.$KV.{names.MACHINES}.{other}": False,
        f"$JS.API.CONSUMER.CREATE.{names.TRANSCRIPTS}.x.fleet.transcript.>": False,
        f"$JS.API.CONSUMER.MSG.NEXT.{names.TRANSCRIPTS}.x": False,
        f"$JS.ACK.{names.TRANSCRIPTS}.x.1.1.1.1.0": False,
        "$SYS.REQ.SERVER.PING": False,
        "anything": False,
    }
    assert {subject: await stolen.publish(subject) for subject in publishes} == publishes
    subscriptions = {
        f"{names.inbox(own)}.>": True,
        names.opening(own): True,
        names.opening(other): False,
        "fleet.machine.*.open": False,
        f"{names.inbox(other)}.>": False,
        f"{names.inbox('operator')}.>": False,
        "_INBOX.>": False,
        f"fleet.gateway.{own}.>": False,
        "fleet.gateway.>": False,
        "fleet.transcript.*": False,
        "fleet.keeper.>": False,
        "fleet.join.*": False,
        "$KV.>": False,
        "$JS.>": False,
        "$SYS.>": False,
        ">": False,
        "*": False,
    }
    assert {subject: await stolen.subscribe(subject) for subject in subscriptions} == subscriptions


async def test_a_stolen_ticket_reads_and_writes_nothing(host: Host) -> None:
    from claude_code_mcp.plugins.fleet.tickets import connect_ticket  # noqa: PLC0415

    ticket = await host.enrollment.ticket()
    stolen = StolenKey(await connect_ticket(ticket))
    assert await stolen.publish(names.joining("t-other")) is False
    assert await stolen.publish(names.operating("ticket")) is False
    assert await stolen.publish(f"$KV.{names.MACHINES}.x") is False
    assert await stolen.subscribe(">") is False
    assert await stolen.subscribe("_INBOX_t-other.>") is False
    await stolen.connection.client.close()


async def test_no_machine_can_have_an_answer_sent_to_another(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    """NATS does not check to which subject the answer of a request is to go. The keeper does."""
    a, b = machines
    received: list[bytes] = []

    async def receive(message: object) -> None:
        received.append(message.data)  # type: ignore[attr-defined]

    await b.client.subscribe(names.opening(id_of(b)), cb=receive)
    await b.flushed()
    forged = names.opening(id_of(b))
    await a.client.publish(names.keeper(id_of(a), "read"), b'{"session_id":"s1"}', reply=forged)
    await a.client.publish(f"fleet.keeper.{id_of(a)}.api.STREAM.INFO.{names.TRANSCRIPTS}", b"", reply=forged)
    await a.flushed()
    await KeeperOwnership(a, id_of(a)).read("s1")  # behind them, in the same queues
    with pytest.raises(APIError):
        await a.jetstream.stream_info("KV_other")
    await host.connection.client.publish(forged, b"last")
    await until_true(lambda: b"last" in received)
    assert received == [b"last"]


@pytest.mark.parametrize("way", ["$KV.fleet_machines.{own}", "fleet.keeper.{own}.report.lease"])
async def test_no_acknowledgment_takes_the_place_of_what_another_machine_has_written(
    host: Host, machines: tuple[FleetConnection, FleetConnection], way: str
) -> None:
    """JetStream sends it wherever the sender says, and stores it if that is the subject of a store."""
    a, b = machines
    held = await KeeperOwnership(b, id_of(b)).claim("s1", "alice", id_of(b))
    records = await b.jetstream.key_value(names.RECORDS)
    await records.put("s1", b"record")
    for store in (names.entry(names.SESSIONS, "s1"), names.entry(names.RECORDS, "s1"), names.transcript("s1")):
        await a.client.publish(way.format(own=id_of(a)), b"{}", reply=store)
    await a.flushed()
    lease = MachineLease(a, id_of(a), lambda: b"{}")
    async with lease.kept():  # behind them, on the same way
        assert lease.standing
        assert await host.ownership.read("s1") == held
        assert (await records.get("s1")).value == b"record"
        with pytest.raises(NotFoundError):
            await b.jetstream.get_last_msg(names.TRANSCRIPTS, names.transcript("s1"))


# -- what a machine may do for the sessions that it holds -------------------------------------------------------------


async def test_a_machine_claims_and_writes_with_its_own_key(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    a, _ = machines
    lease = MachineLease(a, id_of(a), lambda: b"{}")
    holdings = Holdings(lease, KeeperOwnership(a, id_of(a)), NoTurns())
    async with lease.kept():
        holding = await holdings.claim("s1", "alice")
        assert holdings.valid(holding)
        assert lease._clock.duration == 60 * VALID_PART, "it has learned how long the fleet's leases last"
        assert await holdings.holder("s1") == holding
        expecting = {"Nats-Expected-Last-Subject-Sequence": "0"}
        first = await a.jetstream.publish(names.transcript("s1"), b"1", headers=expecting)
        with pytest.raises(APIError) as stale:
            await a.jetstream.publish(names.transcript("s1"), b"2", headers=expecting)
        assert stale.value.err_code == 10071
        subscription = await a.jetstream.pull_subscribe(
            names.transcript("s1"), stream=names.TRANSCRIPTS, config=ConsumerConfig()
        )
        (message,) = await subscription.fetch(1)
        assert (message.data, message.metadata.sequence.stream) == (b"1", first.seq)
        records = await a.jetstream.key_value(names.RECORDS)
        revision = await records.create("s1", b"record")
        assert (await records.get("s1")).revision == revision
        trees = await a.jetstream.object_store(names.TREES)
        await trees.put("s1/tree", b"bundle" * 100_000)
        assert (await trees.get("s1/tree")).data == b"bundle" * 100_000
        await trees.put("s1/tree", b"another")
        assert (await trees.get("s1/tree")).data == b"another"
        # And removes it all again, as when a session is deleted.
        await trees.delete("s1/tree")
        await records.delete("s1")
        await TranscriptStore(a).delete("s1")
        with pytest.raises(NotFoundError):
            await trees.get("s1/tree")
        with pytest.raises(NotFoundError):
            await records.get("s1")
        assert (await host.connection.jetstream.stream_info(names.TRANSCRIPTS)).state.messages == 0
        await holdings.release(holding)
    assert await host.ownership.read("s1") is None


async def test_session_of_another_machine_cannot_be_read_or_written(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    a, b = machines
    await KeeperOwnership(a, id_of(a)).claim("s1", "alice", id_of(a))
    await a.jetstream.publish(names.transcript("s1"), b"secret")
    await (await a.jetstream.key_value(names.RECORDS)).put("s1", b"secret")
    await (await a.jetstream.object_store(names.TREES)).put("s1/tree", b"secret")

    async def refused(work: object) -> None:
        with pytest.raises(APIError, match=r"session\b.*\bmachine"):
            await work  # type: ignore[misc]

    records = await b.jetstream.key_value(names.RECORDS)
    trees = await b.jetstream.object_store(names.TREES)
    await refused(b.jetstream.publish(names.transcript("s1"), b"forged"))
    await refused(b.jetstream.pull_subscribe(names.transcript("s1"), stream=names.TRANSCRIPTS))
    await refused(b.jetstream.subscribe("fleet.transcript.*", stream=names.TRANSCRIPTS, ordered_consumer=True))
    await refused(b.jetstream.get_last_msg(names.TRANSCRIPTS, names.transcript("s1")))
    await refused(b.jetstream.get_msg(names.TRANSCRIPTS, seq=1))
    await refused(b.jetstream.purge_stream(names.TRANSCRIPTS))
    await refused(b.jetstream.purge_stream(names.TRANSCRIPTS, subject=names.transcript("s1")))
    await refused(b.jetstream.delete_stream(names.TRANSCRIPTS))
    await refused(b.jetstream.streams_info())
    await refused(b.jetstream.consumers_info(names.TRANSCRIPTS))
    await refused(b.jetstream.stream_info(names.TRANSCRIPTS, subjects_filter=">"))
    await refused(records.get("s1"))
    await refused(records.put("s1", b"forged"))
    await refused(records.watchall())
    await refused(trees.get("s1/tree"))
    await refused(trees.list())
    await refused(b.jetstream.publish(names.entry(names.SESSIONS, "s1"), b"forged"))
    await refused(b.jetstream.key_value(names.MACHINES))
    assert isinstance(b.jetstream, KeeperJetStream)
    assert (await (await host.connection.jetstream.key_value(names.RECORDS)).get("s1")).value == b"secret"


async def test_a_machine_takes_no_session_that_it_was_not_given(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    a, b = (KeeperOwnership(machine, id_of(machine)) for machine in machines)
    held = await a.claim("s1", "alice", id_of(machines[0]))  # that machine has no lease: it looks dead
    with pytest.raises(PermissionDenied, match="s1"):
        await b.claim("s1", "alice", id_of(machines[1]))
    with pytest.raises(HeldByOtherMachine):
        await b.confirm(replace(held, machine=id_of(machines[1])))
    await b.release(held)
    assert await b.read("s1") == held
    given = await host.ownership.claim("s1", "alice", id_of(machines[1]))  # as a gateway does it
    assert given.epoch == 2
    assert (await b.claim("s1", "alice", id_of(machines[1]))).epoch == 3
    with pytest.raises(HeldByOtherMachine):
        await a.confirm(held)


async def test_ambiguous_request_is_forwarded_as_parsed(
    host: Host, machines: tuple[FleetConnection, FleetConnection]
) -> None:
    a, _ = machines
    await KeeperOwnership(a, id_of(a)).claim("s1", "alice", id_of(a))
    consumer = '{"stream_name":"FLEET_TRANSCRIPTS","config":{"deliver_subject":"fleet.machine.x.open"},"config":%s}'
    body = (consumer % '{"filter_subject":"fleet.transcript.s1","ack_policy":"none"}').encode()
    subject = f"fleet.keeper.{id_of(a)}.api.CONSUMER.CREATE.{names.TRANSCRIPTS}"
    answer = json.loads((await a.client.request(subject, body, timeout=HANG_SECONDS)).data)
    assert "deliver_subject" not in answer["config"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("STREAM.INFO.KV_fleet_machines", {}),
        ("STREAM.INFO.FLEET_TRANSCRIPTS", {"subjects_filter": ">"}),
        ("STREAM.MSG.GET.FLEET_TRANSCRIPTS", {"seq": 1}),
        ("STREAM.MSG.GET.FLEET_TRANSCRIPTS", {"next_by_subj": "fleet.transcript.s1", "seq": 1}),
        ("DIRECT.GET.FLEET_TRANSCRIPTS", {"seq": 1}),
        ("STREAM.PURGE.FLEET_TRANSCRIPTS", {}),
        ("CONSUMER.CREATE.FLEET_TRANSCRIPTS", {"config": {}}),
        ("CONSUMER.CREATE.FLEET_TRANSCRIPTS", {"config": {"filter_subject": None}}),
        ("CONSUMER.CREATE.FLEET_TRANSCRIPTS", {"config": {"filter_subject": "x", "durable_name": "d"}}),
        ("CONSUMER.CREATE.FLEET_TRANSCRIPTS", {"config": {"filter_subject": "x", "Deliver_Subject": "y"}}),
        ("CONSUMER.CREATE.FLEET_TRANSCRIPTS", {"config": {"filter_subject": "x", "deliver_subject": "_INBOX_mx.y"}}),
        ("CONSUMER.NAMES.FLEET_TRANSCRIPTS", {}),
        ("STREAM.CREATE.FLEET_TRANSCRIPTS", {}),
        ("ACCOUNT.INFO", {}),
        ("INFO", {}),
    ],
)
def test_requests_that_no_machine_may_make(path: str, body: dict[str, object]) -> None:
    assert store_request(path.split("."), json.dumps(body).encode(), "_INBOX_m") is None


@pytest.mark.parametrize(
    "subject",
    [
        *("fleet.transcript.*", "fleet.transcript.>", "fleet.transcript.s1.x", "fleet.operator.ticket"),
        *("$KV.fleet_machines.m", "$KV.fleet_records.*", "$JS.API.INFO", ">", "", "."),
        *("$O.fleet_trees.C.*", "$O.fleet_trees.>", "$O.fleet_trees.M.!!"),
    ],
)
def test_subjects_that_belong_to_no_session(subject: str) -> None:
    assert access_to(subject) is None


def test_the_id_of_a_machine_follows_from_its_key() -> None:
    seed = new_seed()
    assert machine_id_of(public_key(seed)) == MachineKey("", "", seed).machine_id
    assert names.token(machine_id_of(public_key(seed)))
