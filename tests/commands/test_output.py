"""Output into pipes and terminals of every kind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox
from tests.support.waiting import HANG_SECONDS

from .conftest import is_posix
from .test_commands import run

PROMPT = "Überprüfe … 日本語 😀"


def write_session(sandbox: Sandbox, prompt: str, lines: int = 1) -> str:
    """A transcript as Claude Code writes it; the value is the id of its session."""
    session_id = "0f3c1e52-7d5b-4f0e-9a86-3d2b7c1a9e10"
    folder = sandbox.home / ".claude" / "projects" / str(sandbox.project).replace("/", "-")
    folder.mkdir(parents=True)
    entry = {
        "type": "user",
        "sessionId": session_id,
        "cwd": str(sandbox.project),
        "timestamp": "2026-11-15T12:00:00.000Z",
        "uuid": "9b2f4a7c-1111-4222-8333-444455556666",
        "message": {"role": "user", "content": prompt},
    }
    (folder / f"{session_id}.jsonl").write_text((json.dumps(entry) + "\n") * lines, encoding="utf-8")
    return session_id


@pytest.mark.skipif(not is_posix(), reason="a shell is needed")
@pytest.mark.parametrize(
    "command", ["config --markdown", "--help", "sessions show 0f3c --lines 5000", "mcp add --help"]
)
def test_a_reader_that_leaves_early_is_no_error(
    environment: dict[str, str], sandbox: Sandbox, tmp_path: Path, command: str
) -> None:
    write_session(sandbox, "a long prompt " * 20, 5000)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        ended = subprocess.run(
            [sys.executable, "-m", "claude_code_mcp", *command.split()],
            env=environment,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")


TERMINALS = [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "LANG": "C"}]


@pytest.mark.parametrize("terminal", TERMINALS, ids=lambda terminal: "-".join(terminal.values()))
def test_a_terminal_that_lacks_a_character_gets_it_escaped(
    environment: dict[str, str], sandbox: Sandbox, terminal: dict[str, str]
) -> None:
    write_session(sandbox, PROMPT)
    for arguments in (["sessions", "list"], ["sessions", "show", "0f3c"], ["mcp", "add", "--help"], ["config"]):
        command = [sys.executable, "-m", "claude_code_mcp", *arguments]
        answer = subprocess.run(
            command, env={**environment, **terminal}, capture_output=True, timeout=HANG_SECONDS, check=False
        )
        assert (answer.returncode, answer.stderr) == (0, b"")


def test_json_stays_json_in_a_terminal_that_lacks_a_character(environment: dict[str, str], sandbox: Sandbox) -> None:
    write_session(sandbox, PROMPT)
    answer = run({**environment, "PYTHONIOENCODING": "ascii"}, "sessions", "list", "--json")
    assert answer.stdout.isascii()
    (session,) = json.loads(answer.stdout)
    assert session["first_prompt"] == PROMPT
