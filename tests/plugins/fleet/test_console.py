"""The console of a gateway: the page's own requests, real machines with the real CLI, a real NATS server."""

import asyncio
import secrets
import uuid
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.state.session_records import SessionRecord
from claude_code_mcp.plugins.console.guard import Accounts
from claude_code_mcp.plugins.console.session_routes import LISTS
from claude_code_mcp.plugins.fleet import names
from claude_code_mcp.plugins.fleet.app import GatewayConsoles
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.machine_server import MachineServer
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.plugins.fleet.page_link import answer_page
from claude_code_mcp.plugins.fleet.records import GivenNames, SessionDocument
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.http import Address, HttpServer, plain_app
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.plugins.console.conftest import write_tokens
from tests.plugins.console.console_client import Browser, StreamEvent
from tests.support.waiting import HANG_SECONDS, until

from .programs import NamedFleet, Started
from .test_gateway import TwoMachines, two_machines
from .test_machine_link import Backend, gateway_to

PEOPLE = {name: secrets.token_urlsafe(32) for name in ("alice", "bob")}
Value = TypeVar("Value")


@dataclass
class FleetConsole:
    machines: TwoMachines
    base: str

    def browser(self, person: str) -> Browser:
        browser = Browser(self.base)
        assert browser.sign_in(token=PEOPLE[person]).status == 200
        return browser

    async def begin(self, browser: Browser, machine: str, prompt: str) -> str:
        asked = {"prompt": prompt, **self.machines.here(machine), "permissionMode": "default"}
        created = await asyncio.to_thread(browser.post, "/api/sessions", asked)
        assert created.status == 201, created.body
        return str(created.json["sessionId"])


@asynccontextmanager
async def console_at(consoles: GatewayConsoles, tmp_path: Path) -> AsyncIterator[str]:
    """Where a gateway serves its console to people with tokens."""
    write_tokens(tmp_path / "tokens", PEOPLE)
    settings = load_settings({}, state_dir=tmp_path / "gateway", http_tokens_file=tmp_path / "tokens")
    accounts = Accounts(Callers(settings))

    def app(at: Address) -> Starlette:
        console = consoles.open(at, accounts)
        assert console is not None
        return plain_app(console.routes())

    server = HttpServer(Address("127.0.0.1", 0), app, settings=settings)
    serving = asyncio.ensure_future(server.serve())
    try:
        yield server.url.removesuffix("/mcp").rstrip("/")
    finally:
        consoles.close()
        server.stop()
        await serving


@pytest.fixture
async def console(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, tmp_path: Path
) -> AsyncIterator[FleetConsole]:
    async with two_machines(engine.url, fleet, model, tmp_path, principals=[*PEOPLE]) as machines:
        machines.gateway.service.settings = load_settings({}, state_dir=tmp_path / "gateway")
        consoles = GatewayConsoles(machines.gateway, fleet.client, machines.fleet)
        async with console_at(consoles, tmp_path) as base:
            yield FleetConsole(machines, base)


async def in_thread(work: Callable[[], Value]) -> Value:
    async with asyncio.timeout(HANG_SECONDS):
        return await asyncio.to_thread(work)


async def test_the_page_shows_the_sessions_of_all_machines_and_works_with_them_where_they_are(
    console: FleetConsole,
) -> None:
    alice, bob = await in_thread(lambda: (console.browser("alice"), console.browser("bob")))
    me = (await in_thread(lambda: alice.get("/api/me"))).json
    assert [(each["id"], each["there"]) for each in me["machines"]] == [("a", True), ("b", True)]
    assert me["modes"]
    first = await console.begin(alice, "a", script("at a", "done at a"))
    # It is over before the other one begins: then it costs something, and is the older one.
    await in_thread(lambda: until(lambda: alice.get("/api/costs?by=session").json["lines"]))
    ask = script("at b", tool("Bash", command="touch asked"), "done at b")
    second = await console.begin(alice, "b", ask)

    def answered() -> dict[str, Any]:
        with alice.stream(f"?session={second}") as events:
            assert next(events).data["machines"] == me["machines"]
            for event in events:
                if event.name == "session" and event.data["sessionId"] == second and event.data["asks"]:
                    assert (event.data["machine"], event.data["machineId"]) == ("b.example.org", "b")
                    question = event.data["asks"][0]["questionId"]
                    break
            path = f"/api/sessions/{second}/questions/{question}"
            assert alice.get(path).json["question"]["toolInput"]["command"] == "touch asked"
            asked = alice.get("/api/questions").json
            assert [(row["questionId"], row["machineId"]) for row in asked["questions"]] == [(question, "b")]
            assert asked["unanswered"] == []
            assert bob.post(path, {"decision": "allow"}).status == 404, "it is alice's"
            assert alice.post(path, {"decision": "allow"}).status == 200
            return next(event.data for event in events if event.name == "ended")

    await in_thread(answered)
    assert (console.machines.places["b"].project / "asked").exists()
    listed = (await in_thread(lambda: alice.get("/api/sessions"))).json
    assert {(row["sessionId"], row["machineId"]) for row in listed["sessions"]} == {(first, "a"), (second, "b")}
    only = (await in_thread(lambda: alice.get("/api/sessions?machine=b&limit=1"))).json
    assert [row["sessionId"] for row in only["sessions"]] == [second]
    one = (await in_thread(lambda: alice.get("/api/sessions?limit=1&offset=1"))).json
    assert ([row["sessionId"] for row in one["sessions"]], one["nextOffset"]) == ([first], None)
    turns = (await in_thread(lambda: alice.get(f"/api/sessions/{second}/turns"))).json
    assert turns["turns"][0]["items"][-1]["text"] == "done at b"
    costs = (await in_thread(lambda: alice.get("/api/costs?by=session"))).json
    assert {line["machine"] for line in costs["lines"]} == {"a.example.org", "b.example.org"}
    assert (await in_thread(lambda: bob.get("/api/sessions"))).json["sessions"] == []
    assert (await in_thread(lambda: bob.get(f"/api/sessions/{second}"))).status == 404


async def test_a_machine_that_is_gone_is_shown_and_so_are_its_sessions(
    console: FleetConsole, fleet: FleetConnection
) -> None:
    alice = await in_thread(lambda: console.browser("alice"))
    session_id = await console.begin(alice, "b", script("at b", "done"))
    here, loop = asyncio.Event(), asyncio.get_running_loop()

    def followed() -> list[StreamEvent]:
        with alice.stream(f"?session={session_id}") as events:
            seen = [next(events)]
            loop.call_soon_threadsafe(here.set)
            return [*seen, *events]

    following = asyncio.ensure_future(in_thread(followed))
    await here.wait()
    console.machines.fleet.set_machines(["a"], gone=["b"])
    await following  # it ends, and the page asks anew
    refused = await in_thread(lambda: alice.get(f"/api/sessions/{session_id}"))
    assert (refused.status, refused.code, refused.json["machine"]) == (503, "MACHINE_GONE", "b")
    unsent = await in_thread(lambda: alice.post(f"/api/sessions/{session_id}/messages", {"message": "go on"}))
    assert unsent.code == "MACHINE_GONE", "the other machine takes nothing over"
    # What the fleet knows of it; of one whose copy cannot be read, that there is one.
    record = SessionRecord(
        session_id=session_id, owner="alice", created_at=1, used_at=9, cwd="/there", options=SessionOptions(),
        first_prompt="begin with sk-ant-api03-" + "x" * 80,
    )  # fmt: skip
    unreadable, archived = str(uuid.uuid4()), str(uuid.uuid4())
    bucket = await fleet.jetstream.key_value(names.RECORDS)
    document = SessionDocument(epoch=1, record=record)
    put_away = document.model_copy(
        update={
            "record": record.model_copy(update={"session_id": archived}),
            "names": GivenNames(title="The heron", tag="birds", pinned=True, archived=True),
        }
    )
    for each, stored in ((session_id, document), (archived, put_away)):
        await bucket.put(each, zlib.compress(stored.model_dump_json().encode()))
    await bucket.put(unreadable, b"damaged")
    console.machines.fleet.absent_sessions = [
        Holding(each, "b", 1, "alice", at)
        for at, each in enumerate((session_id, unreadable, str(uuid.uuid4()), archived))
    ]
    listed = (await in_thread(lambda: alice.get("/api/sessions"))).json
    known, damaged = listed["sessions"]
    assert (known["sessionId"], known["machineId"], known["machineGone"]) == (session_id, "b", True)
    assert (known["title"][:10], known["directory"], known["status"]) == ("begin with", "/there", "completed")
    assert "x" * 20 not in known["title"], "a secret"
    assert (damaged["sessionId"], damaged["machineId"], damaged["status"]) == (unreadable, "b", None)
    assert (await in_thread(lambda: alice.get("/api/sessions?text=there"))).json["sessions"] == [known]
    assert (known["tag"], known["pinned"]) == (None, False)
    (away,) = (await in_thread(lambda: alice.get("/api/sessions?archived=1"))).json["sessions"]
    assert [away[name] for name in ("sessionId", "title", "tag", "pinned")] == [archived, "The heron", "birds", True]
    change = {"action": "rename", "title": "Another"}
    unchanged = await in_thread(lambda: alice.post(f"/api/sessions/{session_id}/manage", change))
    assert (unchanged.status, unchanged.code) == (503, "MACHINE_GONE")
    assert "Only the machine that has it can change its title" in unchanged.json["error"]["message"]
    for nothing in ("machine=a", "project=/elsewhere"):
        assert (await in_thread(partial(alice.get, f"/api/sessions?{nothing}"))).json["sessions"] == []
    gone = [{"machine": "b.example.org", "reason": "Machine b.example.org is offline."}]
    assert listed["unanswered"] == gone
    for route in LISTS:
        rows = (await in_thread(partial(alice.get, f"/api{route.path}"))).json
        assert rows["unanswered"] == gone, "the other machine has the route"
        assert {row["machineId"] for row in rows[route.field]} <= {"a"}
    servers = (await in_thread(lambda: alice.get("/api/mcp-servers"))).json
    assert servers == {"servers": [], "problems": [], "unanswered": gone}
    # A directory is chosen on one machine, which decides what its callers may see.
    directories = (await in_thread(lambda: alice.get("/api/directories?machine=a"))).json
    assert directories["roots"]
    below = await in_thread(partial(alice.get, f"/api/directories?machine=a&path={directories['roots'][0]}"))
    assert below.json["path"] == directories["roots"][0]
    for query in ("", "?machine=b", "?machine=nowhere"):
        refused = await in_thread(partial(alice.get, f"/api/directories{query}"))
        assert (refused.status, refused.code) == (400, "INVALID_ARGUMENT"), query

    def machines() -> Any:
        with alice.stream(f"?session={session_id}") as events:
            return next(events).data["machines"]

    assert [(row["id"], row["there"]) for row in await in_thread(machines)] == [("a", True), ("b", False)]
    # One that stays on its machine is offered to no other, and the page hears of everything else all the same.
    await (await fleet.jetstream.key_value(names.SESSIONS)).put(session_id, b'{"machine": "b", "stays": true}')
    for refused in (
        await in_thread(lambda: alice.get(f"/api/sessions/{session_id}")),
        await in_thread(lambda: alice.post(f"/api/sessions/{session_id}/messages", {"message": "go on"})),
        await in_thread(lambda: alice.post(f"/api/sessions/{session_id}/manage", change)),
    ):
        assert (refused.status, refused.code) == (503, "UPSTREAM_UNAVAILABLE")
        assert "continues when the machine is back" in refused.json["error"]["message"]
    assert [row["id"] for row in await in_thread(machines)] == ["a", "b"]


async def test_active_content_of_a_machine_does_not_reach_the_browser(
    engine: Running, fleet: FleetConnection, tmp_path: Path
) -> None:
    asked: list[Scope] = []

    async def hostile(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)
        headers = [(b"content-type", b"text/html"), (b"set-cookie", b"a=b"), (b"location", b"https://example.org")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"<script>alert(1)</script>"})

    async def nothing(*_: object) -> None: ...

    connection, started = await connect(engine.url), Started()
    pages = partial(answer_page, pages=hostile)
    serving = asyncio.ensure_future(
        MachineServer(connection, "m", Backend(nothing), answer_page=pages).serve(task_status=started)
    )
    await started.event.wait()
    async with gateway_to(fleet) as gateway:
        gateway.service.settings = load_settings({}, state_dir=tmp_path / "gateway")
        named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), ["m"])
        consoles = GatewayConsoles(gateway, fleet.client, named)
        async with console_at(consoles, tmp_path) as base:
            browser, path = Browser(base), f"/api/sessions/{uuid.uuid4()}/shares/a%2Fb%3F?x=%26"
            await in_thread(lambda: browser.sign_in(token=PEOPLE["alice"]))
            shown = await in_thread(lambda: browser.ask("PUT", path, {"access": "watch"}))
            program = Browser(base, headers={"Authorization": f"Bearer {PEOPLE['bob']}"})
            await in_thread(lambda: program.get(path))
    assert (shown.status, shown.headers["content-type"]) == (200, "application/json")
    assert shown.headers["content-security-policy"].startswith("default-src 'none'")
    assert not {"set-cookie", "location"} & {*shown.headers}
    by_person, by_program = asked
    assert (by_person["path"], by_person["query_string"]) == (
        path.partition("?")[0].replace("%2F", "/").replace("%3F", "?"),
        b"x=%26",
    )
    users = [scope["claude_code_mcp.user"] for scope in asked]
    assert [(user.principal, user.device, user.sign_in is not None) for user in users] == [
        ("alice", "Test browser", True),
        ("bob", "", False),
    ], "a token alone is a program's"
    assert by_program["method"] == "GET"
    serving.cancel()
    await asyncio.wait([serving])
    await connection.client.close()
