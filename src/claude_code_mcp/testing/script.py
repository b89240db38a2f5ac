"""Scripts: prompts that carry the model's answers, and how these are read out of a request.

    from claude_code_mcp.testing.script import script, text, tool

    prompt = script("Count the files.", tool("Bash", command="ls | wc -l"), text("Done."))

A script is free text followed by `SCRIPT:` and a JSON array with one step per model request. The first functions build
the steps; a plain string is a step too. `answer_of` turns a step into the model's answer: a step is checked when it is
played, so an invalid step is answered with a text that names the mistake. `request_reader` finds the step for a
request.

The server keeps no conversation. The newest script in the request decides, and the number of assistant messages after
it is the index of the step. Two kinds of request carry no script and are recognized by their shape: the CLI requests a
title of the session, and a summary of a conversation that has become too long.

`answer_to` never raises: an unreadable request is answered with a text that gives the reason. These texts never contain
the marker of a script, because the text of a subagent returns to its parent as a message.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, TypedDict, TypeVar, Unpack

MARKER = "SCRIPT:"
StepObject = dict[str, Any]
"""A step in its full form."""
Step = StepObject | str
"""One answer of the model: an object of the script language, or a string for plain text."""


class Modifiers(TypedDict, total=False):
    """How a step is delivered. Every builder that makes text takes these; `modify` adds them to any step."""

    delay: float
    """Seconds before the first byte."""
    chunks: int
    """Into how many deltas the text is split."""
    interval: float
    """Seconds between deltas."""
    repeat: int
    """How often the text is repeated."""
    until: str
    """A file that must exist before the last delta is sent: creating it ends the answer."""
    stop_reason: str
    """Instead of `end_turn` or `tool_use`."""
    usage: Mapping[str, Any]
    """Token counts that replace the made-up ones."""
    model: str
    """The model name in the answer, instead of the requested one."""
    headers: Mapping[str, str]
    """More headers of the response, such as `anthropic-ratelimit-unified-status`."""
    blocked: str
    """In auto mode, why the API's safety check blocks the tool calls; empty if it permits them."""


def script(prompt: str, *steps: Step) -> str:
    """The prompt with its script: what to send to Claude Code."""
    return f"{prompt} {MARKER}{json.dumps(steps, ensure_ascii=False)}"


def text(content: str, **modifiers: Unpack[Modifiers]) -> StepObject:
    """The model says something; without a tool call this ends the turn."""
    return {"text": content, **modifiers}


def thinking(thought: str, say: str = "", **modifiers: Unpack[Modifiers]) -> StepObject:
    """The model thinks, then says something."""
    return {"thinking": thought, "text": say or "ok", **modifiers}


def tool(name: str, /, **arguments: Any) -> StepObject:
    """The model calls one tool."""
    return {"tool": name, "input": arguments}


def parallel(*blocks: Step) -> StepObject:
    """One message of several blocks: text, thinking and tool calls made at the same time."""
    return {"blocks": list(blocks)}


def modify(step: Step, **modifiers: Unpack[Modifiers]) -> StepObject:
    """The same step, delivered differently."""
    return {**_as_object(step), **modifiers}


def question(
    wording: str, *options: str | tuple[str, str], header: str = "Choice", multiple: bool = False
) -> dict[str, Any]:
    """One question for `ask_user`; an option is a label, or a label with its description."""
    pairs = ((option, option) if isinstance(option, str) else option for option in options)
    listed = [{"label": label, "description": description} for label, description in pairs]
    return {"question": wording, "header": header, "options": listed, "multiSelect": multiple}


def ask_user(first: str | Mapping[str, Any], *rest: str | tuple[str, str] | Mapping[str, Any]) -> StepObject:
    """The model asks the person: `ask_user("Which?", "red", "blue")`, or several `question(...)`."""
    if isinstance(first, str):
        options = [option for option in rest if not isinstance(option, Mapping)]
        return tool("AskUserQuestion", questions=[question(first, *options)])
    return tool("AskUserQuestion", questions=[first, *rest])


def plan(content: str) -> StepObject:
    """The model writes the plan file and then asks for approval: two requests to the model."""
    return {"plan": content}


def structured(value: Mapping[str, Any]) -> StepObject:
    """The model returns its structured output (the CLI was started with `--json-schema`)."""
    return {"structured": dict(value)}


def agent(description: str, prompt: str, *, background: bool = False, kind: str = "general-purpose") -> StepObject:
    """The model starts a subagent, whose prompt may itself be a `script(...)`."""
    return tool("Agent", description=description, prompt=prompt, subagent_type=kind, run_in_background=background)


def fail(
    status: int,
    *,
    times: int | None = None,
    then: Step = "ok",
    message: str | None = None,
    error_type: str | None = None,
    retry_after: float | None = None,
) -> StepObject:
    """The API answers with an HTTP error: always, or `times` times and `then` with the given step."""
    details = {"times": times, "message": message, "error_type": error_type, "retry_after": retry_after}
    return {
        **_as_object(then),
        "error": status,
        **{key: value for key, value in details.items() if value is not None},
    }


def cut(then: Step = "This sentence is never finished.", *, times: int | None = None) -> StepObject:
    """The connection closes in the middle of the answer: always, or the first `times` times."""
    return _faulty("cut", then, times)


def stall(then: Step = "Wait", *, times: int | None = None) -> StepObject:
    """The answer starts and never continues: always, or the first `times` times."""
    return _faulty("stall", then, times)


def _faulty(fault: str, then: Step, times: int | None) -> StepObject:
    return {**_as_object(then), fault: True, **({} if times is None else {"times": times})}


def _as_object(step: Step) -> StepObject:
    return {"text": step} if isinstance(step, str) else step


T = TypeVar("T")
Json = dict[str, Any]
FaultKind = Literal["error", "cut", "stall"]
_BLOCK_KEYS = frozenset({"text", "thinking", "signature", "tool", "input", "id", "structured"})
_PACE_KEYS = frozenset({"chunks", "interval", "repeat"})
_FAULT_KEYS = frozenset({"error", "cut", "stall", "hang", "times", "error_type", "message", "retry_after"})
_STEP_KEYS = (
    _BLOCK_KEYS
    | _PACE_KEYS
    | _FAULT_KEYS
    | {"blocks", "plan", "delay", "until", "stop_reason", "usage", "model", "headers", "blocked"}
)
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_KINDS: dict[type, str] = {str: "a string", dict: "an object"}


class ScriptError(ValueError):
    """A script that cannot be played; the message names the problem."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The failure instead of the answer, for the first `times` requests or for all of them."""

    kind: FaultKind
    times: int | None = None
    status: int = 500
    error_type: str = "api_error"
    message: str = "scripted error"
    retry_after: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """One content block in the form of the API, and the number of deltas that it is split into."""

    content: Json
    chunks: int = 1
    interval: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The model's answer to one request."""

    blocks: tuple[Block, ...]
    key: str = ""
    """The same for every attempt at the same step of the same conversation."""
    step: int | None = None
    fault: Fault | None = None
    delay: float = 0.0
    until: str | None = None
    stop_reason: str | None = None
    usage: Json = field(default_factory=dict)
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    blocked: str | None = None


def text_answer(text: str) -> ModelAnswer:
    """An answer with only text."""
    return ModelAnswer((Block({"type": "text", "text": text}),))


def steps_of(script: list[Any]) -> Iterator[Json]:
    """The steps in their full form; a plan becomes two, the file and the question for approval."""
    for number, raw in enumerate(script):
        step = _read_object(raw, _STEP_KEYS, f"step {number}")
        plan = step.pop("plan", None)
        if plan is None:
            yield step
        else:
            yield {**step, "tool": "Write", "input": {"file_path": "${plan_file}", "content": plan}}
            yield {"tool": "ExitPlanMode", "input": {}}


def _read_object(raw: Any, known: frozenset[str], where: str) -> Json:
    """A copy in full form; a string becomes a step with that text. Raises ScriptError that names the place."""
    if isinstance(raw, str):
        return {"text": raw}
    if not isinstance(raw, dict):
        raise ScriptError(f"{where} is neither a string nor an object")
    if unknown := sorted(raw.keys() - known):
        raise ScriptError(f"{where} has unknown keys: {', '.join(unknown)}")
    return dict(raw)


def answer_of(step: Json, index: int, key: str) -> ModelAnswer:
    """The answer described by a step; raises ScriptError if the step describes none."""
    return ModelAnswer(
        blocks=tuple(_blocks(step, index)),
        key=key,
        step=index,
        fault=_fault(step),
        delay=_number(step, "delay", 0),
        until=_typed(step, "until", str),
        stop_reason=_typed(step, "stop_reason", str),
        usage=_typed(step, "usage", dict) or {},
        blocked=_typed(step, "blocked", str),
        model=_typed(step, "model", str),
        headers=_headers(step),
    )


def _blocks(step: Json, index: int) -> Iterator[Block]:
    if "blocks" not in step:
        yield from _blocks_of(step, step)
        return
    if not isinstance(step["blocks"], list) or not step["blocks"]:
        raise ScriptError(f"step {index}: blocks must be a non-empty list")
    for number, raw in enumerate(step["blocks"]):
        block = _read_object(raw, _BLOCK_KEYS | _PACE_KEYS, f"step {index}, block {number}")
        yield from _blocks_of(block, {**step, **block})


def _blocks_of(source: Json, pace: Json) -> Iterator[Block]:
    """The blocks of one object, which may have thinking, text and a tool call: always in this order."""
    chunks, interval = int(_number(pace, "chunks", 1)), _number(pace, "interval", 0)
    for content in _contents(source, int(_number(pace, "repeat", 1))):
        yield Block(content, max(1, chunks), interval)


def _contents(source: Json, repeat: int) -> Iterator[Json]:
    if "thinking" in source:
        signature = source.get("signature", "c2NyaXB0ZWQ=")
        yield {"type": "thinking", "thinking": str(source["thinking"]), "signature": signature}
    if "text" in source or not source.keys() & {"thinking", "tool", "structured"}:
        yield {"type": "text", "text": str(source.get("text", "ok")) * repeat}
    if "structured" in source:
        yield _tool_use("StructuredOutput", source["structured"], source.get("id"))
    if "tool" in source:
        yield _tool_use(source["tool"], source.get("input", {}), source.get("id"))


def _tool_use(name: Any, arguments: Any, tool_use_id: Any) -> Json:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ScriptError("a tool call needs a name and an input object")
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def _fault(step: Json) -> Fault | None:
    times = int(_number(step, "times", 0)) if "times" in step else None
    if "error" in step:
        return _error(step, times)
    if step.get("cut"):
        return Fault("cut", times)
    return Fault("stall", times) if step.get("stall") or step.get("hang") else None


def _error(step: Json, times: int | None) -> Fault:
    status = int(_number(step, "error", 500))
    return Fault(
        kind="error",
        times=times,
        status=status,
        error_type=_typed(step, "error_type", str) or _ERROR_TYPES.get(status, "api_error"),
        message=_typed(step, "message", str) or f"scripted error {status}",
        retry_after=_number(step, "retry_after", 0) if "retry_after" in step else None,
        headers=_headers(step),
    )


def _headers(step: Json) -> Mapping[str, str]:
    """More headers of the response; ScriptError for headers that would break it."""
    headers = {str(name): str(value) for name, value in (_typed(step, "headers", dict) or {}).items()}
    if any(character in text for pair in headers.items() for text in pair for character in "\r\n"):
        raise ScriptError("headers must not contain line breaks")
    return headers


def _typed(source: Json, key: str, kind: type[T]) -> T | None:
    value = source.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise ScriptError(f"{key} must be {_KINDS[kind]}")


def _number(source: Json, key: str, default: float) -> float:
    value = source.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ScriptError(f"{key} must be a non-negative number")
    return value


# -- request reader ---------------------------------------------------------------------------------------------------


_NOTIFICATION = "<task-notification>"
"""Marks a message that the CLI wrote about a subagent: a script quoted in it does not belong to this conversation."""

_PLAN_FILE = re.compile(r"plan(?: file already exists)? at (.{1,4096}?\.md)\b")
_DIRECTORY = re.compile(r"[Ww]orking directory: (.+)")
_PLACEHOLDER = re.compile(r"\$\{(plan_file|cwd|tool_result)\}")

_SUMMARY_REQUEST = "CRITICAL: Respond with TEXT ONLY"
_SUMMARY = "<analysis>Scripted.</analysis>\n<summary>A scripted conversation.</summary>"
_TITLE = "Scripted session"
_EMPTY_VALUES = {"integer": 0, "number": 0, "boolean": False, "array": [], "null": None}


def answer_to(body: Mapping[str, Any]) -> ModelAnswer:
    """The answer to a Messages request, given its decoded body."""
    if (text := _side_answer(body)) is not None:
        return text_answer(text)
    try:
        return _scripted_answer(body)
    except ScriptError as error:
        return text_answer(f"Bad script: {error}.")


# -- the messages of a request -----------------------------------------------------------------------------


def messages_of(body: Mapping[str, Any]) -> list[Json]:
    """The messages of a request."""
    return [message for message in body.get("messages") or [] if isinstance(message, dict)]


def texts_of(content: Any) -> list[str]:
    """The texts of a message or of a tool result, excluding tool results inside it."""
    if isinstance(content, str):
        return [content]
    return [str(block.get("text", "")) for block in _blocks_of_request(content, "text")]


def texts_by_role(messages: Sequence[Json], *roles: str) -> list[str]:
    """The texts of the messages of these roles, oldest first."""
    return [text for message in messages if message.get("role") in roles for text in texts_of(message.get("content"))]


def tool_results_in(messages: Sequence[Json]) -> list[Json]:
    """The tool results the model has received since its last message."""
    results: list[Json] = []
    for message in reversed(messages):
        if message.get("role") == "assistant":
            break
        results[:0] = _blocks_of_request(message.get("content"), "tool_result")
    return results


def _blocks_of_request(content: Any, kind: str) -> list[Json]:
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


# -- the script ------------------------------------------------------------------------------------------


def newest_script(messages: Sequence[Json]) -> tuple[int, str] | None:
    """The position of the newest message that contains a script, and its text; None without one.

    The CLI puts a prompt into a user message, and messages sent during a turn into a system message.
    """
    for position in range(len(messages) - 1, -1, -1):
        for text in reversed(texts_by_role([messages[position]], "user", "system")):
            if MARKER in text and _NOTIFICATION not in text:
                return position, text
    return None


def _scripted_answer(body: Mapping[str, Any]) -> ModelAnswer:
    messages = messages_of(body)
    found = newest_script(messages)
    if found is None:
        last = texts_by_role(messages, "user")[-1:] or [""]
        return text_answer(f"There is no script in this conversation. You said: {last[0][:80]}")
    position, text = found
    *_, last = _decoded_scripts(text)  # a script inside the strings of another script belongs to it
    if not isinstance(last, list):
        raise ScriptError("it must be a JSON array of steps")
    steps = list(steps_of(last))
    index = sum(message.get("role") == "assistant" for message in messages[position + 1 :])
    if index >= len(steps):
        return text_answer("script done")
    return answer_of(Placeholders(body).fill(steps[index]), index, _attempt_key(body, position, index, text))


def _decoded_scripts(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    marker = text.find(MARKER)
    while marker >= 0:
        start = marker + len(MARKER)
        while text[start : start + 1].isspace():
            start += 1
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError as error:
            raise ScriptError(f"it is not JSON: {error}") from error
        yield value
        marker = text.find(MARKER, end)


def _attempt_key(body: Mapping[str, Any], position: int, index: int, text: str) -> str:
    """The same for every attempt at the same step of the same conversation."""
    parts = json.dumps([body.get("metadata"), position, index, text], sort_keys=True)
    return blake2b(parts.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Placeholders:
    """Replaces `${plan_file}`, `${cwd}` and `${tool_result}` by their values in the request."""

    body: Mapping[str, Any]

    def fill(self, value: Any) -> Any:
        """The value with its placeholders replaced, in all the strings inside it.

        Other text, such as `${HOME}`, stays unchanged, and so does a script inside a string, because it belongs to
        another conversation.
        """
        if isinstance(value, str):
            own, marker, nested = value.partition(MARKER)
            return _PLACEHOLDER.sub(self._replacement, own) + marker + nested
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        return value

    def _replacement(self, placeholder: re.Match[str]) -> str:
        match placeholder[1]:
            case "plan_file":
                return self._newest_match(_PLAN_FILE) or placeholder[0]
            case "cwd":
                return self._newest_match(_DIRECTORY) or placeholder[0]
            case _:
                results = tool_results_in(messages_of(self.body))
                return "\n".join(text for result in results for text in texts_of(result.get("content")))

    def _newest_match(self, pattern: re.Pattern[str]) -> str:
        texts = [*texts_of(self.body.get("system")), *texts_by_role(messages_of(self.body), "user", "system")]
        found = (pattern.findall(text) for text in reversed(texts))
        return next((str(matches[-1]) for matches in found if matches), "")


# -- requests of the CLI on its own behalf ----------------------------------------------------------------


def _side_answer(body: Mapping[str, Any]) -> str | None:
    """The answer to a request for a title or for a summary; None if it is neither."""
    if (schema := _output_schema(body)) is not None:
        return json.dumps(_instance_of(schema))
    texts = texts_by_role(messages_of(body), "user")
    return _SUMMARY if texts and texts[-1].startswith(_SUMMARY_REQUEST) else None


def _output_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of a request without tools that wants JSON: the CLI requests a title like this."""
    output = body.get("output_config")
    if body.get("tools") or not isinstance(output, dict) or not isinstance(output.get("format"), dict):
        return None
    schema = output["format"].get("schema")
    return schema if isinstance(schema, dict) else None


def _instance_of(schema: Mapping[str, Any]) -> Any:
    """A small value that matches a simple schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _instance_of(field) for name, field in schema.get("properties", {}).items()}
    return _EMPTY_VALUES.get(schema.get("type", "string"), _TITLE)
