"""`claude-code-mcp mcp connect`, on a pipe and in a terminal."""

import asyncio
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.testing import Sandbox
from tests.conftest import programs_below
from tests.hub.conftest import until_file
from tests.hub.oauth import Authority, Person
from tests.hub.remote import RemoteServer, http_server, sse_server, websocket_server
from tests.support import warm_commands
from tests.support.ports import free_port

from .conftest import TIMEOUT, Mcp, finish, is_posix, program, start, until
from .terminal_support import Display


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
        (["stdio", "no-such-program"], 5, "there is no program 'no-such-program'"),
        (["ws", "http://127.0.0.1/"], 2, "begins with ws:// or wss://"),
        (["http", "http://127.0.0.1:1/mcp", "--header", "Authorization: Bearer s3cret"], 5, "is not available"),
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


@pytest.mark.parametrize(
    ("kind", "serve"),
    [("http", http_server), pytest.param("sse", sse_server, marks=pytest.mark.soak), ("ws", websocket_server)],
)
async def test_remote_servers_of_every_kind(shell: dict[str, str], kind: str, serve: Serve) -> None:
    async with serve(RemoteServer()) as url:
        process = start(shell, "connect", kind, url)
        await until(process, "Connected to remote 1")
        assert process.stdin is not None
        process.stdin.write(b"call echo a=1\ncall change\n")
        process.stdin.flush()
        await until(process, "echo {'a': 1}")
        await until(process, "* notifications/tools/list_changed")
        code, out, err = await finish(process, "tools\n")
    assert (code, err) == (0, "")
    assert out.endswith("extra()\n")


async def test_headers_and_variables_reach_the_server(mcp: Mcp) -> None:
    seen: list[Any] = []
    async with sse_server(RemoteServer(), headers=seen) as url:
        answer = await asyncio.to_thread(mcp, "connect", "sse", url, "--header", "X-Team: blue")
        assert answer.returncode == 0
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
    process = start(shell, "connect", "stdio", *program())
    assert process.stdin is not None
    process.stdin.write(f"call wait note={note}\n".encode())
    process.stdin.flush()
    await until_file(note, "waiting")
    [server] = programs_below(process.pid)
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, TIMEOUT) == 130  # with its input still open
    assert note.read_text() == "cancelled"
    assert not server.is_running()
    await finish(process)


class Terminal:
    """A command in a terminal of its own, with somebody who types and reads."""

    def __init__(self, environment: dict[str, str], *arguments: str, term: str = "dumb") -> None:
        """A dumb terminal has the plain loop; others have line editing. This one answers no questions about itself."""
        self._end, theirs = os.openpty()
        self._edits = term != "dumb"
        self._display, self._raw = Display(), ""
        self._seen = 0
        variables = {**environment, "TERM": term, "PROMPT_TOOLKIT_NO_CPR": "1"}
        streams = (theirs, theirs, theirs)
        self.process = warm_commands.helper().start(["mcp", *arguments], variables, None, streams, terminal=True)
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def until(self, wanted: str) -> str:
        """Reads until this is on the screen, behind what was waited for before; the value is all between."""
        deadline = time.monotonic() + TIMEOUT
        while (found := self.shown.find(wanted, self._seen)) < 0:
            readable, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{wanted!r} is not shown behind {self._seen}:\n{self.shown}"
            output = os.read(self._end, 65536).decode()
            self._display.feed(output)
            self._raw += output
        passed, self._seen = self.shown[self._seen : found], found + len(wanted)
        return passed

    @property
    def shown(self) -> str:
        """What stands on the screen where lines are edited, since cursors move there; else all that was written."""
        return self._display.text if self._edits else self._raw

    def close(self) -> None:
        self.process.kill()
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
    terminal.until("name (text): ")
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


# -- with line editing ---------------------------------------------------------------------------------------------


def configure(own_file: Path, **servers: Any) -> None:
    own_file.parent.mkdir(parents=True, exist_ok=True)
    own_file.write_text(json.dumps({"mcpServers": servers}))


FULL = {"command": sys.executable, "args": ["-S", str(Path(__file__).parent.parent / "hub" / "full_server.py")]}


@pytest.fixture
def editing(shell: dict[str, str], own_file: Path) -> Iterator[Callable[[], Terminal]]:
    """Starts `connect full` in a terminal where lines can be edited."""
    if not is_posix():
        pytest.skip("there are no such terminals here")
    configure(own_file, full=FULL)
    running: list[Terminal] = []

    def start_it() -> Terminal:
        running.append(Terminal(shell, "connect", "full", term="xterm"))
        running[-1].until("`help` lists the commands.\n>")
        return running[-1]

    yield start_it
    for each in running:
        each.close()


def test_lines_are_edited_completed_and_found_again(editing: Callable[[], Terminal], sandbox: Sandbox) -> None:
    first = editing()
    first.type("pront\x1b[D\x1b[D\x08mp\x05\x15")  # the line is edited, and then cleared
    first.type("prompt gr\t")
    first.until("prompt greet")
    first.type("wh\t")
    first.until(" who=")
    first.type("A\t")
    first.until("Ada")  # as the server suggests
    first.type("\r")
    first.until('Good day, Ada!"]\n>')
    first.type(" read full://note\r")
    first.until("This is full://note\n>")
    first.type("half a comm\x03\x03")
    first.until("Good bye.")
    assert first.process.wait(TIMEOUT) == 130
    [history] = sandbox.home.rglob("history/full")
    assert history.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line) for line in history.read_text().splitlines()] == ["prompt greet who=Ada"]
    second = editing()
    second.type("\x1b[A")  # the arrow up
    second.until("prompt greet who=Ada")
    second.type("\x7f\x7f\x7fEve\r")
    second.until('Good day, Eve!"]\n>')
    second.type("\x04")
    second.until("Good bye.")
    assert second.process.wait(TIMEOUT) == 0


def test_a_form_has_types_and_choices(editing: Callable[[], Terminal], sandbox: Sandbox) -> None:
    terminal = editing()
    terminal.type("call form\r")
    for wanted, typed in (
        ("first (text):", "Ada"),
        ("second (text):", ""),
        ("colours (several, separated by commas):", "1,blue"),
        ("size (1 to 2):", "huge"),
        ("That does not fit: it is a number from 1 to 2, or one of Small, Large.", ""),
        ("size (1 to 2):", "La\t"),
        ("sure (yes or no):", "y"),
        ("count (a whole number):", "seven"),
        ("count (a whole number):", "7"),
    ):
        terminal.until(wanted)
        if not wanted.startswith("That"):
            terminal.type(f"{typed}\r")
    terminal.until("Send first=Ada, colours=[r, b], size=l, sure=yes, count=7? [y/n]")
    terminal.type("y\r")
    terminal.until('"content": {"first": "Ada", "colours": ["r", "b"], "size": "l", "sure": true, "count": 7}}\n>')
    terminal.type("call address\r")
    terminal.until("It wants you to open https://example.com/sign-in")
    terminal.until("Have you opened it? [y/n]")
    terminal.type("n\r")
    terminal.until('{"action": "decline"}\n>')
    terminal.type("\x04")
    terminal.until("Good bye.")
    assert not any("Ada" in file.read_text() for file in sandbox.home.rglob("history/*")), "answers are kept nowhere"


def test_what_the_server_tells_goes_above_the_line_that_is_edited(editing: Callable[[], Terminal]) -> None:
    terminal = editing()
    terminal.type("call die\r")
    terminal.until("was lost during the call: exited with code 7")
    terminal.type("call ec")
    terminal.until("* connection: connected")
    terminal.until("call ec")  # drawn again below it
    terminal.type("ho a=1\r")
    terminal.until('{"a": 1}\n>')
    terminal.type("\x04")
    terminal.until("Good bye.")


async def test_a_person_signs_in_on_the_way(shell: dict[str, str], mcp: Mcp, own_file: Path) -> None:
    if not is_posix():
        pytest.skip("there are no such terminals here")
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port)) as url:
        configure(own_file, r={"type": "http", "url": url})
        answer = await asyncio.to_thread(mcp, "connect", "r")
        assert (answer.returncode, answer.stdout) == (5, "")
        assert answer.stderr.endswith("run `claude-code-mcp mcp login r`\n")
        terminal = Terminal(shell, "connect", "r")
        try:
            await asyncio.to_thread(terminal.until, "Open this address to sign in to r:\r\n\r\n  ")
            await Person()((await asyncio.to_thread(terminal.until, "\r\n")).strip())
            await asyncio.to_thread(terminal.until, "Connected to remote 1")
            terminal.type("call echo a=1\n")
            await asyncio.to_thread(terminal.until, "echo {'a': 1}")
        finally:
            terminal.close()
        answer = await asyncio.to_thread(mcp, "connect", "r", lines="call echo b=2\n")
        assert answer.returncode == 0
        assert "echo {'b': 2}" in answer.stdout.splitlines(), "from now on no person is needed"


def test_the_kind_may_be_left_out_before_a_name_or_an_address(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, http=FULL)
    answer = mcp("connect", "server", "http", lines="resources\ncomplete greet who A\nwatch full://note 0\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[1:] == ["full://note  note", "full://notes/{name}  notes", "Ada"]
    assert "there are: http" in mcp("connect", "nobody").stderr
    assert "is not available" in mcp("connect", "http://127.0.0.1:1/mcp").stderr
    assert "is not available" in mcp("connect", "ws://127.0.0.1:1/mcp").stderr
