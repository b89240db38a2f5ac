"""Notices on options without effect, and on budgets that are nearly used up.

Such options are not refused: versions of Claude Code and models differ, and a session runs without the option too.
"""

import re
from itertools import islice
from typing import TYPE_CHECKING

from ..model.built_in_tools import unknown_tools
from ..model.events import BudgetWarned, TurnStarted
from ..model.options import SessionOptions, Thinking
from ..transcripts.event_log import EventLog

if TYPE_CHECKING:
    from .session import Session

_MAX_BUDGETS = 10
"""Maximum number of budget warnings in a report."""


PROMPTS = ("system_prompt", "append_system_prompt")
"""Options that cannot change within a conversation: Claude Code writes them to the transcript and reads them from there
when the conversation continues or is forked."""
_KEPT_PROMPT = (
    "systemPrompt was not applied: a conversation keeps its first system prompt, also in a fork. Start a new session "
    "to use another one."
)
_MAX_NAMES = 10
_MODEL = re.compile(r"claude-[a-z]{1,20}-(\d{1,3})(?:-(\d{1,2})(?!\d))?")
_OLD_MODEL = re.compile(r"claude-(\d{1,3})(?:-(\d{1,2}))?-[a-z]{1,20}")
_THINKING = (3, 7)
"""Models before this version do not support thinking."""
_ADAPTIVE = (4, 6)
"""Models from this version on accept no thinking budget."""
_ALWAYS_ADAPTIVE = (5, 5)
"""Models from this version on always think."""


def notices_of(session: "Session") -> list[str]:
    """All notices on the current options of a session, and on the budgets that its last turn has nearly used up."""
    thinking = _on_thinking(session.options.thinking, session.model or session.options.model or "")
    return [*session.notices, *thinking, *_on_budgets(session.events)]


def _on_budgets(events: EventLog) -> list[str]:
    """The budget warnings since the last turn began; earlier ones were already reported."""
    began = max((event.seq for event in events.latest(TurnStarted, 1)), default=0)
    warned = events.latest(BudgetWarned, _MAX_BUDGETS)
    return [event.line for event in warned if isinstance(event, BudgetWarned) and event.seq > began]


def option_notices(requested: SessionOptions | None, began_with: SessionOptions | None = None) -> tuple[str, ...]:
    """The notices on the options of one call; `began_with` are the options of the session that it continues, None for
    a new one."""
    if requested is None:
        return ()
    notices = []
    for option, rules in ("allowedTools", requested.allowed_tools), ("disallowedTools", requested.disallowed_tools):
        notices += _on_tools(option, rules) if rules else []
    if began_with is not None and any(_differs(name, requested, began_with) for name in PROMPTS):
        notices.append(_KEPT_PROMPT)
    return tuple(notices)


def _differs(name: str, requested: SessionOptions, began_with: SessionOptions) -> bool:
    value = getattr(requested, name)
    return value is not None and value != getattr(began_with, name)


def _on_tools(option: str, rules: tuple[str, ...]) -> list[str]:
    unknown = unknown_tools(rules)
    if not unknown:
        return []
    shown = ", ".join(
        f"{name!r} (did you mean {nearest}?)" if nearest else repr(name)
        for name, nearest in islice(unknown.items(), _MAX_NAMES)
    )
    more = f" and {len(unknown) - _MAX_NAMES} more" if len(unknown) > _MAX_NAMES else ""
    return [f"{option}: there is no tool named {shown}{more}."]


def _on_thinking(thinking: Thinking | None, model: str) -> list[str]:
    """The notice on thinking. As seen in Claude Code's API requests: before 3.7 it requests no thinking, then a budget,
    from 4.6 on adaptive thinking instead, and from 5.5 on always."""
    found = _MODEL.match(model) or _OLD_MODEL.match(model)
    if thinking is None or found is None:
        return []
    version, name = (int(found[1]), int(found[2] or 0)), found[0]
    if version < _THINKING:
        return [] if thinking.type == "disabled" else [f"thinking has no effect on {name}: this model does not think."]
    if thinking.type == "adaptive":
        fixed = f"thinking adaptive has no effect on {name}: this model thinks within a fixed budget; set budgetTokens."
        return [fixed] if version < _ADAPTIVE else []
    if version >= _ALWAYS_ADAPTIVE:
        return [f"thinking has no effect on {name}: this model decides how much it thinks; use effort instead."]
    if version >= _ADAPTIVE and thinking.budget_tokens is not None:
        return [
            f"thinking.budgetTokens has no effect on {name}: this model decides how much it thinks; use effort instead."
        ]
    return []
