"""Many servers at once: those that are broken or hang neither delay nor break the others."""

import asyncio

import pytest

from .conftest import PATIENCE, StartHub, local, text_of

NEVER = int(10 * PATIENCE * 1000)
"""Milliseconds that no test lasts."""
BROKEN = {
    "absent": {"command": "no-such-program"},
    "mute": local("mute"),
    "hanging": local("hang"),
    "brief": local("brief"),
    "unreachable": {"type": "http", "url": "http://127.0.0.1:9/mcp"},
}


@pytest.mark.soak  # some that hang: the test below
async def test_thirty_servers_of_which_five_are_broken(start_hub: StartHub) -> None:
    good = [f"good{number}" for number in range(25)]
    hub = await start_hub({**BROKEN, **{name: local() for name in good}}, {"mcp_timeout_ms": NEVER})
    async with asyncio.timeout(PATIENCE):  # far less than the time that the hanging ones have
        results = await asyncio.gather(*(hub.call(name, "echo", {"n": name}) for name in good))
    assert [text_of(result) for result in results] == [f'{{"n": "{name}"}}' for name in good]
    states = {status.name: status.state for status in hub.status()}
    assert all(states[name] == "connected" for name in good)
    assert "connected" not in {states[name] for name in BROKEN}
    await asyncio.gather(*(hub.tools(name) for name in good))  # then the lists are here, and not waited for
    tools = await hub.tools(timeout=0.05)
    assert {tool.server for tool in tools} - set(BROKEN) == set(good)
    assert not {tool.server for tool in tools} & {"mute", "hanging"}


async def test_hanging_servers_do_not_delay_others(start_hub: StartHub) -> None:
    hanging = {f"hanging{number}": local("hang") for number in range(4)}
    hub = await start_hub({**hanging, "good": local()}, {"mcp_local_batch": 1, "mcp_timeout_ms": NEVER})
    waiting = asyncio.create_task(hub.connect())
    async with asyncio.timeout(PATIENCE):
        assert text_of(await hub.call("good", "echo")) == "{}"
    waiting.cancel()
