"""Traces and metrics of a real server, as a receiver of OTLP gets them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx2

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import RUN
from tests.server.connection import LONG
from tests.server.test_http import ACCEPT, HELLO
from tests.support.program import http_server
from tests.support.waiting import until

from .otlp_receiver import Receiver, attributes_of, receiving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "what-nobody-but-the-model-is-to-read"


def in_trace(receiver: Receiver) -> dict[str, Any]:
    return {span.name: span for span in receiver.spans if span.trace_id.hex() == TRACE}


def call(url: str, prompt: str, cwd: Path, **more: Any) -> None:
    """A call of a tool with the trace context of its client."""
    first = httpx2.post(url, json=HELLO, headers=ACCEPT, timeout=LONG)
    headers = {**ACCEPT, "mcp-session-id": first.headers["mcp-session-id"]}
    httpx2.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers, timeout=LONG)
    arguments = {"prompt": prompt, "cwd": str(cwd), **more}
    params = {
        "name": "claude_code",
        "arguments": arguments,
        "_meta": {"traceparent": f"00-{TRACE}-{PARENT}-01"},
    }
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    answered = httpx2.post(url, json=body, headers=headers, timeout=LONG)
    assert answered.status_code == 200, answered.text
    assert 'isError":true' not in answered.text.replace(" ", ""), answered.text


def test_a_turn_is_below_the_clients_trace_with_its_answers_and_tools(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    place = Sandbox(tmp_path, model.url)
    with receiving() as receiver:
        environment = place.environment(
            **{
                RUN: os.environ[RUN],
                "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"),
                "CLAUDE_CODE_MCP_PROFILE": "local",
                "CLAUDE_CODE_MCP_OTEL": "1",
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
        )
        (place.project / "notes.txt").write_text(SECRET)
        with http_server(environment, place.project) as server:
            read = tool("Read", file_path=str(place.project / "notes.txt"))
            call(server.url, script(f"Look. {SECRET}", read, text("Seen.")), place.project)
            until(lambda: receiver.names("invoke_agent"), f"no span of a turn has come: {server.log}")
            assert "invoke_agent claude-code" in in_trace(receiver), receiver.names("")
        # The rest comes when the server ends.
        spans = in_trace(receiver)
    request, turn = spans["tools/call claude_code"], spans["invoke_agent claude-code"]
    assert request.parent_span_id.hex() == PARENT
    assert turn.parent_span_id == request.span_id
    inside = {name.split()[0] for name, span in spans.items() if span.parent_span_id == turn.span_id}
    assert inside == {"chat", "execute_tool"}
    attributes = attributes_of(turn)
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.provider.name"] == "anthropic"
    assert attributes["claude_code.outcome"] == "completed"
    assert attributes["gen_ai.usage.output_tokens"] > 0
    assert attributes_of(spans["execute_tool Read"])["gen_ai.tool.name"] == "Read"
    chats = [span for span in receiver.spans if span.name.startswith("chat ")]
    assert len(chats) == 2
    for span in spans.values():
        assert turn.start_time_unix_nano <= span.end_time_unix_nano
    assert receiver.resources[0]["service.name"] == "claude-code-mcp"
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration", "claude_code_mcp.cost"} <= {
        *receiver.metrics
    }
    assert SECRET not in "".join(map(str, [*receiver.spans, *receiver.metrics.values()]))


OF_CLAUDE_CODE = {
    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
    "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_TRACES_EXPORT_INTERVAL": "100",
    "OTEL_BSP_SCHEDULE_DELAY": "100",
}
"""With which Claude Code sends traces of its own."""


def test_claude_code_and_servers_of_the_hub_are_in_the_trace_of_the_turn(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    place = Sandbox(tmp_path, model.url)
    entry = {"command": sys.executable, "args": [str(Path(__file__).with_name("a_traced_server.py"))]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"traced": entry}}))
    with receiving() as receiver:
        environment = place.environment(
            **{
                RUN: os.environ[RUN],
                "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"),
                "CLAUDE_CODE_MCP_PROFILE": "local",
                "CLAUDE_CODE_MCP_HUB_FILE": str(tmp_path / "mcp.json"),
                "CLAUDE_CODE_MCP_OTEL": "1",
                "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
                "TRACEPARENT": "00-" + "1" * 32 + "-" + "2" * 16 + "-01",  # of whoever has started the server
                "ANTHROPIC_AUTH_TOKEN": SECRET,
                **OF_CLAUDE_CODE,
            }
        )
        del environment["DISABLE_TELEMETRY"]
        with http_server(environment, place.project) as server:
            shell = tool("Bash", command="echo of the shell: $TRACEPARENT", description="Look")
            prompt = script("Look.", tool("mcp__traced__look"), shell, text("Seen."))
            call(server.url, prompt, place.project, allowedTools=["mcp__traced__look", "Bash"])
            # While it lives: how long it may take to send the rest at its end is not what this is about.
            until(lambda: receiver.names("claude_code.interaction"), f"no span of Claude Code has come: {server.log}")
        # The rest comes when the server ends.
    spans = {span.name: span for span in receiver.spans}
    turn, looked = spans["invoke_agent claude-code"], spans["execute_tool mcp__traced__look"]
    assert turn.trace_id.hex() == TRACE
    assert spans["claude_code.interaction"].parent_span_id == turn.span_id
    # The call at the server is a span of the SDK, below the tool; the server is told of that one.
    [sent] = [span for span in receiver.spans if span.parent_span_id == looked.span_id]
    seen = "".join(path.read_text() for path in (place.home / ".claude" / "projects").rglob("*.jsonl"))
    assert f"traceparent 00-{TRACE}-{sent.span_id.hex()}-01" in seen
    assert f"of the shell: 00-{TRACE}-{turn.span_id.hex()}-01" in seen
    bodies = [record.body.string_value for record in receiver.logs]
    assert any("serving MCP on" in body for body in bodies), bodies
    assert SECRET not in "".join(bodies)
