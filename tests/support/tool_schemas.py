"""The schemas of our tools in the tests: made once, and every result that a client receives is compared with its own.

A schema is a function of the class of its arguments alone, and making all of them takes each server of the
tests a tenth of a second of CPU. So each is made once for a process and those that are forked from it.

The SDK's client compares results with the schema in the list of tools, but accepts fields that the schema does not
declare, and does not look at errors. Here it does both for the tools of this product.
"""

import copy
import functools
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from pydantic import BaseModel

from claude_code_mcp.server.tools import tool
from claude_code_mcp.server.tools.arguments import Arguments
from claude_code_mcp.server.tools.output import ToolOutput

_made = functools.cache(tool.compact_schema)
_call_tool = ClientSession.call_tool
_validator_of = ClientSession._output_schema_validator


def _shared(model: type[BaseModel]) -> dict[str, Any]:
    """A copy, which belongs to the caller."""
    return copy.deepcopy(_made(model))


def share() -> None:
    """For the servers of this process, and of those that are forked from it, from now on."""
    tool.compact_schema = _shared


def make_all() -> None:
    """Makes those of every class that is imported, for processes that are forked later."""
    waiting: list[type[BaseModel]] = [Arguments, ToolOutput]
    while waiting:
        model = waiting.pop()
        _made(model)
        waiting += model.__subclasses__()


def check_results() -> None:
    """From now on a result with a field that its schema does not declare fails the call, and so does an error."""
    ClientSession._output_schema_validator = _strict_validator  # type: ignore[assignment, method-assign]
    ClientSession.call_tool = _checked_call  # type: ignore[assignment, method-assign]


def strict(schema: Any) -> Any:
    """The schema without room for fields that it does not declare."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    checked = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        checked.setdefault("additionalProperties", False)
    return checked


def _strict_validator(session: ClientSession, name: str, schema: dict[str, Any]) -> Any:
    return _validator_of(session, name, strict(schema) if name.startswith("claude_") else schema)


async def _checked_call(session: ClientSession, name: str, *given: Any, **more: Any) -> Any:
    result = await _call_tool(session, name, *given, **more)
    is_error = isinstance(result, types.CallToolResult) and result.is_error
    # A tool that was never listed on this connection is not listed for this: some tests count the requests.
    if is_error and name.startswith("claude_") and session._tool_output_schemas.get(name) is not None:
        await session.validate_tool_result(name, result)
    return result
