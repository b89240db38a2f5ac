"""`claude-code-mcp mcp resources`, `read`, `prompts`, `prompt`, `complete` and `watch`, as typed in a shell."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub.conftest import local

from .conftest import TIMEOUT, Mcp, configure, finish, is_posix, start, until

FULL: dict[str, Any] = {
    "command": sys.executable,
    "args": ["-S", str(Path(__file__).parent.parent / "hub" / "full_server.py")],
}


@pytest.fixture
def full(own_file: Path) -> None:
    configure(own_file, full=FULL)


def test_resources_and_prompts_of_a_server_are_listed(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, full=FULL, plain=local(), gone={"command": "no-such-program"})
    resources = mcp("resources", "full", "plain")
    assert (resources.returncode, resources.stderr) == (0, "")
    assert resources.stdout.splitlines() == [
        "full: 1 resource, 1 template",
        "  full://note  note",
        "  full://notes/{name}  notes",
        "plain: 0 resources, 0 templates",
    ]
    prompts = mcp("prompts", "--json")
    assert prompts.returncode == 1
    assert json.loads(prompts.stdout) == {
        "full": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}],
        "plain": [],
    }
    assert prompts.stderr == "claude-code-mcp: gone: failed: there is no program 'no-such-program'\n"


@pytest.mark.usefixtures("full")
def test_a_resource_is_written_as_it_is_and_prompts_take_texts(mcp: Mcp) -> None:
    assert mcp("read", "full", "full://note").stdout == "This is full://note"
    contents = json.loads(mcp("read", "full", "full://note", "--json").stdout)["contents"]
    assert contents == [{"uri": "full://note", "text": "This is full://note"}]
    assert mcp("prompt", "full", "greet", "who=007").stdout.startswith("user: Greet 007. ")
    completed = mcp("complete", "full", "greet", "who", "A", "other=1")
    assert (completed.returncode, completed.stdout) == (0, "Ada\n")
    assert json.loads(mcp("complete", "full", "full://notes/{name}", "name", "--json").stdout) == {"values": ["da"]}
    watched = mcp("watch", "full", "--timeout", "0", "full://note")
    assert (watched.returncode, watched.stdout) == (0, "")


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["prompt", "full", "great"], 2, "'full' has no prompt 'great'; it has, for example: greet."),
        (["prompt", "full", "greet"], 2, "The prompt 'greet' needs who"),
        (["read", "nobody", "x:y"], 3, "no MCP server called 'nobody'; configured: full"),
    ],
)
def test_missing_objects_are_explained_in_one_line(mcp: Mcp, arguments: list[str], code: int, expected: str) -> None:
    answer = mcp(*arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert expected in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_bytes_stay_bytes_in_a_file(shell: dict[str, str], mcp: Mcp, own_file: Path, packages: Path) -> None:
    server = str(packages / "server-everything" / "dist" / "index.js")
    configure(own_file, every={"command": "node", "args": [server, "stdio"]})
    answer = mcp("read", "every", "demo://resource/dynamic/blob/1")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("Resource 1: This is a base64 blob")


@pytest.mark.usefixtures("full")
async def test_watching_prints_what_the_server_tells(shell: dict[str, str], own_file: Path, tmp_path: Path) -> None:
    if not is_posix():
        pytest.skip("Ctrl-C is a signal here")
    pipe = tmp_path / "say"
    os.mkfifo(pipe)
    recording_server = {"command": sys.executable, "args": ["-S", "-c", _TOLD, str(pipe), FULL["args"][1]]}
    configure(own_file, full=recording_server)
    process = start(shell, "watch", "full", "full://note", "--json")
    with pipe.open("w") as say:  # opens when the server has subscribed
        say.write("now\n")
    line = json.loads(await until(process, "{"))
    assert line == {"method": "notifications/resources/updated", "params": {"uri": "full://note"}}
    process.send_signal(signal.SIGINT)
    code, _, err = await finish(process)
    assert code == 130
    assert err in ("", "claude-code-mcp: watching full; Ctrl-C stops.\n")  # it may have been told before that


@pytest.mark.usefixtures("full")
async def test_watching_ends_silently_when_the_reader_leaves(
    shell: dict[str, str], own_file: Path, tmp_path: Path
) -> None:
    if not is_posix():
        pytest.skip("a pipe by name")
    pipe = tmp_path / "say"
    os.mkfifo(pipe)
    configure(own_file, full={"command": sys.executable, "args": ["-S", "-c", _TOLD, str(pipe), FULL["args"][1]]})
    process = start(shell, "watch", "full", "full://note")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    process.stdout.close()
    with pipe.open("w") as say:
        say.write("now\n")
    with process.stderr as stream:
        err = await asyncio.to_thread(stream.read)
    assert err.decode() == "claude-code-mcp: watching full; Ctrl-C stops.\n"
    assert await asyncio.to_thread(process.wait, TIMEOUT) == 0


_TOLD = """
import runpy, sys, threading
module = runpy.run_path(sys.argv[2])
server, pipe = module["Server"](), sys.argv[1]
take = server.take
def tell():
    open(pipe).read()
    module["send"]({"method": "notifications/resources/updated", "params": {"uri": server.followed[0]}})
def watched(message):
    take(message)
    if message.get("method") == "resources/subscribe":
        threading.Thread(target=tell, daemon=True).start()
server.take = watched
server.run()
"""
