"""What servers without a handshake are asked to tell of, and whether they go on telling."""

import asyncio

import pytest
from mcp.server.subscriptions import ResourceUpdated

from claude_code_mcp.hub import server_changes
from claude_code_mcp.hub.hub import Hub
from tests.support.waiting import until_true

from .conftest import PATIENCE, Changes, StartHub
from .remote import RemoteServer

NOTE = "note://1"


async def publish_change(hub: Hub, remote: RemoteServer) -> None:
    """Waits until the hub hears of a change that the server tells."""
    await until_true(lambda: len(remote.listening._streams) == 1)
    changes = Changes(hub, "x")
    await remote.bus.publish(ResourceUpdated(uri=NOTE))
    await changes.until_seen(f"updated {NOTE}")


async def test_a_stream_of_changes_that_the_server_ends_is_opened_again(
    start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_changes, "_FIRST_PAUSE", 0.0)
    remote = RemoteServer()
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": remote.run})
    await hub.follow("x", NOTE)
    await publish_change(hub, remote)
    before = remote.streams
    remote.listening.close()
    await until_true(lambda: remote.streams > before, "the server was not asked again")
    await publish_change(hub, remote)


async def test_all_who_follow_a_resource_wait_until_the_server_has_agreed(start_hub: StartHub) -> None:
    remote = RemoteServer()
    remote.may_listen.clear()
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": remote.run})
    first = asyncio.create_task(hub.follow("x", NOTE))
    await until_true(lambda: remote.streams)
    second = asyncio.create_task(hub.follow("x", NOTE))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    remote.may_listen.set()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(first, second)
    await publish_change(hub, remote)


async def test_a_resource_is_followed_by_the_second_caller_where_the_first_has_left(start_hub: StartHub) -> None:
    remote = RemoteServer()
    remote.may_listen.clear()
    hub = await start_hub({"x": {"type": "sdk"}}, in_process={"x": remote.run})
    first = asyncio.create_task(hub.follow("x", NOTE))
    await until_true(lambda: remote.streams)
    second = asyncio.create_task(hub.follow("x", NOTE))
    await asyncio.sleep(0)
    first.cancel()
    remote.may_listen.set()
    await asyncio.wait_for(second, PATIENCE)
    await publish_change(hub, remote)
