"""What callers are told of options that are taken and have no effect, or not the one that was meant. Pure.

Nothing is refused for it: versions of Claude Code and models differ, and a session runs without the option too.
"""

import re
from itertools import islice
from typing import Protocol

from ..model.built_in_tools import unknown_tools
from ..model.options import SessionOptions, Thinking

PROMPTS = ("system_prompt", "append_system_prompt")
"""The options that a conversation begins with: Claude Code writes them to its transcript, and takes them from there
when the conversation goes on or is forked, whatever it is started with."""
_KEPT_PROMPT = (
    "systemPrompt was not applied: a conversation keeps the system prompt that it began with, in a fork too. Begin a "
    "new session for another one."
)
_MOST_NAMES = 10
_MODEL = re.compile(r"claude-[a-z]{1,20}-(\d{1,3})(?:-(\d{1,2})(?!\d))?")
_ADAPTIVE = (4, 6)
"""Models from this version on take no budget for their thinking."""
_ALWAYS_ADAPTIVE = (5, 5)
"""Models from this version on cannot be kept from thinking either."""


class NoticedSession(Protocol):
    """What notices depend on."""

    @property
    def options(self) -> SessionOptions: ...
    @property
    def notices(self) -> tuple[str, ...]:
        """Those of the call that brought the session into memory."""

    @property
    def model(self) -> str | None:
        """The model that answered last, by its full name."""


def notices_of(session: NoticedSession) -> list[str]:
    """Everything that there is to say of the options of a session now."""
    return [*session.notices, *_on_thinking(session.options.thinking, session.model or session.options.model or "")]


def option_notices(requested: SessionOptions | None, began_with: SessionOptions | None = None) -> tuple[str, ...]:
    """What there is to say of the options of one call; `began_with` are those of the session that it goes on with, none
    for a new one."""
    if requested is None:
        return ()
    notices = [*_on_tools("allowedTools", requested.allowed_tools)]
    notices += _on_tools("disallowedTools", requested.disallowed_tools)
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
        for name, nearest in islice(unknown.items(), _MOST_NAMES)
    )
    more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
    return [f"{option}: no tool is known by the name {shown}{more}."]


def _on_thinking(thinking: Thinking | None, model: str) -> list[str]:
    """Seen in Claude Code's requests to the API: from 4.6 on it asks for adaptive thinking instead of a budget, and
    from 5.5 on in any case."""
    found = _MODEL.match(model)
    if thinking is None or thinking.type == "adaptive" or found is None:
        return []
    version = int(found[1]), int(found[2] or 0)
    if version >= _ALWAYS_ADAPTIVE:
        return [f"thinking has no effect on {found[0]}, which decides itself how much it thinks; effort steers that."]
    if version >= _ADAPTIVE and thinking.budget_tokens is not None:
        return [f"thinking.budgetTokens has no effect on {found[0]}, which decides itself; effort steers that."]
    return []
