"""The whole story once: a fleet of three machines as its users start it, one of which dies in the middle of a turn."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, script, text, tool
from tests.conftest import RUN
from tests.sessions.worktree_support import repository
from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS, until, until_true

from .test_gateway import Person, call


class Place(Sandbox):
    """A machine of its own, as far as one user can have several: home, state, temporary files."""

    def variables(self) -> dict[str, str]:
        state = {
            "CLAUDE_CODE_MCP_STATE_DIR": str(self.root / "state"),
            "CLAUDE_CODE_MCP_RUNTIME_DIR": str(self.root / "run"),
        }
        return self.environment(**state, PYTHONUNBUFFERED="1", **{RUN: os.environ[RUN]})

    def run(self, *arguments: str) -> str:
        answer = self.tried(*arguments)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def tried(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return warm_commands.run(arguments, self.variables(), self.project)

    @property
    def output(self) -> str:
        return (self.root / "output").read_text()

    @property
    def errors(self) -> str:
        return (self.root / "errors").read_text()

    @contextmanager
    def started(self, ready: str, *arguments: str) -> Iterator[warm_commands.WarmProcess]:
        """A command that runs until the end of the block, once it has said that it is ready."""
        with (
            open(os.devnull, "rb") as nothing,
            (self.root / "output").open("w") as output,
            (self.root / "errors").open("w") as errors,
        ):
            streams = nothing.fileno(), output.fileno(), errors.fileno()
            process = warm_commands.helper().start(arguments, self.variables(), self.project, streams)
        try:
            until(lambda: ready in self.output or process.poll() is not None)
            assert ready in self.output, (process.poll(), self.errors)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_SECONDS) in (0, -signal.SIGKILL), self.errors


def processes_of(places: Sequence[Place]) -> list[str]:
    """What runs with a home of these machines."""
    homes = {str(place.home) for place in places}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") in homes and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:100])
        except psutil.Error:
            continue
    return found


async def test_a_fleet_whose_machine_dies_in_the_middle_of_a_turn(tmp_path: Path, model: ScriptedModelThread) -> None:
    server, laptop, desk = places = [Place(tmp_path / name, model.url) for name in ("server", "laptop", "desk")]
    up = ("fleet", "up", "--listen", "127.0.0.1:0", "--name", "server")
    with server.started("runner --join ", *up):
        joining = server.output.split("--join ")[1].split()[0], server.run("fleet", "ticket").strip()
        with (
            laptop.started("is a machine", "runner", "--join", joining[0], "--name", "laptop") as runner,
            desk.started("is a machine", "runner", "--join", joining[1], "--name", "desk", "--label", "gpu"),
        ):
            await through_the_gateway(server, laptop, desk, runner, model)
            machines = json.loads(await asyncio.to_thread(server.run, "fleet", "status", "--json"))
            assert {machine["name"]: machine["gone"] for machine in machines} == {
                "server": False,
                "laptop": True,
                "desk": False,
            }
            # It is back, with what it had of a session that another one has by now.
            with laptop.started("is a machine", "runner", "--name", "laptop"):
                await costs_count_once(server)
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors + desk.errors


@pytest.mark.soak
async def test_a_machine_that_was_frozen_ends_what_another_has_taken(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    """Two messages at once find it gone: one takes the session over, the other goes where it is then; whoever found it
    gone is told what was lost."""
    server, laptop = places = [Place(tmp_path / name, model.url) for name in ("server", "laptop")]
    up = ("fleet", "up", "--listen", "127.0.0.1:0", "--name", "server")
    with server.started("runner --join ", *up):
        ticket = server.output.split("--join ")[1].split()[0]
        with laptop.started("is a machine", "runner", "--join", ticket, "--name", "laptop") as runner:
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


def front_of(place: Place) -> StdioServerParameters:
    return StdioServerParameters(command=warm_commands.program(), args=["--shared"], env=place.variables())


def gone_machines(server: Place) -> set[str]:
    return {each["name"] for each in json.loads(server.run("fleet", "status", "--json")) if each["gone"]}


def claude_processes(pid: int) -> list[int]:
    """Those of sessions: what the supervisor of a server has started."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if "--session-mirror" in process.cmdline():
                found.append(process.pid)
    return found


async def begun_on(client: Client, machine: str, directory: Path) -> str:
    """A session whose first turn is over, and whose second one never ends."""
    made = await call(
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
    assert all("not in a checkout of a git repository" in each for each in lost)


async def through_the_gateway(
    server: Place, laptop: Place, desk: Place, runner: warm_commands.WarmProcess, model: ScriptedModelThread
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
        asking = script("ask", ask_user("Which colour?", "red", "blue"), text("thanks"))
        second = await call(
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


async def listed_as_gone(client: Client, server: Place, session_id: str) -> None:
    """A session stays in every list when its machine is gone, with what the fleet's copy knows of it."""

    async def row(**wanted: Any) -> dict[str, Any]:
        listed = await call(client, "claude_list_sessions", **wanted)
        return next((row for row in listed["sessions"] if row["sessionId"] == session_id), {})

    for _ in range(100):
        found = await row()
        if found.get("machineGone"):
            break
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
    assert "is on machine laptop, which is not there now. Its next message goes on with it" in str(refused.content)


async def costs_count_once(server: Place) -> None:
    """A machine that comes back asks by itself which of its sessions others have."""

    async def report(uri: str) -> dict[str, Any]:
        (content,) = (await client.read_resource(f"claude-sessions:///{uri}")).contents
        return dict(json.loads(getattr(content, "text", "")))

    async with Client(stdio_client(front_of(server)), mode="legacy") as client:
        for _ in range(100):
            listed, costs = await report(""), await report("costs?by=session")
            ids = sorted(row["sessionId"] for row in listed["sessions"])
            if "unanswered" not in listed and ids == sorted(line["name"] for line in costs["lines"]):
                assert len(ids) == len({*ids}) == 2
                by_day = await report("costs?by=day")
                assert by_day["total"]["usd"] == pytest.approx(sum(line["usd"] for line in costs["lines"]))
                return
            await asyncio.sleep(0.5)
    raise AssertionError(costs)


async def die_in_the_middle(
    client: Client, session_id: str, runner: warm_commands.WarmProcess, model: ScriptedModelThread, root: Path
) -> None:
    """A turn begins, and its machine is killed while the model speaks."""
    endless = script("a long story", text("word " * 20, chunks=20, until=str(root / "never")))
    await call(client, "claude_send_message", sessionId=session_id, message=endless)
    await until_true(lambda: any("a long story" in str(request.body) for request in model.requests))
    runner.kill()
    await asyncio.to_thread(runner.wait)


async def continued(client: Client, session_id: str, message: str, refusals: list[str] | None = None) -> dict[str, Any]:
    """The answer to the next message. Until the dead machine's lease has ended, its client is told that it is not
    reached; what it is told until it has an answer is added to `refusals`."""
    refusals = [] if refusals is None else refusals
    for _ in range(100):
        result = await client.call_tool(
            "claude_send_message", {"sessionId": session_id, "message": message, "waitSeconds": 50}
        )
        if not result.is_error:
            return dict(result.structured_content or {})
        refusals.append(str(result.content))
        await asyncio.sleep(0.5)
    raise AssertionError(result.content)


class ManagingPlace(Place):
    """One whose clients can delete sessions."""

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "CLAUDE_CODE_MCP_TOOLSETS": "sessions,care"}


@pytest.mark.soak  # in parts: test_session_copy.py, test_doors.py
async def test_a_session_that_was_deleted_does_not_come_back_when_its_machine_goes(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = places = [ManagingPlace(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.started("runner --join ", "fleet", "up", "--listen", "127.0.0.1:0", "--name", "server"):
        ticket = server.output.split("--join ")[1].split()[0]
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.started("is a machine", "runner", "--join", ticket, "--name", "laptop"):
                made = [
                    await call(
                        client, "claude_create_session", prompt=script(word, "done"), machine="laptop",
                        workingDirectory=str(repository(laptop.root / word)), waitSeconds=50,
                    )
                    for word in ("kept", "deleted")
                ]  # fmt: skip
            kept, deleted = (each["sessionId"] for each in made)
            # After a restart, when the machine has claimed neither of them.
            with laptop.started("is a machine", "runner", "--name", "laptop"):
                await until_listed(client, kept, deleted)
                await call(client, "claude_manage_session", sessionId=deleted, action="delete", confirm=True)
                await until_listed(client, kept)
            await until_listed(client, kept, gone=True)
            refused = await client.call_tool("claude_send_message", {"sessionId": deleted, "message": "go on"})
            assert refused.is_error
            assert "no record of session" in str(refused.content)
            answer = await continued(client, kept, script("go on", "here"))
            assert (answer["machine"], answer["result"]) == ("server", "here")
    until(lambda: not processes_of(places), "something was left running")


async def until_listed(client: Client, *session_ids: str, gone: bool = False) -> None:
    """Until these are all the sessions that there are, on a machine that is there or gone."""
    for _ in range(100):
        rows = (await call(client, "claude_list_sessions"))["sessions"]
        if {(row["sessionId"], bool(row.get("machineGone"))) for row in rows} == {(each, gone) for each in session_ids}:
            return
        await asyncio.sleep(0.3)
    raise AssertionError(rows)
