"""The line below a conversation, and the one above everything. Pure."""

from rich.text import Text

from ..model.text import visible
from .blocks import ShownConversation
from .drawing import Palette

_STATES = {
    "running": ("● working", "good"),
    "waiting_for_input": ("? asks", "ask"),
    "completed": ("✓ done", "quiet"),
    "interrupted": ("◦ interrupted", "quiet"),
    "cancelled": ("× cancelled", "bad"),
    "error": ("! failed", "bad"),
}


def status_line(conversation: ShownConversation | None, now: float, palette: Palette) -> Text:
    """State, model, mode, tokens, cost, elapsed time, and what is wrong."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if conversation is None:
        return text.append("Type a message to begin a session here, or open one on the left.", palette.style("quiet"))
    facts = conversation.summary
    state, role = _STATES.get(conversation.status, (conversation.status or "…", "quiet"))
    text.append(state, palette.style(role))
    started = facts.get("turnStarted")
    tokens = f"{_short(facts.get('inputTokens', 0))} in {_short(facts.get('outputTokens', 0))} out"
    parts = [
        f"{max(0, now - started):.0f} s" if started is not None else "",
        conversation.model or facts.get("model") or "",
        facts.get("permissionMode") or "",
        tokens if facts.get("inputTokens") else "",
        f"${facts['costUsd']:.4f}" if facts.get("costUsd") else "",
        conversation.activity,
    ]
    text.append(visible("".join(f" · {part}" for part in parts if part)), palette.style("quiet"))
    if facts.get("stalledSeconds"):
        text.append(f" · nothing for {facts['stalledSeconds']} s", palette.style("ask"))
    for name in ("retrying", "queued"):
        if facts.get(name):
            text.append(visible(f" · {facts[name]}"), palette.style("ask"))
    return text


def top_line(title: str, asking: int, problem: str, palette: Palette) -> Text:
    """Which session is shown, how many questions wait in others, and whether there is a server."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if problem:
        text.append(f" no server: {problem} ", palette.style("bad") + palette.style("found"))
        text.append(" trying again ")
    if asking:
        text.append(f" {asking} ask{'s' if asking == 1 else ''} elsewhere: Ctrl+N ", palette.style("ask"))
    return text.append(f" {title}", palette.style("head"))


def _short(number: int) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else str(number)
