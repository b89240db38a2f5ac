"""A person's decision on a question as the arguments of `claude_respond`. Pure."""

from typing import Any

from ..model.question import QuestionKind
from .live_sessions import OpenQuestion

_ALLOW = frozenset({"a", "allow", "y", "yes"})
_SESSION = frozenset({"s", "session"})
_EDITS = frozenset({"e", "edits"})
_DENY = frozenset({"d", "deny", "n", "no"})
ACCEPT_EDITS = "acceptEdits"


class NoAnswer(Exception):
    """What was given is no answer; the text says what would be one."""


def decide(asked: OpenQuestion, decision: str, text: str = "") -> dict[str, Any]:
    """The arguments of `claude_respond` for a decision in a word, with a reason for a denial. NoAnswer if it does not
    go with the question."""
    kind = asked.question.kind
    if decision in _DENY:
        return {"decision": "deny", **({"reason": text} if text else {})}
    if text:
        raise NoAnswer(f"{decision!r} takes no text; `deny` does.")
    if kind is QuestionKind.USER_QUESTION:
        raise NoAnswer("This question takes an answer to each of its parts, or a denial.")
    if decision in _ALLOW:
        return {"decision": "allow"}
    if decision in _SESSION and kind is QuestionKind.PERMISSION and asked.for_session:
        return {"decision": "allow", "scope": "session"}
    if decision in _EDITS and ACCEPT_EDITS in asked.question.modes:
        return {"decision": "allow", "permissionMode": ACCEPT_EDITS}
    raise NoAnswer(f"{decision!r} is no answer to this question." if decision else "An empty line is no answer.")
