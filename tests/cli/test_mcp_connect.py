"""`claude-code-mcp mcp connect`, on a pipe and in a terminal."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.testing import Sandbox
from tests.conftest import programs_below
from tests.hub.conftest import until_file
from tests.hub.oauth import Authority, Person
from tests.hub.remote import RemoteServer, http_server, sse_server, websocket_server
from tests.support.ports import free_port
from tests.support.terminal import Screen, Terminal

from .conftest import TIMEOUT, Mcp, configure, finish, is_posix, program, start, until


@pytest.mark.soak
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


def test_failing_command_is_reported_and_the_next_one_runs(mcp: Mcp) -> None:
    lines = "nonsense\ncall\ncall refuse\ncall echo {bad\ncall echo 'half\nread\nwatch long\ncall echo a=1"
    answer = mcp("connect", "stdio", "--", *program(), lines=lines)
    assert answer.returncode == 1
    assert answer.stdout.endswith('{"a": 1}\n')
    errors = answer.stderr.splitlines()
    assert len(errors) == 7
    assert all(line.startswith("error: ") for line in errors)
    assert errors[0] == "error: There is no command 'nonsense'; `help` lists them."
    assert errors[2] == "error: The server refused: No such thing"


def test_what_the_server_reports_is_shown_as_it_comes(mcp: Mcp) -> None:
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
        (["stdio", "--env", "s3cret", "x"], 2, "--env needs NAME=VALUE"),
    ],
)
def test_missing_server_is_reported_in_one_line(mcp: Mcp, arguments: list[str], code: int, expected: str) -> None:
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


def connected(environment: dict[str, str], *arguments: str, edits: bool = False) -> Terminal:
    """`mcp connect` in a terminal: a dumb one has the plain loop, others edit lines and move the cursor."""
    more = {"TERM": "xterm" if edits else "dumb", "PROMPT_TOOLKIT_NO_CPR": "1"}  # it answers no cursor reports
    return Terminal.ours(["mcp", "connect", *arguments], {**environment, **more}, view=Screen() if edits else None)


@pytest.fixture
def terminal(shell: dict[str, str]) -> Iterator[Terminal]:
    if not is_posix():
        pytest.skip("there are no such terminals here")
    with connected(shell, "stdio", *program()) as running:
        yield running


def test_in_a_terminal_there_is_a_prompt_and_a_line_that_shows_progress(terminal: Terminal) -> None:
    terminal.until("10 tools")
    terminal.until("`help` lists the commands.\r\n")
    terminal.until("> ")
    terminal.type("call progress\n")
    terminal.until("\r\x1b[K[####################] 3/3 step 3")
    terminal.until("> ")
    terminal.type("quit\n")
    terminal.until("Goodbye.")
    assert terminal.process.wait(TIMEOUT) == 0


def test_ctrl_c_gives_up_a_call_and_then_ends_the_client(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("> ")
    [server] = programs_below(terminal.process.pid)
    terminal.type("call ask\n")
    terminal.until("name (text): ")
    terminal.type("\x03")
    terminal.until("Cancelled.\r\n")
    terminal.until("> ")
    terminal.type("call echo a=1\n")
    terminal.until('{"a": 1}')
    terminal.until("> ")
    terminal.type("half a comm\x03")
    terminal.until("Goodbye.")
    assert terminal.process.wait(TIMEOUT) == 130
    assert not server.is_running()


def test_ctrl_d_ends_it(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("\x04")
    terminal.until("Goodbye.")
    assert terminal.process.wait(TIMEOUT) == 0


# -- with line editing ---------------------------------------------------------------------------------------------


FULL = {"command": sys.executable, "args": ["-S", str(Path(__file__).parent.parent / "hub" / "full_server.py")]}


@pytest.fixture
def editing(shell: dict[str, str], own_file: Path) -> Iterator[Callable[[], Terminal]]:
    """Starts `connect full` in a terminal where lines can be edited."""
    if not is_posix():
        pytest.skip("there are no such terminals here")
    configure(own_file, full=FULL)
    with ExitStack() as stack:

        def start_it() -> Terminal:
            started = stack.enter_context(connected(shell, "full", edits=True))
            started.until("`help` lists the commands.\n>")
            return started

        yield start_it


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
    first.until("Goodbye.")
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
    second.until("Goodbye.")
    assert second.process.wait(TIMEOUT) == 0


def test_a_form_has_types_and_choices(editing: Callable[[], Terminal], sandbox: Sandbox) -> None:
    terminal = editing()
    terminal.type("call form\r")
    for wanted, typed in (
        ("first (text):", "Ada"),
        ("second (text):", ""),
        ("colors (several, separated by commas):", "1,blue"),
        ("size (1 to 2):", "huge"),
        ("size (1 to 2):", "La\t"),
        ("sure (yes or no):", "y"),
        ("count (a whole number):", "seven"),
        ("count (a whole number):", "7"),
    ):
        terminal.until(wanted)
        if not wanted.startswith("That"):
            terminal.type(f"{typed}\r")
    terminal.until("Send first=Ada, colors=[r, b], size=l, sure=yes, count=7? [y/n]")
    terminal.type("y\r")
    terminal.until('"content": {"first": "Ada", "colors": ["r", "b"], "size": "l", "sure": true, "count": 7}}\n>')
    terminal.type("call address\r")
    terminal.until("It asks you to open https://example.com/sign-in")
    terminal.until("Have you opened it? [y/n]")
    terminal.type("n\r")
    terminal.until('{"action": "decline"}\n>')
    terminal.type("\x04")
    terminal.until("Goodbye.")
    assert not any("Ada" in file.read_text() for file in sandbox.home.rglob("history/*")), "answers are kept nowhere"


def test_what_the_server_reports_goes_above_the_line_that_is_edited(editing: Callable[[], Terminal]) -> None:
    terminal = editing()
    terminal.type("call die\r")
    terminal.until("was lost during the call: exited with code 7")
    terminal.type("call ec")
    terminal.until("* connection: connected")
    terminal.until("call ec")  # drawn again below it
    terminal.type("ho a=1\r")
    terminal.until('{"a": 1}\n>')
    terminal.type("\x04")
    terminal.until("Goodbye.")


async def test_a_person_signs_in_on_the_way(shell: dict[str, str], mcp: Mcp, own_file: Path) -> None:
    if not is_posix():
        pytest.skip("there are no such terminals here")
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port)) as url:
        configure(own_file, r={"type": "http", "url": url})
        answer = await asyncio.to_thread(mcp, "connect", "r")
        assert (answer.returncode, answer.stdout) == (5, "")
        assert answer.stderr.endswith("run `claude-code-mcp mcp login r`\n")
        with connected(shell, "r") as terminal:
            await asyncio.to_thread(terminal.until, " r:\r\n\r\n  ")
            await Person()((await asyncio.to_thread(terminal.until, "\r\n")).strip())
            await asyncio.to_thread(terminal.until, "remote 1")
            terminal.type("call echo a=1\n")
            await asyncio.to_thread(terminal.until, "echo {'a': 1}")
        answer = await asyncio.to_thread(mcp, "connect", "r", lines="call echo b=2\n")
        assert answer.returncode == 0
        assert "echo {'b': 2}" in answer.stdout.splitlines(), "from now on no person is needed"


def test_the_kind_may_be_left_out_before_a_name_or_an_address(mcp: Mcp, own_file: Path) -> None:
    configure(own_file, http=FULL)
    answer = mcp("connect", "server", "http", lines="resources\ncomplete greet who A\nwatch full://note 0\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[1:] == ["full://note  note", "full://notes/{name}  notes", "Ada"]
    assert "configured: http" in mcp("connect", "nobody").stderr
    assert "is not available" in mcp("connect", "http://127.0.0.1:1/mcp").stderr
    assert "is not available" in mcp("connect", "ws://127.0.0.1:1/mcp").stderr
