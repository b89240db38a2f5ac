"""The keys that can be pressed now, in the last line of a screen: as many as fit, the most important first."""

from typing import Any

from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.widget import Widget

_LAST = "commands"
"""The action whose key is shown in any case: whatever else there is can be found by it."""
_NAMES = {"escape": "esc", "enter": "enter", "question_mark": "?", "slash": "/", "space": "space"}


class KeyLine(Widget, can_focus=False):
    """Shows the bindings of the focused part and of the application; a click on one presses its key."""

    DEFAULT_CSS = "KeyLine { dock: bottom; height: 1; background: $panel; }"

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.refresh())

    def render(self) -> RenderResult:
        shown: dict[str, tuple[str, str]] = {}
        last: tuple[str, str] | None = None
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if not active.enabled:
                continue
            if binding.action == _LAST:
                last = last or (binding.key, binding.description)
            elif binding.show and binding.action != "quit":
                shown.setdefault(binding.action, (binding.key, binding.description))
        shown["quit"] = ("ctrl+q", "Leave")  # Textual has it before all others
        return key_hints(list(shown.values()), last, self.size.width)

    def on_click(self, event: events.Click) -> None:
        meta: dict[str, Any] = event.style.meta
        key = meta.get("key")
        if isinstance(key, str):
            self.app.simulate_key(key)


def key_hints(keys: list[tuple[str, str]], last: tuple[str, str] | None, width: int) -> Text:
    """The keys that fit into so many columns: the first ones with what they do, then keys alone. `last` stands at the
    end, and has its place before all others."""
    ending = _hint(*last) if last is not None else Text()
    room = width - ending.cell_len
    line = Text(no_wrap=True, overflow="crop", end="")
    is_full = False
    for key, description in keys:
        hint = _hint(key, description)
        is_full = is_full or hint.cell_len > room
        hint = _hint(key, "") if is_full else hint
        if hint.cell_len > room:
            break
        line.append_text(hint)
        room -= hint.cell_len
    return line.append_text(ending)


def _hint(key: str, description: str) -> Text:
    name = _NAMES.get(key, key).replace("ctrl+", "^")
    press = Style(meta={"key": key})
    hint = Text(f" {name}", press + Style(bold=True), end="")
    return hint.append(f" {description} ", press) if description else hint
