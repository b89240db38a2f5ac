"""The reference of the tools names everything that the tools have."""

import re
from pathlib import Path
from typing import Any

from claude_code_mcp.core import errors
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.tools.session_report import SessionReport
from claude_code_mcp.server.tools.tool import Tool
from claude_code_mcp.server.tools.toolsets import tools_of
from tests.support.tables import every_row

PAGE = (Path(__file__).parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")
TOOLS = tools_of(load_settings({}, allow_disk_resume=True, toolsets=("sessions", "code", "query", "care")))


def section(name: str) -> str:
    found = re.search(rf"^### {name}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name} has no section"
    return found[1]


def properties(schema: Any) -> set[str]:
    """Names at the top, and those of an object that groups parameters."""
    top = dict(schema["properties"])
    options = top.pop("options", {"properties": {}})
    return {*top, *(f"options.{name}" for name in options["properties"])}


@every_row("tool", TOOLS.values())
def test_every_parameter_and_result_is_described(tool: Tool[Any]) -> None:
    listing = tool.listing()
    assert listing.output_schema is not None
    about = section(tool.name)
    # It has these too, and says so.
    if tool.name == "claude_code_reply":
        about += section("claude_code")
    elif tool.output is SessionReport:
        about += section("claude_get_status")
    named = set(re.findall(r"`([A-Za-z.]+)`", about)) | {"error"}
    assert properties(listing.input_schema) | properties(listing.output_schema) <= named


def test_every_section_is_a_tool() -> None:
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(TOOLS)


def test_every_code_is_described() -> None:
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.ClaudeCodeError)
    ]
    assert {kind.code for kind in kinds} <= set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE))
