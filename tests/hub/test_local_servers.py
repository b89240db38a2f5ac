"""Servers that are programs: lazily started, shared, kept, and started again."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from mcp import MCPError

from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.hub.hub import Hub
from tests.support.hub_config import parse_servers
from tests.support.waiting import until_true

from .conftest import PATIENCE, Changes, StartHub, local, make_hub, text_of, until_file
from .test_session_endpoint import Session, text_in

pytestmark = pytest.mark.programs


async def pid(hub: Hub, server: str = "x") -> int:
    return int(text_of(await hub.call(server, "pid")).split()[0])


async def test_server_starts_with_its_first_user(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    assert [(status.state, status.attempt) for status in hub.status()] == [("pending", 0)]
    assert text_of(await hub.call("x", "echo", {"a": None, "b": [1]})) == '{"a": null, "b": [1]}'
    [status] = hub.status()
    assert (status.state, status.protocol_version) == ("connected", "2025-11-25")
    assert status.server_info == {"name": "a-server", "version": "1"}
    assert status.capabilities is not None
    assert status.capabilities["experimental"] == {"claude/channel": {}}


async def test_many_users_at_once_share_one_process_and_one_list(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    await asyncio.gather(*(hub.tools() for _ in range(10)))
    answers = await asyncio.gather(*(hub.call("x", "pid") for _ in range(20)))
    assert len({text_of(answer) for answer in answers}) == 1
    assert text_of(answers[0]).split()[1] == "1"


async def test_tools_have_their_names_in_the_hub_and_lead_back(start_hub: StartHub) -> None:
    hub = await start_hub({"my server": local(excludeTools=["die"])})
    tools = await hub.tools()
    assert "mcp__my_server__echo" in [tool.name for tool in tools]
    assert "mcp__my_server__die" not in [tool.name for tool in tools]
    assert await hub.resolve("mcp__my_server__echo") == ("my server", "echo")
    with pytest.raises(InvalidArgument):
        await hub.call("my server", "die")
    with pytest.raises(InvalidArgument):
        await hub.call("nobody", "echo")


async def test_tools_have_the_names_and_descriptions_that_the_operator_gives_them(start_hub: StartHub) -> None:
    overrides = {"echo": {"name": "say", "description": "Says it."}, "pid": {"name": "big"}, "die": {"name": "gone"}}
    hub = await start_hub({"x": local(toolOverrides=overrides, excludeTools=["die"])})
    tools = {tool.name: tool.tool.description for tool in await hub.tools()}
    assert tools["mcp__x__say"] == "Says it."
    assert [name for name in tools if name in ("mcp__x__echo", "mcp__x__pid", "mcp__x__gone", "mcp__x__die")] == []
    assert text_of(await hub.call("x", "say", {"a": 1})) == '{"a": 1}'
    assert text_of(await hub.call("x", "big")).split()[0].isdecimal(), "the name is that of `pid` now"
    session = Session(hub)
    assert text_in(await session.call("say", b=2)) == '{"b": 2}'
    assert "Unknown tool: echo" in str(await session.call("echo"))
    for name in ("echo", "pid", "die", "gone"):
        with pytest.raises(InvalidArgument):
            await hub.call("x", name)


async def test_what_the_server_refuses_comes_through_as_it_is(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    with pytest.raises(MCPError) as refusal:
        await hub.call("x", "refuse")
    assert (refusal.value.code, refusal.value.data) == (-32602, {"hint": "try again"})


async def test_progress_comes_through(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    seen = []
    done = asyncio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))
        if progress == 3:
            done.set()

    await hub.call("x", "progress", on_progress=report)
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_cancelling_the_caller_cancels_the_call_at_the_server(start_hub: StartHub, tmp_path: Path) -> None:
    hub = await start_hub({"x": local()})
    note = tmp_path / "note"
    call = asyncio.create_task(hub.call("x", "wait", {"note": str(note)}))
    await until_file(note, "waiting")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_file(note, "cancelled")
    assert text_of(await hub.call("x", "echo")) == "{}"


async def test_a_long_result_comes_whole(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    assert len(text_of(await hub.call("x", "big", {"size": 3_000_000}))) == 3_000_000


async def test_lists_are_kept_until_the_server_says_that_they_changed(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    before = await hub.tools()
    assert len(await hub.tools()) == len(before)
    changes = Changes(hub, "x")
    await hub.call("x", "change")
    await changes.until_seen("tools")
    assert len(await hub.tools()) == len(before) + 1
    assert text_of(await hub.call("x", "pid")).split()[1] == "2"


async def test_notifications_of_any_kind_are_heard(start_hub: StartHub) -> None:
    notifications = asyncio.Queue[tuple[str, str, dict[str, object]]]()
    hub = await start_hub({"x": local()}, on_notification=lambda *what: notifications.put_nowait(what))
    await hub.call("x", "custom")
    assert await asyncio.wait_for(notifications.get(), PATIENCE) == (
        "x",
        "notifications/claude/channel",
        {"content": "hello"},
    )


async def test_a_killed_server_fails_the_call_in_flight_and_is_started_again(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = await start_hub({"x": local(), "y": local()})
    first, other = await pid(hub), await pid(hub, "y")
    changes = Changes(hub, "x")
    note = tmp_path / "note"
    call = asyncio.create_task(hub.call("x", "wait", {"note": str(note)}))
    await until_file(note, "waiting")
    os.kill(first, signal.SIGKILL)
    with pytest.raises(UpstreamUnavailable, match="'x' was lost during the call: ended by SIGKILL"):
        await call
    await changes.until_seen("pending")
    await changes.until("connected")
    assert await pid(hub) != first
    assert await pid(hub, "y") == other


async def test_the_last_words_of_a_server_say_why_it_ended(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local(env={"SOME_TOKEN": "secret-value"})})
    reasons = []
    hub.watch("x", lambda what: reasons.append(hub.status("x")[0].reason))
    changes = Changes(hub, "x")
    with pytest.raises(
        UpstreamUnavailable, match=r"'x' was lost during the call: exited with code 7: out of memory, \[redac"
    ):
        await hub.call("x", "die")
    await changes.until("connected")
    assert "exited with code 7: out of memory, [redacted]" in reasons


async def test_a_call_during_the_pause_starts_the_server_at_once(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    for _ in range(3):
        with pytest.raises(UpstreamUnavailable):
            await hub.call("x", "die")
        assert text_of(await hub.call("x", "echo")) == "{}"


@pytest.mark.soak  # when: test_reconnection.py
async def test_a_server_that_never_lasts_is_abandoned(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local("brief")})
    changes = Changes(hub, "x")
    await hub.connect()
    await changes.until("failed")
    assert changes.seen.count("connected") == 5
    assert "code 3" in (hub.status("x")[0].reason or "")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (local("hang"), "no answer within 0.5 s"),
        pytest.param(local("mute"), "no answer within 0.5 s", marks=pytest.mark.soak),  # test_server_pool.py
    ],
)
async def test_a_server_that_never_answers_fails_when_its_time_is_up(
    start_hub: StartHub, entry: dict[str, object], reason: str
) -> None:
    await fails_with(await start_hub({"x": entry}, {"mcp_timeout_ms": 500}), reason)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"command": "no-such-program"}, "there is no program 'no-such-program'"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit('bad day')"]}, "exited with code 1: bad day"),
        ({"command": sys.executable, "cwd": "/no/such/directory"}, "No such file or directory"),
        ({"type": "sdk"}, "there is no server called 'x' in this process"),
    ],
)
async def test_a_server_that_does_not_come_up_fails_with_the_reason(
    start_hub: StartHub, entry: dict[str, object], reason: str
) -> None:
    await fails_with(await start_hub({"x": entry}, {"mcp_timeout_ms": int(PATIENCE * 1000)}), reason)


async def fails_with(hub: Hub, reason: str) -> None:
    with pytest.raises(UpstreamUnavailable) as refusal:
        await hub.call("x", "echo")
    assert reason in refusal.value.message
    assert hub.status()[0].state == "failed"


async def test_garbage_on_stdout_is_skipped(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local("garbage")})
    assert text_of(await hub.call("x", "echo", {"a": 1})) == '{"a": 1}'


async def test_a_disabled_server_is_ended_and_comes_back_when_enabled(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    process = psutil.Process(await pid(hub))
    assert hub.disable("x").state == "disabled"
    with pytest.raises(UpstreamUnavailable, match="disabled manually"):
        await hub.call("x", "echo")
    await asyncio.to_thread(process.wait, PATIENCE)
    assert hub.enable("x").state == "pending"
    assert text_of(await hub.call("x", "echo")) == "{}"


async def test_a_server_disabled_in_its_configuration_is_not_started(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local(disabled=True)})
    assert await hub.tools() == []
    assert hub.status()[0].state == "disabled"
    assert hub.status()[0].reason == "disabled in its configuration"


async def test_reconnecting_makes_a_new_process(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()})
    first = await pid(hub)
    assert (await hub.reconnect("x")).state == "connected"
    assert await pid(hub) != first


def greeted_in(directory: Path) -> list[Path]:
    """A file for every process that hangs since it was greeted."""
    return list(directory.glob("*.greeted"))


async def test_reconnecting_during_an_attempt_restarts_it(start_hub: StartHub, tmp_path: Path) -> None:
    hub = await start_hub({"x": local("hang", f"note={tmp_path}")}, {"mcp_timeout_ms": int(10 * PATIENCE * 1000)})
    waiting = asyncio.create_task(hub.connect())
    await until_true(lambda: len(greeted_in(tmp_path)) == 1)
    again = asyncio.create_task(hub.reconnect("x"))
    await until_true(lambda: len(greeted_in(tmp_path)) == 2)
    assert hub.status("x")[0].state == "pending"
    hub.disable("x")
    assert (await again).state == "disabled"
    await waiting
    assert len(greeted_in(tmp_path)) == 2


async def test_children_get_the_environment_given_to_the_hub(start_hub: StartHub) -> None:
    hub = await start_hub({"x": local()}, child_environment=lambda variables: ({**variables, "MARK": "1"}, ""))
    assert psutil.Process(await pid(hub)).environ()["MARK"] == "1"


async def test_leaving_the_hub_ends_every_process_and_reports_who_waits(tmp_path: Path) -> None:
    async with make_hub(tmp_path, {"x": local(), "y": local("hang", f"note={tmp_path}")}) as hub:
        process = psutil.Process(await pid(hub))
        waiting = asyncio.create_task(hub.call("y", "echo"))
        await until_true(lambda: greeted_in(tmp_path))
    with pytest.raises(UpstreamUnavailable, match="closing"):
        await waiting
    assert not process.is_running()


async def test_a_hub_whose_entering_is_cancelled_leaves_no_task(tmp_path: Path) -> None:
    hub = make_hub(tmp_path, {"x": local()})
    entering = asyncio.create_task(hub.__aenter__())
    while hub._running is None:  # noqa: ASYNC110 - no later: its task must not have begun
        await asyncio.sleep(0)
    entering.cancel()
    await asyncio.wait([entering], timeout=PATIENCE)
    assert entering.cancelled()
    try:
        assert hub._running.done()
    finally:
        hub._closing.set()


async def test_a_changed_configuration_replaces_a_server_and_the_same_one_keeps_its_connection(
    start_hub: StartHub,
) -> None:
    hub = await start_hub({"x": local()})
    first = await pid(hub)
    hub.replace(parse_servers({"x": local()}, {}).servers["x"])
    assert await pid(hub) == first
    hub.replace(parse_servers({"x": local(env={"A": "b"})}, {}).servers["x"])
    assert await pid(hub) != first
    hub.remove("x")
    assert hub.servers == ()
