"""The names that clients rely on: parameters, fields of results, values, error codes and variables with their defaults.

They are those of the documents that the tools were first described in. A client that was written for one of them must
find every name; more fields are allowed. Two names are left out: the `isError` in the results of `claude_code_session`
and `claude_code_configure`, where a refusal has the `isError` of MCP.
"""

from dataclasses import dataclass
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.core import errors
from claude_code_mcp.core.config import Settings

from .conftest import StartCaller, ToolCaller

SESSION_STATUSES = {"running", "waiting_for_input", "completed", "error", "interrupted"}
CODE_OPTIONS = (
    "cwd allowedTools disallowedTools tools persistSession permissionMode maxTurns model systemPrompt agents "
    "maxBudgetUsd effort betas additionalDirectories outputFormat thinking pathToClaudeCodeExecutable agent mcpServers "
    "sandbox fallbackModel enableFileCheckpointing includePartialMessages strictMcpConfig settingSources debug "
    "debugFile env"
)
CODE_RESULT = (
    "sessionId result isError durationMs durationApiMs numTurns totalCostUsd sessionTotalTurns sessionTotalCostUsd "
    "structuredOutput stopReason errorSubtype usage modelUsage permissionDenials"
)


@dataclass(frozen=True, slots=True)
class Documented:
    """A tool as its document has it; the names are separated by spaces."""

    parameters: str
    required: str
    result: str


TOOLS = {
    "claude_create_session": Documented(
        "prompt workingDirectory model permissionMode allowedTools disallowedTools maxTurns maxBudgetUsd systemPrompt "
        "dangerouslySkipPermissions",
        "prompt",
        "sessionId status",
    ),
    "claude_send_message": Documented("sessionId message", "sessionId message", "sessionId status"),
    "claude_get_status": Documented(
        "sessionId outputLines",
        "sessionId",
        "sessionId status result recentOutput pendingInputs toolUseEvents costUsd turnCount",
    ),
    "claude_respond": Documented(
        "sessionId inputId decision reason updatedInput", "sessionId inputId decision", "sessionId status"
    ),
    "claude_interrupt": Documented("sessionId", "sessionId", "sessionId status"),
    "claude_list_sessions": Documented("projectDirectory limit", "", "sessions"),
    "claude_code": Documented(f"prompt timeout {CODE_OPTIONS}", "prompt", CODE_RESULT),
    "claude_code_reply": Documented(
        f"sessionId prompt forkSession timeout resumeSessionAt {CODE_OPTIONS}", "sessionId prompt", CODE_RESULT
    ),
    "claude_code_session": Documented("action sessionId includeSensitive", "action", "sessions message"),
    "claude_code_configure": Documented("action", "action", "allowBypass message"),
    "claude_code_query": Documented("prompt options", "prompt", "sessionId messages executionTime usage result"),
}
ROWS = {
    ("claude_get_status", "pendingInputs"): "inputId type toolName toolInput description",
    ("claude_get_status", "toolUseEvents"): "toolName status",
    ("claude_list_sessions", "sessions"): "sessionId projectDirectory displayText timestamp isActive activeStatus",
    ("claude_code_query", "result"): "success summary error",
}
VALUES = {
    ("claude_create_session", "permissionMode"): {"default", "acceptEdits", "plan", "bypassPermissions"},
    ("claude_respond", "decision"): {"allow", "deny"},
    ("claude_code", "effort"): {"low", "medium", "high", "max"},
    ("claude_code_session", "action"): {"list", "get", "cancel"},
    ("claude_code_configure", "action"): {"enable_bypass", "disable_bypass", "get_config"},
}
QUERY_OPTIONS = "cwd maxTurns model appendSystemPrompt maxMessages includeSystemMessages"
ERROR_CODES = {
    "INVALID_ARGUMENT",
    "SESSION_NOT_FOUND",
    "SESSION_BUSY",
    "PERMISSION_DENIED",
    "TIMEOUT",
    "CANCELLED",
    "INTERNAL",
}
VARIABLES: dict[str, Any] = {
    "CLAUDE_CODE_PATH": None,
    "PERMISSION_TIMEOUT_MS": 300_000,
    "MAX_SESSIONS": 10,
    "LOG_LEVEL": "info",
    "EVENT_BUFFER_SIZE": 500,
    "CLAUDE_CODE_MCP_ALLOW_DISK_RESUME": False,
    "CLAUDE_CODE_MCP_ALLOW_SENSITIVE_SESSION_DETAILS": False,
    "CLAUDE_CODE_MCP_SESSION_TTL_MS": 1_800_000,
    "CLAUDE_CODE_MCP_RUNNING_SESSION_MAX_MS": 14_400_000,
    "CLAUDE_CODE_MCP_CLEANUP_INTERVAL_MS": 60_000,
    "CLAUDE_CODE_DEFAULT_CWD": None,
    "CLAUDE_CODE_MAX_EXECUTION_TIME": 300_000,
    "CLAUDE_CODE_DEFAULT_PERMISSION_MODE": None,
    "CLAUDE_CODE_ALLOWED_TOOLS": (),
    "MCP_TIMEOUT": 30_000,
    "MCP_SERVER_CONNECTION_BATCH_SIZE": 3,
    "MCP_REMOTE_SERVER_CONNECTION_BATCH_SIZE": 20,
}


def schemas_at(schema: dict[str, Any], node: Any) -> list[dict[str, Any]]:
    """A schema and all that it refers to or has as alternatives or items."""
    if not isinstance(node, dict):
        return []
    found = [node]
    if "$ref" in node:
        target: Any = schema
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        found += schemas_at(schema, target)
    for each in [*node.get("anyOf", ()), *node.get("oneOf", ()), node.get("items")]:
        found += schemas_at(schema, each)
    return found


def fields(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    """The properties of an object below a schema."""
    nodes = schemas_at(schema, schema)
    for name in path:
        nodes = [
            each
            for node in nodes
            if name in node.get("properties", {})
            for each in schemas_at(schema, node["properties"][name])
        ]
    return {name: value for node in nodes for name, value in node.get("properties", {}).items()}


def values(schema: dict[str, Any], name: str) -> set[str]:
    nodes = schemas_at(schema, fields(schema)[name])
    return {value for node in nodes for value in [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]}


async def test_every_documented_name_is_there(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(allow_disk_resume=True)  # else a reply takes no options
    listed: dict[str, types.Tool] = {tool.name: tool for tool in (await caller.client.list_tools()).tools}
    missing = []
    for name, documented in TOOLS.items():
        given, result = listed[name].input_schema, listed[name].output_schema or {}
        missing += [f"{name}({each})" for each in documented.parameters.split() if each not in fields(given)]
        missing += [f"{name} -> {each}" for each in documented.result.split() if each not in fields(result)]
        assert set(given.get("required", ())) == set(documented.required.split()), name
    for (name, field), row in ROWS.items():
        known = fields(listed[name].output_schema or {}, field)
        missing += [f"{name} -> {field}.{each}" for each in row.split() if each not in known]
    options = fields(listed["claude_code_query"].input_schema, "options")
    missing += [f"claude_code_query(options.{each})" for each in QUERY_OPTIONS.split() if each not in options]
    for (name, field), documented_values in VALUES.items():
        known_values = values(listed[name].input_schema, field)
        missing += [
            f"{name}({field}={each})" for each in documented_values if known_values and each not in known_values
        ]
    status = values(listed["claude_get_status"].output_schema or {}, "status")
    missing += [f"status {each}" for each in SESSION_STATUSES if status and each not in status]
    assert missing == []


def test_every_documented_error_code_is_there() -> None:
    kinds = [errors.ClaudeCodeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.code for kind in kinds} >= ERROR_CODES


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_documented_variable_has_its_default(variable: str) -> None:
    (field,) = [field for field in Settings.model_fields.values() if field.validation_alias == variable]
    assert field.default == VARIABLES[variable]
