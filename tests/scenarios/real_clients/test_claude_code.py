"""Claude Code itself is a client of this server: a session of its own drives other sessions through it."""

import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.waiting import HANG_SECONDS

from .claude_code import SERVER, conversation, options
from .serving import Served
from .test_typescript_sdk import write_a_note

_GONE_SECONDS = HANG_SECONDS
ON_STDIO = pytest.mark.parametrize("served", ["stdio", pytest.param("http", marks=pytest.mark.soak)], indirect=True)
ON_HTTP = pytest.mark.parametrize("served", [pytest.param("stdio", marks=pytest.mark.soak), "http"], indirect=True)


@pytest.fixture
def claude(served: Served, sandbox: Sandbox, environment: dict[str, str]) -> Iterator[list[str]]:
    """The command that runs Claude Code with this server; afterward nothing may be left in the sandbox."""
    yield [find_executable(None, environment), *options(served, environment, sandbox.root)]
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := running_in(sandbox)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=1)
    assert left == []


def running_in(sandbox: Sandbox) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if home_of(process) == str(sandbox.home)]


def home_of(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get("HOME")
    except (psutil.Error, OSError):
        return None


@pytest.mark.soak  # in a conversation: test_its_host_answers_the_form
@ON_STDIO
def test_one_call_delegates_a_task(claude: list[str], sandbox: Sandbox, environment: dict[str, str]) -> None:
    inner = script("Count.", tool("Bash", command="echo $((6*7)) > answer"), text("The inner session has it."))
    outer = script(
        "Delegate.",
        tool(
            f"mcp__{SERVER}__claude_create_session",
            prompt=inner,
            workingDirectory=str(sandbox.project),
            allowedTools=["Bash"],
            waitSeconds=50,
        ),
        text("It reports: ${tool_result}"),
    )
    said = subprocess.run(
        [*claude, "-p", outer],
        cwd=sandbox.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout
    assert said.startswith("It reports:")
    assert "The inner session has it." in said
    assert (sandbox.project / "answer").read_text() == "42\n"


@pytest.mark.soak  # tests/server/test_dialogs.py
@ON_HTTP
def test_a_question_that_its_host_dismisses_is_answered_by_the_model(
    claude: list[str], sandbox: Sandbox, environment: dict[str, str]
) -> None:
    with conversation(claude, sandbox.project, environment, {"action": "cancel"}) as outer:
        created = outer.use(
            "claude_create_session", prompt=write_a_note(sandbox), workingDirectory=str(sandbox.project)
        )
        session = created["sessionId"]
        waiting = outer.use("claude_get_status", sessionId=session, waitSeconds=50)
        assert waiting["status"] == "waiting_for_input"
        [pending] = waiting["pendingInputs"]
        outer.use("claude_respond", sessionId=session, inputId=pending["inputId"], decision="allow")
        done = outer.use("claude_get_status", sessionId=session, waitSeconds=50)
        assert (done["status"], done["result"]) == ("completed", "Written.")
        assert len(outer.forms) == 1
    assert (sandbox.project / "note").read_text() == "hello"


@ON_STDIO
def test_its_host_answers_the_form(claude: list[str], sandbox: Sandbox, environment: dict[str, str]) -> None:
    answer = {"action": "accept", "content": {"decision": "Allow once"}}
    with conversation(claude, sandbox.project, environment, answer) as outer:
        prompt, place = write_a_note(sandbox), str(sandbox.project)
        done = outer.use("claude_create_session", prompt=prompt, workingDirectory=place, waitSeconds=50)
        assert (done["status"], done["result"]) == ("completed", "Written.")
        [form] = outer.forms
        assert form["mcp_server_name"] == SERVER
        assert "note" in form["message"]
