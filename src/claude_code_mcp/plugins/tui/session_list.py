"""The session list on the side of the screen."""

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ...client.live_sessions import machine_name
from ...core.model.text import age, clip_line, local_time, sharing_line, visible
from ...core.sessions.stored.session_row import SessionRow
from .drawn_blocks import Palette

STATES = {
    "waiting_for_input": ("?", "asks", "ask"),
    "running": ("●", "working", "good"),
    "completed": ("✓", "done", "quiet"),
    "interrupted": ("◦", "interrupted", "quiet"),
    "cancelled": ("×", "cancelled", "bad"),
    "error": ("!", "failed", "bad"),
    "limit_reached": ("◷", "usage limit", "ask"),
}
"""Each state's sign, display name and color role."""
_NEED = {"waiting_for_input": 0, "running": 1}


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A `SessionRow` as the list shows it. Every text is visible and on one line."""

    id: str
    title: str
    project: str
    state: str
    asks: tuple[str, ...]
    age: str
    cost: str
    in_memory: bool
    timestamp: str
    owner: str = ""
    """Its owner, if another person shared it."""
    shared_with: str = ""
    machine: str = ""
    """Its machine, in a fleet."""
    in_terminal: bool = False
    limit: str = ""
    """When it continues after a usage limit, or when the limit resets."""

    @property
    def sign(self) -> str:
        return STATES[self.state][0] if self.state in STATES else "·"

    @property
    def is_at_rest(self) -> bool:
        """Whether it neither needs a person nor is busy."""
        return not self.in_memory or self.state not in _NEED

    @property
    def searched(self) -> str:
        """The text that filters search."""
        return " ".join(
            (self.title, self.project, self.state, self.id, self.owner, self.machine, *self.asks)
        ).casefold()

    @property
    def details(self) -> str:
        """The second line of the row."""
        if self.asks:
            return self.asks[0]
        shared = f"of {self.owner}" if self.owner else "shared" if self.shared_with else ""
        place = "in a terminal" if self.in_terminal else ""
        return " · ".join(filter(None, (self.limit, place, self.machine, shared, self.project, self.age, self.cost)))

    @property
    def sharing(self) -> str:
        """Owner and shares, for the line above the conversation; empty for a private session."""
        owner = f"of {self.owner}" if self.owner else ""
        return " · ".join(filter(None, (owner, f"shared with {self.shared_with}" if self.shared_with else "")))


def row_of(listed: SessionRow, now: float) -> ShownRow:
    """A row from the server's list."""
    return ShownRow(
        id=listed.session_id,
        title=visible(clip_line(listed.display_text or "", 200)) or listed.session_id[:8],
        project=visible(os.path.basename((listed.project_directory or "").rstrip("/\\"))),
        state=listed.status or "",
        asks=tuple(visible(clip_line(line, 200)) for line in listed.asks or ()),
        age=age(listed.timestamp, now),
        cost=listed.cost_text(2) if listed.cost_usd or listed.estimated_cost_usd else "",
        in_memory=listed.in_memory,
        timestamp=listed.timestamp,
        owner=visible(clip_line(listed.owner or "", 60)),
        shared_with=visible(clip_line(sharing_line(listed.shared_with or ()), 200)),
        machine=machine_name(listed),
        in_terminal=listed.in_terminal,
        limit=limit_line(listed.continues_at, listed.resets_at, now),
    )


def limit_line(continues_at: str | None, resets_at: str | None, now: float) -> str:
    """`continues at 17:00`, or when the limit resets; empty without a limit."""
    if continues_at:
        return f"continues at {local_time(continues_at, now)}"
    return f"resets at {local_time(resets_at, now)}" if resets_at else ""


def arranged(
    live: Iterable[SessionRow],
    stored: Iterable[SessionRow],
    now: float,
    wanted: str = "",
    found: Container[str] = (),
) -> list[ShownRow]:
    """The rows in order: sessions that need a person first, then busy ones, then the rest by machine, each by last use.
    With `wanted`, only the rows that have all of its terms in title, project, state, id or machine, and those that were
    `found` for it elsewhere."""
    # Sessions in memory last, so that they replace the rows of the same session from the disk.
    listed = {session.session_id: session for session in (*stored, *live)}
    terms = wanted.casefold().split()
    rows = [row_of(session, now) for session in listed.values()]
    rows = [row for row in rows if row.id in found or all(term in row.searched for term in terms)]
    rows.sort(key=lambda row: row.timestamp, reverse=True)
    # The machine that was used last comes first. Without a fleet no row has one, and the order stays.
    machines = [*dict.fromkeys(row.machine for row in rows)]

    def place(row: ShownRow) -> tuple[int, int]:
        if row.is_at_rest:
            return len(_NEED), machines.index(row.machine)
        return _NEED[row.state], 0

    return sorted(rows, key=place)


def asking_elsewhere(rows: Iterable[ShownRow], current: str | None) -> int:
    """The number of open questions in other sessions."""
    return sum(len(row.asks) for row in rows if row.id != current)


_ROLES = {"waiting_for_input": "ask", "running": "good", "error": "bad", "limit_reached": "ask"}


class SessionSidebar(Vertical):
    """Shows rows; reports opened rows and filter text."""

    DEFAULT_CSS = """
    SessionSidebar { width: 26; height: 100%; border-right: solid $primary-darken-2; }
    SessionSidebar Input { height: 1; border: none; padding: 0 1; }
    SessionSidebar OptionList { height: 1fr; border: none; padding: 0; scrollbar-size-vertical: 1; }
    """

    class Opened(Message):
        """A session should be shown, at the text by which it was found if any."""

        def __init__(self, session_id: str, wanted: str) -> None:
            super().__init__()
            self.session_id, self.wanted = session_id, wanted

    class Highlighted(Message):
        """The user moved to a row."""

        def __init__(self, session_id: str) -> None:
            super().__init__()
            self.session_id = session_id

    class ListLeft(Message):
        """The user left the list."""

    class Filtered(Message):
        def __init__(self, wanted: str) -> None:
            super().__init__()
            self.wanted = wanted

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.palette = palette
        self._current: str | None = None
        self._rows: tuple[Sequence[ShownRow], str | None, int, Palette] | None = None

    def compose(self) -> ComposeResult:
        yield _Filter(placeholder="filter sessions", compact=True, select_on_focus=False)
        yield _Rows(markup=False, compact=True)

    def show(self, rows: Sequence[ShownRow], current: str | None, *, keep_highlight: bool = False) -> None:
        """Shows these rows. The highlighted one stays highlighted, wherever it moved, until another session is opened,
        and with `keep_highlight` also then."""
        listing = self.query_one(_Rows)
        width = max(12, listing.scrollable_content_region.width - 1)
        shown = (tuple(rows), current, width, self.palette)
        # Setting the options again would move the highlight and the scroll position during use.
        if shown == self._rows:
            return
        self._rows = shown
        before = listing.highlighted_option
        wanted = before.id if before is not None and (keep_highlight or current == self._current) else current
        self._current = current
        top = listing.scroll_y
        listing.set_options(self._options(rows, current, width))
        if any(row.id == wanted for row in rows):
            with self.prevent(OptionList.OptionHighlighted):
                listing.highlighted = listing.get_option_index(str(wanted))
        listing.scroll_to(y=top, animate=False, immediate=True)

    def on_resize(self) -> None:
        """Cuts rows to the available columns."""
        if self._rows is not None:
            rows, current, _, _ = self._rows
            # After the list itself has its new size.
            self.call_after_refresh(self.show, rows, current, keep_highlight=True)

    def _options(self, rows: Iterable[ShownRow], current: str | None, width: int) -> Iterator[Option]:
        """One option per row; for resting sessions of a fleet, a heading with the machine's name above its first
        row."""
        machine = ""
        for row in rows:
            if row.machine != machine and row.is_at_rest:
                machine = row.machine
                heading = Text(f"── {machine} ", self.palette.style("head"), no_wrap=True, end="")
                heading.truncate(width, overflow="ellipsis")
                yield Option(heading, disabled=True)
            yield Option(self._drawn(row, current, width), row.id)

    def _drawn(self, row: ShownRow, current: str | None, width: int) -> Text:
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
        """Enter in the filter opens the first match."""
        event.stop()
        listing = self.query_one(_Rows)
        first = next((option.id for option in listing.options if not option.disabled), None)
        if first is not None:
            wanted, self.query_one(Input).value = self.query_one(Input).value, ""
            self._open(first, wanted)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if self.query_one(_Rows).has_focus and event.option.id is not None:
            self.post_message(self.Highlighted(event.option.id))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._open(event.option.id, self.query_one(Input).value)

    def _open(self, session_id: str | None, wanted: str) -> None:
        if session_id is not None:
            self.post_message(self.Opened(session_id, wanted))

    def focus_filter(self) -> None:
        self.query_one(Input).focus()

    def focus_rows(self) -> None:
        """Focuses the rows, the first one if none is highlighted."""
        rows = self.query_one(_Rows)
        rows.focus()
        if rows.highlighted is None:
            rows.action_first()

    def leave(self) -> None:
        self.query_one(Input).value = ""
        self.post_message(self.ListLeft())


class _Filter(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "rows", "Rows", show=False),
        Binding("escape", "leave", "Back"),
    ]

    def action_rows(self) -> None:
        _sidebar_of(self).focus_rows()

    def action_leave(self) -> None:
        _sidebar_of(self).leave()


class _Rows(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Open"),
        Binding("slash", "filter", "Filter"),
        Binding("r", "app.command('rename')", "Rename"),
        Binding("f", "app.command('fork')", "Fork"),
        Binding("e", "app.command('export')", "Export"),
        Binding("d", "app.command('diff')", "Diff"),
        Binding("escape", "leave", "Back"),
    ]

    def action_filter(self) -> None:
        _sidebar_of(self).focus_filter()

    def action_leave(self) -> None:
        _sidebar_of(self).leave()


def _sidebar_of(part: Widget) -> SessionSidebar:
    parent = part.parent
    assert isinstance(parent, SessionSidebar)
    return parent
