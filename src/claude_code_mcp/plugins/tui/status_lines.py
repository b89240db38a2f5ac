"""The lines above and below a conversation."""

from rich.text import Text

from ...core.model.text import visible
from ...core.model.usage_limits import limit_name
from .blocks import ShownConversation
from .drawn_blocks import Palette
from .session_list import STATES, limit_line


def status_line(conversation: ShownConversation | None, now: float, palette: Palette) -> Text:
    """State, model, mode, tokens, cost, elapsed time, and problems."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if conversation is None:
        return text.append("Type a message to start a session here, or open one on the left.", palette.style("quiet"))
    facts = conversation.summary
    sign, state, role = STATES.get(conversation.status, ("", conversation.status or "…", "quiet"))
    text.append(f"{sign} {state}".lstrip(), palette.style(role))
    limit = facts.get("limit")
    if limit is not None:  # first: a narrow screen has no room for more than this
        continues_at = limit.get("continuesAt")
        waits = limit_line(continues_at, limit.get("resetsAt"), now) or "reset time unknown"
        keys = "Esc: stop waiting, F7: continue now" if continues_at else "F6: wait for the reset, F7: continue now"
        text.append(f" · {waits} ({keys})", palette.style("ask"))
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
        text.append(f" · no output for {facts['stalledSeconds']} s", palette.style("ask"))
    windows = (facts.get("planUsage") or {}).get("windows") or {}
    plan = [f"{limit_name(name)} {used['used']:.0%}" for name, used in windows.items() if "used" in used]
    if plan:
        text.append(visible(f" · plan: {', '.join(plan)}"), palette.style("quiet"))
    for name in ("retrying", "queued"):
        if facts.get(name):
            text.append(visible(f" · {facts[name]}"), palette.style("ask"))
    return text


def top_line(
    title: str, asking: int, problem: str, palette: Palette, *, is_preview: bool = False, sharing: str = ""
) -> Text:
    """The shown session and its shares, whether it is a preview, the number of questions in others, and whether there
    is a server."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if problem:
        text.append(f" no server: {problem} ", palette.style("bad") + palette.style("found"))
        text.append(" retrying ")
    if asking:
        text.append(f" {asking} question{'s'[: asking != 1]} in other sessions: Ctrl+N ", palette.style("ask"))
    if is_preview:
        text.append(" preview: Enter opens, Esc goes back ", palette.style("prompt"))
    text.append(f" {title}", palette.style("head"))
    return text.append(f" · {sharing}", palette.style("quiet")) if sharing else text


def _short(number: int) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else str(number)
