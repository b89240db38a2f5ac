"""`run` in scripts and pipes: what is piped in, questions that nobody can answer, signals, an API that is not there."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.client.connections import Target, ask_shared
from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, plan, question, script, tool
from tests.conftest import RUN
from tests.core.sessions.support import ENDLESS
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.plugins.console.console_client import Browser
from tests.startup.shared.support import SharedPlace, shared_place
from tests.support.ports import free_port
from tests.support.repositories import git, repository
from tests.support.waiting import until

from .conftest import is_posix
from .test_running_sessions import Running, place, started

__all__ = ["place"]  # a fixture for the tests here too

if is_posix():
    from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(not is_posix(), reason="sockets, signals and terminals of POSIX")


def piped(shared: SharedPlace, text: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command behind a pipe that holds this text."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        code, out, err = Running(shared, *arguments, stdin=source).finished()
    return subprocess.CompletedProcess(list(arguments), code, out, err)


def prompt_of(shared: SharedPlace, session_id: str) -> str:
    return str(json.loads(shared.command("show", session_id, "--transcript", "--json").stdout)[0]["transcript"])


def test_piped_input_is_appended_to_the_prompt_or_replaces_it(place: SharedPlace) -> None:
    answer = piped(place, script("a diff of 3 lines", "Looks good."), "run", "--json", "Review this:")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["result"] == "Looks good."
    transcript = prompt_of(place, report["sessionId"])
    assert "Review this:" in transcript
    assert "a diff of 3 lines" in transcript
    alone = piped(place, script("All of it.", "Read.\nAll."), "run")
    assert (alone.returncode, alone.stdout) == (0, "Read.\nAll.\n")
    assert piped(place, "", "run").returncode == 2


def test_input_without_a_writer_is_not_waited_for(place: SharedPlace) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source:
        code, out, err = Running(place, "run", script("Go.", "Went."), stdin=source).finished()
    os.close(writing)
    assert (code, out) == (0, "Went.\n")
    assert "continuing without it" in err


def test_unanswerable_question_is_denied_with_the_flags_that_allow_it(place: SharedPlace) -> None:
    prompt = script("Try.", tool("Bash", command="touch unattended"), "Tried.")
    answer = place.command("run", prompt)
    assert answer.returncode == 4
    assert "Tried." in answer.stdout
    assert "denied" in answer.stderr
    assert "--allow 'Bash(touch unattended *)'" in answer.stderr
    assert not (place.sandbox.project / "unattended").exists()
    allowed = place.command("run", "--allow", "Bash(touch unattended *)", "--allow", "Bash(touch *)", prompt)
    assert allowed.returncode == 0, allowed.stderr
    assert (place.sandbox.project / "unattended").exists()


@pytest.fixture
def signed_in(tmp_path: Path, model: ScriptedModelThread) -> Iterator[tuple[SharedPlace, Browser]]:
    """A server with short questions, and a browser that has signed in at its console and has no page open."""
    sandbox = Sandbox(tmp_path, model.url)
    environment = sandbox.environment(**{RUN: os.environ[RUN], "PERMISSION_TIMEOUT_MS": "700"})
    with shared_place(sandbox, environment) as shared:
        link = json.loads(shared.command("web", "--json").stdout)
        browser = Browser(link["address"].rstrip("/"))
        assert browser.sign_in(ticket=link["url"].partition("#ticket=")[2]).status == 200
        yield shared, browser


@pytest.mark.soak
def test_signed_in_person_without_an_open_page_is_not_waited_for(
    signed_in: tuple[SharedPlace, Browser],
) -> None:
    shared, browser = signed_in
    prompt = script("Try.", tool("Bash", command="touch unattended"), "Tried.")
    answer = shared.command("run", prompt)
    assert answer.returncode == 4, answer.stderr
    assert "waiting for" not in answer.stderr
    assert "denied: no client can answer it" in answer.stderr
    # Who says that it is to wait gets the time of the setting, and no more.
    waited = shared.command("run", "--on-question", "wait", prompt)
    assert "waiting for an answer" in waited.stderr
    assert "Tried." in waited.stdout
    assert browser.get("/api/me").status == 200
    assert not (shared.sandbox.project / "unattended").exists()


def test_only_an_open_page_counts_as_watched(signed_in: tuple[SharedPlace, Browser]) -> None:
    shared, browser = signed_in
    assert ask_shared(shared.environment, "watched") == {"watched": False}
    with browser.stream():
        until(lambda: ask_shared(shared.environment, "watched") == {"watched": True})


@pytest.mark.soak  # a permission is: the test above
@pytest.mark.parametrize(
    "step",
    [plan("# A plan"), pytest.param(ask_user(question("Which?", "a", "b")), marks=pytest.mark.soak)],
    ids=["plan", "question"],
)
def test_plans_and_questions_of_claude_are_denied_too(place: SharedPlace, step: object) -> None:
    answer = place.command("run", "--on-question", "deny", script("Ask.", step, "Went on."))  # type: ignore[arg-type]
    assert answer.returncode == 4
    assert "--on-question wait" in answer.stderr


@pytest.mark.soak
def test_a_person_at_another_terminal_is_waited_for(place: SharedPlace) -> None:
    report = json.loads(place.command("run", "--json", script("Begin.", "Begun.")).stdout)
    with Terminal.ours(["attach", report["sessionId"][:8]], place.environment, place.sandbox.project) as person:
        person.until("Begun.")
        running = Running(place, "run", script("Try.", tool("Bash", command="touch waited"), "Done."))
        session_id = running.stderr.readline().removeprefix("session ").strip()
        while "waiting for a person at another terminal" not in (line := running.stderr.readline()):
            assert line, "it was not waited for"
        assert place.command("answer", session_id, "allow").returncode == 0
        assert running.finished()[0] == 0
        person.type("\x04")
        assert person.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)])
def test_a_signal_ends_the_turn_as_ctrl_c_does(place: SharedPlace, number: signal.Signals) -> None:
    process, session_id = started(place, script("Wait.", tool("Bash", command=ENDLESS)), "--allow", "Bash")
    process.process.send_signal(number)
    code, _, err = process.finished()
    assert code == 128 + number
    assert "Traceback" not in err
    assert json.loads(place.command("show", session_id, "--json").stdout)["status"] == "interrupted"


def test_detached_run_continues(place: SharedPlace) -> None:
    answer = place.command("run", "--detach", script("Go on.", "Went on."))
    assert answer.returncode == 0, answer.stderr
    session_id = answer.stdout.strip()
    sent = place.command("send", session_id, script("More.", "And more."))
    assert (sent.returncode, sent.stdout.splitlines()[-1]) == (0, "And more.")
    assert "Went on." in prompt_of(place, session_id)


def test_a_worktree_of_its_own_is_asked_for(place: SharedPlace) -> None:
    refused = place.command("run", "--worktree", script("There.", "Done."))
    assert refused.returncode == 2
    assert "git" in refused.stderr


@pytest.mark.soak
def test_a_worktree_that_its_server_has_open_is_seen_merged_and_discarded(place: SharedPlace) -> None:
    """Right after the turn, as somebody would who has just read its answer."""
    repo = repository(place.sandbox.root / "repository")
    prompt = script("Work.", tool("Bash", command="echo two > a.txt"), "Done.")
    done = place.command("run", "--worktree", "--cwd", str(repo), "--allow", "Bash", "--json", prompt)
    session_id = json.loads(done.stdout)["sessionId"]
    assert "+two" in place.command("sessions", "diff", session_id).stdout
    assert json.loads(place.command("sessions", "diff", session_id, "--json").stdout)["diff"].count("diff --git") == 1
    refused = place.command("sessions", "merge", session_id)
    assert (refused.returncode, ": a.txt" in refused.stderr) == (2, True)
    refused = place.command("sessions", "discard", session_id)
    assert (refused.returncode, "1 uncommitted file" in refused.stderr) == (2, True), "there is no terminal to ask at"
    assert place.command("sessions", "merge", session_id, "-m", "Two").returncode == 0
    assert (repo / "a.txt").read_text() == "two\n"
    assert place.command("sessions", "discard", session_id).returncode == 0
    assert git(repo, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize("rule", ["Bash(", "Bash()", "", "two rules", "Bash(x) y"])
def test_invalid_rule_is_refused_before_anything_runs(place: SharedPlace, rule: str) -> None:
    for flag in ("--allow", "--deny"):
        answer = place.command("run", flag, rule, script("Never.", "Never."))
        assert answer.returncode == 2
        assert "is not a rule" in answer.stderr
        assert answer.stdout == ""


@pytest.mark.soak  # tests/core/sessions/test_outcomes.py
def test_unreachable_api_is_reported_with_the_attempt(place: SharedPlace) -> None:
    nowhere = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{free_port()}", "CLAUDE_CODE_MAX_RETRIES": "1"}
    answer = place.command("run", "--own", "hello", **nowhere)
    assert answer.returncode == 1
    assert "1 of 1" in answer.stderr


def test_bypass_is_refused_with_the_verb_that_enables_it(place: SharedPlace) -> None:
    refused = place.command("run", "--permission-mode", "bypassPermissions", script("Go.", "Went."))
    assert refused.returncode == 4
    assert "claude-code-mcp bypass on" in refused.stderr
    assert place.command("bypass", "on").returncode == 2, "nobody has said yes"
    assert json.loads(place.command("bypass", "--json").stdout)["allowBypass"] is False
    assert json.loads(place.command("bypass", "on", "--yes", "--json").stdout)["allowBypass"] is True
    assert json.loads(place.command("bypass", "off", "--json").stdout)["allowBypass"] is False


def test_a_usage_limit_has_an_exit_code_of_its_own_and_a_plain_sentence(place: SharedPlace) -> None:
    prompt = script("Work.", limited(time.time() + 3600))
    answer = place.command("run", prompt, **SUBSCRIPTION)
    assert answer.returncode == 6
    last = answer.stderr.splitlines()[-1]
    assert re.search(r"The 5-hour limit is reached; it resets at .*\d\d:\d\d\..*--on-limit wait", last)
    report = json.loads(place.command("run", "--json", prompt, **SUBSCRIPTION).stdout)
    assert (report["status"], report["error"]["code"]) == ("limit_reached", "limit_reached")
    assert report["limit"]["type"] == "five_hour"
    assert "resets at" in place.command("ps").stdout
    costs = place.command("costs").stdout
    assert "Plan: 5-hour 100%, weekly 40% used" in costs


@pytest.mark.soak
def test_run_waits_for_a_usage_limit_and_prints_what_follows(place: SharedPlace) -> None:
    subscribed = SharedPlace(place.sandbox, {**place.environment, **SUBSCRIPTION}, place.runtime)
    prompt = script("Work.", limited(time.time() + 3600, times=1, then="Worked."))
    running, session_id = started(subscribed, prompt, "--on-limit", "wait")
    printed = running.stderr.readline()
    assert printed.startswith("[The 5-hour limit is reached; it resets at ")
    assert "continues at" in printed
    assert re.search(r"^continues +at .*\d\d:\d\d$", place.command("show", session_id).stdout, re.MULTILINE)
    with Target().join(place.environment) as client:
        LiveSessions(client).manage(session_id, "continue")
    code, output, errors = running.finished()
    assert (code, "Worked." in output) == (0, True)
    assert errors.startswith("[the session continues]\n")
