"""What clients write in more than one way: the directory of a session, and whole numbers."""

from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import DIRECTORY_NAMES
from claude_code_mcp.server.tools.arguments import Arguments, checked_arguments
from claude_code_mcp.server.tools.code import ClaudeCode, ReplyArguments, SessionAction
from claude_code_mcp.server.tools.cost_report import CostArguments
from claude_code_mcp.server.tools.list_sessions import ListSessions
from claude_code_mcp.server.tools.query import Query
from claude_code_mcp.server.tools.sessions import CreateSession, GetStatus, Interrupt
from claude_code_mcp.testing.script import script

from .conftest import ToolCaller

ID = "00000000-0000-4000-8000-000000000000"
FIELDS: dict[type[Arguments], tuple[str, dict[str, Any]]] = {
    CreateSession: ("working_directory", {"prompt": "x"}),
    ClaudeCode: ("cwd", {"prompt": "x"}),
    ListSessions: ("project_directory", {}),
    CostArguments: ("project_directory", {}),
}


@pytest.mark.parametrize("model", FIELDS)
@pytest.mark.parametrize("name", DIRECTORY_NAMES)
def test_every_tool_takes_its_directory_by_any_name(model: type[Arguments], name: str) -> None:
    field, rest = FIELDS[model]
    assert getattr(checked_arguments(model, {**rest, name: "/x"}), field) == "/x"
    other = next(each for each in DIRECTORY_NAMES if each != name)
    assert getattr(checked_arguments(model, {**rest, name: "/x", other: "/x"}), field) == "/x"
    assert getattr(checked_arguments(model, {**rest, name: "/x", other: None}), field) == "/x"
    with pytest.raises(InvalidArgument, match=f"{name}|{other}"):
        checked_arguments(model, {**rest, name: "/x", other: "/y"})


def test_the_options_of_a_query_take_it_too_and_other_tools_take_none() -> None:
    query = checked_arguments(Query, {"prompt": "x", "options": {"workingDirectory": "/x"}})
    assert query.options is not None
    assert query.options.cwd == "/x"
    with pytest.raises(InvalidArgument, match="cwd: unknown field"):
        checked_arguments(Interrupt, {"sessionId": ID, "cwd": "/x"})


@pytest.mark.parametrize("model", [Interrupt, ReplyArguments, SessionAction])
def test_a_session_id_is_taken_in_either_case_and_anything_else_is_refused_by_name(model: type[Arguments]) -> None:
    rest = {"prompt": "x"} if model is ReplyArguments else {"action": "get"} if model is SessionAction else {}
    assert checked_arguments(model, {**rest, "sessionId": ID.replace("0", "A")}).model_dump()["session_id"][0] == "a"
    with pytest.raises(InvalidArgument, match="sessionId: is not a session id"):
        checked_arguments(model, {**rest, "sessionId": "the last one"})


def test_a_whole_number_may_have_a_decimal_point() -> None:
    assert checked_arguments(GetStatus, {"sessionId": ID, "outputLines": 2.0}).output_lines == 2
    assert checked_arguments(GetStatus, {"sessionId": ID, "waitSeconds": 2.5}).wait_seconds == 2.5
    for wrong in (2.5, "2", True, float("nan"), float("inf"), 1e300):
        with pytest.raises(InvalidArgument, match="outputLines"):
            checked_arguments(GetStatus, {"sessionId": ID, "outputLines": wrong})


async def test_a_session_is_started_in_it_and_a_refusal_names_what_the_caller_wrote(caller: ToolCaller) -> None:
    where = str(caller.sandbox.project)
    report = await caller.ok("claude_create_session", prompt=script("Say", "${cwd}"), cwd=where, waitSeconds=55)
    assert report["result"] == where
    code, message = await caller.refused("claude_create_session", prompt="x", projectDirectory="/nowhere/at/all")
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("projectDirectory")


async def test_compacting_says_that_it_has(caller: ToolCaller) -> None:
    report = await caller.ok("claude_code", prompt=script("Say hello", "hello"))
    compacted = await caller.ok("claude_code_reply", sessionId=report["sessionId"], prompt="/compact")
    assert "compacted" in compacted["result"]
