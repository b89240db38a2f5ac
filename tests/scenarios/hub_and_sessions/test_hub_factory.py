"""Which servers the hub has: the server and the commands give one answer."""

import argparse
import asyncio
import itertools
import json
import threading
from collections.abc import Collection, Iterable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from claude_code_mcp.cli.mcp.configure import load_configuration
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.hub.client_hubs import Hubs
from claude_code_mcp.hub.config_changes import HubSource
from claude_code_mcp.hub.config_files import HubConfig
from claude_code_mcp.hub.factory import hub_configuration
from claude_code_mcp.hub.server_memory import ServerMemory
from claude_code_mcp.testing import Sandbox
from tests.hub.conftest import text_of

from .conftest import LONG, program


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that Claude Code knows by its real path: one server of its own, and two in `.mcp.json`."""
    project = tmp_path / "project"
    project.mkdir()
    checked_in = {name: {"command": name} for name in ("approved", "unapproved")}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": checked_in}))
    known = {"mcpServers": {"local": {"command": "local"}}, "enabledMcpjsonServers": ["approved"]}
    claude = {"mcpServers": {"user": {"command": "user"}}, "projects": {str(project.resolve()): known}}
    (tmp_path / ".claude.json").write_text(json.dumps(claude))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"own": {"command": "own"}}}))
    return project


@pytest.mark.parametrize("extent", ["own", "all"])
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
def test_the_server_and_the_command_agree_on_a_project_that_is_reached_by_a_link(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool, extent: str
) -> None:
    directory = project
    if linked:
        directory = tmp_path / "link"
        directory.symlink_to(project)
    environment = {
        "CLAUDE_CONFIG_DIR": str(tmp_path),
        "CLAUDE_CODE_MCP_HUB": extent,
        "CLAUDE_CODE_MCP_HUB_FILE": str(tmp_path / "mcp.json"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    served = hub_configuration(load_settings(environment), environment, str(directory))
    listed = load_configuration(argparse.Namespace(all=False, project=directory))
    assert served == listed
    usable = {name for name, server in served.servers.items() if server.barred is None}
    assert usable == ({"own"} if extent == "own" else {"own", "local", "approved", "user"})


@pytest.mark.parametrize(("extent", "works"), [("off", True), ("own", True), ("all", False)])
def test_a_directory_that_is_gone_matters_only_to_a_hub_that_reads_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extent: str, works: bool
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    settings = load_settings({}, hub=extent, hub_file=tmp_path / "mcp.json")
    try:
        hub_configuration(settings, {"HOME": str(tmp_path)})
    except InvalidArgument:
        assert not works
    else:
        assert works


def test_a_hub_that_is_off_has_no_servers(project: Path) -> None:
    settings = load_settings({}, hub="off", hub_file=project.parent / "mcp.json")
    assert hub_configuration(settings, {}, str(project)).servers == {}


# -- the hubs of several clients ------------------------------------------------------------------------------


def client(sandbox: Sandbox) -> ClientEnvironment:
    return ClientEnvironment(str(sandbox.project), sandbox.environment(), "one")


async def test_clients_that_come_at_the_same_moment_share_a_hub(sandbox: Sandbox) -> None:
    both, looks = threading.Barrier(2), itertools.count()

    def directories(_: str) -> Collection[str]:
        """Lets two clients read their files side by side: twice two looks each, before either of them has a hub."""
        if next(looks) < 8:
            both.wait(LONG)
        return ()

    settings = load_settings({}, state_dir=sandbox.root / "state", hub_file=sandbox.root / "mcp.json")
    hubs = Hubs(settings, open_to_sessions=directories)
    async with AsyncExitStack() as stack:
        opening = (stack.enter_async_context(hubs.use(client(sandbox))) for _ in range(2))
        one, other = await asyncio.wait_for(asyncio.gather(*opening), LONG)
        assert next(looks) >= 8, "they did not come at the same moment"
        assert one is other
    await hubs.close()


async def test_a_hub_whose_first_client_leaves_while_it_is_opened_serves_the_next(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open, load = asyncio.Event(), asyncio.Event(), ServerMemory.load

    async def held(memory: ServerMemory, keys: Iterable[str]) -> None:
        opening.set()
        await may_open.wait()
        await load(memory, keys)

    monkeypatch.setattr(ServerMemory, "load", held)
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program()}}))
    hubs = Hubs(load_settings({}, state_dir=sandbox.root / "state", hub_file=file))

    async def use() -> str:
        async with hubs.use(client(sandbox)) as hub:
            return text_of(await hub.call("x", "echo", {"a": 1}))

    first = asyncio.create_task(use())
    await asyncio.wait_for(opening.wait(), LONG)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    may_open.set()
    assert await asyncio.wait_for(use(), LONG) == '{"a": 1}'
    await hubs.close()


async def test_a_hub_that_could_not_be_opened_is_opened_for_the_next_client(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, load = [OSError("the disk fails")], ServerMemory.load

    async def fail_once(memory: ServerMemory, keys: Iterable[str]) -> None:
        if failures:
            raise failures.pop()
        await load(memory, keys)

    monkeypatch.setattr(ServerMemory, "load", fail_once)
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program()}}))
    hubs = Hubs(load_settings({}, state_dir=sandbox.root / "state", hub_file=file))
    with pytest.raises(OSError, match="the disk fails"):
        async with hubs.use(client(sandbox)):
            pass
    async with hubs.use(client(sandbox)) as hub:
        assert text_of(await asyncio.wait_for(hub.call("x", "echo", {"a": 1}), LONG)) == '{"a": 1}'
    await hubs.close()


async def test_no_hub_is_opened_for_a_client_that_comes_while_all_are_closed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program()}}))
    hubs = Hubs(load_settings({}, state_dir=sandbox.root / "state", hub_file=file))
    reading, may_read, read = threading.Event(), threading.Event(), HubSource.read

    def read_slowly(source: HubSource) -> HubConfig:
        reading.set()
        may_read.wait(LONG)
        return read(source)

    monkeypatch.setattr(HubSource, "read", read_slowly)

    async def use() -> None:
        async with hubs.use(client(sandbox)):
            pass

    coming = asyncio.create_task(use())
    await asyncio.to_thread(reading.wait, LONG)
    await hubs.close()
    may_read.set()
    for late in (coming, use()):
        with pytest.raises(UpstreamUnavailable, match="closing"):
            await asyncio.wait_for(late, LONG)
    assert not hubs._hubs
