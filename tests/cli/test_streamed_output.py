"""`run`, `send` and `attach` print an answer as it is written, and `attach` shows what other clients send."""

import json
import os
import secrets
import select
from typing import Any

import pytest

from claude_code_mcp.client.connections import CallFailed, McpClient, Target
from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.testing.script import ask_user, parallel, question, script, text, tool
from tests.startup.shared.support import SharedPlace
from tests.support.waiting import HANG_SECONDS

from .conftest import is_posix
from .test_running_sessions import Running, place

__all__ = ["place"]  # a fixture for the tests here too

if is_posix():
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(not is_posix(), reason="sockets and terminals of POSIX")

ANSWER = "One two three four five six seven eight."


def held(place: SharedPlace, answer: str = ANSWER) -> tuple[str, "os.PathLike[str]"]:
    """A prompt whose answer waits before its last words until the file is there."""
    go = place.sandbox.root / f"go-{secrets.token_hex(4)}"
    return script("Count.", text(answer, chunks=4, until=str(go))), go


def read_until(stream: int, wanted: str) -> str:
    """What is in a pipe up to these words; it holds no more than was written."""
    found = b""
    while wanted.encode() not in found:
        assert select.select([stream], [], [], HANG_SECONDS)[0], f"{wanted!r} is not printed: {found!r}"
        chunk = os.read(stream, 1 << 16)
        assert chunk, found
        found += chunk
    return found.decode()


def session_of(place: SharedPlace) -> str:
    return str(json.loads(place.command("run", "--json", script("Begin.", "Begun.")).stdout)["sessionId"])


def test_the_first_words_are_printed_before_the_answer_ends_and_nothing_twice(place: SharedPlace) -> None:
    prompt, go = held(place)
    running = Running(place, "run", prompt)
    first = read_until(running.stdout.fileno(), "One two")
    assert "eight" not in first
    open(go, "w").close()
    code, rest, errors = running.finished()
    assert (code, first + rest) == (0, f"{ANSWER}\n")
    session_id = errors.splitlines()[0].removeprefix("session ")
    last = errors.splitlines()[-1]
    assert last.startswith("[session cost $0.")
    assert f"claude-code-mcp send {session_id[:8]} '…'" in last


def test_lines_calls_and_several_answers_are_printed_in_their_order(place: SharedPlace) -> None:
    answer = "First line,\nsecond \u200bline\n\nthird 日本 👩\u200d🔬 line"
    prompt = script(
        "Work.", parallel(text(answer, chunks=40), tool("Bash", command="printf x")), text("Done, all.", chunks=9)
    )
    done = place.command("run", "--allow", "Bash(printf *)", prompt)
    lines = done.stdout.splitlines()
    assert lines[:4] == ["First line,", "second \\u200bline", "", "third 日本 👩\u200d🔬 line"]
    assert [line[:6] for line in lines[4:-1]] == ["[tool]", "[ok] R"]
    assert lines[-1] == "Done, all."


def test_no_part_of_a_secret_is_printed_while_it_is_written(place: SharedPlace) -> None:
    key = place.environment["ANTHROPIC_API_KEY"]
    prompt, go = held(place, f"First.\nThe key is {key} and more.")
    running = Running(place, "run", prompt)
    first = read_until(running.stdout.fileno(), "The key is")
    open(go, "w").close()
    code, rest, _ = running.finished()
    assert (code, (first + rest).count("The key is")) == (0, 1)
    assert "and more." in rest
    assert not any(key[at : at + 8] in first + rest for at in range(len(key) - 7))


def test_a_program_gets_only_the_report(place: SharedPlace) -> None:
    prompt = script("Work.", text(ANSWER, chunks=9))
    done = place.command("run", "--json", prompt)
    report = json.loads(done.stdout)
    assert (report["result"], "events" in report) == (ANSWER, False)
    assert "continue" not in done.stderr


@pytest.mark.soak
def test_an_answer_that_is_interrupted_ends_its_line(place: SharedPlace) -> None:
    prompt, _ = held(place)
    running = Running(place, "run", prompt)
    session_id = running.stderr.readline().removeprefix("session ").strip()
    first = read_until(running.stdout.fileno(), "One two")
    assert place.command("interrupt", session_id).returncode == 0
    code, rest, errors = running.finished()
    assert code == 130
    assert (first + rest).count("One two") == 1
    assert (first + rest).endswith("\n")
    assert f"send {session_id[:8]}" in errors


def test_an_attached_terminal_shows_what_another_client_sends_and_the_answer_as_it_comes(place: SharedPlace) -> None:
    session_id = session_of(place)
    prompt, go = held(place)
    with Terminal.ours(["attach", session_id[:8]], place.environment, place.sandbox.project) as terminal:
        terminal.until("Begun.")
        keys = terminal.until("\r\n> ")
        assert all(key in keys for key in ("Enter", "Ctrl-C", "Ctrl-D"))
        assert place.command("send", "--no-wait", session_id, prompt).returncode == 0
        assert terminal.until("[another client] Count.") == ""
        terminal.until('"}]\r\n')
        terminal.until("One two")
        open(go, "w").close()
        assert "One" not in terminal.until("eight.\r\n")
        terminal.until("> ")
        terminal.type(script("Mine.", "Yours.") + "\n")
        terminal.until("\r\nYours.")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
        assert terminal.shown.count("[another client]") == 1


@pytest.mark.soak
def test_a_terminal_that_is_attached_in_the_middle_of_a_line_shows_all_of_it(place: SharedPlace) -> None:
    prompt, go = held(place)
    running = Running(place, "run", prompt)
    session_id = running.stderr.readline().removeprefix("session ").strip()
    first = read_until(running.stdout.fileno(), "One two")
    with Terminal.ours(["attach", session_id], place.environment, place.sandbox.project) as terminal:
        terminal.until("Ctrl-D leaves]")
        open(go, "w").close()
        terminal.until(ANSWER)
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert first + running.finished()[1] == f"{ANSWER}\n"


class EarlierServer(McpClient):
    """The server as it was when it had no feed of lines."""

    def __init__(self, client: McpClient) -> None:
        self._client = client

    def close(self) -> None:
        self._client.close()

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        if "lines=1" in str(params.get("uri")):
            raise CallFailed("Unknown resource")
        return self._client.request(method, **params)


def test_a_server_of_an_earlier_version_is_followed_line_by_line(place: SharedPlace) -> None:
    session_id = session_of(place)
    with EarlierServer(Target().join(place.environment)) as client:
        report = next(LiveSessions(client).watch(session_id))
    assert (report["status"], report["recentOutput"]) == ("completed", ["Begun."])


@pytest.mark.soak
def test_a_question_with_choices_is_shown_once(place: SharedPlace) -> None:
    session_id = session_of(place)
    prompt = script("Ask.", ask_user(question("Which color?", ("red", "as a rose"), "blue")), "Painted.")
    with Terminal.ours(["attach", session_id], place.environment, place.sandbox.project) as terminal:
        terminal.until("> ")
        assert place.command("send", "--no-wait", session_id, prompt).returncode == 0
        terminal.until("[another client]")
        terminal.until("[tool]")
        terminal.until("\r\n")
        asked = terminal.until("[d]eny? ")
        assert [asked.count(shown) for shown in ("Which color?", "red", "as a rose", "blue")] == [1, 1, 1, 1]
        terminal.type("2\n")
        terminal.until("Painted.")
        terminal.until("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
