"""`claude-code-mcp mcp connect`, on a pipe and in a terminal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from ..conftest import programs_below
from ..hub.conftest import until_file
from ..hub.remote import RemoteServer, http_server, sse_server, websocket_server
from .conftest import TIMEOUT, Mcp, command, finish, is_posix, program, start, until


def test_everything_that_a_server_from_npm_offers_can_be_used(mcp: Mcp, packages: Path) -> None:
    server = str(packages / "server-everything" / "dist" / "index.js")
    lines = """
        # blank lines and remarks are skipped
        tools
        call echo message="two words"
        call get-sum {"a": 1, "b": 2}
        resources
        read demo://resource/static/document/features.md
        prompts
        prompt args-prompt city=Oslo
        call trigger-long-running-operation duration=1 steps=2
        quit
        call echo message=never
    """
    answer = mcp("connect", "stdio", "node", server, "stdio", lines=lines)
    assert (answer.returncode, answer.stderr.splitlines()[0]) == (0, "[##########----------] 1/2"), answer.stderr
    for expected in (
        "Connected to mcp-servers/everything 2",
        "echo(message)  Echoes back",
        "\nEcho: two words\n",
        "The sum of 1 and 2 is 3.",
        "demo://resource/dynamic/text/{resourceId}  ",
        "# Everything Server - Features",
        "args-prompt(city, state?)  ",
        "user: What's weather in Oslo?",
    ):
        assert expected in answer.stdout
    assert "never" not in answer.stdout


def test_a_command_that_fails_is_told_and_the_next_one_is_done(mcp: Mcp) -> None:
    lines = "nonsense\ncall\ncall refuse\ncall echo {bad\ncall echo 'half\nread\nwatch long\ncall echo a=1"
    answer = mcp("connect", "stdio", "--", *program(), lines=lines)
    assert answer.returncode == 1
    assert answer.stdout.endswith('{"a": 1}\n')
    errors = answer.stderr.splitlines()
    assert len(errors) == 7
    assert all(line.startswith("error: ") for line in errors)
    assert errors[0] == "error: There is no command 'nonsense'; `help` lists them."
    assert errors[2] == "error: The server refused: No such thing"


def test_what_the_server_tells_is_shown_as_it_comes(mcp: Mcp) -> None:
    answer = mcp(
        "connect",
        "stdio",
        *program(),
        lines="call custom\ncall change\ncall progress\ncall die\ncall echo\nwatch 0.1\n",
    )
    assert '* notifications/claude/channel {"content": "hello"}\n' in answer.stdout
    assert "* notifications/tools/list_changed\n" in answer.stdout
    assert "* notifications/progress" not in answer.stdout
    assert "[####################] 3/3 step 3\n" in answer.stderr
    assert "* connection: pending (" in answer.stdout
    assert "* connection: connected\n" in answer.stdout


@pytest.mark.parametrize(
    ("answers", "result"),
    [
        ("Ada\ny\n", {"action": "accept", "content": {"name": "Ada"}}),
        ("\ny\n", {"action": "accept", "content": {}}),
        ("Ada\nn\n", {"action": "decline"}),
        ("Ada\n", {"action": "cancel"}),
    ],
)
def test_a_question_in_mid_call_is_answered_by_the_next_lines(mcp: Mcp, answers: str, result: dict[str, Any]) -> None:
    answer = mcp("connect", "stdio", *program(), lines=f"call ask\n{answers}")
    asked, _, reply = answer.stdout.partition("The server asks: Your name?\n")
    assert asked
    assert json.loads(reply) == result


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["stdio"], 2, "Which program?"),
        (["stdio", "no-such-program"], 1, "there is no program 'no-such-program'"),
        (["ws", "http://127.0.0.1/"], 2, "begins with ws:// or wss://"),
        (["http", "http://127.0.0.1:1/mcp", "--header", "Authorization: Bearer s3cret"], 1, "is not available"),
        (["stdio", "--env", "s3cret", "x"], 2, "--env wants NAME=VALUE"),
    ],
)
def test_a_server_that_is_not_there_is_told_in_one_line(
    mcp: Mcp, arguments: list[str], code: int, expected: str
) -> None:
    answer = mcp("connect", *arguments)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert expected in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert "s3cret" not in answer.stderr


Serve = Callable[[RemoteServer], AbstractAsyncContextManager[str]]


@pytest.mark.parametrize(("kind", "serve"), [("http", http_server), ("sse", sse_server), ("ws", websocket_server)])
async def test_remote_servers_of_every_kind(shell: dict[str, str], kind: str, serve: Serve) -> None:
    async with serve(RemoteServer()) as url:
        process = await start(shell, "connect", kind, url)
        await until(process, "Connected to remote 1")
        assert process.stdin is not None
        process.stdin.write(b"call echo a=1\ncall change\n")
        await until(process, "echo {'a': 1}")
        await until(process, "* notifications/tools/list_changed")
        code, out, err = await finish(process, "tools\n")
    assert (code, err) == (0, "")
    assert out.endswith("extra()\n")


async def test_headers_and_variables_reach_the_server(shell: dict[str, str], mcp: Mcp) -> None:
    seen: list[Any] = []
    async with sse_server(RemoteServer(), headers=seen) as url:
        process = await start(shell, "connect", "sse", url, "--header", "X-Team: blue")
        assert (await finish(process))[0] == 0
    assert seen[0]["x-team"] == "blue"
    code = "import os, sys; sys.exit(os.environ['NOTE'])"
    answer = await asyncio.to_thread(mcp, "connect", "stdio", "--env", "NOTE=seen", sys.executable, "-c", code)
    assert "exited with code 1: seen" in answer.stderr


def test_the_server_is_gone_after_the_end_of_input(mcp: Mcp) -> None:
    answer = mcp("connect", "stdio", *program(), lines="call pid\n")
    assert answer.returncode == 0
    assert not psutil.pid_exists(int(answer.stdout.splitlines()[-1].split()[0]))


@pytest.mark.skipif(not is_posix(), reason="Ctrl-C is a signal here")
async def test_ctrl_c_on_a_pipe_ends_it_cleanly_in_mid_call(shell: dict[str, str], tmp_path: Path) -> None:
    note = tmp_path / "note"
    process = await start(shell, "connect", "stdio", *program())
    assert process.stdin is not None
    process.stdin.write(f"call wait note={note}\n".encode())
    await until_file(note, "waiting")
    [server] = programs_below(process.pid)
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(TIMEOUT):  # with its input still open
        assert await process.wait() == 130
    assert note.read_text() == "cancelled"
    assert not server.is_running()
    await finish(process)


_IN_THIS_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command in a terminal of its own, with somebody who types and reads."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._end, theirs = os.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _IN_THIS_TERMINAL, *command(*arguments)],
            env={**environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def until(self, wanted: str) -> str:
        """Reads until this is on the screen; what came before it is read no more."""
        deadline = time.monotonic() + TIMEOUT
        while wanted not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.seen += os.read(self._end, 65536).decode()
        before, _, self.seen = self.seen.partition(wanted)
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture
def terminal(shell: dict[str, str]) -> Iterator[Terminal]:
    if not is_posix():
        pytest.skip("there are no such terminals here")
    running = Terminal(shell, "connect", "stdio", *program())
    yield running
    running.close()


def test_in_a_terminal_there_is_a_prompt_and_a_line_that_shows_progress(terminal: Terminal) -> None:
    terminal.until("10 tools")
    terminal.until("`help` lists the commands.\r\n")
    terminal.until("> ")
    terminal.type("call progress\n")
    terminal.until("\r\x1b[K[####################] 3/3 step 3")
    terminal.until("> ")
    terminal.type("quit\n")
    terminal.until("Good bye.")
    assert terminal.process.wait(TIMEOUT) == 0


def test_ctrl_c_gives_up_a_call_and_then_ends_the_client(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("> ")
    [server] = programs_below(terminal.process.pid)
    terminal.type("call ask\n")
    terminal.until("name (string): ")
    terminal.type("\x03")
    terminal.until("Given up.\r\n")
    terminal.until("> ")
    terminal.type("call echo a=1\n")
    terminal.until('{"a": 1}')
    terminal.until("> ")
    terminal.type("half a comm\x03")
    terminal.until("Good bye.")
    assert terminal.process.wait(TIMEOUT) == 130
    assert not server.is_running()


def test_ctrl_d_ends_it(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("\x04")
    terminal.until("Good bye.")
    assert terminal.process.wait(TIMEOUT) == 0
