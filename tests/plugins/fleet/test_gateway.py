"""Two machines behind one address: real services with the real CLI, a real NATS server, and the real MCP client."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.shared.exceptions import MCPError

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, script, text
from tests.conftest import RUN
from tests.support.parts import service_parts
from tests.support.tool_calls import call, finished, refused, until_finished
from tests.support.waiting import HANG_SECONDS, until_true

from .programs import TOOLSETS, NamedFleet, choose, running_machine

ERAS = ["legacy", "2026-07-28"]
IN_2025 = pytest.mark.parametrize("mode", [ERAS[0], pytest.param(ERAS[1], marks=pytest.mark.soak)])
IN_2026 = pytest.mark.parametrize("mode", [pytest.param(ERAS[0], marks=pytest.mark.soak), ERAS[1]])
"""What a gateway does is the same in both eras, which tests/server shows on every wire: each test has one of them."""
LIST = "claude-sessions:///"


@dataclass
class TwoMachines:
    """A fleet of machines `a` and `b`."""

    url: str
    fleet: NamedFleet
    gateway: Gateway
    services: dict[str, Service]
    places: dict[str, Sandbox]

    def here(self, machine: str) -> dict[str, str]:
        return {"machine": machine, "workingDirectory": str(self.places[machine].project)}


@asynccontextmanager
async def two_machines(
    url: str,
    connection: FleetConnection,
    model: ScriptedModelThread,
    root: Path,
    *,
    claims: bool = True,
    principals: Sequence[str] = (),
) -> AsyncIterator[TwoMachines]:
    async with AsyncExitStack() as stack:
        services, places = {}, {}
        for id_ in ("a", "b"):
            place = places[id_] = Sandbox(root / id_, model.url)
            settings = load_settings({}, state_dir=place.root / "state", toolsets=TOOLSETS)
            environment = place.environment(**{RUN: os.environ[RUN]})
            service = Service(settings, environment, callers=ExpectedCallers(principals), **service_parts())
            services[id_] = await stack.enter_async_context(service)
            await stack.enter_async_context(running_machine(url, id_, service, claims=claims))
        fleet = NamedFleet(await connection.jetstream.key_value(names.SESSIONS), ["a", "b"])
        gateway = Gateway(connection, fleet, choose, load_settings({}, toolsets=TOOLSETS))
        stack.push_async_callback(gateway.close)
        yield TwoMachines(url, fleet, gateway, services, places)


@pytest.fixture
async def machines(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> AsyncIterator[TwoMachines]:
    async with two_machines(engine.url, fleet, model, tmp_path) as both:
        yield both


@dataclass
class Person:
    """Answers forms, and notes what the client was told."""

    asked: list[str] = field(default_factory=list)
    notifications: list[str] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=lambda: {"answer1": "blue"})

    async def answer(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content=self.content)

    def has_heard(self, what: str) -> bool:
        return what in self.notifications

    async def on_message(self, message: Any) -> None:
        notifications = getattr(message, "root", message)
        params = getattr(notifications, "params", None)
        self.notifications.append(str(getattr(params, "uri", None) or getattr(notifications, "method", "")))


def client_of(gateway: Gateway, mode: str, person: Person | None = None) -> Client:
    ask = person.answer if person is not None else None
    transport = InMemoryTransport(gateway.server())
    return Client(transport, mode=mode, elicitation_callback=ask, message_handler=person.on_message if person else None)


@IN_2026
async def test_sessions_run_where_they_were_wished_for_and_are_found_and_read_there(
    machines: TwoMachines, mode: str
) -> None:
    async with client_of(machines.gateway, mode) as client:
        made = {}
        for id_ in ("a", "b"):
            report = await finished(
                client, "claude_create_session", prompt=script("go", f"on {id_}"), waitSeconds=40, **machines.here(id_)
            )
            assert (report["result"], report["machine"]) == (f"on {id_}", f"{id_}.example.org")
            made[id_] = report["sessionId"]
            assert [session.id for session in machines.services[id_].sessions()] == [made[id_]]
        for id_, session in made.items():
            assert (await call(client, "claude_get_status", sessionId=session))["machine"] == f"{id_}.example.org"
            again = await finished(
                client, "claude_send_message", sessionId=session, message=script("more", "again"), waitSeconds=40
            )
            assert again["result"] == "again"
        listed = await call(client, "claude_list_sessions")
        assert {row["sessionId"]: row["machine"] for row in listed["sessions"]} == {
            made["a"]: "a.example.org",
            made["b"]: "b.example.org",
        }
        assert "unanswered" not in listed
        page = await call(client, "claude_list_sessions", limit=1)
        rest = await call(client, "claude_list_sessions", limit=1, offset=page["nextOffset"])
        assert [*page["sessions"], *rest["sessions"]] == listed["sessions"]
        costs = await call(client, "claude_session_costs", by="session")
        assert {line["machine"] for line in costs["lines"]} == {"a.example.org", "b.example.org"}
        assert costs["total"]["sessions"] == 2
    # Resources and prompts, in both eras: the sessions are there already.
    for era in ERAS:
        async with client_of(machines.gateway, era) as client:
            await check_resources(client, made)
    async with client_of(machines.gateway, ERAS[1]) as client:
        await check_stream(client, machines, made["b"])
        await check_unanswered(client, machines, made)


@IN_2026
async def test_a_question_reaches_the_person_and_the_answer_its_machine(machines: TwoMachines, mode: str) -> None:
    person = Person()
    async with client_of(machines.gateway, mode, person) as client:
        prompt = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
        report = await finished(client, "claude_create_session", prompt=prompt, waitSeconds=40, **machines.here("b"))
        assert report.get("result") == "thanks", report
        assert len(person.asked) == 1
        assert "Which color?" in person.asked[0]
        here = str(machines.places["a"].project)
        # One that runs to its end within a single call, and without a session id in any round.
        result = await call(client, "claude_code", prompt=prompt, permissionMode="default", machine="a", cwd=here)
        assert result["machine"] == "a.example.org"
        await until_finished(client, result)
        assert len(person.asked) == 2


async def check_resources(client: Client, sessions: dict[str, str]) -> None:
    """What the gateway offers beside tools, of the sessions on all machines."""
    listed = {str(each.uri): each for each in (await client.list_resources()).resources}
    for id_, session in sessions.items():
        uri = f"claude-session:///{session}"
        assert f"{id_}.example.org" in (listed[uri].description or "")
        (content,) = (await client.read_resource(uri)).contents
        assert isinstance(content, types.TextResourceContents)
        assert json.loads(content.text)["sessionId"] == session
    (content,) = (await client.read_resource(LIST)).contents
    assert isinstance(content, types.TextResourceContents)
    rows = json.loads(content.text)["sessions"]
    assert {row["sessionId"] for row in rows} == {*sessions.values()}
    assert [template.name for template in (await client.list_resource_templates()).resource_templates]
    assert "delegate" in {prompt.name for prompt in (await client.list_prompts()).prompts}
    got = await client.get_prompt("delegate", {"task": "tidy up"})
    assert "tidy up" in str(got.messages[0].content)
    ref = types.PromptReference(type="ref/prompt", name="continue_session")
    completed = await client.complete(ref, {"name": "session", "value": ""})
    assert {*completed.completion.values} == {*sessions.values()}


@pytest.mark.soak  # of one server: tests/server/tools/test_resources.py; of machines: check_stream
async def test_client_with_a_handshake_gets_its_subscriptions(machines: TwoMachines) -> None:
    person = Person()
    async with client_of(machines.gateway, "legacy", person) as client:
        uris = []
        for id_ in ("a", "b"):
            report = await finished(
                client, "claude_create_session", prompt=script("go", "x"), waitSeconds=40, **machines.here(id_)
            )
            uris.append((report["sessionId"], f"claude-session:///{report['sessionId']}"))
        await client.list_resources()
        for _, uri in uris:
            request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await client.session.send_request(request, types.EmptyResult)
        person.notifications.clear()
        for session, uri in uris:
            await finished(
                client, "claude_send_message", sessionId=session, message=script("more", "y"), waitSeconds=40
            )
            await until_true(partial(person.has_heard, uri))


@pytest.mark.soak
async def test_a_client_is_notified_again_when_its_machine_is_back(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> None:
    """The connection to the machine is lost, and nobody makes a request: the subscription comes back by itself."""
    place, person = Sandbox(tmp_path / "a", model.url), Person()
    settings = load_settings({}, state_dir=place.root / "state")
    named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), ["a"])
    gateway = Gateway(fleet, named, choose, load_settings({}))
    async with (
        Service(settings, place.environment(**{RUN: os.environ[RUN]})) as service,
        client_of(gateway, "legacy", person) as client,
    ):
        async with running_machine(engine.url, "a", service):
            made = await finished(
                client,
                "claude_create_session",
                prompt=script("go", "x"),
                waitSeconds=40,
                workingDirectory=str(place.project),
            )
            uri = f"claude-session:///{made['sessionId']}"
            request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
            await client.session.send_request(request, types.EmptyResult)
        person.notifications.clear()
        async with running_machine(engine.url, "a", service):
            await until_true(partial(person.has_heard, uri), "the subscription was not made again")
            person.notifications.clear()
            await service.send(made["sessionId"], script("more", "y"))
            await until_true(partial(person.has_heard, uri), "a change was not announced")
    await gateway.close()


async def check_stream(client: Client, machines: TwoMachines, session: str) -> None:
    """A client of 2026 hears of all machines on one stream: of a session on one, and of a new one on the other."""
    uri, notifications = f"claude-session:///{session}", set()
    async with client.listen(resources_list_changed=True, resource_subscriptions=[uri, LIST]) as changes:
        again = await finished(
            client, "claude_send_message", sessionId=session, message=script("more", "again"), waitSeconds=40
        )
        assert again["result"] == "again"
        await finished(client, "claude_create_session", prompt=script("go", "x"), waitSeconds=40, **machines.here("a"))
        async with asyncio.timeout(HANG_SECONDS):
            async for change in changes:
                notifications.add(getattr(change, "uri", None) or type(change).__name__)
                if notifications >= {uri, LIST, "ResourcesListChanged"}:
                    break


@IN_2025
async def test_a_turn_is_interrupted_and_reports_progress(machines: TwoMachines, mode: str, tmp_path: Path) -> None:
    reports: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        reports.append(message or "")

    async with client_of(machines.gateway, mode) as client:
        prompt = script("go", text("working " * 50, chunks=50, until=str(tmp_path / "never")))
        begun = await call(client, "claude_create_session", prompt=prompt, **machines.here("b"))
        session = begun["sessionId"]
        waiting = asyncio.ensure_future(
            client.call_tool("claude_get_status", {"sessionId": session, "waitSeconds": 50}, progress_callback=note)
        )
        await until_true(lambda: machines.services["b"].session(session).live)
        assert (await call(client, "claude_interrupt", sessionId=session))["sessionId"] == session
        assert (await waiting).structured_content["status"] == "interrupted"
    assert all(isinstance(report, str) for report in reports)


@IN_2026
async def test_a_call_that_the_client_cancels_is_cancelled_at_its_machine(
    machines: TwoMachines, mode: str, tmp_path: Path
) -> None:
    async with client_of(machines.gateway, mode) as client:
        prompt = script("go", text("working " * 50, chunks=50, until=str(tmp_path / "never")))
        here = str(machines.places["b"].project)
        calling = asyncio.ensure_future(
            client.call_tool("claude_code", {"prompt": prompt, "machine": "b", "cwd": here})
        )
        service = machines.services["b"]
        await until_true(lambda: any(session.live for session in service.sessions()))
        calling.cancel()
        await asyncio.wait([calling])
        (session,) = service.sessions()
        await until_true(lambda: not session.busy, "the turn of a cancelled call goes on")
        assert (await call(client, "claude_get_status", sessionId=session.id))["status"] == "interrupted"


async def test_a_call_becomes_a_task_that_any_gateway_finds(machines: TwoMachines, fleet: FleetConnection) -> None:
    """A client of the tasks extension: the id of its task leads to the machine, at another gateway too."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    }

    async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
        dispatcher = client.session._dispatcher
        async with asyncio.timeout(HANG_SECONDS):
            return dict(await dispatcher.send_raw_request(method, {**params, "_meta": meta}))

    other = Gateway(fleet, machines.fleet, choose, load_settings({}, toolsets=TOOLSETS))
    async with client_of(machines.gateway, "2026-07-28") as one, client_of(other, "2026-07-28") as two:
        prompt = script("ask", ask_user("Which color?", "red", "blue"), text("thanks"))
        arguments = {"prompt": prompt, "machine": "b", "cwd": str(machines.places["b"].project)}
        arguments["permissionMode"] = "default"
        task = await ask(one, "tools/call", name="claude_code", arguments=arguments)
        assert task["resultType"] == "task"
        assert task["taskId"].startswith("b.")
        while (seen := await ask(two, "tasks/get", taskId=task["taskId"]))["status"] == "working":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (seen["status"], seen["taskId"]) == ("input_required", task["taskId"])
        (key,) = seen["inputRequests"]
        answers = {key: {"action": "accept", "content": {"answer1": "blue"}}}
        await ask(two, "tasks/update", taskId=task["taskId"], inputResponses=answers)
        while (seen := await ask(one, "tasks/get", taskId=task["taskId"]))["status"] != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert seen["result"]["structuredContent"]["result"] == "thanks"
        with pytest.raises(MCPError):
            await ask(one, "tasks/get", taskId="nobody's")
    await other.close()


async def check_unanswered(client: Client, machines: TwoMachines, made: dict[str, str]) -> None:
    """A machine that does not answer is named."""
    machines.fleet.set_machines(["a", "silent"])
    listed = await call(client, "claude_list_sessions")
    assert made["a"] in [row["sessionId"] for row in listed["sessions"]]
    assert made["b"] not in [row["sessionId"] for row in listed["sessions"]]
    assert listed["unanswered"] == [
        {"machine": "silent.example.org", "reason": "Machine silent.example.org does not respond."}
    ]
    problem = await refused(client, "claude_create_session", prompt="x", machine="silent")
    assert problem["code"] == "UPSTREAM_UNAVAILABLE"
    machines.fleet.set_machines(["b"], gone=["a"])
    listed = await call(client, "claude_list_sessions")
    assert [row["sessionId"] for row in listed["sessions"]] == [made["b"]]
    assert listed["unanswered"] == [{"machine": "a.example.org", "reason": "Machine a.example.org is offline."}]
    (content,) = (await client.read_resource(LIST)).contents
    assert isinstance(content, types.TextResourceContents)
    assert json.loads(content.text)["unanswered"] == listed["unanswered"]
    problem = await refused(client, "claude_get_status", sessionId=made["a"])
    assert "a.example.org" in problem["message"]
    machines.fleet.set_machines([])
    assert (await refused(client, "claude_list_sessions"))["code"] == "UPSTREAM_UNAVAILABLE"


async def test_a_list_is_asked_for_again_when_the_connection_to_a_machine_breaks(machines: TwoMachines) -> None:
    async with client_of(machines.gateway, "2026-07-28") as client:
        await call(client, "claude_list_sessions")
        (at_gateway,) = machines.gateway._shared.values()
        listing = asyncio.ensure_future(call(client, "claude_list_sessions"))
        broken = at_gateway.open_links
        while not all(link._exchanges for link in broken):  # noqa: ASYNC110 - before anything else can happen
            await asyncio.sleep(0)
        for link in broken:
            link._wire.fail("A part of the connection was lost.")
        listed = await listing
        assert len(broken) == 2
        assert "unanswered" not in listed


@pytest.mark.soak
async def test_unclaimed_session_is_found_on_its_machine(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> None:
    async with (
        two_machines(engine.url, fleet, model, tmp_path, claims=False) as machines,
        client_of(machines.gateway, "2026-07-28") as client,
    ):
        made = await finished(
            client, "claude_create_session", prompt=script("go", "x"), waitSeconds=40, **machines.here("b")
        )
        found = await call(client, "claude_get_status", sessionId=made["sessionId"])
        assert found["machine"] == "b.example.org"
        unknown = "00000000-0000-4000-8000-000000000000"
        assert (await refused(client, "claude_get_status", sessionId=unknown))["code"] == "SESSION_NOT_FOUND"


@pytest.mark.soak
async def test_a_call_with_the_same_key_goes_to_the_same_machine(machines: TwoMachines) -> None:
    async with client_of(machines.gateway, "2026-07-28") as client:
        cwd = str(machines.places["b"].project)
        arguments = {"prompt": script("go", "x"), "workingDirectory": cwd, "messageKey": "k1", "waitSeconds": 40}
        first = await call(client, "claude_create_session", machine="b", **arguments)
        second = await call(client, "claude_create_session", **arguments)
        assert second["sessionId"] == first["sessionId"]
        assert not machines.services["a"].sessions()


async def test_wrong_machines_and_labels_are_refused(machines: TwoMachines) -> None:
    async with client_of(machines.gateway, "2026-07-28") as client:
        for arguments in ({"machine": "c"}, {"machine": 1}, {"labels": "gpu"}, {"labels": [1]}):
            problem = await refused(client, "claude_create_session", prompt="x", **arguments)
            assert problem["code"] == "INVALID_ARGUMENT"
        for arguments in ({"limit": "5"}, {"limit": 501}, {"offset": -1}, {"offset": "1"}):
            problem = await refused(client, "claude_list_sessions", **arguments)
            assert problem["code"] == "INVALID_ARGUMENT"
        assert (await refused(client, "claude_interrupt", sessionId="x", machine="a"))["code"] == "INVALID_ARGUMENT"
        assert (await refused(client, "claude_get_status", sessionId="x"))["code"] == "INVALID_ARGUMENT"
        assert (await refused(client, "claude_code_configure", action="get_config"))["code"] == "INVALID_ARGUMENT"
        config = await call(client, "claude_code_configure", action="get_config", machine="b.example.org")
        assert config["allowBypass"] is False
        with pytest.raises(MCPError):
            await client.read_resource("claude-session:///nothing")


async def test_tools_say_that_a_machine_can_be_named(machines: TwoMachines) -> None:
    async with client_of(machines.gateway, "legacy") as client:
        tools = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
    assert {name for name, properties in tools.items() if "labels" in properties} == {
        "claude_create_session",
        "claude_code",
        "claude_code_query",
    }
    assert "machine" not in tools["claude_get_status"]
    assert "move" in tools["claude_manage_session"]["action"]["enum"]
    assert {"machine", "wait"} <= tools["claude_manage_session"].keys()


async def test_a_machine_takes_no_more_connections_than_it_may(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> None:
    place = Sandbox(tmp_path / "a", model.url)
    settings = load_settings({}, state_dir=place.root / "state")
    async with (
        Service(settings, place.environment()) as service,
        running_machine(engine.url, "a", service, most=1),
    ):
        named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), ["a"])
        first, second = (Gateway(fleet, named, choose, load_settings({})) for _ in range(2))
        async with client_of(first, "legacy") as one, client_of(second, "legacy") as other:
            assert (await call(one, "claude_list_sessions"))["sessions"] == []
            problem = await refused(other, "claude_list_sessions")
            assert "1 connections" in problem["message"]
        await first.close()
        await second.close()
