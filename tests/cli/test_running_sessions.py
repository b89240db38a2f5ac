"""The verbs on live sessions, from one process and another, against a shared server and the real CLI."""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from claude_code_mcp.client.connections import Target
from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.core.errors import ExitCode
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, plan, question, script, text, tool
from tests.conftest import RUN
from tests.core.sessions.support import ENDLESS
from tests.startup.shared.support import SharedPlace, shared_place
from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS

from .conftest import is_posix, run_into
from .test_output import write_session

if is_posix():
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(not is_posix(), reason="sockets and terminals of POSIX")

HIDDEN = "safe \u202e\x1b[2K\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[SharedPlace]:
    """One server for all tests here, which serves over HTTP too."""
    sandbox = Sandbox(tmp_path_factory.mktemp("verbs"), model.url)
    token = secrets.token_urlsafe(32)
    environment = sandbox.environment(**{RUN: os.environ[RUN], "CLAUDE_CODE_MCP_TOKEN": token})
    with shared_place(sandbox, environment) as shared:
        started = shared.command("shared", "start", "--json", "--http", "127.0.0.1:0")
        shared.url = json.loads(started.stdout)["http"]  # type: ignore[attr-defined]
        yield shared


class Running:
    """`run` as another process, and the session that it has made."""

    def __init__(self, place: SharedPlace, *arguments: str, stdin: IO[bytes] | None = None) -> None:
        (output, their_output), (errors, their_errors) = os.pipe(), os.pipe()
        with open(os.devnull, "rb") as nothing:
            streams = ((stdin or nothing).fileno(), their_output, their_errors)
            self.process = warm_commands.helper().start(arguments, place.environment, place.sandbox.project, streams)
        os.close(their_output)
        os.close(their_errors)
        self.stdout = os.fdopen(output, encoding="utf-8")
        self.stderr = os.fdopen(errors, encoding="utf-8")

    def finished(self) -> tuple[int, str, str]:
        """Its exit code, and all that it has said since it was last read."""
        with self.stdout, self.stderr, ThreadPoolExecutor(1) as reading:
            output = reading.submit(self.stdout.read)
            errors = self.stderr.read()
            return self.process.wait(HANG_SECONDS), output.result(), errors


def started(place: SharedPlace, prompt: str, *options: str) -> tuple[Running, str]:
    """`run` as another process, and the session that it has made."""
    file = place.sandbox.root / f"prompt-{secrets.token_hex(4)}"  # one may be longer than an argument can be
    file.write_text(prompt, encoding="utf-8")
    with file.open("rb") as source:
        running = Running(place, "run", "--on-question", "wait", *options, "-", stdin=source)
    return running, running.stderr.readline().removeprefix("session ").strip()


def asked(place: SharedPlace, session_id: str) -> dict[str, Any]:
    """The question of a session, once it is asked."""
    with Target().join(place.environment) as client:
        waiting = LiveSessions(client).status(session_id, waitSeconds=50)
    assert waiting["status"] == "waiting_for_input", waiting
    questions = json.loads(place.command("questions", "--json").stdout)
    [entry] = [entry for entry in questions if entry["sessionId"] == session_id]
    return dict(entry)


def test_a_prompt_is_run_to_its_end_and_a_long_result_is_not_cut(place: SharedPlace) -> None:
    """As it is printed for people: `test_unattended_run`."""
    as_json = json.loads(place.command("run", "--json", script("Long.", text("word ", repeat=20_000))).stdout)
    assert as_json["status"] == "completed"
    assert as_json["result"].strip() == ("word " * 20_000).strip()


def test_a_machine_cannot_be_named_where_there_is_no_fleet(place: SharedPlace) -> None:
    answer = place.command("run", "--machine", "north", script("Hello.", "Hello."))
    assert answer.returncode == ExitCode.MISUSE
    assert "fleet" in answer.stderr


@pytest.mark.soak  # test_exit_codes.py, tests/server/test_faults.py
def test_failed_turn_is_recorded(place: SharedPlace) -> None:
    prompt = script("Work.", tool("Bash", command="echo 1"), tool("Bash", command="echo 2"), "never")
    answer = place.command("run", "--max-turns", "1", prompt)
    assert answer.returncode == 1
    assert "max_turns" in answer.stderr


def test_a_session_is_seen_answered_and_shown_from_another_terminal(place: SharedPlace) -> None:
    prompt = script("Run the tool please.", tool("Bash", command="touch answered"), "It is done.")
    process, session_id = started(place, prompt)
    entry = asked(place, session_id)
    listed = place.command("ps").stdout
    row = next(line for line in listed.splitlines() if line.startswith(session_id[:8]))
    assert "waiting_for_input" in row
    assert "Run: touch answered" in row
    shown = place.command("show", session_id[:8]).stdout
    assert "wants to run: touch answered" in shown
    refused = place.command("answer", entry["inputId"], "say", "hi")
    assert refused.returncode == 2
    assert "allow" in refused.stderr, "a permission takes no text as its answer"
    answer = place.command("answer", entry["inputId"][:8], "allow")
    assert answer.returncode == 0
    assert answer.stdout.index("run: touch answered") < answer.stdout.index("Answered: allow.")
    code, out, err = process.finished()
    assert code == 0, err
    assert "It is done." in out
    assert f"answer {entry['inputId']}" in err
    assert (place.sandbox.project / "answered").exists()
    assert "It is done." in place.command("logs", session_id[:8]).stdout
    assert "It is done." in place.command("show", session_id[:8], "--transcript").stdout


@pytest.mark.soak  # shown: test_asking.py; whole: tests/server/test_long_inputs.py
def test_denied_question_was_shown_completely(place: SharedPlace, model: ScriptedModelThread) -> None:
    """Three calls of one session: a denial with its reason, a text that hides something, and more than a question has
    room for."""
    hidden, large = str(place.sandbox.project / "hidden.txt"), str(place.sandbox.project / "large.txt")
    content = "".join(f"line {number}\n" for number in range(40_000))
    calls = [
        tool("Bash", command="touch never"),
        tool("Write", file_path=hidden, content=HIDDEN),
        tool("Write", file_path=large, content=content),
    ]
    process, session_id = started(place, script("Try.", *calls, "Then not."))
    asked(place, session_id)
    assert place.command("answer", session_id[:8], "deny", "not", "on", "Sundays").returncode == 0
    answer = place.command("answer", asked(place, session_id)["inputId"], "deny")
    assert "\\u202e" in answer.stdout
    assert "\x1b" not in answer.stdout
    entry = asked(place, session_id)
    assert entry["toolInput"]["content"] == content
    answer = place.command("answer", entry["inputId"], "deny")
    assert [line for line in answer.stdout.splitlines() if line.startswith("+ ")] == [
        f"+ {line}" for line in content.splitlines()
    ]
    assert process.finished()[0] == 0
    assert not {"never", "hidden.txt", "large.txt"} & {path.name for path in place.sandbox.project.iterdir()}
    results = [result.text for request in model.requests for result in request.tool_results]
    assert any("not on Sundays" in result for result in results)


@pytest.mark.soak
def test_a_question_takes_a_text_for_each_part(place: SharedPlace, model: ScriptedModelThread) -> None:
    prompt = script("Ask.", ask_user(question("Which color?", "red", "blue"), question("How many?", "1", "2")), "ok")
    process, session_id = started(place, prompt)
    entry = asked(place, session_id)
    assert place.command("answer", entry["inputId"], "say", "red").returncode == 2
    assert place.command("answer", entry["inputId"], "allow").returncode == 2
    assert place.command("answer", entry["inputId"], "say", "blue", "as many as there are").returncode == 0
    assert process.finished()[0] == 0
    results = [result.text for request in model.requests for result in request.tool_results]
    assert any("blue" in result and "as many as there are" in result for result in results)


@pytest.mark.soak  # tests/plugins/console/test_sharing.py
def test_a_session_of_this_user_is_shared_and_shown_so_also_by_its_files(place: SharedPlace) -> None:
    made = json.loads(place.command("run", "--json", script("Begin.", "Begun.")).stdout)["sessionId"]
    assert "shared with" not in place.command("sessions", "show", made).stdout
    shared = place.command("sessions", "share", made[:8], "bob", "--access", "answer")
    assert (shared.returncode, shared.stdout) == (0, "bob may answer it.\n"), shared.stderr
    assert place.command("sessions", "show", made).stdout.startswith("[shared with bob (answer)]\n")
    as_json = json.loads(place.command("sessions", "show", made, "--json").stdout)
    assert as_json["sharedWith"] == [{"with": "bob", "access": "answer"}]
    assert place.command("sessions", "unshare", made).returncode == 2, "from nobody is not from everybody"
    assert "bob" in place.command("sessions", "unshare", made[:8], "bob").stdout
    assert place.command("sessions", "unshare", made, "bob").returncode == 0
    assert "sharedWith" not in json.loads(place.command("show", made, "--json").stdout)


@pytest.mark.soak
def test_a_turn_is_interrupted_from_another_terminal_and_the_session_continues(place: SharedPlace) -> None:
    # A title that no other session of this server has: it names the session below.
    process, session_id = started(place, script("Stop me.", tool("Bash", command=ENDLESS)), "--allow", "Bash")
    title = next(
        session["displayText"]
        for session in json.loads(place.command("ps", "--json").stdout)
        if session["sessionId"] == session_id
    )
    answer = place.command("interrupt", title)
    assert answer.returncode == 0, answer.stderr
    assert process.finished()[0] == 130
    sent = place.command("send", session_id[:10], script("And now?", "Going on."))
    assert (sent.returncode, sent.stdout) == (0, "Going on.\n")
    assert place.command("cancel", session_id).returncode == 0
    refused = place.command("send", session_id, "hello")
    assert refused.returncode == 4
    assert "CANCELLED" in refused.stderr


def test_ctrl_c_interrupts_the_turn(place: SharedPlace) -> None:
    process, session_id = started(place, script("Wait.", tool("Bash", command=ENDLESS)), "--allow", "Bash")
    process.process.send_signal(signal.SIGINT)
    code, _, err = process.finished()
    assert code == 130
    assert "Traceback" not in err
    assert json.loads(place.command("show", session_id, "--json").stdout)["status"] == "interrupted"


def test_the_same_over_http_and_not_without_the_token(place: SharedPlace) -> None:
    url = place.url  # type: ignore[attr-defined]
    answer = place.command("run", "--url", url, script("Say it.", "Over HTTP."))
    assert (answer.returncode, answer.stdout) == (0, "Over HTTP.\n")
    assert place.command("ps", "--url", url).returncode == 0
    refused = place.command("ps", "--url", url, "--token", "wrong")
    assert refused.returncode == 4
    assert "401" in refused.stderr
    assert place.command("ps", "--url", "no address at all").returncode == 2
    assert place.command("ps", "--url", "127.0.0.1:9").returncode == 5


@pytest.mark.soak  # test_exit_codes.py has every verb
def test_without_a_server_the_verbs_say_so_and_a_run_has_its_own(
    place: SharedPlace, tmp_path: Path, environment: dict[str, str]
) -> None:
    runtime = tmp_path / "elsewhere"
    runtime.mkdir(mode=0o700)
    elsewhere = {"CLAUDE_CODE_MCP_RUNTIME_DIR": str(runtime)}
    for verb in (["ps"], ["questions"], ["answer", "q-1", "allow"], ["interrupt", "x"], ["cancel", "x"], ["logs", "x"]):
        answer = place.command(*verb, **elsewhere)
        assert answer.returncode == 5
        assert "shared server" in answer.stderr
        assert answer.stderr.startswith(
            "claude-code-mcp: No shared server is running. Start it with `claude-code-mcp shared start`"
        )
        assert "Traceback" not in answer.stderr
    answer = place.command("run", "--own", script("Say it.", "Alone."), **elsewhere)
    assert (answer.returncode, answer.stdout) == (0, "Alone.\n")
    assert not list(runtime.iterdir())


def test_a_name_that_fits_nothing_or_several_is_refused(place: SharedPlace) -> None:
    for number in range(2):
        write_session(place.sandbox, "The same title", session_id=f"0f3c1e5{number}-7d5b-4f0e-9a86-3d2b7c1a9e10")
    several = place.command("show", "The same title")
    assert (several.returncode, "2 matches" in several.stderr) == (3, True)
    for name in ("no such session", "zzzz"):
        answer = place.command("show", name)
        assert (answer.returncode, "No session" in answer.stderr) == (3, True)
    assert place.command("answer", "q-", "allow").returncode == 3
    assert place.command("show", " ").returncode == 2


@pytest.mark.parametrize("verb", ["ps", pytest.param("run", marks=pytest.mark.soak)])
def test_output_that_goes_nowhere_is_no_traceback(place: SharedPlace, verb: str) -> None:
    arguments = [verb, script("Say it.", "Said.")] if verb == "run" else [verb]
    code, errors = run_into(os.open("/dev/full", os.O_WRONLY), place.environment, *arguments)
    assert (code, "Traceback" in errors) == (1, False), errors
    reader, writer = os.pipe()
    os.close(reader)
    code, errors = run_into(writer, place.environment, *arguments)
    assert (code, "Traceback" in errors) == (0, False), errors


@pytest.mark.soak
def test_a_terminal_that_lacks_a_character_gets_it_escaped(place: SharedPlace) -> None:
    answer = place.command("run", script("Sag es …", "日本"), PYTHONIOENCODING="ascii")
    assert answer.returncode == 0
    assert "\\u65e5\\u672c" in answer.stdout
    assert place.command("ps", "--all", PYTHONIOENCODING="latin-1").returncode == 0


# -- on a terminal --------------------------------------------------------------------------------------------


def test_what_is_asked_is_asked_on_the_terminal_and_an_empty_line_is_no_answer(place: SharedPlace) -> None:
    file = place.sandbox.project / "edited.txt"
    file.write_text("one\ntwo\n")
    edit = tool("Edit", file_path=str(file), old_string="one\ntwo\n", new_string="one\nthree\n")
    prompt = script("Edit it.", tool("Read", file_path=str(file)), edit, "Edited.")
    with Terminal.ours(["run", prompt], place.environment, place.sandbox.project) as terminal:
        terminal.type("yes\n")  # before anything is asked
        shown = terminal.until("[d]eny REASON?")
        assert "\x1b[31m     2 - two\x1b[0m" in shown
        assert "\x1b[32m     2 + three\x1b[0m" in shown
        terminal.type("\n")
        terminal.until("Type an answer.")
        terminal.type("perhaps\n")
        terminal.until("is not a valid answer to this question")
        assert file.read_text() == "one\ntwo\n"
        terminal.type("a\n")
        terminal.until("Edited.")
        assert terminal.end() == 0
    assert file.read_text() == "one\nthree\n"


@pytest.mark.soak
def test_a_plan_and_a_question_with_parts_are_answered_on_the_terminal(place: SharedPlace) -> None:
    asks = ask_user(question("Which color?", "red", "blue"), question("Which sizes?", "S", "M", "L", multiple=True))
    prompt = script("Plan.", asks, plan("# The plan\n\nPaint it."), "Painted.")
    with Terminal.ours(
        ["run", "--permission-mode", "plan", prompt], place.environment, place.sandbox.project
    ) as terminal:
        terminal.until("Which color?\r\n  1  red")
        terminal.type("7\n")
        terminal.until("from 1 to 2")
        terminal.type("2\n")
        terminal.until("Which sizes?\r\n  1  S")
        terminal.type("1,3\n")
        terminal.until("Paint it.")
        terminal.until("[a]pprove")
        terminal.type("a\n")
        terminal.until("Painted.")
        assert terminal.end() == 0


@pytest.mark.soak  # tests/plugins/tui/test_stories.py shows it on a screen
def test_a_question_that_is_answered_elsewhere_is_taken_back(place: SharedPlace) -> None:
    prompt = script("Try.", tool("Bash", command="touch elsewhere"), "Went on.")
    with Terminal.ours(["run", prompt], place.environment, place.sandbox.project) as terminal:
        session_id = terminal.until("[d]eny REASON?").split("session ")[1][:36]
        assert place.command("answer", session_id, "allow").returncode == 0
        terminal.until("the question is no longer open")
        terminal.until("Went on.")
        assert terminal.end() == 0


def test_an_attached_terminal_follows_sends_and_leaves(place: SharedPlace) -> None:
    report = json.loads(place.command("run", "--json", script("Begin.", "Begun.")).stdout)
    with Terminal.ours(["attach", report["sessionId"][:8]], place.environment, place.sandbox.project) as terminal:
        terminal.until("Begun.")
        terminal.type(script("More.", tool("Bash", command="touch attached"), "More done.") + "\n")
        terminal.until("[d]eny REASON?")
        terminal.type("allow\n")
        terminal.until("[ok]")
        terminal.until("More done.")
        terminal.type(script("Wait.", tool("Bash", command="echo begun; " + ENDLESS)) + "\n")
        terminal.until("[tool] Run: echo begun")
        terminal.type("\x03")
        terminal.until("interrupting")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert (place.sandbox.project / "attached").exists()


@pytest.mark.soak  # as `run` does on a terminal
def test_answer_without_a_decision_asks(place: SharedPlace) -> None:
    process, session_id = started(place, script("Try.", tool("Bash", command="touch decided"), "Done."))
    asked(place, session_id)
    refused = place.command("answer", session_id)
    assert (refused.returncode, "terminal" in refused.stderr) == (2, True)
    with Terminal.ours(["answer", session_id[:8]], place.environment, place.sandbox.project) as terminal:
        terminal.until("[d]eny REASON?")
        terminal.type("session\n")
        terminal.until("Answered: allow for this session.")
        assert terminal.end() == 0
    assert process.finished()[0] == 0


@pytest.mark.soak
def test_the_list_is_watched_until_ctrl_c(place: SharedPlace) -> None:
    watching = Running(place, "ps", "--watch", "--json", "--all", "--interval", "0.1")
    before = json.loads(watching.stdout.readline())
    report = json.loads(place.command("run", "--json", script("Something new.", "New.")).stdout)
    for line in watching.stdout:
        if report["sessionId"] in {session["sessionId"] for session in json.loads(line)}:
            break
    assert report["sessionId"] not in {session["sessionId"] for session in before}
    watching.process.send_signal(signal.SIGINT)
    code, _, err = watching.finished()
    assert (code, err) == (130, "")
