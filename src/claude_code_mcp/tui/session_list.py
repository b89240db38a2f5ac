"""The sessions on one side of the screen: those that need a person first, with a line to filter them."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from .drawing import Palette
from .session_rows import SessionRow

_ROLES = {"waiting_for_input": "ask", "running": "good", "error": "bad"}


class SessionSidebar(Vertical):
    """Shows rows; tells which one is opened, and what is typed into the filter."""

    DEFAULT_CSS = """
    SessionSidebar { width: 26; height: 100%; border-right: solid $primary-darken-2; }
    SessionSidebar Input { height: 1; border: none; padding: 0 1; }
    SessionSidebar OptionList { height: 1fr; border: none; padding: 0; scrollbar-size-vertical: 1; }
    """

    class Opened(Message):
        def __init__(self, session_id: str) -> None:
            super().__init__()
            self.session_id = session_id

    class Filtered(Message):
        def __init__(self, wanted: str) -> None:
            super().__init__()
            self.wanted = wanted

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.palette = palette
        self._current: str | None = None
        self._rows: tuple[Sequence[SessionRow], str | None, int, Palette] | None = None

    def compose(self) -> ComposeResult:
        yield Input(placeholder="filter sessions", compact=True, select_on_focus=False)
        yield _Rows(markup=False, compact=True)

    def show(self, rows: Sequence[SessionRow], current: str | None) -> None:
        """Shows these rows. The highlighted one stays highlighted, wherever it has moved to, until another session is
        opened."""
        listing = self.query_one(_Rows)
        width = max(12, listing.scrollable_content_region.width - 1)
        shown = (tuple(rows), current, width, self.palette)
        if shown == self._rows:
            return
        self._rows = shown
        before = listing.highlighted_option
        wanted = before.id if before is not None and current == self._current else current
        self._current = current
        top = listing.scroll_y
        listing.set_options([Option(self._drawn(row, current, width), row.id) for row in rows])
        ids = [row.id for row in rows]
        if wanted in ids:
            with self.prevent(OptionList.OptionHighlighted):
                listing.highlighted = ids.index(wanted)
        listing.scroll_to(y=top, animate=False, immediate=True)

    def _drawn(self, row: SessionRow, current: str | None, width: int) -> Text:
        role = _ROLES.get(row.state if row.in_memory else "", "quiet")
        style = self.palette.style(role)
        text = Text(no_wrap=True, overflow="ellipsis", end="")
        title = Text(f"{row.sign} {row.title}", no_wrap=True, end="")
        title.stylize(style, 0, 1)
        if row.id == current:
            title.stylize("bold", 2)
        title.truncate(width, overflow="ellipsis")
        details = Text(f"  {row.details}", self.palette.style("ask" if row.asks else "quiet"), end="")
        details.truncate(width, overflow="ellipsis")
        return text.append(title).append("\n").append(details)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Filtered(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the filter opens the first of what is left."""
        event.stop()
        listing = self.query_one(_Rows)
        if listing.option_count:
            first = listing.get_option_at_index(0).id
            self.query_one(Input).value = ""
            self._open(first)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._open(event.option.id)

    def _open(self, session_id: str | None) -> None:
        if session_id is not None:
            self.post_message(self.Opened(session_id))

    def focus_filter(self) -> None:
        self.query_one(Input).focus()


class _Rows(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open"),
        Binding("slash", "filter", "Filter"),
        Binding("r", "app.rename", "Rename"),
        Binding("f", "app.fork", "Fork"),
        Binding("e", "app.export", "Export"),
    ]

    def action_filter(self) -> None:
        parent = self.parent
        assert isinstance(parent, SessionSidebar)
        parent.focus_filter()
