"""From a question to Slack messages, and from a press to an answer. No I/O.

Texts from sessions go out as `plain_text`, in which Slack interprets nothing, in sections that are always expanded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claude_code_mcp import Answer, Closure, Question, QuestionKind, Resolution, Scope, full_text

Block = dict[str, Any]

_SECTION = 1500
"""Characters of one section. Slack takes 3000; should it count in units of UTF-16, these are as many at most."""
_SECTIONS = 8
"""Sections of one message."""
_MAX_TEXT = 60_000
"""Characters of a question that can be allowed here; nobody reads more than that in a chat."""
_LABEL = 70
"""Characters of an option on a button or in a list. Slack takes 75."""
_BUTTONS = 5
_LISTED = 10
"""Options that Slack shows beside one another in radio buttons or checkboxes."""
_SELECTED = 100
"""Options that Slack takes in a menu."""


@dataclass(frozen=True, slots=True)
class Press:
    """A button that somebody pressed."""

    user: str
    action: str
    session_id: str
    question_id: str
    values: Mapping[str, Any]
    """The state of the inputs of the message, by block."""
    channel: str
    ts: str
    """The message, which Slack names by its time."""
    blocks: Sequence[Block]
    """The message as it was when the button was pressed."""

    @classmethod
    def read(cls, payload: Any) -> "Press | None":
        """From the payload of an envelope; None if it is not a press of a button of ours."""
        try:
            (action,) = payload["actions"]
            session_id, question_id = action["value"].split(" ")
            message = payload["message"]
            return cls(
                user=str(payload["user"]["id"]),
                action=str(action["action_id"]),
                session_id=session_id,
                question_id=question_id,
                values=payload.get("state", {}).get("values", {}),
                channel=str(payload["channel"]["id"]),
                ts=str(message["ts"]),
                blocks=message.get("blocks", []),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


# -- from a question to messages --------------------------------------------------------------------------------------


def can_be_allowed(shown: Question) -> bool:
    """Whether the question is short enough to be decided in a chat."""
    return len(_text(shown)) <= _MAX_TEXT


def messages_of(shown: Question) -> list[list[Block]]:
    """The blocks of each message for a question, in order. The last one has the buttons, below all that is decided."""
    if not can_be_allowed(shown):
        text = (
            f"{shown.description}\n\nThis question has {len(_text(shown)):,} characters, too many for a chat. Answer "
            "it in your client, the console or the terminal, or deny it here."
        )
        return [[*_sections(_pieces(text)), *_foot(shown, _inputs(shown), [_button(shown, "deny", "Deny", "danger")])]]
    pieces = _pieces(_text(shown))
    pages = [pieces[start : start + _SECTIONS] for start in range(0, len(pieces), _SECTIONS)]
    messages = [_sections(page) for page in pages]
    if len(pages) > 1:
        messages = [
            [_context(f"Part {number} of {len(pages)} of question {shown.id}"), *blocks]
            for number, blocks in enumerate(messages, 1)
        ]
    messages[-1] += _foot(shown, _inputs(shown), _buttons(shown))
    return messages


def _text(shown: Question) -> str:
    """Everything that is decided on; options that are too long for a button have a number."""
    numbered = [
        f"Option {number}: {label}"
        for choice in shown.choices
        for number, label in enumerate(choice.labels, 1)
        if len(label) > _LABEL
    ]
    return "\n".join([full_text(shown), *numbered])


def _pieces(text: str) -> list[str]:
    """The text in pieces of one section each, cut at the end of a line where there is one. Nothing is left out."""
    pieces, start = [], 0
    while start < len(text):
        end = min(start + _SECTION, len(text))
        line_end = text.rfind("\n", start, end) + 1
        if end < len(text) and line_end > start:
            end = line_end
        pieces.append(text[start:end])
        start = end
    return pieces


def _sections(pieces: Sequence[str]) -> list[Block]:
    return [{"type": "section", "expand": True, "text": _plain(piece)} for piece in pieces]


def _plain(text: str) -> Block:
    return {"type": "plain_text", "text": text, "emoji": False}


def _context(text: str) -> Block:
    return {"type": "context", "elements": [_plain(text)]}


def _foot(shown: Question, inputs: list[Block], buttons: list[Block]) -> list[Block]:
    return [
        _context(f"Session {shown.session_id}"),
        *inputs,
        {"type": "actions", "block_id": "buttons", "elements": buttons},
    ]


def _button(shown: Question, action: str, label: str, style: str | None = None) -> Block:
    button = {"type": "button", "action_id": action, "text": _plain(label), "value": f"{shown.session_id} {shown.id}"}
    return button if style is None else {**button, "style": style}


def _buttons(shown: Question) -> list[Block]:
    deny = _button(shown, "deny", "Deny", "danger")
    if shown.kind is QuestionKind.PERMISSION:
        session = [_button(shown, "session", "Allow for this session")] if shown.suggestions else []
        return [_button(shown, "allow", "Allow once", "primary"), *session, deny]
    if shown.kind is QuestionKind.PLAN_REVIEW:
        edits = [_button(shown, "edits", "Approve and accept edits")] if "acceptEdits" in shown.modes else []
        return [_button(shown, "allow", "Approve the plan", "primary"), *edits, deny]
    deny = _button(shown, "deny", "Do not answer", "danger")
    if not shown.choices:
        return [deny]
    if _on_buttons(shown):
        labels = shown.choices[0].labels
        options = [_button(shown, f"option:{number}", _label(number, label)) for number, label in enumerate(labels, 1)]
        return [*options, _button(shown, "send", "Send my own answer"), deny]
    return [_button(shown, "send", "Send the answers", "primary"), deny]


def _on_buttons(shown: Question) -> bool:
    """Whether the options are buttons: of a single question with one answer out of a few."""
    return len(shown.choices) == 1 and not shown.choices[0].several and 0 < len(shown.choices[0].labels) <= _BUTTONS


def _label(number: int, label: str) -> str:
    return label if 0 < len(label) <= _LABEL else f"Option {number}"


def _inputs(shown: Question) -> list[Block]:
    if not shown.choices:
        return [_input("reason", "Reason or feedback, if you deny", {"type": "plain_text_input", "multiline": True})]
    if not can_be_allowed(shown):
        return []
    inputs = []
    for number, choice in enumerate(shown.choices, 1):
        title = choice.header or f"Question {number}"
        if choice.labels and not _on_buttons(shown) and len(choice.labels) <= _SELECTED:
            inputs.append(_input(f"choice:{number}", title, _choice_element(choice.labels, several=choice.several)))
        own = f"{title}: your own answer" if choice.labels else title
        inputs.append(_input(f"own:{number}", own, {"type": "plain_text_input"}))
    return inputs


def _input(block: str, label: str, element: Block) -> Block:
    # A label has 2000 characters; what it names is in the text above.
    return {
        "type": "input",
        "block_id": block,
        "optional": True,
        "label": _plain(label[:_SECTION]),
        "element": {"action_id": "value", **element},
    }


def _choice_element(labels: Sequence[str], *, several: bool) -> Block:
    options = [{"text": _plain(_label(number, label)), "value": str(number)} for number, label in enumerate(labels, 1)]
    if len(options) <= _LISTED:
        return {"type": "checkboxes" if several else "radio_buttons", "options": options}
    return {"type": "multi_static_select" if several else "static_select", "options": options}


def closed_blocks(blocks: Sequence[Block], notice: Block) -> list[Block]:
    """A message without its buttons and inputs, and with a notice of what became of the question."""
    return [*(block for block in blocks if block.get("type") not in ("actions", "input")), notice]


def notice_of(resolution: Resolution) -> Block:
    """What became of a question."""
    allowed = resolution.answer is not None and resolution.answer.allow
    if resolution.closure is Closure.ANSWERED and resolution.by == "slack":
        # The id is one of our settings, so Slack may read it as a mention.
        text = f"{'Allowed' if allowed else 'Denied'} by <@{resolution.client}>"
        return {"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}
    if resolution.closure is Closure.ANSWERED:
        return _context(f"{'Allowed' if allowed else 'Denied'} by {resolution.whose}")
    return _context(f"{str(resolution.closure).capitalize()}: {resolution.detail}")


def plain_notice(text: str) -> Block:
    """A notice in our own words."""
    return _context(text)


def summary(shown: Question) -> str:
    """One line for Slack's notifications, in which it interprets `<`, `>` and `&`."""
    return shown.description.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# -- from a press to an answer ----------------------------------------------------------------------------------------


def answer_in(press: Press, question: Question) -> Answer:
    """The answer of a press. ValueError if it does not fit the question."""
    if press.action == "deny":
        return Answer(allow=False, message=_entered(press, "reason"))
    if not question.choices:
        if press.action not in ("allow", "session", "edits"):
            raise ValueError("This button does not fit the question.")
        scope = Scope.SESSION if press.action == "session" else Scope.ONCE
        return Answer(allow=True, scope=scope, mode="acceptEdits" if press.action == "edits" else None)
    if press.action.startswith("option:"):
        choice = question.choices[0]
        return Answer(allow=True, answers={choice.question: choice.labels[int(press.action[7:]) - 1]})
    answers: dict[str, str | Sequence[str]] = {}
    for number, choice in enumerate(question.choices, 1):
        # By number: labels that were redacted for Slack are the original ones for Claude.
        chosen = [choice.labels[position - 1] for position in _chosen(press, f"choice:{number}")]
        own = _entered(press, f"own:{number}")
        if own is not None or chosen:
            answers[choice.question] = own if own is not None else chosen if choice.several else chosen[0]
    return Answer(allow=True, answers=answers)


def _value(press: Press, block: str) -> Mapping[str, Any]:
    state = press.values.get(block)
    value = state.get("value") if isinstance(state, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _entered(press: Press, block: str) -> str | None:
    text = _value(press, block).get("value")
    return text if isinstance(text, str) and text.strip() else None


def _chosen(press: Press, block: str) -> Iterator[int]:
    value = _value(press, block)
    for option in [value.get("selected_option"), *(value.get("selected_options") or [])]:
        if option is not None:
            yield int(option["value"])
