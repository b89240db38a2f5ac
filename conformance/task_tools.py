"""The tools that the suite's scenarios of tasks call by name.

The scenarios need tools that sleep, fail and ask in a known way. They run as tasks by the same code as ours do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from claude_code_mcp.core.errors import ClaudeCodeError
from claude_code_mcp.server.rounds import RoundState
from claude_code_mcp.server.tasks import missing_capability
from claude_code_mcp.server.tools.arguments import Arguments
from claude_code_mcp.server.tools.call import Call
from claude_code_mcp.server.tools.output import ToolOutput
from claude_code_mcp.server.tools.tool import Reply, Tool


class Output(ToolOutput):
    message: str

    def text(self) -> str:
        return self.message


class Nothing(Arguments):
    pass


class Greet(Arguments):
    name: str


class SlowCompute(Arguments):
    seconds: float
    label: str | None = None


class ConfirmDelete(Arguments):
    filename: str


async def greet(_: Call, arguments: Greet) -> Reply:
    return Output(message=f"Hello, {arguments.name}!")


async def slow_compute(call: Call, arguments: SlowCompute) -> Reply:
    await call.detach()
    await asyncio.sleep(arguments.seconds)
    return Output(message=f"computed {arguments.label}")


async def failing_job(call: Call, _: Nothing) -> Reply:
    """Only for clients that take tasks."""
    await call.detach()
    if not call.detached:
        raise missing_capability()
    raise ClaudeCodeError("The job failed, as it always does.")


async def protocol_error_job(call: Call, _: Nothing) -> Reply:
    await call.detach()
    raise MCPError(types.INTERNAL_ERROR, "The job violated the protocol.")


async def confirm_delete(call: Call, arguments: ConfirmDelete) -> Reply:
    await call.detach()
    return _ask(call, {"confirm": f"Delete {arguments.filename}?"}) or Output(message="deleted")


async def multi_input(call: Call, _: Nothing) -> Reply:
    await call.detach()
    return _ask(call, {"first": "Your name?", "second": "And the other one?"}) or Output(message="both are here")


async def ask_then_work(call: Call, _: Nothing) -> Reply:
    """Asks first, as an ordinary call, and works as a task then."""
    asked = _ask(call, {"user_name": "What is your name?"})
    if asked is not None and not call.detached:
        return asked
    await call.detach()
    return Output(message=f"Hello, {_answers(call)['user_name']['name']}")


def _answers(call: Call) -> dict[str, Any]:
    """What was answered in this round and the ones before it."""
    now = {key: form.content for key, form in call.responses.items() if isinstance(form, types.ElicitResult)}
    return {**call.state.own.get("answers", {}), **now}


def _ask(call: Call, questions: Mapping[str, str]) -> types.InputRequiredResult | None:
    """The questions that have no answer yet."""
    answers = _answers(call)
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "confirm": {"type": "boolean"}}}
    left = {
        key: types.ElicitRequest(params=types.ElicitRequestFormParams(message=text, requested_schema=schema))
        for key, text in questions.items()
        if key not in answers
    }
    if not left:
        return None
    return types.InputRequiredResult(
        input_requests=dict(left), request_state=RoundState(own={"answers": answers}).to_json()
    )


def _tool(arguments: type[Arguments], run: Callable[[Call, Any], Awaitable[Reply]], name: str = "") -> Tool[Any]:
    return Tool(name or run.__name__, run.__name__, run.__name__, arguments, Output, run, types.ToolAnnotations())


TOOLS = (
    _tool(Greet, greet),
    _tool(SlowCompute, slow_compute),
    _tool(Nothing, failing_job),
    _tool(Nothing, protocol_error_job),
    _tool(ConfirmDelete, confirm_delete),
    _tool(Nothing, multi_input),
    _tool(Nothing, ask_then_work, "test_tool_with_task"),
)
