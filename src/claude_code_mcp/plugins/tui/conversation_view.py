"""The conversation on the screen: scrolling, selecting, unfolding, copying and searching blocks.

While the end is visible, the view follows new content. Otherwise the visible part stays in place, whatever is added or
dropped above and below. When a long conversation must be drawn again, for example after a resize, the visible part is
drawn at once and the rest in portions between keys and frames, starting at the scroll position.
"""

from bisect import bisect_right
from itertools import accumulate, chain, zip_longest
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

from .blocks import ConversationBlock, ShownConversation
from .drawn_blocks import DrawnBlock, Palette

_GUTTER = 2
_AT_ONCE = 40
"""Blocks drawn without a pause."""
_PAUSE = 0.02


def fire_when_overdue(timer: Timer) -> Timer:
    """Makes a timer from `set_timer` fire even if it is late. Textual skips overdue ticks. A timer with a single tick
    never fires if the process was delayed for that long, and code that waits for it waits forever. A late tick is
    acceptable here."""
    timer._skip = False  # read by the timer's task, which has not started yet
    return timer


class ConversationView(ScrollView, can_focus=True):
    """Shows one conversation; call `redraw` after every change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "Block", show=False),
        Binding("down,j", "select(1)", "Block", show=False),
        Binding("enter,space", "unfold", "Unfold"),
        Binding("x", "unfold_all", "Unfold all"),
        Binding("y", "copy", "Copy"),
        Binding("a", "open_agent", "Subagent", show=False),
        Binding("slash", "app.command('search')", "Search"),
        Binding("n", "next_found(1)", "Next", show=False),
        Binding("N", "next_found(-1)", "Previous", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("home", "scroll_home", "Begin", show=False),
        Binding("end,G", "follow", "End"),
    ]
    DEFAULT_CSS = """
    ConversationView { height: 1fr; padding: 0 0 0 0; scrollbar-size-vertical: 1; overflow-x: hidden;
        overflow-y: scroll; }
    """

    class OlderWanted(Message):
        """The beginning of the kept blocks is visible."""

    class Copied(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class AgentWanted(Message):
        """The user wants to see a subagent's conversation."""

        def __init__(self, session_id: str, agent: str) -> None:
            super().__init__()
            self.session_id, self.agent = session_id, agent

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.palette = palette
        self.conversation = ShownConversation("")
        self.following = True
        self.selected: ConversationBlock | None = None
        self._drawn: dict[ConversationBlock, DrawnBlock] = {}
        self._order: list[DrawnBlock] = []
        self._starts: list[int] = []
        """The first line of each block."""
        self._total = 0
        self._found: list[ConversationBlock] = []
        self._portion: Timer | None = None
        """Draws the next of the blocks that are not drawn yet."""

    def show(self, conversation: ShownConversation) -> None:
        """Shows another conversation, from its end."""
        self.conversation = conversation
        self.following, self.selected, self._drawn, self._found = True, None, {}, []
        self.redraw()

    def redraw(self) -> None:
        """Draws what changed: the visible part at once, the rest gradually."""
        width = self._text_width
        if width <= 0:
            return
        # Before anything is drawn: the anchor is found by the lines currently on the screen.
        anchor = None if self.following else self._anchor()
        known = self._drawn
        self.conversation.fold_read_calls()
        if self.selected is not None and self.selected.is_hidden:
            self.selected.opens_run = True
            self.conversation.fold_read_calls()
        self._drawn = {block: known.get(block) or DrawnBlock(block) for block in self.conversation.blocks}
        self._order = list(self._drawn.values())
        in_sight = (
            self._order.index(self._drawn[anchor[0]]) if anchor and anchor[0] in self._drawn else len(self._order)
        )
        self._draw_from(in_sight)
        self._measure()
        if self.selected is not None and self.selected not in self._drawn:
            self.selected = None
        self.virtual_size = Size(self.scrollable_content_region.width, self._total)
        # After the size is set: before that, the view would not scroll beyond its old end.
        self._keep_place(anchor)
        if self.following:
            self.call_after_refresh(self._keep_place, None)  # the first time, the size is unknown until then
        self.refresh()

    def _draw_from(self, number: int) -> None:
        """Draws blocks around a position, nearest first: as many as fill the screen, and a limited number beyond
        that."""
        width, height, lines, count = self._text_width, max(1, self.size.height), 0, 0
        after, before = iter(self._order[number:]), reversed(self._order[:number])
        for drawn in chain.from_iterable(zip_longest(after, before)):
            if drawn is None:
                continue
            if not drawn.is_current(width, self.palette):
                if count >= _AT_ONCE and lines > 4 * height:
                    # Both sides alternate: the remaining blocks are further away than the visible ones.
                    self._draw_rest_later()
                    return
                drawn.draw(width, self.palette)
                count += 1
            lines += len(drawn.strips)

    def _draw_rest_later(self) -> None:
        if self._portion is None:
            self._portion = fire_when_overdue(self.set_timer(_PAUSE, self._draw_portion))

    def _draw_portion(self) -> None:
        self._portion = None
        self.redraw()

    def _measure(self) -> None:
        self._starts = [0, *accumulate(len(drawn.strips) for drawn in self._order)]
        self._total = self._starts.pop()

    @property
    def _text_width(self) -> int:
        return self.scrollable_content_region.width - _GUTTER - 1

    def _anchor(self) -> tuple[ConversationBlock, int] | None:
        """The block at the top, and how many of its lines are above."""
        top = round(self.scroll_y)
        number = self._number_at(top)
        return (self._order[number].block, top - self._starts[number]) if number is not None else None

    def _keep_place(self, anchor: tuple[ConversationBlock, int] | None) -> None:
        if self.following:
            self.scroll_to(y=max(0, self._total - self.size.height), animate=False, immediate=True)
        elif anchor is not None and anchor[0] in self._drawn:
            start = self._starts[self.conversation.blocks.index(anchor[0])]
            self.scroll_to(y=start + anchor[1], animate=False, immediate=True)

    def _number_at(self, line: int) -> int | None:
        """The block at this line."""
        return bisect_right(self._starts, line) - 1 if 0 <= line < self._total else None

    def render_line(self, y: int) -> Strip:
        width, base = self.scrollable_content_region.width, self.rich_style
        line = y + round(self.scroll_y)
        number = self._number_at(line)
        if number is None:
            return Strip.blank(width, base)
        drawn = self._order[number]
        strip = drawn.strips[line - self._starts[number]]
        mark = "▌ " if drawn.block is self.selected else "  "
        style = self.palette.style("prompt")
        joined = Strip([Segment(mark, style), *strip]).adjust_cell_length(width)
        return joined.apply_style(base)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        at_end = new_value >= self._total - self.size.height - 1
        if new_value < old_value and not at_end:
            self.following = False
        elif at_end:
            self.following = True
        self.conversation.is_read_back = not self.following
        if new_value < self.size.height and new_value < old_value and self.conversation.has_older:
            self.post_message(self.OlderWanted())

    def on_resize(self, _: events.Resize) -> None:
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        number = self._number_at(event.y + round(self.scroll_y))
        if number is not None:
            self.selected = self._order[number].block
            self.action_unfold()

    def action_select(self, step: int) -> None:
        """Selects the next block up or down; initially the last visible one."""
        blocks = [block for block in self.conversation.blocks if not block.is_hidden]
        if not blocks:
            return
        if self.selected is None:
            bottom = self._number_at(min(self._total - 1, round(self.scroll_y) + self.size.height - 1))
            self._select(self._order[bottom].block if bottom is not None else blocks[-1])
            return
        number = min(max(0, blocks.index(self.selected) + step), len(blocks) - 1)
        if number == 0 and step < 0 and self.conversation.has_older:
            self.post_message(self.OlderWanted())
        self._select(blocks[number])

    def _select(self, block: ConversationBlock) -> None:
        self.selected = block
        number = self.conversation.blocks.index(block)
        if len(self._order) != len(self.conversation.blocks) or block.is_hidden:
            self.redraw()  # new content is not laid out yet, and neither are the blocks of a folded run
        if number >= len(self._order):
            return  # no room to draw anything
        if not self._order[number].is_current(self._text_width, self.palette):
            self._order[number].draw(self._text_width, self.palette)
            self._measure()
        start, height = self._starts[number], len(self._order[number].strips)
        top, bottom = round(self.scroll_y), round(self.scroll_y) + self.size.height
        if start < top or start + min(height, self.size.height) > bottom:
            self.scroll_to(y=max(0, start - 1), animate=False, immediate=True)
        self.refresh()

    def action_unfold(self) -> None:
        block = self.selected
        if block is not None and block.can_fold:
            self.following = False
            if block.run is not None and not block.run.is_open:
                block.opens_run = True
            elif block.run is not None and block.is_open:
                self.conversation.fold_run(block)
            else:
                block.is_open = not block.is_open
        self.redraw()

    def action_unfold_all(self) -> None:
        foldable = [block for block in self.conversation.blocks if block.can_fold]
        unfold = not all(block.is_open for block in foldable)
        for block in foldable:
            block.is_open = block.opens_run = unfold
        self.redraw()

    def action_copy(self) -> None:
        """Copies the selected block, or the last answer."""
        answers = [block for block in self.conversation.blocks if block.kind == "text"]
        block = self.selected or (answers[-1] if answers else None)
        if block is not None:
            self.post_message(self.Copied(block.text))

    def action_open_agent(self) -> None:
        """Shows the conversation of the selected call's subagent, or of the last one."""
        calls = [block for block in self.conversation.blocks if block.agent]
        block = self.selected if self.selected is not None and self.selected.agent else calls[-1] if calls else None
        if block is not None:
            self.post_message(self.AgentWanted(self.conversation.session_id, block.agent))

    def action_follow(self) -> None:
        self.following, self.selected = True, None
        self.redraw()

    def search(self, text: str) -> int:
        """Selects the last block that contains the text; returns the number of matches."""
        self._found = [self.conversation.blocks[number] for number in self.conversation.search(text)]
        if self._found:
            self.following = False
            self._select(self._found[-1])
        return len(self._found)

    def action_next_found(self, step: int) -> None:
        kept = [block for block in self._found if block in self._drawn]
        if kept:
            at = kept.index(self.selected) if self.selected in kept else 0
            self._select(kept[(at + step) % len(kept)])
