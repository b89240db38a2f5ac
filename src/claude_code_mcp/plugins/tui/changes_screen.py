"""A session's changes, line by line, with comments on lines, and actions on them."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Static

from ...client.styled_lines import DiffRow, LineComments, diff_rows
from ...client.styled_lines import Style as LineStyle
from ...core.model.text import clip_line, visible
from .dialog_screens import AskLine
from .drawn_blocks import Palette, lines_of

_GUTTER = 2

ChangesAct = Literal["merge", "discard", "send"]


class DiffView(ScrollView, can_focus=True):
    """A diff with one selected line, and comments below their lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "Line", show=False),
        Binding("down,j", "select(1)", "Line", show=False),
        Binding("pageup", "select_page(-1)", "Page up", show=False),
        Binding("pagedown", "select_page(1)", "Page down", show=False),
        Binding("home,g", "select(-1000000)", "Begin", show=False),
        Binding("end,G", "select(1000000)", "End", show=False),
        Binding("c,enter", "comment", "Comment"),
        Binding("n", "next_comment", "Next comment", show=False),
    ]
    DEFAULT_CSS = """
    DiffView { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: scroll; }
    """

    class CommentWanted(Message):
        """The user wants to write or change a comment on a line."""

        def __init__(self, row: DiffRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, diff: str, comments: LineComments, palette: Palette) -> None:
        super().__init__()
        self._comments = comments
        self._palette = palette
        self._rows = [*diff_rows(diff)]
        shown = {row.place for row in self._rows}
        # For lines that no longer exist: a typed comment must be neither lost nor sent unseen.
        self._rows += [
            DiffRow(f"{place}, no longer in these changes: {place.quote}", LineStyle.HEAD, place)
            for place, _ in comments
            if place not in shown
        ]
        self.selected = next((number for number, row in enumerate(self._rows) if row.place is not None), 0)
        self._drawn: list[list[Strip]] = []
        self._starts: list[int] = []
        """The first screen line of each row."""

    @property
    def row(self) -> DiffRow:
        return self._rows[self.selected]

    def on_resize(self, _: events.Resize) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draws every row again; the server sends so little of a long diff that this is fast."""
        width = self.scrollable_content_region.width - _GUTTER
        if width <= 0:
            return
        self._drawn = [[*self._lines(row, width)] for row in self._rows]
        self._starts = [0, *accumulate(map(len, self._drawn))]
        self.virtual_size = Size(self.scrollable_content_region.width, self._starts.pop())
        self._scroll_to_selected()
        self.refresh()

    def _lines(self, row: DiffRow, width: int) -> Iterator[Strip]:
        style = self._palette.line(row.style)
        yield from lines_of(Text(visible(row.text), style, overflow="fold"), width, self._palette)
        written = self._comments.at(row.place) if row.place is not None else ""
        if written:
            comment = Text(f"  ▸ {visible(written)}", self._palette.style("ask"), overflow="fold")
            yield from lines_of(comment, width, self._palette)

    def render_line(self, y: int) -> Strip:
        width, line = self.scrollable_content_region.width, y + round(self.scroll_y)
        if not 0 <= line < self.virtual_size.height or not self._drawn:
            return Strip.blank(width, self.rich_style)
        number = bisect_right(self._starts, line) - 1
        mark = Segment("▌ " if number == self.selected else "  ", self._palette.style("prompt"))
        strip = Strip([mark, *self._drawn[number][line - self._starts[number]]])
        return strip.adjust_cell_length(width).apply_style(self.rich_style)

    def _scroll_to_selected(self) -> None:
        if not self._drawn:
            return
        start = self._starts[self.selected]
        end = start + len(self._drawn[self.selected])
        top, height = round(self.scroll_y), max(1, self.size.height)
        if start < top or end > top + height:
            # The start of a row that is higher than the screen.
            self.scroll_to(y=max(0, min(start, end - height if start >= top else start)), animate=False, immediate=True)

    def action_select(self, step: int) -> None:
        self._select(self.selected + step)

    def action_select_page(self, step: int) -> None:
        """Moves the selection by a page."""
        line = self._starts[self.selected] + step * max(1, self.size.height - 1) if self._starts else 0
        self._select(bisect_right(self._starts, line) - 1)

    def action_next_comment(self) -> None:
        """Moves to the next commented line, from the last one to the first."""
        places = [number for number, row in enumerate(self._rows) if row.place and self._comments.at(row.place)]
        if places:
            self._select(next((number for number in places if number > self.selected), places[0]))

    def _select(self, number: int) -> None:
        self.selected = min(max(0, number), len(self._rows) - 1)
        self._scroll_to_selected()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        line = event.y + round(self.scroll_y)
        if 0 <= line < self.virtual_size.height and self._drawn:
            self._select(bisect_right(self._starts, line) - 1)

    def action_comment(self) -> None:
        self.post_message(self.CommentWanted(self.row))


class ChangesScreen(Screen[ChangesAct | None]):
    """The changes of a session and the comments on them; the result is the chosen action. Unsent comments stay in
    `comments`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "send", "Send comments"),
        Binding("m", "dismiss('merge')", "Merge"),
        Binding("x", "dismiss('discard')", "Discard"),
        Binding("escape,q", "dismiss(None)", "Back"),
    ]
    DEFAULT_CSS = """
    ChangesScreen #title { height: 1; text-style: bold; padding: 0 1; }
    """

    def __init__(self, session_id: str, diff: str, comments: LineComments, *, in_worktree: bool = True) -> None:
        super().__init__()
        self._session_id, self._diff, self._comments = session_id, diff, comments
        self._in_worktree = in_worktree

    def compose(self) -> ComposeResult:
        yield Static(self._title(), id="title", markup=False)
        yield DiffView(self._diff, self._comments, Palette(dark=self.app.current_theme.dark))
        yield Footer(compact=True)

    def _title(self) -> str:
        files = sum(line.startswith("diff --git ") for line in self._diff.split("\n"))
        title = f"Changes of {self._session_id[:8]}: {_count(files, 'file')}"
        return f"{title}, {_count(len(self._comments), 'comment')}" if len(self._comments) else title

    def on_mount(self) -> None:
        self.query_one(DiffView).focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without comments there is nothing to send, and without a worktree nothing to merge or discard."""
        if action == "send":
            return len(self._comments) > 0
        if action == "dismiss" and parameters != (None,) and not self._in_worktree:
            return False
        return super().check_action(action, parameters)

    def on_diff_view_comment_wanted(self, event: DiffView.CommentWanted) -> None:
        event.stop()
        self.run_worker(self._write(event.row), exclusive=True)

    async def _write(self, row: DiffRow) -> None:
        place = row.place
        if place is None:
            self.app.notify("Select a line of a file to comment on.", severity="warning")
            return
        title = f"Comment on {place}, {clip_line(place.quote.strip(), 50)!r} (empty: none)"
        text = await self.app.push_screen_wait(AskLine(visible(title), self._comments.at(place)))
        if text is None:
            return
        problem = self._comments.write(place, text)
        if problem:
            self.app.notify(problem, severity="error")
        self.query_one("#title", Static).update(Text(self._title()))
        self.query_one(DiffView).redraw()
        self.refresh_bindings()

    def action_send(self) -> None:
        self.dismiss("send")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
