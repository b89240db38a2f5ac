"""A question as it is shown to whoever decides on it: whole up to a size, in pages beyond it, nothing invisible. Pure.

Secrets are taken out first (`without_secrets`); everything else here works on what that gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..errors import InvalidArgument
from ..model.question import Answer, Choice, Question, QuestionKind
from ..model.text import as_json, count_of, cut_data, gaps, has_mark, hidden_in, one_line, visible

WHOLE = 256 << 10


"""An input of up to so many bytes is shown whole."""


FORM_PAGE = 200_000


"""Characters of one form, where a question needs several."""


_CUT_BUDGET = 64_000


_CUT_TEXT = 8_000


_LITTLE = 1_000


_HEADLINES = {
    "Bash": ("command",),
    "PowerShell": ("command",),
    "Read": ("file_path",),
    "Glob": ("pattern",),
    "Grep": ("pattern",),
    "WebFetch": ("url",),
    "WebSearch": ("query",),
}


"""Which fields of a tool's input its description has, where that is short enough."""


class Redacts(Protocol):
    """Takes secrets out."""

    def text(self, text: str) -> str: ...

    def data(self, value: Any) -> Any: ...

    def held_back(self, text: str) -> int:
        """How many characters at the end of an unfinished text may be the beginning of a secret."""


def input_size(question: Question) -> int:
    """The bytes of the input as JSON, roughly: escapes of control characters count for one."""
    return _size(question.tool_input)


def _size(value: Any) -> int:
    waiting, size = [value], 0
    while waiting:
        one = waiting.pop()
        size += 4
        if isinstance(one, str):
            size += len(one.encode("utf-8", "surrogatepass"))
        elif isinstance(one, Mapping):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return size


def is_whole(question: Question) -> bool:
    """Whether it is small enough to be shown whole."""
    return input_size(question) <= WHOLE


def shown_input(question: Question, *, room: int = WHOLE) -> tuple[dict[str, Any], bool]:
    """The input, whole if it fits, else with cut marks in it; and whether it is whole."""
    if input_size(question) <= min(room, WHOLE):
        return dict(question.tool_input), True
    budget = _CUT_BUDGET if room >= _CUT_BUDGET else _LITTLE
    return cut_data(question.tool_input, budget, min(_CUT_TEXT, budget), question.id), False


def refuse_cut(updated: Mapping[str, Any]) -> None:
    """InvalidArgument for an input with a cut mark in it: what it stands for would be lost."""
    if has_mark(updated):
        raise InvalidArgument(
            "updatedInput contains a cut mark ([[claude-code-mcp cut …]]): it was made from an input that was not "
            "shown whole. Read the whole one in pages, or allow it without updatedInput.",
            field="updatedInput",
        )


def told(question: Question) -> str:
    """All that there is to decide on, readable and whole, however long it is."""
    match question.kind:
        case QuestionKind.PERMISSION:
            return "\n".join(_permission(question))
        case QuestionKind.PLAN_REVIEW:
            return _plan(question)
        case QuestionKind.USER_QUESTION:
            return "Claude Code asks:\n" + "\n".join(map(_choice, question.choices))


def _permission(question: Question) -> Iterator[str]:
    yield f"Claude Code wants to: {question.description}"
    if question.reason:
        yield visible(question.reason)
    if question.blocked_path:
        yield f"Path: {visible(question.blocked_path)}"
    in_headline = _HEADLINES.get(question.tool_name, ())
    for name, value in question.tool_input.items():
        if not (name in in_headline and isinstance(value, str) and _is_headline(value, question.description)):
            yield from _field(name, value, question.id)


def _is_headline(value: str, description: str) -> bool:
    """Whether the description ends with this value, all of it and as it is."""
    return description.removesuffix(" (in the background)").endswith(f" {value}") and one_line(value, 200) == value


def _field(name: str, value: Any, question_id: str) -> Iterator[str]:
    """A field with its size. What the model wrote cannot pass for the head of a field: it does not know the id."""
    shown = visible(name)
    if not isinstance(value, str):
        yield f"{shown}: {as_json(value)}"
    elif "\n" not in value and len(value) <= 200:
        yield f"{shown}: {visible(value)}"
    else:
        yield f"--- {shown} ({_about(value)}) {question_id[:6]} ---"
        yield visible(value)
        yield f"--- end of {shown} {question_id[:6]} ---"


def _about(text: str) -> str:
    """How long a text is, and what in it could keep a reader from seeing the rest."""
    about = [count_of(len(text), "character"), count_of(text.count("\n") + 1, "line")]
    hidden = hidden_in(text)
    if hidden:
        about.append(f"{count_of(hidden, 'control or invisible character')} shown as codes")
    about += list(gaps(text))[:5]
    if len(about) > 2:
        about.append(f"ends with: {one_line(text[-400:], 120)}")
    return ", ".join(about)


def _plan(question: Question) -> str:
    plan = question.tool_input.get("plan")
    if not isinstance(plan, str) or not plan:
        return "Claude Code has a plan and asks for approval:\n\n(Claude gave no text for its plan.)"
    others = {name: value for name, value in question.tool_input.items() if name != "plan"}
    fields = "".join(f"{line}\n" for name, value in others.items() for line in _field(name, value, question.id))
    return f"Claude Code has a plan and asks for approval ({_about(plan)}):\n{fields}\n{visible(plan)}"


def _choice(choice: Choice) -> str:
    options = "".join(
        f"\n  - {visible(label)}" + (f": {visible(about)}" if about else "") for label, about in choice.options
    )
    return visible(choice.question) + options


_FOR_PEOPLE = ("title", "description", "enumNames")


_FIELDS_WITHIN = ("properties", "items", "oneOf", "anyOf")


def without_secrets(question: Question, redactor: Redacts) -> Question:
    """The question with every text of it redacted. Labels and texts that would then be the same are numbered."""
    given = redactor.data(question.tool_input)
    if question.kind is QuestionKind.USER_QUESTION and given != question.tool_input:
        given = _told_apart(given)
    return replace(
        question,
        tool_input=given,
        description=redactor.text(question.description),
        reason=question.reason and redactor.text(question.reason),
        blocked_path=question.blocked_path and redactor.text(question.blocked_path),
    )


def as_offered(question: Question, shown: Question, answer: Answer) -> Answer:
    """The answer to a question that was shown without secrets, in the words of the question itself."""
    if not isinstance(answer.answers, Mapping) or shown.tool_input == question.tool_input:
        return answer
    pairs = {
        one.question: (other, _labels(other, one)) for other, one in zip(question.choices, shown.choices, strict=True)
    }
    answers = dict(_offered(pairs, text, value) for text, value in answer.answers.items())
    return replace(answer, answers=answers)


def form_without_secrets(schema: Mapping[str, Any], redactor: Redacts) -> dict[str, Any]:
    """A server's form with its titles and descriptions redacted. Values stay: the server compares them."""
    clean: dict[str, Any] = dict(schema)
    for name in _FOR_PEOPLE:
        if name in clean:
            clean[name] = redactor.data(clean[name])
    for name in _FIELDS_WITHIN:
        within = clean.get(name)
        if isinstance(within, Mapping) and name == "properties":
            clean[name] = {key: _part(one, redactor) for key, one in within.items()}
        elif isinstance(within, list):
            clean[name] = [_part(one, redactor) for one in within]
        elif within is not None:
            clean[name] = _part(within, redactor)
    return clean


def _part(schema: Any, redactor: Redacts) -> Any:
    return form_without_secrets(schema, redactor) if isinstance(schema, Mapping) else schema


def _labels(offered: Choice, shown: Choice) -> dict[str, str]:
    return dict(zip(shown.labels, offered.labels, strict=True))


def _offered(
    pairs: Mapping[str, tuple[Choice, Mapping[str, str]]], text: str, value: str | Sequence[str]
) -> tuple[str, str | Sequence[str]]:
    if text not in pairs:
        return text, value
    choice, labels = pairs[text]
    if isinstance(value, str):
        return choice.question, labels.get(value, value)
    return choice.question, [labels.get(one, one) for one in value]


def _told_apart(given: Mapping[str, Any]) -> dict[str, Any]:
    questions = given.get("questions")
    if not isinstance(questions, list):
        return dict(given)
    parts = [dict(part) if isinstance(part, Mapping) else part for part in questions]
    _number([part for part in parts if isinstance(part, dict)], "question")
    for part in parts:
        options = part.get("options") if isinstance(part, dict) else None
        if isinstance(options, list):
            part["options"] = [dict(one) if isinstance(one, Mapping) else {"label": str(one)} for one in options]
            _number(part["options"], "label")
    return {**given, "questions": parts}


def _number(entries: list[dict[str, Any]], field: str) -> None:
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        text = str(entry.get(field, ""))
        if text in seen:
            entry[field] = f"{text} ({number})"
        seen.add(str(entry.get(field, "")))
