"""Write scripts: prompts that carry the model's answers.

    from claude_code_mcp.testing.script import script, text, tool

    prompt = script("Count the files.", tool("Bash", command="ls | wc -l"), text("Done."))

A script is free text followed by `SCRIPT:` and a JSON array with one step per model request. These
functions build the steps; a plain string is a step too. `request_reader` is the server's side of it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

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
    stop_reason: str
    """Instead of `end_turn` or `tool_use`."""
    usage: Mapping[str, Any]
    """Token counts that replace the made-up ones."""
    model: str
    """The model name in the answer, instead of the one asked for."""


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
    return {"question": wording, "header": header, "options": _options(options), "multiSelect": multiple}


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
    """The model hands in its structured output (the CLI was started with `--json-schema`)."""
    return {"structured": dict(value)}


def agent(description: str, prompt: str, *, background: bool = False, kind: str = "general-purpose") -> StepObject:
    """The model starts a subagent, whose prompt may be a `script(...)` of its own."""
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
    """The answer starts and never goes on: always, or the first `times` times."""
    return _faulty("stall", then, times)


def _faulty(fault: str, then: Step, times: int | None) -> StepObject:
    return {**_as_object(then), fault: True, **({} if times is None else {"times": times})}


def _as_object(step: Step) -> StepObject:
    return {"text": step} if isinstance(step, str) else step


def _options(options: Sequence[str | tuple[str, str]]) -> list[dict[str, str]]:
    pairs = ((option, option) if isinstance(option, str) else option for option in options)
    return [{"label": label, "description": description} for label, description in pairs]
