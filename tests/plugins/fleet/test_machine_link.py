"""What passes between a client and a machine during a call, whatever it is: with a server that does nothing else."""

import asyncio
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client._memory import InMemoryTransport
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata

from benchmarks.wire import INITIALIZE, INITIALIZED, encode_message
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.plugins.fleet import machine_link, names
from claude_code_mcp.plugins.fleet.connection import FleetConnection, connect
from claude_code_mcp.plugins.fleet.gateway import Gateway
from claude_code_mcp.plugins.fleet.gateway_client import GatewayClient
from claude_code_mcp.plugins.fleet.machine_link import MachineUnavailable
from claude_code_mcp.plugins.fleet.machine_server import (
    MAX_CONNECTIONS,
    MachineServer,
    Taken,
    TakeSession,
    opening_request,
    refusal_in,
)
from claude_code_mcp.plugins.fleet.nats_server import Running
from claude_code_mcp.server import sdk
from claude_code_mcp.server.server import principal
from claude_code_mcp.server.transports.stdio import Inbox, Outbox
from claude_code_mcp.server.transports.unix_socket import SharedSocket
from claude_code_mcp.startup.shared.handshake import Hello
from claude_code_mcp.startup.shared.place import Place
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text
from tests.support.tool_calls import call
from tests.support.waiting import HANG_SECONDS, until_true

from .programs import NamedFleet, NamedMachine, Started, choose
from .test_gateway_processes import ROOT


class Backend:
    """A server whose tools are the test's, where an `McpServer` would be."""

    def __init__(self, on_call: Callable[[sdk.Context, types.CallToolRequestParams], Awaitable[Any]]) -> None:
        self._on_call = on_call
        self.service = self

    async def serve(self, inbox: Inbox, outbox: Outbox) -> None:
        server: Server[Any] = Server("backend", on_call_tool=self._on_call)
        await server.run(inbox, outbox, server.create_initialization_options())

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None: ...

    async def admit(self, name: str, groups: Any) -> str | None:
        return f"nobody of {', '.join(groups)} is let in"

    async def why_restart_for(self, name: str) -> str | None:
        return None

    def assign(self, *_: object) -> None: ...


@asynccontextmanager
async def backend_machine(
    url: str,
    on_call: Callable[[sdk.Context, types.CallToolRequestParams], Awaitable[Any]],
    take: TakeSession | None = None,
    machine_id: str = "m",
    most: int = MAX_CONNECTIONS,
    run: str = "",
) -> AsyncIterator[FleetConnection]:
    connection, started = await connect(url), Started()
    serving = asyncio.ensure_future(
        MachineServer(connection, machine_id, Backend(on_call), take=take, run=run, most=most).serve(
            task_status=started
        )
    )
    await started.event.wait()
    try:
        yield connection
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        await connection.client.close()


@asynccontextmanager
async def gateway_to(fleet: FleetConnection) -> AsyncIterator[Gateway]:
    named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), ["m"])
    gateway = Gateway(fleet, named, choose, load_settings({}))
    yield gateway
    await gateway.close()


def program(command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def result(content: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=content)])


async def test_a_machine_asks_the_model_and_the_roots_of_the_client(engine: Running, fleet: FleetConnection) -> None:
    async def on_call(context: sdk.Context, _: types.CallToolRequestParams) -> types.CallToolResult:
        related = ServerMessageMetadata(related_request_id=context.request_id)
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="2+2?"))
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=10)
        request = types.CreateMessageRequest(params=params)
        sampled = await context.session.send_request(request, types.CreateMessageResult, metadata=related)
        roots = await context.session.send_request(types.ListRootsRequest(), types.ListRootsResult, metadata=related)
        return result(f"{getattr(sampled.content, 'text', '')} {roots.roots[0].uri}")

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        assert getattr(params.messages[0].content, "text", "") == "2+2?"
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(type="text", text="4"), model="the client's"
        )

    async def roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///here")])

    async with backend_machine(engine.url, on_call), gateway_to(fleet) as gateway:
        transport = InMemoryTransport(gateway.server())
        async with Client(transport, mode="legacy", sampling_callback=sample, list_roots_callback=roots) as client:
            reply = await client.call_tool("any", {})
    assert getattr(reply.content[0], "text", "") == "4 file:///here"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_progress_arrives_before_the_result_and_in_order(
    engine: Running, fleet: FleetConnection, mode: str
) -> None:
    async def on_call(context: sdk.Context, _: types.CallToolRequestParams) -> types.CallToolResult:
        for number in range(200):
            await context.session.report_progress(number, 200, f"step {number}")
        return result(principal())

    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)

    async with (
        backend_machine(engine.url, on_call),
        gateway_to(fleet) as gateway,
        Client(InMemoryTransport(gateway.server()), mode=mode) as client,
    ):
        replies = await asyncio.gather(
            *(client.call_tool("any", {}, progress_callback=note if number == 3 else None) for number in range(8))
        )
    assert seen == [*range(200)]
    assert {getattr(reply.content[0], "text", "") for reply in replies} == {"local"}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_at_a_machine_that_was_started_again_fails_at_once(
    engine: Running, fleet: FleetConnection, mode: str
) -> None:
    """Within its lease, so that it was never gone: nothing but the silence of the old process would show it."""
    called, go_on = {"old": asyncio.Event(), "new": asyncio.Event()}, asyncio.Event()

    async def on_call(_: sdk.Context, request: types.CallToolRequestParams) -> types.CallToolResult:
        called[str((request.arguments or {})["prompt"])].set()
        await go_on.wait()
        made = {"sessionId": str(uuid.uuid4()), "status": "running"}
        return types.CallToolResult(content=result("done").content, structured_content=made)

    def begin(client: Client, prompt: str) -> "asyncio.Future[types.CallToolResult]":
        return asyncio.ensure_future(client.call_tool("claude_create_session", {"prompt": prompt}))

    named = NamedFleet(await fleet.jetstream.key_value(names.SESSIONS), [])
    named.set_machines(["m"], run="first")
    gateway = Gateway(fleet, named, choose, load_settings({}))
    following = asyncio.ensure_future(gateway.follow_machines())
    async with asyncio.timeout(HANG_SECONDS), Client(InMemoryTransport(gateway.server()), mode=mode) as client:
        async with backend_machine(engine.url, on_call, run="first"):
            old = begin(client, "old")
            await called["old"].wait()
            named.set_machines(["m"], run="second")
            lost = await old
            assert lost.is_error
            assert "lost" in getattr(lost.content[0], "text", "")
        async with backend_machine(engine.url, on_call, run="third"):
            new = begin(client, "new")
            await called["new"].wait()
            named.set_machines(["m"], run="third")  # it is known later than it has answered
            go_on.set()
            assert not (await new).is_error
    following.cancel()
    await gateway.close()


async def test_a_session_of_a_machine_that_is_gone_is_taken_over_at_its_next_message(
    engine: Running, fleet: FleetConnection
) -> None:
    session, elsewhere, refusing = str(uuid.uuid4()), str(uuid.uuid4()), str(uuid.uuid4())
    sessions = await fleet.jetstream.key_value(names.SESSIONS)
    for id_ in (session, elsewhere, refusing):
        await sessions.put(id_, b'{"machine": "gone"}')
    taken: list[tuple[str, str]] = []

    async def take(session_id: str, principal: str) -> Taken:
        taken.append((session_id, principal))
        if session_id == refusing:
            raise SessionBusy("its tree is not complete")
        await sessions.put(session_id, b'{"machine": "m"}')
        if session_id == elsewhere:  # another gateway was faster, and asked this machine as well
            raise SessionBusy("held by m")
        return Taken("a turn", "no repository")

    async def on_call(_: sdk.Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        acknowledged = {"sessionId": session, "status": "running"}
        return types.CallToolResult(content=result("sent").content, structured_content=acknowledged)

    async with (
        backend_machine(engine.url, on_call, take),
        gateway_to(fleet) as gateway,
        Client(InMemoryTransport(gateway.server())) as client,
    ):
        looked_at = await client.call_tool("claude_get_status", {"sessionId": session})
        assert looked_at.is_error
        assert not taken, "who only looks at a session does not move it"
        for id_ in (session, elsewhere):
            sent = await client.call_tool("claude_send_message", {"sessionId": id_, "message": "x"})
            assert getattr(sent.content[0], "text", "") == "sent"
            announced = (
                (sent.structured_content or {}).get("lostTurn"),
                (sent.structured_content or {}).get("withoutTree"),
            )
            lost = {"code": "machine_lost", "detail": "a turn"}
            assert announced == ((lost, "no repository") if id_ == session else (None, None))
        refused = await client.call_tool("claude_send_message", {"sessionId": refusing, "message": "x"})
    assert taken == [(id_, "local") for id_ in (session, elsewhere, refusing)]
    assert refused.is_error
    assert "tree" in getattr(refused.content[0], "text", "")


async def test_cancelled_call_with_unread_notifications_does_not_block_others(
    engine: Running, fleet: FleetConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection carries the calls of others too."""
    monkeypatch.setattr(machine_link, "_MAX_WAITING", 10)
    announced = asyncio.Event()

    async def on_call(context: sdk.Context, request: types.CallToolRequestParams) -> types.CallToolResult:
        for number in range(100 if request.name == "many" else 0):
            await context.session.report_progress(number, None, "step")
        return result("done")

    async def refuse_all(_: list[machine_link.Notification]) -> None:
        announced.set()
        await asyncio.Event().wait()

    class SilentClient:
        async def notify(self, method: str, params: Any) -> None: ...

        async def request(self, exchange: object, method: str, params: Any) -> dict[str, Any]:
            raise AssertionError

    async with (
        asyncio.timeout(HANG_SECONDS),
        backend_machine(engine.url, on_call),
        machine_link.open_link(fleet.client, "m", "m", "local", (), SilentClient()) as link,
    ):
        await link.request("initialize", json.loads(INITIALIZE)["params"])
        link.notify("notifications/initialized", {})
        params = {"name": "many", "arguments": {}, "_meta": {"progressToken": 1}}
        many = asyncio.ensure_future(link.request("tools/call", params, notified=refuse_all))
        await announced.wait()
        await until_true(lambda: any(len(each._waiting) == 10 for each in link._exchanges.values()))
        many.cancel()
        answer = await link.request("tools/call", {"name": "one", "arguments": {}})
    assert answer["content"][0]["text"] == "done"


async def test_connection_of_a_departed_client_is_not_waited_for(engine: Running, fleet: FleetConnection) -> None:
    client = GatewayClient(fleet.client, "local", lambda: (), None)
    opening = asyncio.ensure_future(client.link(NamedMachine("m")))
    await asyncio.sleep(0)  # it waits, and what opens the connection has not begun
    client.close()
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(MachineUnavailable):
            await opening
        with pytest.raises(MachineUnavailable):
            await client.link(NamedMachine("m"))
        await client.closed()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (b"", "cannot be parsed"),
        (b"[]", "cannot be parsed"),
        (b'{"protocol": 0}', "version 1"),
        (opening_request("a.b", "ann"), "cannot be parsed"),
        (opening_request("c1", ""), "principal name is missing"),
        (opening_request("c1", "ann", ["x"]), "nobody of x is let in"),
    ],
)
async def test_a_machine_refuses_what_it_cannot_understand(
    engine: Running, fleet: FleetConnection, asked: bytes, reason: str
) -> None:
    async def on_call(_: sdk.Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        raise AssertionError

    async with backend_machine(engine.url, on_call):
        reply = await fleet.client.request(names.opening("m"), asked, timeout=HANG_SECONDS)
    assert reason in refusal_in(reply.data)


async def test_one_caller_cannot_use_up_all_connections(engine: Running, fleet: FleetConnection) -> None:
    async def on_call(_: sdk.Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        raise AssertionError

    async def opened(principal: str) -> str:
        asked = opening_request(uuid.uuid4().hex, principal)
        return refusal_in((await fleet.client.request(names.opening("m"), asked, timeout=HANG_SECONDS)).data)

    async with backend_machine(engine.url, on_call, most=8):
        assert [await opened("mallory") for _ in range(2)] == ["", ""]
        assert "mallory has reached its limit of 2 connections" in await opened("mallory")
        assert [await opened(name) for name in ("alice", *["local"] * 5)] == [""] * 6
        assert "8 connections" in await opened("bob")


@pytest.mark.soak
async def test_call_fails_with_reason_when_its_machine_is_killed(
    engine: Running, fleet: FleetConnection, model: ScriptedModelThread, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tests.plugins.fleet.programs", "machine", engine.url, "m"]
    state = {"CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state"), "PYTHONPATH": ROOT}
    with program(command, {**environment, **state}) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            async with gateway_to(fleet) as gateway, Client(InMemoryTransport(gateway.server())) as client:
                prompt = script("go", text("word " * 20, chunks=20, until=str(sandbox.root / "never")))
                made = await call(client, "claude_create_session", prompt=prompt, workingDirectory=str(sandbox.project))
                waiting = asyncio.ensure_future(
                    client.call_tool("claude_get_status", {"sessionId": made["sessionId"], "waitSeconds": 50})
                )
                # Answered behind it on the same connection: the machine has it.
                await call(client, "claude_get_status", sessionId=made["sessionId"])
                process.kill()
                refused = await waiting
        finally:
            process.kill()
    assert refused.is_error
    assert refused.structured_content is not None
    problem = refused.structured_content["error"]
    assert problem["code"] == "UPSTREAM_UNAVAILABLE"
    assert "lost" in problem["message"]


@pytest.mark.skipif(sys.platform == "win32", reason="sockets of POSIX")
async def test_a_gateway_serves_the_clients_of_a_shared_socket(
    engine: Running, fleet: FleetConnection, tmp_path: Path
) -> None:
    async def on_call(_: sdk.Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        return result(f"for {principal()}")

    where = Place(str(tmp_path), "gateway")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(where.socket)
        listener.listen()
        async with backend_machine(engine.url, on_call), gateway_to(fleet) as gateway:
            shared = SharedSocket(listener, where)
            running = asyncio.ensure_future(shared.run())
            shared.open(gateway, dict, {})
            reader, writer = await asyncio.open_unix_connection(where.socket)

            async def ask(line: bytes) -> dict[str, Any]:
                writer.write(line)
                async with asyncio.timeout(HANG_SECONDS):
                    return dict(json.loads(await reader.readline()))

            hello = Hello(directory="/", environment={}, fingerprint="f", identity="i")
            await ask(hello.line())
            begun = await ask(INITIALIZE)
            assert begun["result"]["serverInfo"]["name"] == "claude-code-mcp"
            writer.write(INITIALIZED)
            answer = await ask(encode_message("tools/call", 2, name="any", arguments={}))
            assert answer["result"]["content"][0]["text"] == "for local"
            writer.close()
            shared.end()
            await running


async def test_machine_that_sends_no_rows_is_not_polled_forever(engine: Running, fleet: FleetConnection) -> None:
    asked: list[Any] = []

    async def on_call(_: sdk.Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        asked.append(params.arguments)
        return types.CallToolResult(content=[], structured_content={"sessions": [], "nextOffset": 1})

    async with (
        backend_machine(engine.url, on_call),
        gateway_to(fleet) as gateway,
        Client(InMemoryTransport(gateway.server()), mode="legacy") as client,
        asyncio.timeout(HANG_SECONDS),
    ):
        listed = await client.call_tool("claude_list_sessions", {})
    assert not listed.is_error
    assert len(asked) == 1
