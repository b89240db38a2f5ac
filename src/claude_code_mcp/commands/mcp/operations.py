"""What can be done with one server, for the one-shot actions and the interactive client alike.

Each operation returns what it found twice: as data for programs, and as text for people.
"""

import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from pydantic import BaseModel

from ...errors import InvalidArgument
from ...hub.hub import Hub, HubTool
from ...model.question import AskPerson
from .prompts import Progress, block_text, clean, one_line, parse_arguments, resource_text, result_text, signature


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What an operation found. `failed` is for a tool that says that it failed."""

    data: Any
    text: str
    failed: bool = False


def dump(model: BaseModel) -> dict[str, Any]:
    """A result of the protocol as JSON."""
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def dump_all(models: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [dump(model) for model in models]


# -- tools ---------------------------------------------------------------------------------------------------------


def tool_line(tool: types.Tool) -> str:
    """`name(parameters)` and the beginning of the description."""
    return _line(signature(tool.name, tool.input_schema), tool.description or tool.title)


async def call_tool(hub: Hub, server: str, tool: str, texts: Sequence[str], ask: AskPerson) -> OperationResult:
    """Calls a tool with arguments as people type them; progress is shown on stderr meanwhile.

    Raises InvalidArgument, before anything is sent, for arguments that do not parse and for a tool that the server
    does not list.
    """
    # The schema decides how arguments are read: `number=7` is a number only where the tool wants one.
    schema = _input_schema(await hub.tools(server), server, tool)
    progress = Progress(sys.stderr)
    try:
        result = dump(await hub.call(server, tool, parse_arguments(texts, schema), on_progress=progress, ask=ask))
    finally:
        # Also when the call fails: the message must not stand behind a half-drawn bar.
        progress.done()
    return OperationResult(result, result_text(result), bool(result.get("isError")))


def _input_schema(tools: list[HubTool], server: str, name: str) -> dict[str, Any]:
    schemas = {tool.tool.name: tool.tool.input_schema for tool in tools}
    if name in schemas:
        return schemas[name]
    if not schemas:
        return {}  # a server that lists no tools may still have this one: it decides
    raise InvalidArgument(f"{server!r} has no tool {name!r}; {_those_there(name, schemas)}")


# -- resources -----------------------------------------------------------------------------------------------------


def resource_lines(resources: Iterable[types.Resource], templates: Iterable[types.ResourceTemplate]) -> list[str]:
    """The addresses that can be read, then the templates of addresses."""
    shown = [_line(clean(str(each.uri)), each.description or each.title or each.name) for each in resources]
    return [
        *shown,
        *(_line(clean(each.uri_template), each.description or each.title or each.name) for each in templates),
    ]


async def list_resources(hub: Hub, server: str) -> OperationResult:
    resources, templates = await hub.resources(server), await hub.resource_templates(server)
    data = {"resources": dump_all(resources), "templates": dump_all(templates)}
    return OperationResult(data, "\n".join(resource_lines(resources, templates)))


async def read_resource(hub: Hub, server: str, uri: str) -> OperationResult:
    result = dump(await hub.read(server, uri))
    return OperationResult(result, "\n".join(map(resource_text, result.get("contents") or ())))


# -- prompts -------------------------------------------------------------------------------------------------------


def prompt_line(prompt: types.Prompt) -> str:
    arguments = prompt.arguments or []
    schema = {
        "properties": {argument.name: {} for argument in arguments},
        "required": [argument.name for argument in arguments if argument.required],
    }
    return _line(signature(prompt.name, schema), prompt.description or prompt.title)


async def list_prompts(hub: Hub, server: str) -> OperationResult:
    prompts = await hub.prompts(server)
    return OperationResult(dump_all(prompts), "\n".join(map(prompt_line, prompts)))


async def get_prompt(hub: Hub, server: str, name: str, texts: Sequence[str]) -> OperationResult:
    """A prompt with arguments as people type them. Raises InvalidArgument, before it is asked for, where the server
    lists prompts and this is none of them, or where an argument that it needs is missing."""
    arguments = text_arguments(texts)
    prompts = {prompt.name: prompt for prompt in await hub.prompts(server)}
    if prompts and name not in prompts:
        raise InvalidArgument(f"{server!r} has no prompt {name!r}; {_those_there(name, prompts)}")
    declared = (prompts[name].arguments or []) if prompts else []
    missing = [each.name for each in declared if each.required and each.name not in arguments]
    if missing:
        raise InvalidArgument(f"The prompt {name!r} needs {clean(', '.join(missing))}: NAME=VALUE for each.")
    result = dump(await hub.prompt(server, name, arguments))
    lines = [f"{each.get('role')}: {block_text(each.get('content') or {})}" for each in result.get("messages") or ()]
    return OperationResult(result, "\n".join(lines))


def text_arguments(texts: Sequence[str]) -> dict[str, str]:
    """Arguments that are texts whatever they look like, as those of prompts are."""
    schema = {"properties": {text.partition("=")[0]: {"type": "string"} for text in texts}}
    return {key: _as_text(value) for key, value in parse_arguments(texts, schema).items()}


# -- completion ----------------------------------------------------------------------------------------------------


async def complete(
    hub: Hub, server: str, name: str, argument: str, value: str = "", known_arguments: Mapping[str, str] | None = None
) -> OperationResult:
    """The values that a server suggests for an argument of a prompt, or of a template of addresses; those of
    `known_arguments` have a value already."""
    is_address = "://" in name or "{" in name
    reference = {"type": "ref/resource", "uri": name} if is_address else {"type": "ref/prompt", "name": name}
    params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
    if known_arguments:
        params["context"] = {"arguments": dict(known_arguments)}
    completion = dump((await hub.complete(server, params)).completion)
    return OperationResult(completion, "\n".join(map(clean, completion.get("values") or ())))


# -- parts ---------------------------------------------------------------------------------------------------------


def _line(name: str, description: str | None) -> str:
    return f"{name}  {one_line(description)}".rstrip()


def _those_there(name: str, there: Iterable[str]) -> str:
    names = [*there]
    close = difflib.get_close_matches(name, names, 3) or names[:10]
    return f"it has, among others: {clean(', '.join(close))}."


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
