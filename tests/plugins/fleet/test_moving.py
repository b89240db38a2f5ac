"""Sessions that are moved on purpose, through the gateway, between machines as users start them."""

import asyncio
import json
import re
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.client.stdio import stdio_client

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.machine_server import Taken
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.ownership import OwnershipBucket
from claude_code_mcp.server import sdk
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.support.fleet import Computer, claude_processes, front_of, processes_of
from tests.support.program import Process
from tests.support.repositories import repository
from tests.support.system_packages import require
from tests.support.tool_calls import call, finished
from tests.support.waiting import HANG_SECONDS, until, until_true

from .programs import NamedFleet, choose
from .test_machine_link import backend_machine, result
from .test_working_trees import contents, state


@dataclass
class TwoPlaces:
    server: Computer
    laptop: Computer
    runner: Process
    client: Client

    async def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`sessions move` as a person types it where the fleet is up."""
        return await asyncio.to_thread(self.server.tried, "sessions", "move", *arguments)

    async def begin(self, directory: Path, prompt: str, **more: Any) -> dict[str, Any]:
        return await call(self.client, "claude_code", prompt=prompt, machine="laptop", cwd=str(directory), **more)

    async def say(self, session_id: str, message: str) -> dict[str, Any]:
        return await finished(self.client, "claude_send_message", sessionId=session_id, message=message, waitSeconds=50)

    async def report(self, uri: str) -> dict[str, Any]:
        (content,) = (await self.client.read_resource(f"claude-sessions:///{uri}")).contents
        return dict(json.loads(getattr(content, "text", "")))


@asynccontextmanager
async def two_places(tmp_path: Path, model: ScriptedModelThread) -> AsyncIterator[TwoPlaces]:
    require("git")  # here: a skip within a task group loses its reason
    server, laptop = places = [Computer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up(), laptop.joined("laptop", "--label", "light", ticket=server.ticket) as runner:
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            yield TwoPlaces(server, laptop, runner, client)
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors + laptop.errors


async def test_a_session_is_moved_with_its_tree_and_continues_there(tmp_path: Path, model: ScriptedModelThread) -> None:
    async with two_places(tmp_path, model) as at:
        source = repository(at.laptop.root / "source")
        work = tool("Bash", command="echo new > made.txt && git add made.txt && echo more >> a.txt")
        begun = await at.begin(
            source, script("remember the word heron", work, "I will"), allowedTools=["Bash"], env={"WORD": "reeds"}
        )
        session_id, before = begun["sessionId"], await at.report("costs?by=session")
        moved = await at.command(session_id[:8], "--to", "server", "--json")
        assert moved.returncode == 0, moved.stderr
        assert json.loads(moved.stdout)["machine"] == "server"
        assert not claude_processes(at.runner.pid)
        # Once, at its holder, as soon as the machine that had it has asked who has it now.
        async with asyncio.timeout(HANG_SECONDS):
            while (costs := (await at.report("costs?by=day"))["total"])["sessions"] != 1:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.1)
        assert costs["usd"] == pytest.approx(before["total"]["usd"])
        [written] = (at.laptop.home / ".claude" / "projects").rglob(f"{session_id}.jsonl")
        left_behind = written.read_bytes()
        answer = await at.say(session_id, script("go on", tool("Bash", command="pwd; echo $WORD"), "at ${tool_result}"))
        assert answer["machine"] == "server"
        assert "lostTurn" not in answer
        there, word = answer["result"].removeprefix("at ").split()
        assert word == "reeds"
        assert contents(Path(there)) == contents(source)
        assert state(Path(there)) == state(source)
        assert "remember the word heron" in str(model.requests[-1].body)
        assert written.read_bytes() == left_behind, "the machine that had it writes no more"
        # A new one is begun there from a shell, by what the machine is called; by its name in test_deleting.py.
        begun_there = script("where", tool("Bash", command="pwd"), "at ${tool_result}")
        where = ("--label", "light", "--allow", "Bash", "--json")
        ran = await asyncio.to_thread(at.server.tried, "run", *where, begun_there)
        assert f"at {at.laptop.project}" in ran.stdout, ran.stderr


@pytest.mark.soak
async def test_unmovable_session_continues_on_its_machine(tmp_path: Path, model: ScriptedModelThread) -> None:
    async with two_places(tmp_path, model) as at:
        source = repository(at.laptop.root / "source")
        session_id = (await at.begin(source, script("remember the word heron", "I will")))["sessionId"]
        end = tmp_path / "end"
        long = script("a long story", text("word " * 20, chunks=20, until=str(end)), "done")
        await call(at.client, "claude_send_message", sessionId=session_id, message=long)
        await until_true(lambda: any("a long story" in str(request.body) for request in model.requests))
        busy = await at.command(session_id, "--to", "server")
        assert busy.returncode == 4
        assert "work" in busy.stderr
        # Drained machines take nothing, moved or new.
        await asyncio.to_thread(at.server.run, "fleet", "drain", "server")
        drained = await at.command(session_id, "--to", "server")
        assert drained.returncode == 4
        assert "drain" in drained.stderr
        await asyncio.to_thread(at.server.run, "fleet", "drain", "server", "--undo")
        moving = asyncio.ensure_future(at.command(session_id, "--to", "server", "--wait"))
        await asyncio.sleep(0)
        end.touch()
        moved = await moving
        assert (moved.returncode, moved.stdout.strip()) == (0, "It is on machine server now."), moved.stderr
        assert (await at.say(session_id, script("go on", "here")))["machine"] == "server"
        again = await at.command(session_id, "--to", "server")
        assert (again.returncode, again.stdout.strip()) == (0, "It is already on machine server.")
        unknown = await at.command(session_id, "--to", "desk")
        assert unknown.returncode == 2
        assert "machine" in unknown.stderr


@pytest.mark.soak
async def test_a_machine_that_cannot_take_a_session_leaves_it_where_it_was(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    async with two_places(tmp_path, model) as at:
        source = repository(at.laptop.root / "source")
        session_id = (await at.begin(source, script("remember the word heron", "I will")))["sessionId"]
        (
            at.server.home / "claude-code-mcp-sessions"
        ).touch()  # where the other machine would make a directory for the tree
        kept = await at.command(session_id, "--to", "server")
        assert kept.returncode == 5
        assert re.search(r"File exists.*\blaptop\b", kept.stderr)
        pwd = script("go on", tool("Bash", command="pwd"), "at ${tool_result}")
        answer = await at.say(session_id, pwd)
        assert (answer["machine"], answer["result"]) == ("laptop", f"at {source}")


# -- what may happen in between, with machines that only say who has the session ---------------------------------------


class HeldFleet(NamedFleet):
    """Machines that are said to be there, with the fleet's own bucket of holders."""

    def __init__(self, bucket: OwnershipBucket, sessions: Any) -> None:
        super().__init__(sessions, ["a", "b"])
        self._bucket = bucket

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        return await self._bucket.give(session_id, principal, machine_id)

    async def return_to_source(self, session_id: str, principal: str, machine_id: str) -> None:
        await self._bucket.return_to_source(session_id, principal, machine_id)

    async def take_back(self, holding: Holding) -> None:
        await self._bucket.release(holding)


class Handover:
    """A session of machine a, and machine b, whose taking of it waits until it is let through."""

    def __init__(self, fleet: FleetConnection, bucket: OwnershipBucket, gateway: Gateway, client: Client) -> None:
        self.session_id = str(uuid.uuid4())
        self.bucket, self.gateway, self.client = bucket, gateway, client
        self.refuse: Exception | None = None
        self.asked, self.let_through = asyncio.Event(), asyncio.Event()
        self.calls: list[str] = []

    async def at_a(self, _: sdk.Context, request: types.CallToolRequestParams) -> types.CallToolResult:
        return await self._called("a", request)

    async def at_b(self, _: sdk.Context, request: types.CallToolRequestParams) -> types.CallToolResult:
        return await self._called("b", request)

    async def _called(self, machine: str, request: types.CallToolRequestParams) -> types.CallToolResult:
        self.calls.append(f"{machine} {request.name}")
        if request.name == "claude_manage_session":
            held = await self.bucket.read(self.session_id)
            assert held is not None
            await self.bucket.release(held)
        return types.CallToolResult(
            content=result("done").content, structured_content={"sessionId": self.session_id, "status": "running"}
        )

    async def take(self, session_id: str, principal: str) -> Taken:
        self.asked.set()
        await self.let_through.wait()
        if self.refuse is not None:
            raise self.refuse
        await self.bucket.arrived(await self.bucket.claim(session_id, principal, "b", only_given=True, taking=True))
        return Taken()

    async def move(self, to: str = "b") -> types.CallToolResult:
        arguments = {"sessionId": self.session_id, "action": "move", "machine": to}
        return await self.client.call_tool("claude_manage_session", arguments)

    async def holder(self) -> str | None:
        held = await self.bucket.read(self.session_id)
        return held.machine if held is not None else None


@asynccontextmanager
async def handover(engine: Running, fleet: FleetConnection) -> AsyncIterator[Handover]:
    bucket = await OwnershipBucket.opened(fleet)
    view = HeldFleet(bucket, await fleet.jetstream.key_value(names.SESSIONS))
    gateway = Gateway(fleet, view, choose, load_settings({}))
    async with Client(InMemoryTransport(gateway.server())) as client:
        at = Handover(fleet, bucket, gateway, client)
        await bucket.claim(at.session_id, "local", "a")
        async with (
            backend_machine(engine.url, at.at_a, machine_id="a"),
            backend_machine(engine.url, at.at_b, at.take, machine_id="b"),
        ):
            yield at
    await gateway.close()


@pytest.mark.parametrize("problem", [SessionBusy("policy"), OSError(28, "No space left on device")])
async def test_a_session_that_the_other_machine_cannot_take_is_given_back(
    engine: Running, fleet: FleetConnection, problem: Exception
) -> None:
    async with handover(engine, fleet) as at:
        at.refuse = problem
        at.let_through.set()
        refused = await at.move()
        assert refused.is_error
        assert "a.example.org" in str(refused.content)
        assert await at.holder() == "a"
        at.refuse = None
        assert not (await at.move()).is_error
        assert await at.holder() == "b"


async def test_a_message_to_a_session_that_is_moved_continues_where_that_goes(
    engine: Running, fleet: FleetConnection
) -> None:
    async with handover(engine, fleet) as at:
        moving = asyncio.ensure_future(at.move())
        await at.asked.wait()
        sent = asyncio.ensure_future(
            at.client.call_tool("claude_send_message", {"sessionId": at.session_id, "message": "x"})
        )
        again = await at.move("a")
        at.let_through.set()
        assert not (await moving).is_error
        assert not (await sent).is_error
        assert at.calls == ["a claude_manage_session", "b claude_send_message"]
        # Whoever asks for something else meanwhile is told so; where it is by then decides what that is.
        assert again.is_error
        assert "already" in str(again.content)


async def test_a_move_that_is_cut_off_leaves_a_session_that_can_be_moved_again(
    engine: Running, fleet: FleetConnection
) -> None:
    async with handover(engine, fleet) as at:
        moving = asyncio.ensure_future(at.move())
        await at.asked.wait()
        moving.cancel()
        await asyncio.wait([moving])
        async with asyncio.timeout(HANG_SECONDS):
            while await at.holder() is not None:  # noqa: ASYNC110 - the bucket tells nobody
                await asyncio.sleep(0.05)
        at.let_through.set()
        assert not (await at.move()).is_error
        assert await at.holder() == "b"
        assert at.calls == ["a claude_manage_session"], "nobody is there to be asked for it a second time"


async def test_a_session_that_a_dead_gateway_has_given_away_is_taken_with_its_next_message(
    engine: Running, fleet: FleetConnection
) -> None:
    """The gateway was killed between giving it to machine b and asking b to take it."""

    async def alive(machine_id: str) -> bool:
        return True

    async with handover(engine, fleet) as at:
        # A lease of its own would end while the test waits.
        at.bucket._alive = alive  # type: ignore[method-assign]
        held = await at.bucket.read(at.session_id)
        assert held is not None
        await at.bucket.release(held)
        assert await at.bucket.give(at.session_id, "local", "b") is not None
        asked = await at.client.call_tool("claude_get_status", {"sessionId": at.session_id})
        assert asked.is_error
        assert "holds" in str(asked.content), "b is not asked for what it does not have"
        at.refuse = SessionBusy("policy")
        at.let_through.set()
        refused = await at.client.call_tool("claude_send_message", {"sessionId": at.session_id, "message": "x"})
        assert "policy" in str(refused.content)
        assert await at.holder() is None, "it is free for another machine"
        await at.bucket.give(at.session_id, "local", "b")
        at.refuse = None
        sent = await at.client.call_tool("claude_send_message", {"sessionId": at.session_id, "message": "x"})
        assert not sent.is_error
        assert (at.calls, await at.holder()) == (["b claude_send_message"], "b")


async def test_a_machine_that_is_gone_or_unknown_is_refused_before_anything_is_given_away(
    engine: Running, fleet: FleetConnection
) -> None:
    async with handover(engine, fleet) as at:
        at.gateway._fleet.set_machines(["a"], gone=["b"])  # type: ignore[attr-defined]
        gone, unknown = await at.move(), await at.move("c")
        assert "b.example.org" in str(gone.content)
        assert "machine" in str(unknown.content)
        assert "a.example.org" in str((await at.move("a")).content)
        assert (at.calls, await at.holder()) == ([], "a")
