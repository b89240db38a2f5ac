"""`claude-code-mcp mcp status`, `tools`, `call`, `login` and `logout`, as typed in a shell, on real servers."""

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.conftest import programs_below
from tests.hub.conftest import local, until_file
from tests.hub.oauth import Authority, Person
from tests.hub.remote import RemoteServer, http_server
from tests.support.ports import free_port

from .conftest import Mcp, Process, configure, finish, is_posix, start, until


def node(packages: Path, server: str, *arguments: str, **entry: Any) -> dict[str, Any]:
    return {"command": "node", "args": [str(packages / server / "dist" / "index.js"), *arguments], **entry}


@pytest.mark.soak  # the interactive client and the hub are always tested with servers from npm
def test_servers_from_npm_are_looked_at_and_called(mcp: Mcp, own_file: Path, packages: Path, tmp_path: Path) -> None:
    memory = node(packages, "server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    configure(own_file, everything=node(packages, "server-everything", "stdio"), memory=memory)
    status = mcp("status")
    assert status.returncode == 0, status.stdout + status.stderr
    rows = {line.split()[0]: line for line in status.stdout.splitlines()}
    assert "connected  mcp-servers/everything 2" in rows["everything"]
    assert rows["memory"].endswith(" 9 tools")
    assert mcp("call", "everything", "get-sum", "a=2", "b=40").stdout == "The sum of 2 and 40 is 42.\n"
    assert mcp("call", "everything", "echo", "message=7").stdout == "Echo: 7\n"
    entity = {"name": "Ada", "entityType": "person", "observations": ["first"]}
    created = mcp("call", "memory", "create_entities", "-", lines=json.dumps({"entities": [entity]}))
    assert created.returncode == 0, created.stderr
    found = mcp("call", "memory", "open_nodes", 'names=["Ada"]', "--json")
    assert json.loads(found.stdout)["structuredContent"]["entities"] == [entity]


def test_progress_goes_to_standard_error_and_the_result_to_standard_output(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, x=local())
    done = mcp("call", "x", "progress")
    assert done.stdout == "progress\n"
    assert done.stderr.splitlines()[-1] == "[####################] 3/3 step 3"
    assert "\r" not in done.stderr


def test_a_tool_that_says_it_failed_ends_with_one(mcp: Mcp, own_file: Path, packages: Path) -> None:
    configure(own_file, everything=node(packages, "server-everything", "stdio"))
    failed = mcp("call", "everything", "get-sum", "a=one", "b=2")
    assert failed.returncode == 1
    assert "Invalid arguments" in failed.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["x", "ech"], 2, "'x' has no tool 'ech'; it has, for example: echo"),
        (["x", "echo", "{bad"], 2, "not JSON"),
        (["x", "echo", "[1]"], 2, "must be a JSON object"),
        (["x", "echo", "word"], 2, "NAME=VALUE"),
        (["nobody", "echo"], 3, "no MCP server called 'nobody'; configured: x, gone, off"),
        (["x", "refuse"], 1, "The server refused: No such thing"),
        (["gone", "echo"], 5, "there is no program 'no-such-program'"),
        (["off", "echo"], 5, "disabled in its configuration"),
        (["x", "wait", "note={tmp}/note", "--timeout", "0.5"], 1, "did not answer within 0.5 s"),
    ],
)
def test_impossible_calls_are_explained_in_one_line(
    mcp: Mcp, own_file: Path, tmp_path: Path, arguments: list[str], code: int, expected: str
) -> None:
    configure(own_file, x=local(), gone={"command": "no-such-program"}, off=local(disabled=True))
    answer = mcp("call", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert (answer.returncode, answer.stdout) == (code, "")
    assert expected in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_values_are_read_as_json_where_no_schema_says_otherwise(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, x=local())
    answer = mcp("call", "x", "echo", "a=1", "b=word", "c=[true]", "d==")
    assert json.loads(answer.stdout) == {"a": 1, "b": "word", "c": [True], "d": "="}


def test_question_during_a_call_is_cancelled_without_input(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, x=local())
    assert json.loads(mcp("call", "x", "ask").stdout) == {"action": "cancel"}


def test_status_waits_only_so_long_and_reports_why(mcp: Mcp, own_file: Path) -> None:
    secret = {"SOME_TOKEN": "s3cret-value"}
    dying = local("-c", "raise SystemExit('bad s3cret-value')", env=secret)
    dying["args"] = dying["args"][-2:]
    configure(own_file, good=local(), hangs=local("hang"), dies=dying, off=local(disabled=True), wrong=7)
    status = mcp("status", "good", "dies", "off", "--connect-timeout", "60")
    assert status.returncode == 1
    rows = {line.split()[0]: line for line in status.stdout.splitlines()}
    assert "connected  a-server 1, protocol 2025-11-25, 10 tools" in rows["good"]
    assert "failed     exited with code 1: bad [redacted]" in rows["dies"]
    assert "disabled   " in rows["off"]
    assert "mcpServers.wrong: " in status.stderr
    assert "pending  " in mcp("status", "hangs", "--connect-timeout", "1").stdout
    assert mcp("status", "good").returncode == 1  # the file still has something wrong in it


def test_tools_of_a_server_that_is_not_there_are_missed_by_name(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, good=local(), gone={"command": "no-such-program"}, off=local(disabled=True))
    answer = mcp("tools", "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["good"][0]["name"] == "echo"
    assert "\n  echo()" in mcp("tools", "good").stdout
    assert re.fullmatch(r"claude-code-mcp: gone: .*'no-such-program'.*\n", answer.stderr)


@pytest.mark.skipif(not is_posix(), reason="Ctrl-C is a signal here")
async def test_ctrl_c_cancels_the_call_and_leaves_no_server(
    shell: dict[str, str], own_file: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    configure(own_file, x=local())
    process = start(shell, "call", "x", "wait", f"note={note}")
    await until_file(note, "waiting")
    [server] = programs_below(process.pid)
    process.send_signal(signal.SIGINT)
    code, _, err = await finish(process)
    assert (code, err) == (130, "")
    assert note.read_text() == "cancelled"
    assert not server.is_running()


async def _until_address(process: Process) -> str:
    return (await until(process, "  http")).strip()


async def test_signing_in_needs_nothing_but_the_address(shell: dict[str, str], mcp: Mcp, own_file: Path) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port)) as url:
        configure(own_file, r={"type": "http", "url": url})
        status = await asyncio.to_thread(mcp, "status")
        assert status.returncode == 1
        assert "needs-auth" in status.stdout
        process = start(shell, "login", "r")
        await Person()(await _until_address(process))
        code, out, err = await finish(process)
        assert (code, err) == (0, "")
        assert " r: remote 1, 4 tools" in out
        assert (await asyncio.to_thread(mcp, "call", "r", "echo")).stdout == "echo {}\n"
        assert (await asyncio.to_thread(mcp, "logout", "r")).returncode == 0
        refused = await asyncio.to_thread(mcp, "call", "r", "echo")
        assert refused.returncode == 5
        assert "sign-in" in refused.stderr
    assert authority.grants == ["code"]


async def test_redirect_address_can_be_pasted_from_another_machine(shell: dict[str, str], own_file: Path) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port)) as url:
        configure(own_file, r={"type": "http", "url": url})
        process = start(shell, "login", "r")
        address = await _until_address(process)
        async with httpx2.AsyncClient() as browser:
            ended = (await browser.get(address)).headers["location"]
        assert ended.startswith(parse_qs(urlsplit(address).query)["redirect_uri"][0])
        code, out, _ = await finish(process, f"https://example.com/?code=1\n{ended}\n")
        assert code == 0
        assert "This address cannot be used" in out
        assert " r: remote 1" in out


async def test_unfinished_sign_in_times_out(mcp: Mcp, own_file: Path) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port)) as url:
        configure(own_file, r={"type": "http", "url": url}, local=local())
        given_up = await asyncio.to_thread(mcp, "login", "r", "--timeout", "1")
        assert given_up.returncode == 5
        assert " 1 s" in given_up.stderr
        refused = await asyncio.to_thread(mcp, "login", "local")
        assert refused.returncode == 2
        assert "'local'" in refused.stderr
