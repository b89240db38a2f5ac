"""Who shares a connection, and what is remembered of servers from one hub to the next."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.hub import server_pool
from claude_code_mcp.hub.config_entry import depends_on_directory, for_directory, parse_entry
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.server_memory import ServerMemory
from tests.support.waiting import until_true

from .conftest import PATIENCE, StartHub, make_hub, text_of
from .test_session_endpoint import Session, text_in

FULL_SERVER = str(Path(__file__).parent / "full_server.py")


def full(*arguments: str, **entry: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", FULL_SERVER, *arguments], **entry}


def directories(root: Path) -> tuple[str, str]:
    (root / "one").mkdir()
    (root / "two").mkdir()
    return str(root / "one"), str(root / "two")


async def tool_texts(hub: Hub, tool: str, *places: str) -> list[str]:
    """What sessions in these directories are told by a tool."""
    sessions = [Session(hub, directory=place) for place in places]
    return [text_in(await session.call(tool)) for session in sessions]


DEPENDENT = [
    (["."], True),
    (["--root=./data"], True),
    (["server.py"], True),
    (["data/files"], True),
    (["${workspaceFolder}"], True),
    (["--db", "${PWD}/a.db"], True),
    (["-y", "@modelcontextprotocol/server-memory"], False),
    (["/absolute/server.py"], False),
    (["--url", "https://example.com/x.json"], False),
    (["--verbose", "serve"], False),
]


@pytest.mark.parametrize(("arguments", "expected"), DEPENDENT)
def test_a_relative_path_or_a_reference_makes_a_server_depend_on_the_directory(
    arguments: list[str], expected: bool
) -> None:
    config = parse_entry("x", {"command": "server", "args": arguments}, {"PWD": "/elsewhere"})
    assert depends_on_directory(config) is expected


def test_an_entry_is_completed_for_a_directory() -> None:
    entry = {"command": "server", "args": ["${workspaceFolder}/a", "${HOME}"], "env": {"HERE": "${PWD}"}, "cwd": "sub"}
    config = for_directory(parse_entry("x", entry, {"HOME": "/home/me", "PWD": "/elsewhere"}), "/src/app")
    assert config.model_dump(include={"args", "env", "cwd"}) == {
        "args": ("/src/app/a", "/home/me"),
        "env": {"HERE": "/src/app"},
        "cwd": "/src/app/sub",
    }


def test_images_of_containers_are_no_paths() -> None:
    assert not depends_on_directory(parse_entry("x", {"command": "docker", "args": ["run", "mcp/fetch"]}, {}))


async def test_a_server_with_a_relative_argument_runs_in_the_directory_of_each_session(
    start_hub: StartHub, tmp_path: Path
) -> None:
    one, two = directories(tmp_path)
    hub = await start_hub({"x": full("."), "shared": full()})
    assert await tool_texts(hub, "cwd", one, two, one) == [one, two, one]
    assert len(set(await tool_texts(hub, "pid", one, two, one))) == 2
    shared = [Session(hub, "shared", directory=place) for place in (one, two)]
    assert len({text_in(await session.call("pid")) for session in shared}) == 1


async def test_a_server_that_asks_for_roots_gets_those_of_each_session_from_then_on(
    start_hub: StartHub, tmp_path: Path
) -> None:
    one, two = directories(tmp_path)
    hub = await start_hub({"x": full()})
    first, second = Session(hub, directory=one), Session(hub, directory=two)
    assert text_in(await first.call("pid")) == text_in(await second.call("pid"))
    for session, place in ((first, one), (second, two), (first, one)):
        assert f'"{Path(place).as_uri()}"' in text_in(await session.call("roots"))
    assert text_in(await first.call("pid")) != text_in(await second.call("pid"))


async def test_unused_connection_of_a_directory_is_closed(
    start_hub: StartHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_pool, "_IDLE", 0.0)
    one, _ = directories(tmp_path)
    hub = await start_hub({"x": full(".")})
    session = Session(hub, directory=one)
    first = text_in(await session.call("pid"))
    session.endpoint.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await tool_texts(hub, "pid", one) != [first]


@pytest.mark.parametrize("fault", ["ends", "mute", pytest.param("stuck", marks=pytest.mark.soak)])
async def test_a_server_that_cannot_take_the_probe_is_greeted_with_a_handshake_which_is_remembered(
    tmp_path: Path, fault: str
) -> None:
    starts = tmp_path / "starts"
    code = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.argv = [{FULL_SERVER!r}, {fault!r}]; "
    code += f"exec(open({FULL_SERVER!r}).read())"
    entry = {"x": {"command": sys.executable, "args": ["-S", "-c", code]}}
    for expected in ("xx", "xxx"):
        async with make_hub(tmp_path, entry) as hub:
            await hub.call("x", "echo")
        assert starts.read_text() == expected


@pytest.mark.soak  # nor is the one whose tools are remembered below
async def test_a_slow_server_is_not_mistaken_for_a_mute_one(start_hub: StartHub) -> None:
    hub = await start_hub({"x": full("slow=3")})
    before = text_of(await hub.call("x", "pid"))
    assert hub._memory.traits(hub._find("x").key).handshake_only is False
    assert text_of(await hub.call("x", "pid")) == before


async def test_a_session_has_the_tools_of_the_last_time_while_the_server_starts_and_a_call_waits(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    starting = {"x": full(f"gate={gate}")}
    async with make_hub(tmp_path, starting) as hub:
        await hub.tools(timeout=PATIENCE)
        await until_remembered(hub)
    gate.unlink()
    async with make_hub(tmp_path, starting) as hub:
        session = Session(hub)
        await session.begin()
        assert "echo" in await session.tools()
        call = asyncio.create_task(session.call("echo", word="hi"))
        await asyncio.sleep(0)  # it is under way
        assert (hub.status("x")[0].state, call.done()) == ("pending", False)
        gate.touch()
        assert text_in(await call) == '{"word": "hi"}'


async def until_remembered(hub: Hub) -> None:
    """Waits until another hub would know it: what is learned is written by a thread, which the end of a hub may cut."""
    written = hub._memory._documents
    await until_true(lambda: ServerMemory(written).traits(hub._find("x").key).offer is not None)
