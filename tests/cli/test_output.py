"""Output into pipes and terminals of every kind."""

import json
import os
import subprocess
import sys

import pytest

from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

from .conftest import is_posix, run_into
from .test_commands import run

PROMPT = "Überprüfe … 日本語 😀"


SESSION = "0f3c1e52-7d5b-4f0e-9a86-3d2b7c1a9e10"


def write_session(sandbox: Sandbox, prompt: str, lines: int = 1, session_id: str = SESSION) -> None:
    """A transcript as Claude Code writes it."""
    folder = sandbox.home / ".claude" / "projects" / str(sandbox.project).replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    entry = {
        "type": "user",
        "sessionId": session_id,
        "cwd": str(sandbox.project),
        "timestamp": "2026-11-15T12:00:00.000Z",
        "uuid": "9b2f4a7c-1111-4222-8333-444455556666",
        "message": {"role": "user", "content": prompt},
    }
    (folder / f"{session_id}.jsonl").write_text((json.dumps(entry) + "\n") * lines, encoding="utf-8")


@pytest.mark.skipif(not is_posix(), reason="a shell is needed")
@pytest.mark.parametrize(
    "command", ["config --markdown", "--help", "sessions show 0f3c --lines 5000", "mcp add --help"]
)
def test_a_reader_that_leaves_early_is_no_error(environment: dict[str, str], sandbox: Sandbox, command: str) -> None:
    write_session(sandbox, "a long prompt " * 20, 5000)
    reader, writer = os.pipe()
    os.close(reader)
    assert run_into(writer, environment, *command.split()) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_a_character_gets_it_escaped(
    environment: dict[str, str], sandbox: Sandbox, encoding: str
) -> None:
    write_session(sandbox, PROMPT)
    for arguments in (["sessions", "list"], ["sessions", "show", "0f3c"], ["mcp", "add", "--help"], ["config"]):
        answer = run({**environment, "PYTHONIOENCODING": encoding}, *arguments)
        assert (answer.returncode, answer.stderr) == (0, "")


def test_a_terminal_without_a_language_gets_every_character(environment: dict[str, str], sandbox: Sandbox) -> None:
    write_session(sandbox, PROMPT)
    command = [sys.executable, "-m", "claude_code_mcp", "sessions", "show", "0f3c"]
    plain = {**environment, "LC_ALL": "C", "LANG": "C"}
    answer = subprocess.run(command, env=plain, capture_output=True, timeout=HANG_SECONDS, check=False)
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert PROMPT in answer.stdout.decode()


def test_json_stays_json_in_a_terminal_that_lacks_a_character(environment: dict[str, str], sandbox: Sandbox) -> None:
    write_session(sandbox, PROMPT)
    answer = run({**environment, "PYTHONIOENCODING": "ascii"}, "sessions", "list", "--json")
    assert answer.stdout.isascii()
    (session,) = json.loads(answer.stdout)
    assert session["firstPrompt"] == PROMPT
