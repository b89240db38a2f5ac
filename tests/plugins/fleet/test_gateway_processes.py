"""Gateways as programs of their own, which may die: on stdio and over HTTP, with clients of both revisions."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, script, text
from tests.conftest import RUN
from tests.server.tools.conftest import Listener
from tests.support.tool_calls import call, finished
from tests.support.waiting import until_true

from .test_gateway import ERAS, Person, TwoMachines, two_machines

ROOT = str(Path(__file__).parents[3])
ANN, BOB = "ann-0123456789abcdefghij", "bob-0123456789abcdefghij"


@pytest.fixture
async def machines(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> AsyncIterator[TwoMachines]:
    async with two_machines(engine.url, fleet, model, tmp_path) as both:
        yield both


def command(machines: TwoMachines, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.plugins.fleet.programs", "gateway", machines.url, "a", "b", *more]


def environment(machines: TwoMachines, **more: str) -> dict[str, str]:
    variables = machines.places["a"].environment(**{RUN: os.environ[RUN]})
    return {**variables, "PYTHONPATH": ROOT, **more}


@contextmanager
def http_gateway(machines: TwoMachines, **more: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A gateway that serves over HTTP, and its address."""
    with subprocess.Popen(
        command(machines, "--http"), env=environment(machines, **more), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def stdio_gateway(machines: TwoMachines) -> Any:
    program = command(machines)
    return stdio_client(StdioServerParameters(command=program[0], args=program[1:], env=environment(machines)))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("transport", "mode"),
    [
        ("stdio", ERAS[0]),
        ("http", ERAS[1]),
        pytest.param("stdio", ERAS[1], marks=pytest.mark.soak),
        pytest.param("http", ERAS[0], marks=pytest.mark.soak),
    ],
)
async def test_query_messages_arrive_in_order(machines: TwoMachines, transport: str, mode: str) -> None:
    listener = Listener()
    with http_gateway(machines) as (_, url):
        server = url if transport == "http" else stdio_gateway(machines)
        async with Client(server, mode=mode, extensions=[listener]) as client:
            prompt = script("go", text("word " * 500, chunks=500))
            options = {"cwd": str(machines.places["b"].project), "includePartialMessages": True}
            result = await call(client, "claude_code_query", prompt=prompt, machine="b", options=options)
    assert (result["result"]["success"], result["machine"]) == (True, "b.example.org")
    numbers = [each["sequence"] for each in listener.received]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) > 500


@pytest.mark.soak  # a question through a gateway on stdio: test_story.py
@pytest.mark.parametrize("mode", ERAS)
async def test_a_gateway_on_stdio(machines: TwoMachines, mode: str) -> None:
    person = Person()
    async with Client(stdio_gateway(machines), mode=mode, elicitation_callback=person.answer) as client:
        prompt = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
        report = await finished(client, "claude_create_session", prompt=prompt, waitSeconds=40, **machines.here("b"))
        assert (report["result"], report["machine"]) == ("thanks", "b.example.org")
        assert len(person.asked) == 1


@pytest.mark.soak  # while one waits: test_gateway.py
@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.soak)])
async def test_a_question_is_asked_although_no_call_waits(machines: TwoMachines, transport: str) -> None:
    person = Person()
    with http_gateway(machines) as (_, url):
        server = url if transport == "http" else stdio_gateway(machines)
        async with Client(server, mode="legacy", elicitation_callback=person.answer) as client:
            prompt = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
            made = await call(client, "claude_create_session", prompt=prompt, **machines.here("b"))
            session = machines.services["b"].session(made["sessionId"])
            await until_true(lambda: person.asked)
            await until_true(lambda: not session.busy)
            assert (await call(client, "claude_get_status", sessionId=session.id))["result"] == "thanks"


@pytest.mark.soak  # nothing is lost with a gateway: tasks in test_gateway.py
@pytest.mark.parametrize(
    ("ended_by", "mode"),
    [
        (signal.SIGKILL, ERAS[0]),
        *(
            pytest.param(ended_by, mode, marks=pytest.mark.soak)
            for ended_by, mode in ((signal.SIGTERM, ERAS[1]), (signal.SIGKILL, ERAS[1]), (signal.SIGTERM, ERAS[0]))
        ),
    ],
)
async def test_work_of_a_stopped_gateway_continues_at_another(
    machines: TwoMachines, mode: str, ended_by: signal.Signals, tmp_path: Path
) -> None:
    """Of two turns one runs and one waits for an answer when the gateway dies in the middle of calls."""
    over = tmp_path / "over"
    running = script("go", text("word " * 20, chunks=20, until=str(over)))
    asking = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
    unanswered, sessions = asyncio.Event(), asyncio.Queue[str]()

    class Absent(Person):
        async def answer(self, context: Any, params: Any) -> Any:
            unanswered.set()
            await asyncio.sleep(3600)

    async def first_client(url: str) -> None:
        async with Client(url, mode=mode, elicitation_callback=Absent().answer) as client:
            for prompt, machine in ((running, "a"), (asking, "b")):
                made = await call(client, "claude_create_session", prompt=prompt, **machines.here(machine))
                sessions.put_nowait(made["sessionId"])
            await finished(client, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)

    with http_gateway(machines) as (process, url):
        lost = asyncio.ensure_future(first_client(url))
        first, second = await sessions.get(), await sessions.get()
        await unanswered.wait()
        process.send_signal(ended_by)
        assert await asyncio.to_thread(process.wait) in (0, -ended_by)
        lost.cancel()
        await asyncio.wait([lost])
    assert {session.id for session in machines.services["a"].sessions() if session.busy} == {first}
    person = Person()
    with http_gateway(machines) as (_, url):
        async with Client(url, mode=mode, elicitation_callback=person.answer) as client:
            listed = await call(client, "claude_list_sessions", active=True)
            assert {row["sessionId"]: row["activeStatus"] for row in listed["sessions"]} == {
                first: "running",
                second: "waiting_for_input",
            }
            over.touch()
            ended = [
                await finished(client, "claude_get_status", sessionId=session, waitSeconds=50)
                for session in (first, second)
            ]
    assert [(report["status"], report["machine"]) for report in ended] == [
        ("completed", "a.example.org"),
        ("completed", "b.example.org"),
    ]
    assert len(person.asked) == 1


@pytest.fixture
async def machines_of_two(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> AsyncIterator[TwoMachines]:
    async with two_machines(engine.url, fleet, model, tmp_path, principals=("ann", "bob")) as both:
        yield both


@pytest.mark.soak
async def test_callers_of_a_gateway_are_those_of_the_machines(machines_of_two: TwoMachines, tmp_path: Path) -> None:
    """Two people with tokens of the gateway: each has their own sessions, on every machine."""
    machines = machines_of_two
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {ANN}\nbob {BOB}\n")
    tokens.chmod(0o600)

    @asynccontextmanager
    async def client_with(token: str, url: str) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode="2026-07-28") as client,
        ):
            yield client

    with http_gateway(machines, CLAUDE_CODE_MCP_TOKENS_FILE=str(tokens)) as (_, url):
        async with client_with(ANN, url) as ann, client_with(BOB, url) as bob:
            made = {}
            for client, machine in ((ann, "a"), (bob, "b")):
                report = await finished(
                    client, "claude_create_session", prompt=script("go", "x"), waitSeconds=40, **machines.here(machine)
                )
                made[machine] = report["sessionId"]
            owners = {
                session.id: session.owner
                for service in machines.services.values()
                for session in service.sessions(principal=None)
            }
            assert owners == {made["a"]: "ann", made["b"]: "bob"}
            for client, session in ((ann, made["a"]), (bob, made["b"])):
                listed = await call(client, "claude_list_sessions")
                assert [row["sessionId"] for row in listed["sessions"]] == [session]
            other = await ann.call_tool("claude_get_status", {"sessionId": made["b"]})
            assert other.is_error
            # A caller that is taken out of the file is none at any machine either.
            turn = script("go", text("word " * 20, chunks=20, until=str(tmp_path / "never")))
            await call(ann, "claude_send_message", sessionId=made["a"], message=turn)
            tokens.write_text(f"bob {BOB}\n")
            ann_session = machines.services["a"].session(made["a"], principal="ann")
            await until_true(lambda: not ann_session.busy, "the turn of somebody who was removed goes on")
