"""What is passed on of descriptions, schemas and results."""

import json
from typing import Any

import mcp_types as types
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.hub.client_session import MAX_DESCRIPTION, trim_description, trim_tools
from claude_code_mcp.hub.config_entry import parse_entry
from claude_code_mcp.hub.long_results import exceeds, is_long, with_long_parts_saved

ANY = parse_entry("x", {"command": "x"}, {})


def tool(name: str = "t", **fields: Any) -> types.Tool:
    return types.Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **fields})


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_long_description_is_cut_and_says_so() -> None:
    cut = trim_description("x" * 5000)
    assert cut is not None
    assert len(cut) == MAX_DESCRIPTION
    assert cut.endswith("… [truncated]")
    assert trim_description("short") == "short"
    assert trim_description(None) is None


def test_tools_keep_what_they_are_apart_from_what_is_too_long_or_not_an_object() -> None:
    fine = tool("fine", description="d", outputSchema={"type": "object"})
    odd = tool("odd", description="x" * 5000, outputSchema={"anyOf": []})
    kept, changed = trim_tools([fine, odd], ANY)
    assert kept == fine
    assert len(changed.description or "") == MAX_DESCRIPTION
    assert changed.output_schema is None


def test_tools_that_are_not_let_through_are_gone() -> None:
    config = parse_entry("ide", {"type": "ws-ide", "url": "ws://127.0.0.1:1"}, {})
    assert [tool_.name for tool_ in trim_tools([tool("openDiff"), tool("getDiagnostics")], config)] == [
        "getDiagnostics"
    ]


def result(*texts: str, **fields: Any) -> types.CallToolResult:
    return types.CallToolResult.model_validate({"content": [text(each) for each in texts], **fields})


def saved(whole: types.CallToolResult, **options: Any) -> tuple[types.CallToolResult, list[str]]:
    files: list[str] = []

    def save(content: str, ending: str) -> str:
        files.append(content)
        return f"/saved{ending}"

    return with_long_parts_saved(whole, 1000, save, **{"keep_structured": False, **options}), files


def test_result_below_the_limit_is_not_shortened() -> None:
    assert not is_long(result("x" * 1000, structuredContent={"a": 1}), 1000)
    assert is_long(result("x" * 600, "y" * 600), 1000)
    assert is_long(result("x", structuredContent={"rows": ["x" * 100] * 11}), 1000)


def test_long_text_is_saved_whole_and_other_content_stays() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    long = types.CallToolResult.model_validate({"content": [text("a" * 600), image, text("b\n" * 300)]})
    shortened, files = saved(long)
    assert files == ["a" * 600 + "\n" + "b\n" * 300]
    notice, kept = shortened.content
    assert isinstance(notice, types.TextContent)
    assert "1,201 characters across 302 lines" in notice.text
    assert "/saved.txt" in notice.text
    assert kept == long.content[1]
    assert not shortened.is_error


def test_long_structured_content_is_saved_unless_the_tool_has_promised_it() -> None:
    rows = {"rows": ["x" * 100] * 20}
    shortened, (file,) = saved(result("short", structuredContent=rows))
    assert json.loads(file) == rows
    assert shortened.structured_content is None
    assert not shortened.is_error
    promised, files = saved(result("short", structuredContent=rows), keep_structured=True)
    assert (promised.structured_content, files) == (rows, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(JSON)
def test_a_size_is_never_more_than_what_is_written(value: Any) -> None:
    assert not exceeds(value, len(json.dumps(value, ensure_ascii=False)))
    assert exceeds([value, "xyz"], 2)
