"""How questions are shown: a one-line description, and the complete text for the person who decides. Pure.

`describe` says in one line what a tool call will do. Terminals show these lines, so nothing in them may hide or
overwrite adjacent text. A long line is shortened in the middle and says so.

Everything that a person decides on is shown: complete up to a size, in pages beyond it, and without invisible
characters. The order is: `without_secrets` redacts the question; `full_text` of kinds.py and `shown_input` work on the
redacted one; `original_answer` turns the answer into an answer to the original question.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..model.paths import HERE, PathRules
from ..model.question import Answer, FileChange, Question
from ..model.text import as_json, count_of, cut_data, gaps, hidden_in, json_parts, one_line, visible
from ..model.unified_diff import equal_ends
from ..redaction import Redactor, hide_shapes

_MAX_LENGTH = 200
_MAX_ARGUMENT = 60
_PATH_FIELDS = frozenset({"file_path", "notebook_path"})
_BACKGROUND = " (in the background)"
_DESCRIBED_FIELDS = {
    "Bash": "command",
    "PowerShell": "command",
    "Read": "file_path",
    "Glob": "pattern",
    "Grep": "pattern",
    "WebFetch": "url",
    "WebSearch": "query",
}
"""By tool, the input field with which its description ends, if that is short enough."""


def describe(tool_name: str, tool_input: Mapping[str, Any], cwd: str = "", paths: PathRules = HERE) -> str:
    """For example `Edit src/auth.py: 3 lines changed` or `Run: git push`. Paths below `cwd` are relative."""
    describer = _DESCRIBERS.get(tool_name)
    tool_input = {
        name: paths.shown_from(value, cwd) if name in _PATH_FIELDS and isinstance(value, str) else value
        for name, value in tool_input.items()
    }
    return _shorten(describer(tool_input) if describer else _describe_unknown(tool_name, tool_input), _MAX_LENGTH)


def is_described(tool_name: str, field: str, value: object, description: str) -> bool:
    """Whether the description of a call contains this input value completely and unchanged."""
    if _DESCRIBED_FIELDS.get(tool_name) != field or not isinstance(value, str):
        return False
    # Only if the line shows the value unchanged: a shortened value must be shown in full elsewhere.
    return description.removesuffix(_BACKGROUND).endswith(f" {value}") and one_line(value, _MAX_LENGTH) == value


def _shorten(text: str, longest: int) -> str:
    """The text on one line. Secrets are removed first, because half a secret would not be recognized."""
    return one_line(hide_shapes(text) if len(text) > longest else text, longest)


def _first(tool_input: Mapping[str, Any], *names: str) -> str:
    """The first of these fields that has a value; `?` if none has."""
    values = (tool_input.get(name) for name in names)
    return next((str(value) for value in values if value), "?")


def _describe_edit(tool_input: Mapping[str, Any]) -> str:
    old, new = str(tool_input.get("old_string", "")), str(tool_input.get("new_string", ""))
    everywhere = ", everywhere" if tool_input.get("replace_all") else ""
    return f"Edit {_first(tool_input, 'file_path')}: {_changed(old, new)}{everywhere}"


def _changed(old: str, new: str) -> str:
    """The number of lines between the first and the last difference: an edit is one place in a file."""
    before, after = old.splitlines(), new.splitlines()
    start, end = equal_ends(before, after)
    return count_of(max(len(before), len(after)) - start - end, "line", "") + " changed"


def _describe_write(tool_input: Mapping[str, Any]) -> str:
    lines = len(str(tool_input.get("content", "")).splitlines())
    return f"Write {_first(tool_input, 'file_path')}: {count_of(lines, 'line', '')}"


def _describe_command(tool_input: Mapping[str, Any]) -> str:
    background = _BACKGROUND if tool_input.get("run_in_background") else ""
    return f"Run: {_first(tool_input, 'command')}{background}"


def _describe_plan(tool_input: Mapping[str, Any]) -> str:
    plan = str(tool_input.get("plan") or "").strip()
    heading = next((line.lstrip("# ").strip() for line in plan.splitlines() if line.strip()), "")
    return f"Plan ready for review: {heading}" if heading else "Plan ready for review"


def _describe_questions(tool_input: Mapping[str, Any]) -> str:
    raw = tool_input.get("questions")
    questions = (
        [str(part.get("question", "?")) for part in raw if isinstance(part, Mapping)] if isinstance(raw, list) else []
    )
    return "Question: " + " / ".join(questions) if questions else "Claude has a question"


def _describe_agent(tool_input: Mapping[str, Any]) -> str:
    return f"Start agent: {_first(tool_input, 'description', 'prompt')}"


_DESCRIBERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "Edit": _describe_edit,
    "Write": _describe_write,
    "NotebookEdit": lambda tool_input: f"Edit notebook {_first(tool_input, 'notebook_path')}",
    "Read": lambda tool_input: f"Read {_first(tool_input, 'file_path')}",
    "Bash": _describe_command,
    "PowerShell": _describe_command,
    "Glob": lambda tool_input: f"Find files: {_first(tool_input, 'pattern')}",
    "Grep": lambda tool_input: f"Search for: {_first(tool_input, 'pattern')}",
    "WebFetch": lambda tool_input: f"Fetch {_first(tool_input, 'url')}",
    "WebSearch": lambda tool_input: f"Search the web: {_first(tool_input, 'query')}",
    "Task": _describe_agent,
    "Agent": _describe_agent,
    "ExitPlanMode": _describe_plan,
    "AskUserQuestion": _describe_questions,
    "EnterPlanMode": lambda _: "Enter plan mode",
}


def _describe_unknown(tool_name: str, tool_input: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{key}={_argument(value)}" for key, value in tool_input.items())
    return f"Use {_display_name(tool_name)}: {arguments}" if arguments else f"Use {_display_name(tool_name)}"


def _display_name(tool_name: str) -> str:
    """`tool of server` for `mcp__server__tool`."""
    prefix, _, rest = tool_name.partition("__")
    server, _, tool = rest.partition("__")
    return f"{tool} of {server}" if prefix == "mcp" and server and tool else tool_name


def _argument(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _shorten(text, _MAX_ARGUMENT)


WHOLE = 256 << 10
"""Inputs up to this many bytes are shown completely."""
FORM_PAGE = 200_000
"""Characters per form, if a question needs several."""
_CUT_BUDGET = 64_000
_MAX_CUT_TEXT = 8_000
_SMALL_BUDGET = 1_000
_SHORT_VALUE = 200
"""Values up to this many characters follow their name on the same line; longer ones get a block."""
_TEXTS_OF_FORM = ("title", "description", "enumNames")
_SCHEMAS_IN_FORM = ("properties", "items", "oneOf", "anyOf")


def input_size(question: Question) -> int:
    """The approximate size of the input as JSON in bytes; escaped control characters count as one."""
    size = 0
    for part in json_parts(question.tool_input):
        size += 4 + (len(part.encode("utf-8", "surrogatepass")) if isinstance(part, str) else 0)
    return size


def is_whole(question: Question) -> bool:
    """Whether the input is small enough to be shown whole."""
    return input_size(question) + (len(question.change.diff) if question.change else 0) <= WHOLE


def shown_input(question: Question, *, room: int = WHOLE) -> tuple[dict[str, Any], bool]:
    """The input, whole if it fits, otherwise with cut marks; and whether it is whole."""
    if input_size(question) <= min(room, WHOLE):
        return dict(question.tool_input), True
    budget = _CUT_BUDGET if room >= _CUT_BUDGET else _SMALL_BUDGET
    return cut_data(question.tool_input, budget, min(_MAX_CUT_TEXT, budget), question.id), False


_CHANGED_FIELDS = {
    "Edit": ("old_string", "new_string", "replace_all"),
    "MultiEdit": ("edits",),
    "Write": ("content",),
    "NotebookEdit": ("new_source",),
}
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)")


def fields_in_change(question: Question) -> Sequence[str]:
    """The input fields that are shown as a change to the file; none without a diff."""
    has_diff = question.change is not None and question.change.diff
    return _CHANGED_FIELDS.get(question.tool_name, ()) if has_diff else ()


def change_lines(diff: str) -> Iterator[tuple[str, str]]:
    """The lines of a diff, human-readable, each with its sign (`@`, `+`, `-`, a space or a backslash) and its number:
    in the old file for a removed line, in the new file for others. Nothing in them is invisible. "…" marks omitted
    lines, so there is none above a hunk that begins with the first line."""
    before = after = 0
    for line in diff.split("\n"):
        sign, text = line[:1], visible(line[1:].replace("\r", "\\r"))
        if sign == "@":
            found = _HUNK.match(line)
            before, after = (int(found[1]), int(found[2])) if found else (0, 0)
            if max(before, after) > 1 or not found:
                yield sign, "…"
        elif sign == "\\":
            yield sign, f"{'':>6}  {text.strip()}"
        else:
            yield sign, f"{before if sign == '-' else after:>6} {sign} {text}"
            before, after = before + (sign != "+"), after + (sign != "-")


def field_lines(name: str, value: Any, question_id: str) -> Iterator[str]:
    """A field with its size. The model cannot forge a field's header because it does not know the question's id."""
    shown = visible(name)
    if not isinstance(value, str):
        yield f"{shown}: {as_json(value)}"
    elif "\n" not in value and len(value) <= _SHORT_VALUE:
        yield f"{shown}: {visible(value)}"
    else:
        yield f"--- {shown} ({measures(value)}) {question_id[:6]} ---"
        yield visible(value)
        yield f"--- end of {shown} {question_id[:6]} ---"


def measures(text: str) -> str:
    """The length of a text, and properties that could keep a reader from seeing all of it."""
    measures = [count_of(len(text), "character"), count_of(text.count("\n") + 1, "line")]
    hidden = hidden_in(text)
    if hidden:
        measures.append(f"{count_of(hidden, 'control or invisible character')} shown as codes")
    measures += list(gaps(text))[:5]
    if len(measures) > 2:
        measures.append(f"ends with: {one_line(text[-400:], 120)}")
    return ", ".join(measures)


def without_secrets(question: Question, redactor: Redactor) -> Question:
    """The question with all of its texts redacted. Labels and texts that become equal are numbered."""
    tool_input = redactor.data(question.tool_input)
    # Redaction can make two options equal, and then the answer would not say which one was meant.
    if question.choices and tool_input != question.tool_input:
        tool_input = _numbered(tool_input)
    return replace(
        question,
        tool_input=tool_input,
        description=redactor.text(question.description),
        session_rules=tuple(map(redactor.text, question.session_rules)),
        reason=question.reason and redactor.text(question.reason),
        blocked_path=question.blocked_path and redactor.text(question.blocked_path),
        change=_change_without_secrets(question, tool_input, redactor),
        form=question.form and redactor.data(question.form),
    )


def _change_without_secrets(question: Question, tool_input: Any, redactor: Redactor) -> FileChange | None:
    """The change, unless it or the input contains a secret: old and new lines would look equal, which would hide the
    difference. Then the rest of the input is shown."""
    change = question.change
    if change is None or not change.diff:
        return change
    # Without the signs, between which a secret of several lines would not be recognized.
    lines = "\n".join(line[1:] for line in change.diff.split("\n"))
    if tool_input != question.tool_input or redactor.text(lines) != lines:
        return FileChange(note="The file exists. It contains secrets, so the change is not shown in its context.")
    return change


def original_answer(question: Question, shown: Question, answer: Answer) -> Answer:
    """The answer to the redacted question as an answer to the original: with its original texts and labels."""
    if not isinstance(answer.answers, Mapping) or shown.tool_input == question.tool_input:
        return answer
    originals = {
        redacted.question: original for original, redacted in zip(question.choices, shown.choices, strict=True)
    }
    labels = {
        redacted.question: dict(zip(redacted.labels, original.labels, strict=True))
        for original, redacted in zip(question.choices, shown.choices, strict=True)
    }
    answers: dict[str, str | Sequence[str]] = {}
    for text, value in answer.answers.items():
        # A text that was not shown: `reply` accepts or refuses it.
        if text not in originals:
            answers[text] = value
        elif isinstance(value, str):
            answers[originals[text].question] = labels[text].get(value, value)
        else:
            answers[originals[text].question] = [labels[text].get(label, label) for label in value]
    return replace(answer, answers=answers)


def form_without_secrets(schema: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """The schema of a server's form with titles and descriptions redacted. Values stay, because the server compares
    them."""

    def redact(part: Any) -> Any:
        return form_without_secrets(part, redactor) if isinstance(part, Mapping) else part

    clean: dict[str, Any] = dict(schema)
    for name in _TEXTS_OF_FORM:
        if name in clean:
            clean[name] = redactor.data(clean[name])
    for name in _SCHEMAS_IN_FORM:
        inner = clean.get(name)
        if isinstance(inner, Mapping) and name == "properties":
            clean[name] = {key: redact(part) for key, part in inner.items()}
        elif isinstance(inner, list):
            clean[name] = [redact(part) for part in inner]
        elif inner is not None:
            clean[name] = redact(inner)
    return clean


def _numbered(tool_input: Mapping[str, Any]) -> dict[str, Any]:
    """A user question in which texts and labels that became equal by redaction are numbered."""
    questions = tool_input.get("questions")
    if not isinstance(questions, list):
        return dict(tool_input)
    parts = [dict(part) if isinstance(part, Mapping) else part for part in questions]
    _number([part for part in parts if isinstance(part, dict)], "question")
    for part in parts:
        options = part.get("options") if isinstance(part, dict) else None
        if isinstance(options, list):
            part["options"] = [
                dict(option) if isinstance(option, Mapping) else {"label": str(option)} for option in options
            ]
            _number(part["options"], "label")
    return {**tool_input, "questions": parts}


def _number(entries: list[dict[str, Any]], field: str) -> None:
    """Append its position to every entry whose text is a duplicate."""
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        text = str(entry.get(field, ""))
        if text in seen:
            entry[field] = f"{text} ({number})"
        seen.add(str(entry.get(field, "")))
