"""A server that Claude Code is signed in to works under the hub, and neither locks the other out; with the real CLI."""

import asyncio
import json
import os
import re
import stat
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.hub.auth.claude_sign_in import ClaudeSignIn
from claude_code_mcp.hub.auth.file_locks import directory_lock
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.testing import Sandbox
from tests.support.ports import free_port

from .conftest import PATIENCE, StartHub, disconnect, text_of
from .oauth import Authority, Person
from .remote import RemoteServer, http_server

pytest.importorskip("pty", reason="`claude mcp login` needs a terminal")
from tests.support.terminal import Terminal

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/authorize\?[!-~]+&resource=[!-~]+")


@dataclass
class Cli:
    """Claude Code on a private HOME, with one server."""

    directory: Path
    environment: dict[str, str]
    authority: Authority
    url: str
    program: str = field(default_factory=lambda: find_executable(None, {"PATH": ""}))

    @property
    def file(self) -> Path:
        return self.directory / ".credentials.json"

    @property
    def stored(self) -> dict[str, Any]:
        [entry] = json.loads(self.file.read_text())["mcpOAuth"].values()
        assert isinstance(entry, dict)
        return entry

    async def run(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            self.program, *arguments, env=self.environment, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        async with asyncio.timeout(PATIENCE):
            return (await process.communicate())[0].decode()

    async def sign_in(self) -> None:
        """`claude mcp login` in a terminal, with a person who opens the address that it shows."""
        command = [self.program, "mcp", "login", "x", "--no-browser"]
        with Terminal.of(command, {**self.environment, "TERM": "xterm"}) as terminal:
            await asyncio.to_thread(terminal.until, "Waiting")
            address = ADDRESS.search(terminal.shown)
            assert address is not None, terminal.shown
            await Person()(address[0])
            await asyncio.to_thread(terminal.until, "Authenticated")
            assert await asyncio.to_thread(terminal.end) == 0


@pytest.fixture
async def cli(sandbox: Sandbox, environment: dict[str, str]) -> AsyncIterator[Cli]:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        claude = Cli(sandbox.home / ".claude", environment, authority, url)
        await claude.run("mcp", "add", "-s", "user", "-t", "http", "x", url)
        await claude.sign_in()
        yield claude


async def _hub(cli: Cli, start_hub: StartHub, **others: Any) -> Hub:
    hub = await start_hub({"x": {"type": "http", "url": cli.url}}, claude_directory=cli.directory, **others)
    assert isinstance(hub, Hub)
    return hub


@pytest.mark.skipif(sys.platform == "darwin", reason="there it keeps tokens in the keychain")
async def test_a_sign_in_of_claude_code_is_used_renewed_and_given_back(cli: Cli, start_hub: StartHub) -> None:
    hub = await _hub(cli, start_hub)
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    assert cli.authority.grants == ["code"]

    before = cli.stored
    cli.authority.expire()
    calls = await asyncio.gather(*(hub.call("x", "echo") for _ in range(3)))
    assert [text_of(result) for result in calls] == ["echo {}"] * 3
    assert cli.authority.grants == ["code", "refresh"]
    assert cli.stored["refreshToken"] != before["refreshToken"]
    assert {**cli.stored, **{key: before[key] for key in ("accessToken", "refreshToken", "expiresAt")}} == before
    assert stat.S_IMODE(cli.file.stat().st_mode) == 0o600

    assert "Connected" in await cli.run("mcp", "get", "x")
    assert cli.authority.grants == ["code", "refresh"], "Claude Code uses what the hub got"

    cli.authority.expire()
    cli.file.write_text(cli.file.read_text().replace(f'"expiresAt": {cli.stored["expiresAt"]}', '"expiresAt": 1'))
    assert "Connected" in await cli.run("mcp", "get", "x")
    assert cli.authority.grants == ["code", "refresh", "refresh"], "and renews it itself"
    assert text_of(await hub.call("x", "echo")) == "echo {}"
    assert cli.authority.grants == ["code", "refresh", "refresh"]
    assert cli.authority.reuses == 0
    assert not list(cli.directory.glob("*.lock")), "no lock was left behind"
    await disconnect(hub, "x")


def _write(directory: Path, url: str, **entry: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    kept = {"serverName": "x", "serverUrl": url, "accessToken": "theirs", "clientId": "c", **entry}
    (directory / ".credentials.json").write_text(json.dumps({"mcpOAuth": {"x|1": kept}}))


@pytest.mark.parametrize(
    "entry", [{"serverUrl": "http://127.0.0.1:1/other"}, {"serverName": "y"}, {"accessToken": ""}, {"accessToken": 1}]
)
async def test_a_sign_in_for_another_name_or_address_or_none_at_all_is_not_used(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    _write(tmp_path, "http://127.0.0.1:1/mcp", **entry)
    assert await ClaudeSignIn(tmp_path, "x", "http://127.0.0.1:1/mcp").load() is None


@pytest.mark.parametrize("content", ["", "[]", '{"mcpOAuth": 1}', '{"mcpOAuth": {"x|1": 1}}', "[" * 100_000])
async def test_a_file_that_is_not_what_it_should_be_counts_as_no_sign_in(tmp_path: Path, content: str) -> None:
    (tmp_path / ".credentials.json").write_text(content)
    assert await ClaudeSignIn(tmp_path, "x", "http://127.0.0.1:1/mcp").load() is None


async def test_tokens_of_our_own_come_first_and_those_of_claude_code_when_they_are_no_longer_good(
    start_hub: StartHub, tmp_path: Path
) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        hub = await start_hub({"x": {"type": "http", "url": url}}, claude_directory=tmp_path / "claude")
        await hub.authenticate("x", Person())
        theirs = authority._issue("code", next(iter(authority.clients.values())), ["mcp"])
        _write(tmp_path / "claude", url, accessToken=theirs.access_token)
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        authority.refresh.clear()
        authority.access = {theirs.access_token: authority.access[theirs.access_token]}
        assert text_of(await hub.call("x", "echo")) == "echo {}"
        alone = await start_hub({"x": {"type": "http", "url": url}}, uses_claude_sign_ins=False)
        with pytest.raises(UpstreamUnavailable):
            await alone.call("x", "echo")
        await disconnect(hub, "x")


async def test_a_lock_that_was_left_behind_counts_as_released_when_it_is_old(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    async with directory_lock(lock, 1, stale=60):
        with pytest.raises(TimeoutError):
            async with directory_lock(lock, 0.1, stale=60):
                pass
        assert lock.is_dir()
    assert not lock.exists()
    lock.mkdir()
    os.utime(lock, (1, 1))
    async with directory_lock(lock, 1, stale=60):
        pass
    assert not lock.exists()
