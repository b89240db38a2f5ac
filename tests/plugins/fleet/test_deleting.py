"""What is named or deleted on a machine's own disk, by a command or by a server of its own, is so in the fleet too."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_marks import Mark, Marks
from claude_code_mcp.core.state.session_records import SessionRecord
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.leases import HeldByOtherMachine, Holding
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.plugins.fleet.records import RecordStore
from claude_code_mcp.plugins.fleet.session_copy import OrphanedCopies
from claude_code_mcp.plugins.fleet.transcripts import TranscriptStore
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.support.fleet import ManagingComputer, continued, front_of, listed, processes_of, until_listed
from tests.support.ports import free_port
from tests.support.tool_calls import call, finished, refused
from tests.support.waiting import until

from .machines import OpenSeal

ID = "22222222-2222-4222-8222-222222222222"


def delete(place: ManagingComputer, session_id: str) -> "subprocess.CompletedProcess[str]":
    """`sessions delete`, typed at a machine."""
    return place.tried("sessions", "delete", session_id, "--yes")


@pytest.mark.soak
async def test_what_is_named_and_deleted_while_a_machine_is_there_or_away(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    """What a person calls a session is shown while its machine is gone, and goes along when another one takes it. What
    is deleted on a machine's disk leaves the fleet, now or when it can be reached."""
    server, laptop = places = [ManagingComputer(tmp_path / name, model.url) for name in ("server", "laptop")]
    listen = f"127.0.0.1:{free_port()}"
    with server.up(listen=listen):
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.joined("laptop", ticket=server.ticket):
                made = [
                    await finished(
                        client, "claude_create_session", prompt=script(word, "done"), machine="laptop",
                        workingDirectory=str(laptop.project), waitSeconds=50,
                    )
                    for word in ("later", "at once", "by the runner", "taken", "by a server")
                ]  # fmt: skip
                later, at_once, by_runner, taken, by_server = (each["sessionId"] for each in made)
                stays = await asyncio.to_thread(pinned_session, server, laptop.project)
                for change in ({"action": "rename", "text": "The heron"}, {"action": "pin"}):
                    await call(client, "claude_manage_session", sessionId=taken, **change)
                await call(client, "claude_manage_session", sessionId=later, action="archive")
                # Also what is typed at the machine itself, which its runner does not see.
                await asyncio.to_thread(laptop.run, "sessions", "tag", taken, "birds")
                await asyncio.to_thread(
                    until, lambda: not marked_renamed(laptop), "the fleet's copies have their old names still"
                )
            # The machine is gone, and the fleet answers.
            rows = await until_listed(client, at_once, by_runner, taken, by_server, gone=True)
            assert [row["sessionId"] for row in rows] == [taken, by_server, by_runner, at_once], "pinned comes first"
            assert (rows[0]["displayText"], rows[0]["tag"], rows[0]["pinned"]) == ("The heron", "birds", True)
            (away,) = await until_listed(client, later, gone=True, archived=True)
            assert "later" in away["displayText"]
            for change in ({"action": "rename", "text": "Another"}, {"action": "unpin"}):
                problem = await refused(client, "claude_manage_session", sessionId=taken, **change)
                said = problem["message"]
                assert (
                    "is on machine laptop, which is offline. Only the machine that has it can change its title" in said
                )
            done = await asyncio.to_thread(delete, laptop, at_once)
            assert (done.returncode, done.stderr) == (0, "")
            await until_listed(client, by_runner, taken, by_server, gone=True)
            # Nobody else goes on with what stays there, and a server of its own machine does.
            problem = await refused(client, "claude_send_message", sessionId=stays, message="go on")
            assert "continues when the machine is back" in problem["message"]
            there = await asyncio.to_thread(laptop.run, "send", "--own", stays, script("go on", "on its own"))
            assert there.strip() == "on its own"
            # Another machine goes on with one: what is on this disk is an old copy.
            sent = await asyncio.to_thread(server.tried, "send", taken, script("go on", "here"))
            assert (sent.returncode, sent.stdout.strip()) == (0, "here"), sent.stderr
            assert "continues in an empty directory" in sent.stderr
            # There it is called the same, and can be called otherwise again.
            (row,) = [each for each in await listed(client) if each["sessionId"] == taken]
            assert (row["displayText"], row["tag"], row["pinned"], row["machine"]) == (
                "The heron", "birds", True, "server",
            )  # fmt: skip
            await call(client, "claude_manage_session", sessionId=taken, action="rename", text="Another")
            done = await asyncio.to_thread(delete, laptop, taken)
            assert done.returncode != 0
            assert "is held by machine" in done.stderr
            assert [*laptop.home.rglob(f"{taken}.jsonl")], "nothing was deleted"
    # Nobody answers: it is remembered, also what a server deletes that does not belong to the fleet.
    done = await asyncio.to_thread(delete, laptop, later)
    assert done.returncode == 0, done.stderr
    assert "is removed when this machine's runner next reaches the fleet" in done.stderr
    await delete_by_own_server(laptop, by_server, stays)
    with server.up(listen=listen):
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.joined("laptop"):
                await until_listed(client, by_runner, taken)
                # Nor do they come back with a message.
                for deleted in (at_once, later, by_server, stays):
                    answer = await client.call_tool("claude_send_message", {"sessionId": deleted, "message": "go on"})
                    assert answer.is_error
                # And one that the runner, which is there, has a copy of.
                done = await asyncio.to_thread(delete, laptop, by_runner)
                assert (done.returncode, done.stderr) == (0, "")
                await until_listed(client, taken)
            await until_listed(client, taken)
            assert (await continued(client, taken, script("go on", "still here")))["result"] == "still here"
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors + laptop.errors


def marked_renamed(place: ManagingComputer) -> frozenset[str]:
    return Marks(database_in(place.root / "state")).read().renamed


async def delete_by_own_server(place: ManagingComputer, *session_ids: str) -> None:
    """As a client of this machine does, whose server is no part of the fleet."""
    parameters = front_of(place).model_copy(update={"args": []})
    async with Client(stdio_client(parameters), mode="legacy") as client:
        for session_id in session_ids:
            await call(client, "claude_manage_session", sessionId=session_id, action="delete", confirm=True)


def pinned_session(server: ManagingComputer, directory: Path) -> str:
    """The id of a session on the laptop that the fleet has no copy of, begun at a shell."""
    on_laptop = ("--machine", "laptop", "--cwd", str(directory))
    made = server.run("run", *on_laptop, "--stay", "--json", script("stay", "here"))
    return str(json.loads(made)["sessionId"])


class TakenMeanwhile(OwnershipBucket):
    """The holders, one of whom loses the session to another machine when its holder is looked at for the second time:
    after the look at the session's document, and before its removal."""

    take: Callable[[], Awaitable[None]]
    _looks = 0

    async def read(self, session_id: str) -> Holding | None:
        found = await super().read(session_id)
        self._looks += 1
        if self._looks == 2:
            await self.take()
        return found


async def test_a_copy_that_another_machine_takes_just_then_is_not_removed(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    database, ownership = database_in(tmp_path / "state"), await TakenMeanwhile.opened(fleet)
    records, marks = RecordStore(fleet, database, OpenSeal()), Marks(database)
    await records.put(record_in(tmp_path), await ownership.claim(ID, LOCAL, "here"))

    async def take() -> None:
        await records.take_over(ID, await ownership.claim(ID, LOCAL, "there"))

    ownership.take = take
    copies = OrphanedCopies(marks, records, TranscriptStore(fleet), ownership, "here", lambda _: None)
    marks.set(ID, Mark.ORPHANED_COPY, True)
    await copies.remove(ID)
    assert (await records.read(ID)).epoch == 2, "it is the other machine's"
    assert await copies.left() == frozenset(), "this machine has no more to do with it"
    with pytest.raises(HeldByOtherMachine):
        await copies.check_held_here(ID)
    # And one whose deletion came to nothing: its files are here.
    marks.set(ID, Mark.ORPHANED_COPY, True)
    await OrphanedCopies(
        marks, records, TranscriptStore(fleet), ownership, "there", lambda _: record_in(tmp_path)
    ).remove(ID)
    assert (await records.read(ID)).epoch == 2
    assert await copies.left() == frozenset()


async def test_a_copy_goes_with_its_conversation(fleet: FleetConnection, tmp_path: Path) -> None:
    database, ownership = database_in(tmp_path / "state"), await OwnershipBucket.opened(fleet)
    records, transcripts, marks = RecordStore(fleet, database, OpenSeal()), TranscriptStore(fleet), Marks(database)
    holding = await ownership.claim(ID, LOCAL, "here")
    await records.put(record_in(tmp_path), holding)
    await transcripts.append(ID, [{"type": "user", "uuid": "u1"}], holding=holding)
    marks.set(ID, Mark.ORPHANED_COPY, True)
    copies = OrphanedCopies(marks, records, transcripts, ownership, "here", lambda _: None)
    await copies.remove(ID)
    with pytest.raises(SessionNotFound):
        await records.read(ID)
    assert await transcripts.load(ID) is None
    assert (await copies.left(), await ownership.read(ID)) == (frozenset(), None)


def record_in(directory: Path) -> SessionRecord:
    return SessionRecord(
        session_id=ID, owner=LOCAL, created_at=1, used_at=1, cwd=str(directory), options=SessionOptions()
    )
