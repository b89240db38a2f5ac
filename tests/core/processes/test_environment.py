"""What a process inherits: nothing of a session around us, everything it is given, and the mark."""

import pytest

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.processes.environment import DEPTH, MARK, build_environment
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

OUTER = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ACCESS_TOKEN",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_CODE_MESSAGING_SOCKET",
    "CLAUDE_CODE_MESSAGING_TOKEN",
)


@pytest.mark.parametrize("name", OUTER)
def test_variables_of_an_outer_session_are_removed(name: str) -> None:
    assert build_environment({name: "1", "PATH": "/bin"}, {}, "m") == {"PATH": "/bin", MARK: "m", DEPTH: "1"}


def test_the_caller_adds_and_replaces_but_cannot_take_the_mark() -> None:
    built = build_environment({"A": "1", "B": "1"}, {"B": "2", MARK: "forged", DEPTH: "0"}, "m")
    assert built == {"A": "1", "B": "2", MARK: "m", DEPTH: "1"}


def test_inherited_variable_requested_by_the_caller_is_set() -> None:
    assert build_environment({"CLAUDE_CODE_ENTRYPOINT": "cli"}, {"CLAUDE_CODE_ENTRYPOINT": "mine"}, "m") == {
        "CLAUDE_CODE_ENTRYPOINT": "mine",
        MARK: "m",
        DEPTH: "1",
    }


@pytest.mark.soak  # tests/scenarios/security/test_children.py
async def test_a_tool_of_the_real_cli_sees_the_clean_environment(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(extra={"CLAUDE_CODE_SESSION_ACCESS_TOKEN": "outer", "KEPT": "yes"})
    options = SessionOptions(cwd=str(sandbox.project), env={"GIVEN": "too"}, allowed_tools=("Bash",))
    show = tool("Bash", command="echo token=$CLAUDE_CODE_SESSION_ACCESS_TOKEN kept=$KEPT given=$GIVEN")
    turn = await service.create(script("Look.", show, "${tool_result}"), options)
    outcome = await turn.outcome()
    assert outcome.result == "token= kept=yes given=too"
