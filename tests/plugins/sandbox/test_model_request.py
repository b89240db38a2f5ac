"""What a request to the model may hold in a sandbox: what Claude Code sends, and nothing that the API would fetch."""

import json
from typing import Any

import pytest

from claude_code_mcp.plugins.sandbox.model_request import (
    MAX_VALUES,
    NOTHING_MORE,
    ModelAccess,
    RequestNotAllowed,
    allowed_headers,
    rebuilt_request,
)

SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
URL_IMAGE = {"type": "image", "source": {"type": "url", "url": "https://collector.example/?secret"}}


def body(**fields: object) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}], **fields}


def saying(*blocks: object) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": list(blocks)}])


def rebuilt(request: object, access: ModelAccess = NOTHING_MORE) -> Any:
    return json.loads(rebuilt_request(json.dumps(request).encode(), access).body)


CLAUDE_CODE: dict[str, dict[str, Any]] = {
    "a turn": body(
        system=[{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        metadata={"user_id": '{"session_id":"s"}'},
        stream=True,
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={
            "edits": [
                {"type": "clear_thinking_20251015", "keep": "all"},
                {
                    "type": "clear_tool_uses_20250919",
                    "trigger": {"type": "tool_uses", "value": 9},
                    "keep": {"type": "tool_uses", "value": 3},
                    "clear_at_least": {"type": "input_tokens", "value": 5000},
                },
            ]
        },
        cache_control={"type": "ephemeral", "ttl": "1h", "scope": "global", "evict_on_complete": True},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        diagnostics={"previous_message_id": "msg_1"},
        fallbacks=[{"model": "claude-opus-5"}],
        safeguards=[{"type": "dangerous_tool_use", "classifier_context": {"v": 1}}],
        tools=[{"name": "Bash", "description": "runs", "input_schema": {"type": "object"}, "defer_loading": True}],
        tool_choice={"type": "auto"},
    ),
    "what came back": body(
        messages=[
            {"role": "system", "content": "note", "clear_at": "never", "output_config": {"effort": "low"}},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "so", "citations": None},
                    {"type": "tool_use", "id": "t", "name": "Read", "input": {"source": {"type": "url"}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "is_error": False, "content": [PNG]},
                    {
                        "type": "tool_result",
                        "tool_use_id": "u",
                        "content": [{"type": "tool_reference", "tool_name": "x"}],
                    },
                    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}},
                    {"type": "document", "source": {"type": "content", "content": [PNG]}, "title": "pages"},
                    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Bash"}},
                ],
            },
        ]
    ),
    "text that only a JSON escape can hold": saying({"type": "text", "text": "\ud800"}),
    "a URL in a text": saying({"type": "text", "text": "https://example.org"}),
}


@pytest.mark.parametrize("name", CLAUDE_CODE)
def test_requests_of_claude_code_are_forwarded_unchanged(name: str) -> None:
    assert rebuilt(CLAUDE_CODE[name]) == CLAUDE_CODE[name]


NOT_ALLOWED: dict[str, tuple[object, str]] = {
    "an image by its address": (saying(URL_IMAGE), r"messages\[0\].content\[0\].source: a source of type 'url'"),
    "one in a tool result": (saying({"type": "tool_result", "tool_use_id": "t", "content": [URL_IMAGE]}), "'url'"),
    "one in a document": (
        saying({"type": "document", "source": {"type": "content", "content": [URL_IMAGE]}}),
        "'url'",
    ),
    "a document by its address": (saying({"type": "document", "source": {"type": "url", "url": "https://a"}}), "'url'"),
    "a stored file": (saying({"type": "image", "source": {"type": "file", "file_id": "file_1"}}), "'file'"),
    "an address in addition to the data": (
        saying({**PNG, "source": {**PNG["source"], "url": "https://a"}}),  # type: ignore[dict-item]
        r"source.url is not allowed",
    ),
    "a file for a container": (saying({"type": "container_upload", "file_id": "file_1"}), "'container_upload'"),
    "a call of an MCP server": (saying({"type": "mcp_tool_use", "id": "t", "name": "x"}), "'mcp_tool_use'"),
    "a search that was made": (
        saying({"type": "server_tool_use", "id": "t", "name": "web_search"}),
        "'server_tool_use'",
    ),
    "MCP servers": (body(mcp_servers=[{"type": "url", "url": "https://a", "name": "a"}]), "mcp_servers is not allowed"),
    "a container": (body(container="container_1"), "container is not allowed"),
    "a stored conversation": (body(thread={"id": "t"}), "thread is not allowed"),
    "a field of the future": (body(fetch=["https://a"]), "fetch is not allowed"),
    "web search": (body(tools=[SEARCH]), 'server_tools = ."web_search".'),
    "web fetch": (
        body(tools=[{"type": "web_fetch_20250910", "name": "web_fetch"}]),
        "'web_fetch_20250910' runs outside",
    ),
    "code execution": (body(tools=[{"type": "code_execution_20250825", "name": "c"}]), "runs outside the sandbox"),
    "tools of an MCP server": (body(tools=[{"type": "mcp_toolset", "mcp_server_name": "a"}]), "runs outside"),
    "a tool that comes later": (
        saying({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}}),
        "runs outside",
    ),
    "tools of a server that come later": (
        saying({"type": "tool_addition", "tool": {"type": "mcp_toolset_reference"}}),
        "'mcp_toolset_reference' is not allowed",
    ),
    "a type that is no text": (saying({"type": ["image"], "source": {}}), "content of type"),
    "a system prompt with an image": (body(system=[URL_IMAGE]), r"system\[0\] must be text"),
    "tools of a model that is tried next": (
        body(fallbacks=[{"model": "m", "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}]),
        r"fallbacks\[0\].tools is not allowed",
    ),
    "MCP servers of a model that is tried next": (
        body(fallbacks=[{"model": "m", "mcp_servers": [{"type": "url", "url": "https://a"}]}]),
        r"fallbacks\[0\].mcp_servers is not allowed",
    ),
    "an image in place of a text": (saying({"type": "text", "text": URL_IMAGE}), "text must be a string"),
    "an image in a summary": (saying({"type": "compaction", "content": [URL_IMAGE]}), "content must be a string"),
    "a source of a search result that is fetched": (
        saying({"type": "search_result", "title": "t", "content": [], "source": URL_IMAGE["source"]}),
        "source must be a string",
    ),
    "a mode that costs more than budgets count": (body(speed="fast"), "speed is not allowed"),
    "that mode in a model that is tried next": (body(fallbacks=[{"model": "m", "speed": "fast"}]), r"\.speed is not"),
    "a limit that is a text": (body(max_tokens="64000"), "max_tokens must be an integer"),
    "a limit that is no whole number": (body(max_tokens=64000.0), "max_tokens must be an integer"),
    "a model that is no text": (body(model=["m"]), "model must be a string"),
    "an address in what is cached": (
        saying({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "source": URL_IMAGE["source"]}}),
        r"cache_control.source is not allowed",
    ),
    "an object in what is cached": (
        body(tools=[{"name": "a", "cache_control": {"type": URL_IMAGE}}]),
        r"tools\[0\].cache_control.type must be a string",
    ),
    "an address in what is cleared": (
        body(context_management={"edits": [{"type": "clear_thinking_20251015", "url": "https://a"}]}),
        r"context_management.edits\[0\].url is not allowed",
    ),
    "files in place of what is cleared": (
        body(context_management={"file_ids": ["file_1"]}),
        r"context_management.file_ids is not allowed",
    ),
    "no object": ([], "must be an object"),
    "not a number": ("NaN", "cannot|not a JSON object|must be an object"),
}


@pytest.mark.parametrize("name", NOT_ALLOWED)
def test_request_that_makes_the_api_fetch_is_refused(name: str) -> None:
    request, reason = NOT_ALLOWED[name]
    with pytest.raises(RequestNotAllowed, match=reason):
        rebuilt(request)


def test_a_name_in_a_refusal_cannot_begin_a_line_of_the_log() -> None:
    with pytest.raises(RequestNotAllowed) as refused:
        rebuilt(body(**{"a\nERROR forged": 1}))
    assert "\n" not in str(refused.value)


def test_a_body_of_very_many_values_is_refused_before_it_is_read() -> None:
    data = b'{"metadata":[' + b"[]," * (MAX_VALUES // 2) + b"0]}"
    with pytest.raises(RequestNotAllowed, match="too many values"):
        rebuilt_request(data, NOTHING_MORE)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"max_tokens": NaN}', b'{"max_tokens": 1e999}', b"\xff\xfe", b'{"a":' * 100_000, b"[" * 100_000],
)
def test_unreadable_input_is_refused(data: bytes) -> None:
    with pytest.raises(RequestNotAllowed):
        rebuilt_request(data, NOTHING_MORE)


def test_duplicate_field_is_sent_once() -> None:
    twice = b'{"tools": [{"type": "web_fetch_20250910"}], "tools": []}'
    assert rebuilt_request(twice, NOTHING_MORE).body == b'{"tools":[]}'
    with pytest.raises(RequestNotAllowed):
        rebuilt_request(b'{"tools": [], "tools": [{"type": "web_fetch_20250910"}]}', NOTHING_MORE)


def test_allowed_web_search_allows_nothing_else() -> None:
    searching = ModelAccess(server_tools=frozenset({"web_search"}))
    found = saying({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "x"}})
    assert rebuilt(body(tools=[SEARCH]), searching) == body(tools=[SEARCH])
    assert rebuilt(found, searching) == found
    for tool in ({"type": "web_fetch_20250910"}, {**SEARCH, "type": "web_search_20250305x"}, {**SEARCH, "url": "a"}):
        with pytest.raises(RequestNotAllowed):
            rebuilt(body(tools=[tool]), searching)
    # The API runs the call with which a request ends.
    for name in ("web_fetch", "code_execution", ["web_search"], None):
        with pytest.raises(RequestNotAllowed, match="runs outside the sandbox"):
            rebuilt(saying({**found["messages"][0]["content"][0], "name": name}), searching)


def test_an_operator_allows_the_fast_mode() -> None:
    assert rebuilt(body(speed="fast"), ModelAccess(features=frozenset({"speed"}))) == body(speed="fast")


def test_an_operator_allows_what_a_newer_claude_code_sends() -> None:
    newer = ModelAccess(features=frozenset({"patience", "patience-2027-01-01"}))
    assert rebuilt(body(patience=3), newer) == body(patience=3)
    headers = [(b"anthropic-beta", b"claude-code-20250219, patience-2027-01-01")]
    assert allowed_headers(headers, newer) == headers
    with pytest.raises(RequestNotAllowed, match=r"'patience-2027-01-01' is not allowed .*MODEL_FEATURES"):
        allowed_headers(headers, NOTHING_MORE)


def headers_of(*headers: tuple[str, str], access: ModelAccess = NOTHING_MORE) -> list[str]:
    given = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return [name.decode() for name, _ in allowed_headers(given, access)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-stainless-anything", "1"),
        ("x-claude-gateway-user-email", "me@example.org"),
        ("x-cc-anything", "1"),
        ("x-stainless-os", "x" * 129),
        ("x-stainless-os", "Linux\xe9"),
        ("x-claude-code-session-id", "a b"),
        ("x-app", ""),
        ("user-agent", "x" * 513),
        ("x-claude-code-prev-tool-durations", "x" * 4097),
    ],
)
def test_a_header_that_claude_code_does_not_send_is_dropped(name: str, value: str) -> None:
    assert headers_of((name, value), ("x-app", "cli")) == ["x-app"]


def test_headers_that_claude_code_sends_are_sent_on() -> None:
    sent = (
        ("user-agent", "claude-cli/2.1.210 (external, sdk-py, agent-sdk/0.1)"),
        ("accept", "application/json"),
        ("anthropic-version", "2023-06-01"),
        ("x-stainless-package-version", "0.81.0-beta.1"),
        ("x-stainless-helper", "BetaToolRunner, compaction"),
        ("x-claude-code-session-id", "7b2f7d1e-6a0c-4d5f-9d2e-6a3f6f0f3c11"),
        ("x-claude-code-agent-type", "agent:builtin:general-purpose"),
        ("x-claude-code-prev-tool-durations", "Bash;dur=12, Read;dur=3"),
    )
    assert headers_of(*sent) == [name for name, _ in sent]
    newer = ModelAccess(features=frozenset({"x-claude-code-new"}))
    assert headers_of(("x-claude-code-new", "1"), ("x-claude-code-other", "1"), access=newer) == ["x-claude-code-new"]


@pytest.mark.parametrize("beta", ["mcp-client-2025-11-20", "files-api-2025-04-14", "code-execution-2025-08-25", "x"])
def test_a_beta_that_claude_code_does_not_need_is_refused(beta: str) -> None:
    with pytest.raises(RequestNotAllowed, match=f"{beta}' is not allowed"):
        allowed_headers([(b"anthropic-beta", f"claude-code-20250219,{beta}".encode())], NOTHING_MORE)


def test_it_is_known_how_much_an_answer_may_cost() -> None:
    request = rebuilt_request(json.dumps(body()).encode(), NOTHING_MORE)
    assert (request.model, request.max_tokens) == ("claude-opus-5-5", 100)
