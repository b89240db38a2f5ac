"""What is passed on of descriptions, schemas and results."""

import json
from typing import Any

import mcp_types as types
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.hub.config_entry import parse_entry
from claude_code_mcp.hub.trimming import (
    LONGEST_DESCRIPTION,
    LONGEST_RESULT,
    exceeds,
    trim_description,
    trim_result,
    trim_tools,
)

ANY = parse_entry("x", {"command": "x"}, {})


def tool(name: str = "t", **fields: Any) -> types.Tool:
    return types.Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **fields})


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_long_description_is_cut_and_says_so() -> None:
    cut = trim_description("x" * 5000)
    assert cut is not None
    assert len(cut) == LONGEST_DESCRIPTION
    assert cut.endswith("… [truncated]")
    assert trim_description("short") == "short"
    assert trim_description(None) is None


def test_tools_keep_what_they_are_apart_from_what_is_too_long_or_not_an_object() -> None:
    fine = tool("fine", description="d", outputSchema={"type": "object"})
    odd = tool("odd", description="x" * 5000, outputSchema={"anyOf": []})
    kept, changed = trim_tools([fine, odd], ANY)
    assert kept == fine
    assert len(changed.description or "") == LONGEST_DESCRIPTION
    assert changed.output_schema is None


def test_tools_that_are_not_let_through_are_gone() -> None:
    config = parse_entry("ide", {"type": "ws-ide", "url": "ws://127.0.0.1:1"}, {})
    assert [tool_.name for tool_ in trim_tools([tool("openDiff"), tool("getDiagnostics")], config)] == [
        "getDiagnostics"
    ]


def test_a_result_of_bearable_size_is_passed_on_as_it_came() -> None:
    result = {"content": [text("x" * LONGEST_RESULT)], "structuredContent": {"a": 1}, "unknown": True}
    assert trim_result(result) is result


def test_a_long_result_is_cut_with_a_notice() -> None:
    image = {"type": "image", "data": "A" * 200_000, "mimeType": "image/png"}
    result = trim_result({"content": [text("a" * 60_000), image, text("b" * 60_000), text("c")]})
    first, picture, second, third, notice = result["content"]
    assert first["text"] == "a" * 60_000
    assert picture == image
    assert second["text"] == "b" * 40_000
    assert third["text"] == ""
    assert "120001 characters" in notice["text"]
    assert "isError" not in result


def test_the_text_of_an_embedded_resource_counts_too() -> None:
    resource = {"type": "resource", "resource": {"uri": "a:b", "text": "x" * 150_000}}
    cut = trim_result({"content": [resource]})["content"][0]
    assert len(cut["resource"]["text"]) == LONGEST_RESULT
    assert cut["resource"]["uri"] == "a:b"


def test_structured_content_that_is_too_long_is_left_out_and_the_result_counts_as_an_error() -> None:
    result = trim_result({"content": [text("short")], "structuredContent": {"rows": ["x" * 1000] * 200}})
    assert "structuredContent" not in result
    assert result["isError"] is True


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(JSON)
def test_a_size_is_never_more_than_what_is_written(value: Any) -> None:
    assert not exceeds(value, len(json.dumps(value, ensure_ascii=False)))
    assert exceeds([value, "xyz"], 2)
