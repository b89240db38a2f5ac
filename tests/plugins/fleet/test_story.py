"""The whole story once: a fleet of three machines as its users start it, one of which dies in the middle of a turn."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, script, text, tool
from tests.support.fleet import (
    Computer,
    ManagingComputer,
    MortalComputer,
    claude_processes,
    continued,
    front_of,
    gone_machines,
    processes_of,
    until_listed,
)
from tests.support.program import Process
from tests.support.repositories import repository
from tests.support.tool_calls import call, finished
from tests.support.waiting import HANG_SECONDS, until, until_true

from .test_gateway import Person


async def test_a_fleet_whose_machine_dies_in_the_middle_of_a_turn(tmp_path: Path, model: ScriptedModelThread) -> None:
    server, laptop, desk = places = [
        MortalComputer(tmp_path / name, model.url) for name in ("server", "laptop", "desk")
    ]
    with server.up():
        joining = server.ticket, server.run("fleet", "ticket").strip()
        with (
            laptop.joined("laptop", ticket=joining[0]) as runner,
            desk.joined("desk", "--label", "gpu", ticket=joining[1]),
        ):
            await through_the_gateway(server, laptop, desk, runner, model)
            machines = json.loads(await asyncio.to_thread(server.run, "fleet", "status", "--json"))
            assert {machine["name"]: machine["gone"] for machine in machines} == {
                "server": False,
                "laptop": True,
                "desk": False,
            }
            # It is back, with what it had of a session that another one has by now.
            with laptop.joined("laptop"):
                await costs_count_once(server)
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors + desk.errors


@pytest.mark.soak
async def test_a_machine_that_was_frozen_ends_what_another_has_taken(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    """Two messages at once find it gone: one takes the session over, the other goes where it is then; whoever found it
    gone is told what was lost."""
    server, laptop = places = [MortalComputer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up(), laptop.joined("laptop", ticket=server.ticket) as runner:
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            session_id = await begun_on(client, "laptop", laptop.project)
            assert claude_processes(runner.pid)
            runner.send_signal(signal.SIGSTOP)
            try:
                await asyncio.to_thread(until, lambda: "laptop" in gone_machines(server))
                await both_continued(client, session_id)
            finally:
                runner.send_signal(signal.SIGCONT)
            # The first thing that it does is look.
            await until_true(lambda: "It was taken over while this machine was cut off" in laptop.errors)
            await until_true(lambda: not claude_processes(runner.pid), "its process goes on")
            listed = await call(client, "claude_list_sessions", active=True)
            assert {row["machine"] for row in listed["sessions"] if row["sessionId"] == session_id} == {"server"}
    until(lambda: not processes_of(places), "something was left running")


async def begun_on(client: Client, machine: str, directory: Path) -> str:
    """A session whose first turn is over, and whose second one never ends."""
    made = await finished(
        client, "claude_create_session", prompt=script("remember the word heron", "I will"), machine=machine,
        workingDirectory=str(directory), waitSeconds=50,
    )  # fmt: skip
    endless = script("a long story", text("word " * 20, chunks=20, until=str(directory / "never")))
    await call(client, "claude_send_message", sessionId=made["sessionId"], message=endless)
    return str(made["sessionId"])


async def both_continued(client: Client, session_id: str) -> None:
    """Two messages at once."""
    refusals: list[str] = []
    answers = await asyncio.gather(
        *(continued(client, session_id, script(f"go on {number}", "here"), refusals) for number in range(2))
    )
    assert [answer["machine"] for answer in answers] == ["server", "server"]
    # On a busy machine the one that took the session over may be asked again before it answers the message.
    said = [*refusals, *map(str, answers)]
    lost = [each for each in said if "machine_lost" in each]
    assert lost, said
    assert all("laptop" in each for each in lost)


async def through_the_gateway(
    server: Computer, laptop: Computer, desk: Computer, runner: Process, model: ScriptedModelThread
) -> None:
    person = Person()
    # On machines that are to be chosen by nobody but the client: their own directories.
    source = repository(laptop.root / "source")
    async with Client(stdio_client(front_of(server)), mode="legacy", elicitation_callback=person.answer) as client:
        # The first thing that a client asks, and for most the only time.
        offered = {listed.name: listed.input_schema["properties"] for listed in (await client.list_tools()).tools}
        assert "machine" in offered["claude_create_session"]
        work = tool("Bash", command="echo new > made.txt && git add made.txt && echo more >> a.txt")
        first = await call(
            client, "claude_code", prompt=script("remember the word heron", work, "I will"), machine="laptop",
            cwd=str(source), allowedTools=["Bash"], env={"WORD": "heron-in-the-reeds"},
        )  # fmt: skip
        asking = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
        second = await finished(
            client, "claude_create_session", prompt=asking, labels=["gpu"], workingDirectory=str(desk.project),
            waitSeconds=50,
        )  # fmt: skip
        assert (first["machine"], first["result"]) == ("laptop", "I will")
        assert (second["machine"], second["result"], len(person.asked)) == ("desk", "thanks", 1)
        listed = await call(client, "claude_list_sessions")
        assert {row["sessionId"]: row["machine"] for row in listed["sessions"]} == {
            first["sessionId"]: "laptop",
            second["sessionId"]: "desk",
        }
        before = await call(client, "claude_get_status", sessionId=first["sessionId"])
        await die_in_the_middle(client, first["sessionId"], runner, model, laptop.root)
        await listed_as_gone(client, server, first["sessionId"])
        found = script(
            "go on", tool("Bash", command="git status --short && cat made.txt && echo $WORD"), "at ${tool_result}"
        )
        answer = await continued(client, first["sessionId"], found)
    assert answer["machine"] in ("server", "desk")
    assert answer["lostTurn"]["code"] == "machine_lost"
    # The tree, with what was staged and what was not.
    assert "A  made.txt" in answer["result"]
    assert " M a.txt" in answer["result"]
    # And its variables, which the fleet's stores have sealed alone.
    assert answer["result"].endswith("new\nheron-in-the-reeds")
    assert "remember the word heron" in str(model.requests[-1].body)
    assert answer["costUsd"] > before["costUsd"] > 0


async def listed_as_gone(client: Client, server: Computer, session_id: str) -> None:
    """A session stays in every list when its machine is gone, with what the fleet's copy knows of it."""

    async def row(**wanted: Any) -> dict[str, Any]:
        listed = await call(client, "claude_list_sessions", **wanted)
        return next((row for row in listed["sessions"] if row["sessionId"] == session_id), {})

    async with asyncio.timeout(HANG_SECONDS):
        while not (found := await row()).get("machineGone"):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.5)
    assert (found["machine"], found["lastStatus"], found["isActive"]) == ("laptop", "interrupted", False)
    assert "remember the word heron" in found["displayText"]
    assert found["projectDirectory"].endswith("/source")
    assert found["costUsd"] > 0
    assert await row(active=True) == await row(text="HERON") == found
    assert await row(text="nothing of the kind") == await row(archived=True) == {}
    (content,) = (await client.read_resource("claude-sessions:///")).contents
    assert found in json.loads(getattr(content, "text", ""))["sessions"]
    assert f"{session_id[:8]}  interrupted  laptop (gone)" in await asyncio.to_thread(server.run, "ps")
    refused = await client.call_tool("claude_get_status", {"sessionId": session_id})
    assert refused.is_error
    assert "machine laptop" in str(refused.content)


async def costs_count_once(server: Computer) -> None:
    """A machine that comes back asks by itself which of its sessions others have."""

    async def report(uri: str) -> dict[str, Any]:
        (content,) = (await client.read_resource(f"claude-sessions:///{uri}")).contents
        return dict(json.loads(getattr(content, "text", "")))

    async with Client(stdio_client(front_of(server)), mode="legacy") as client:
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            listed, costs = await report(""), await report("costs?by=session")
            ids = sorted(row["sessionId"] for row in listed["sessions"])
            if "unanswered" not in listed and ids == sorted(line["name"] for line in costs["lines"]):
                assert len(ids) == len({*ids}) == 2
                by_day = await report("costs?by=day")
                assert by_day["total"]["usd"] == pytest.approx(sum(line["usd"] for line in costs["lines"]))
                return
            assert time.monotonic() < deadline, (listed, costs)
            await asyncio.sleep(0.5)


async def die_in_the_middle(
    client: Client, session_id: str, runner: Process, model: ScriptedModelThread, root: Path
) -> None:
    """A turn begins, and its machine is killed while the model speaks."""
    endless = script("a long story", text("word " * 20, chunks=20, until=str(root / "never")))
    await call(client, "claude_send_message", sessionId=session_id, message=endless)
    await until_true(lambda: any("a long story" in str(request.body) for request in model.requests))
    runner.kill()
    await asyncio.to_thread(runner.wait)


@pytest.mark.soak  # in parts: test_session_copy.py, test_doors.py
async def test_a_session_that_was_deleted_does_not_come_back_when_its_machine_goes(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = places = [ManagingComputer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up():
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.joined("laptop", ticket=server.ticket):
                made = [
                    await finished(
                        client, "claude_create_session", prompt=script(word, "done"), machine="laptop",
                        workingDirectory=str(repository(laptop.root / word)), waitSeconds=50,
                    )
                    for word in ("kept", "deleted")
                ]  # fmt: skip
            kept, deleted = (each["sessionId"] for each in made)
            # After a restart, when the machine has claimed neither of them.
            with laptop.joined("laptop"):
                await until_listed(client, kept, deleted)
                await call(client, "claude_manage_session", sessionId=deleted, action="delete", confirm=True)
                await until_listed(client, kept)
            await until_listed(client, kept, gone=True)
            refused = await client.call_tool("claude_send_message", {"sessionId": deleted, "message": "go on"})
            assert refused.is_error
            assert deleted in str(refused.content)
            answer = await continued(client, kept, script("go on", "here"))
            assert (answer["machine"], answer["result"]) == ("server", "here")
    until(lambda: not processes_of(places), "something was left running")
