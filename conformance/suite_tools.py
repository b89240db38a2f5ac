"""The tools that the suite's scenarios call by name: content of every kind, progress, and questions to the client.

What each must do is written in the suite's description of the scenario. They are ordinary tools of our server: their
arguments are checked, their results pass through its redaction, and their questions go out as those of our tools do.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import MISSING_REQUIRED_CLIENT_CAPABILITY
from pydantic import ConfigDict

from claude_code_mcp.core.errors import ClaudeCodeError
from claude_code_mcp.server.rounds import RoundState
from claude_code_mcp.server.tools.arguments import Arguments
from claude_code_mcp.server.tools.call import Call
from claude_code_mcp.server.tools.tool import Reply, Tool

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
_WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
_STEP_SECONDS = 0.05
Run = Callable[[Call, Any], Awaitable[Reply]]
Answer = types.ElicitResult | types.CreateMessageResult | types.ListRootsResult


class NoArguments(Arguments):
    pass


class Sampling(Arguments):
    prompt: str


class Elicitation(Arguments):
    message: str


class Region(Arguments):
    region: str | None = None


class Anything(Arguments):
    """Arguments by a schema that no model has."""

    model_config = ConfigDict(extra="allow")


# -- content ----------------------------------------------------------------------------------------------------


def _content(*blocks: types.ContentBlock) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks))


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def image() -> types.ImageContent:
    return types.ImageContent(data=PNG, mime_type="image/png")


def resource(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words))


async def _simple_text(_: Call, __: NoArguments) -> Reply:
    return _content(text("This is a simple text response for testing."))


async def _image_content(_: Call, __: NoArguments) -> Reply:
    return _content(image())


async def _audio_content(_: Call, __: NoArguments) -> Reply:
    return _content(types.AudioContent(data=_WAV, mime_type="audio/wav"))


async def _embedded_resource(_: Call, __: NoArguments) -> Reply:
    return _content(resource("test://embedded-resource", "text/plain", "This is an embedded resource content."))


async def _multiple_content_types(_: Call, __: NoArguments) -> Reply:
    embedded = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return _content(text("Multiple content types test:"), image(), embedded)


async def _error_handling(_: Call, __: NoArguments) -> Reply:
    raise ClaudeCodeError("This tool intentionally returns an error for testing")


async def _region(_: Call, arguments: Region) -> Reply:
    return _content(text(f"region={arguments.region}"))


async def _called(_: Call, __: Anything) -> Reply:
    return _content(text("called"))


# -- while the call runs ----------------------------------------------------------------------------------------


async def _tool_with_progress(call: Call, _: NoArguments) -> Reply:
    for percent in (0, 50, 100):
        await call.context.session.report_progress(percent, 100, f"{percent} of 100")
        await asyncio.sleep(_STEP_SECONDS)
    return _content(text("Done, with progress."))


async def _tool_with_logging(call: Call, _: NoArguments) -> Reply:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.context.session.send_log_message("info", message, related_request_id=call.context.request_id)
        await asyncio.sleep(_STEP_SECONDS)
    return _content(text("Done, with log messages."))


async def _sampling(call: Call, arguments: Sampling) -> Reply:
    message = types.SamplingMessage(role="user", content=text(arguments.prompt))
    result = await call.context.session.create_message(
        [message], max_tokens=100, related_request_id=call.context.request_id
    )
    return _content(text(f"LLM response: {result.content}"))


async def _elicitation(call: Call, arguments: Elicitation) -> Reply:
    return await _elicited(call, arguments.message, {"response": {"type": "string"}})


async def _elicitation_sep1034_defaults(call: Call, _: NoArguments) -> Reply:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await _elicited(call, "Please review these values", fields)


async def _elicitation_sep1330_enums(call: Call, _: NoArguments) -> Reply:
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    fields = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": plain, "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _elicited(call, "Please choose", fields)


async def _elicited(call: Call, message: str, fields: dict[str, Any]) -> Reply:
    schema = {"type": "object", "properties": fields, "required": []}
    result = await call.context.session.elicit_form(message, schema, related_request_id=call.context.request_id)
    filled_in = json.dumps(result.content)
    return _content(text(f"Elicitation completed: action={result.action}, content={filled_in}"))


async def _missing_capability(call: Call, _: NoArguments) -> Reply:
    capabilities = call.context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool needs a client with sampling.",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return _content(text("The client declares sampling."))


# -- questions as results (2026-07-28) --------------------------------------------------------------------------


def elicit(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    """A form with one field."""
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str) -> types.CreateMessageRequest:
    messages = [types.SamplingMessage(role="user", content=text(prompt))]
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=messages, max_tokens=100))


@dataclass(frozen=True, slots=True)
class Asking:
    """A tool that asks in rounds: the questions of each, and the field that an answer to a form must have."""

    rounds: tuple[Mapping[str, types.InputRequest], ...]
    remembers: bool = True
    """Whether the client is given a state to bring back."""

    async def __call__(self, call: Call, _: NoArguments) -> Reply:
        number = int(call.state.own.get("round", 0))
        questions = self.rounds[number]
        if all(_fits(question, call.responses.get(key)) for key, question in questions.items()):
            number += 1
        if number == len(self.rounds):
            return _content(text("state-ok: everything was answered"))
        state = RoundState(own={"round": number}).to_json() if self.remembers else None
        return types.InputRequiredResult(input_requests=dict(self.rounds[number]), request_state=state)


def _fits(question: types.InputRequest, answer: Answer | None) -> bool:
    """Whether this answers the question, so that it need not be asked again."""
    if isinstance(question, types.ElicitRequest):
        params = question.params
        needed = params.requested_schema["required"] if isinstance(params, types.ElicitRequestFormParams) else []
        return isinstance(answer, types.ElicitResult) and all(name in (answer.content or {}) for name in needed)
    if isinstance(question, types.CreateMessageRequest):
        return isinstance(answer, types.CreateMessageResult)
    return isinstance(answer, types.ListRootsResult)


async def _capabilities(call: Call, _: NoArguments) -> Reply:
    """Asks only what the client has declared that it can be asked."""
    declared = call.context.session.client_capabilities or types.ClientCapabilities()
    questions: dict[str, types.InputRequest] = {}
    if declared.sampling is not None:
        questions["greeting"] = _sample("Say hello")
    if declared.elicitation is not None:
        questions["user_name"] = elicit("What is your name?", "name")
    return types.InputRequiredResult(input_requests=questions, request_state="{}")


_NAME = elicit("What is your name?", "name")
_ROOTS = types.ListRootsRequest()
_CONFIRM = {"confirm": elicit("Please confirm", "ok", "boolean")}
_ASKING: dict[str, Run] = {
    "elicitation": Asking(({"user_name": _NAME},), remembers=False),
    "sampling": Asking(({"capital_question": _sample("What is the capital of France?")},), remembers=False),
    "list_roots": Asking(({"client_roots": _ROOTS},), remembers=False),
    "request_state": Asking((_CONFIRM,)),
    "multiple_inputs": Asking(
        ({"user_name": _NAME, "greeting": _sample("Generate a greeting"), "client_roots": _ROOTS},)
    ),
    "multi_round": Asking(
        (
            {"step1": elicit("Step 1: What is your name?", "name")},
            {"step2": elicit("Step 2: What is your favorite color?", "color")},
        )
    ),
    "tampered_state": Asking((_CONFIRM,)),
    "capabilities": _capabilities,
}


# -- the family -------------------------------------------------------------------------------------------------


class RawTool(Tool[Any]):
    """A tool that is listed with a schema as it is written here."""

    def listing(self) -> types.Tool:
        return types.Tool(name=self.name, description=self.description, input_schema=_SCHEMAS[self.name])


_SCHEMAS: dict[str, dict[str, Any]] = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "additionalProperties": False,
    },
}


def tool(name: str, arguments: type[Arguments], run: Run) -> Tool[Any]:
    kind = RawTool if name in _SCHEMAS else Tool
    return kind(name, name, f"What the suite calls as {name}", arguments, None, run, types.ToolAnnotations())


_WITHOUT_ARGUMENTS: dict[str, Run] = {
    "test_simple_text": _simple_text,
    "test_image_content": _image_content,
    "test_audio_content": _audio_content,
    "test_embedded_resource": _embedded_resource,
    "test_multiple_content_types": _multiple_content_types,
    "test_error_handling": _error_handling,
    "test_tool_with_progress": _tool_with_progress,
    "test_tool_with_logging": _tool_with_logging,
    "test_logging_tool": _tool_with_logging,
    "test_elicitation_sep1034_defaults": _elicitation_sep1034_defaults,
    "test_elicitation_sep1330_enums": _elicitation_sep1330_enums,
    "test_missing_capability": _missing_capability,
    "test_streaming_elicitation": _ASKING["elicitation"],
    **{f"test_input_required_result_{name}": run for name, run in _ASKING.items()},
}
TOOLS = (
    *(tool(name, NoArguments, run) for name, run in _WITHOUT_ARGUMENTS.items()),
    tool("test_sampling", Sampling, _sampling),
    tool("test_elicitation", Elicitation, _elicitation),
    tool("test_x_mcp_header", Region, _region),
    tool("json_schema_2020_12_tool", Anything, _called),
)
