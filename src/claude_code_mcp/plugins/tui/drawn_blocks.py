"""Blocks of a conversation as styled lines, cached until a block changes; the colors of a theme.

Text is drawn as Markdown without HTML, link definitions and hyperlinks: all of it is visible, and nothing is a terminal
command. The amount drawn at once is limited, because texts come in chunks. If Markdown needs more columns than
available, the text is drawn as written.
"""

import re
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import chain

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from ...client.styled_lines import Line, input_lines
from ...client.styled_lines import Style as LineStyle
from ...core.model.folded_calls import change_counts, purpose, shown_lines
from ...core.model.text import clip_line, visible
from .blocks import ConversationBlock, ReadCallRun

_MAX_LINES = 2_000
"""Maximum lines of a call's input and result."""
_MAX_DEPTH = 100
"""Nesting levels that the parser enters; deeper ones are dropped."""
_PARSER = (
    MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_DEPTH})
    .enable("table")
    .enable("strikethrough")
    .disable("reference")
)
_SIGNS_OF_LISTS = re.compile(r"^[ \t>]*\d+[.)](?=\s)", re.MULTILINE)
"""Numbers of list items: the drawing has its own."""
_EMPTY = Markdown("", hyperlinks=False)
_WITHIN = "  ↳ "
"""Precedes the items of a subagent."""
_SIGNS = {"ok": ("✓", "good"), "error": ("✗", "bad"), "denied": ("✗ denied", "bad"), "": ("…", "quiet")}


@dataclass(frozen=True)
class Palette:
    """The colors of a theme. Everything important is also shown by a sign."""

    dark: bool = True

    @property
    def code_theme(self) -> str:
        return "github-dark" if self.dark else "default"

    def style(self, role: str) -> Style:
        return (_DARK if self.dark else _LIGHT)[role]

    def line(self, style: LineStyle) -> Style:
        return self.style(str(style))


def _styles(**roles: str) -> dict[str, Style]:
    return {role: Style.parse(style) for role, style in roles.items()}


_DARK = _styles(
    prompt="bold #7cc5ff", quiet="#8b949e", good="#56d364", bad="#ff7b72", note="italic #8b949e", tool="#d2a8ff",
    plain="", head="bold", added="#56d364", removed="#ff7b72", same="#8b949e", found="reverse", ask="bold #e3b341",
    heading="bold #7cc5ff", code="#ffa657", quote="#8b949e", bullet="#7cc5ff", border="#8b949e",
)  # fmt: skip
_LIGHT = _styles(
    prompt="bold #0550ae", quiet="#57606a", good="#116329", bad="#a40e26", note="italic #57606a", tool="#6639ba",
    plain="", head="bold", added="#116329", removed="#a40e26", same="#57606a", found="reverse", ask="bold #7d4e00",
    heading="bold #0550ae", code="#953800", quote="#57606a", bullet="#0550ae", border="#57606a",
)  # fmt: skip


def _console(palette: Palette) -> Console:
    heading, quiet = palette.style("heading"), palette.style("quiet")
    styles = {
        **{f"markdown.h{level}": heading for level in range(1, 8)},
        "markdown.code": palette.style("code"),
        "markdown.code_block": Style(),
        "markdown.block_quote": palette.style("quote"),
        "markdown.item.bullet": palette.style("bullet"),
        "markdown.item.number": palette.style("bullet"),
        "markdown.link": Style(underline=True),
        "markdown.link_url": quiet,
        "markdown.hr": quiet,
        "markdown.table.border": palette.style("border"),
        "markdown.table.header": palette.style("head"),
    }
    return Console(
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        theme=Theme(styles),
        width=80,
    )


_CONSOLES: dict[Palette, Console] = {}


_MIN_WIDTH = 8
"""Minimum width; a narrower part of the screen shows the beginning of lines."""
_MIN_TEXT = 10
"""Minimum columns for text inside of quotes and lists."""
_INDENTS = {"blockquote": 2, "bullet_list": 3, "ordered_list": 6}
_CELL = 5
"""Minimum width of a table column, including its separator."""


def lines_of(drawn: RenderableType, width: int, palette: Palette) -> list[Strip]:
    """Rich's output as lines, without control codes."""
    if palette not in _CONSOLES:
        _CONSOLES[palette] = _console(palette)
    console = _CONSOLES[palette]
    options = console.options.update(width=max(_MIN_WIDTH, width), height=None)
    lines = console.render_lines(drawn, options, pad=False)
    return [Strip([segment for segment in line if not segment.control]) for line in lines]


def markdown_lines(text: str, width: int, palette: Palette) -> list[Strip]:
    """A model's text, already made visible, drawn as Markdown, or as written if that needs more columns than
    available."""
    tokens = _PARSER.parse(text)
    if _columns_needed(tokens) <= width:
        drawn = copy(_EMPTY)  # a new one would create its own parser each time
        drawn.markup, drawn.parsed, drawn.code_theme = text, tokens, palette.code_theme
        try:
            return lines_of(drawn, width, palette)
        except ValueError:
            pass  # Rich divides by the columns left after an indent, which a model can make arbitrarily deep
    return lines_of(Text(text, overflow="fold"), width, palette)


def _shows_all(text: str, tokens: Iterable[Token], drawn: Iterable[Strip]) -> bool:
    """Whether every letter was drawn. Titles of links, cells beside a table and long words in a narrow table are
    not."""
    addresses = (
        str(child.attrGet("href") or "")
        for token in tokens
        for child in token.children or ()
        if child.type == "link_open" and child.info == "auto"  # drawn both as its text and as its address
    )
    wanted = Counter(filter(str.isalnum, chain(_SIGNS_OF_LISTS.sub(" ", text), *addresses)))
    return wanted <= Counter(filter(str.isalnum, chain.from_iterable(strip.text for strip in drawn)))


def _columns_needed(tokens: Iterable[Token]) -> int:
    """The columns that Markdown needs for its indents, or for its widest table; more than any screen has if the parser
    dropped something."""
    indent = deepest = cells = widest = 0
    for token in tokens:
        if token.level >= _MAX_DEPTH - 1:
            return sys.maxsize
        kind, _, end = token.type.rpartition("_")
        step = _INDENTS.get(kind, 0)
        indent += step if end == "open" else -step
        deepest = max(deepest, indent)
        if token.type == "tr_open":
            cells = 0
        elif kind in ("th", "td") and end == "open":
            cells += 1
            widest = max(widest, indent + cells * _CELL)
    return max(deepest + _MIN_TEXT if deepest else 0, widest)


@dataclass(frozen=True)
class DrawnAtAnyWidth:
    """Markdown or Rich output for a widget that may briefly have no columns: draws a minimum then. Uses our colors
    instead of its console's. Markdown that would leave something out is drawn as written."""

    drawn: RenderableType
    palette: Palette
    is_markdown: bool = False

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        for strip in self._strips(max(_MIN_WIDTH, options.max_width)):
            yield from strip
            yield Segment.line()

    def _strips(self, width: int) -> list[Strip]:
        if not self.is_markdown:
            return lines_of(self.drawn, width, self.palette)
        text = str(self.drawn)
        drawn = markdown_lines(text, width, self.palette)
        if _shows_all(text, _PARSER.parse(text), drawn):
            return drawn
        return lines_of(Text(text, overflow="fold"), width, self.palette)


def styled_lines(lines: Iterable[Line], palette: Palette) -> Text:
    """Lines as they are, colored by their kind."""
    text = Text(overflow="fold", end="")
    for number, line in enumerate(lines):
        text.append(("\n" if number else "") + line.text, palette.line(line.style))
    return text


@dataclass
class DrawnBlock:
    """The drawing of a block. Drawing again does only what changed."""

    block: ConversationBlock
    strips: list[Strip] = field(default_factory=list)
    _key: object = None
    _body: object = None
    _stable: deque[list[Strip]] = field(default_factory=deque)
    """The lines of each final chunk."""
    _dropped: int = 0
    """Chunks that were drawn and then dropped."""

    def is_current(self, width: int, palette: Palette) -> bool:
        """Whether the drawing is current for this width."""
        return self._key == self._now(width, palette)

    def _now(self, width: int, palette: Palette) -> object:
        block = self.block
        return (block.revision, block.is_open, block.run, block.is_hidden, block.streaming, width, palette)

    def draw(self, width: int, palette: Palette) -> bool:
        """Draws; returns whether anything changed."""
        block, key = self.block, self._now(width, palette)
        if key == self._key:
            return False
        if block.is_hidden:
            self.strips = []
        elif block.kind == "text":
            self._draw_text(width, palette)
        else:
            self.strips = [*_drawn(block, width, palette), Strip([])]
        self._key = key
        return True

    def _draw_text(self, width: int, palette: Palette) -> None:
        body = self.block.body
        # By identity: a replaced body has other chunks, even if it is as long as the previous one.
        fixed = (id(body), width, palette)
        if fixed != self._body:
            self._body, self._stable, self._dropped = fixed, deque(), body.dropped
        while self._dropped < body.dropped and self._stable:
            self._stable.popleft()
            self._dropped += 1
        self._dropped = body.dropped
        for chunk in body.chunks[len(self._stable) :]:
            self._stable.append([*_lines_of_chunk(chunk, width, palette), Strip([])])
        tail = _lines_of_chunk(body.tail, width, palette) if body.tail.strip() else []
        head = f"[the first {body.left_out:,} characters are not shown]" if body.left_out else ""
        noted = lines_of(Text(head, palette.style("note")), width, palette) if head else []
        self.strips = [*noted, *chain.from_iterable(self._stable), *tail, *([Strip([])] if tail else [])]


def _lines_of_chunk(chunk: str, width: int, palette: Palette) -> list[Strip]:
    lines = markdown_lines(chunk, width, palette)
    while lines and not lines[-1].text.strip():
        lines.pop()
    while lines and not lines[0].text.strip():
        lines.pop(0)
    return lines


def _drawn(block: ConversationBlock, width: int, palette: Palette) -> list[Strip]:
    match block.kind:
        case "prompt" | "message":
            sign = ">" if block.kind == "prompt" else "+"
            text = Text(overflow="fold").append(f"{sign} ", palette.style("prompt"))
            return lines_of(text.append(block.body.text, palette.style("prompt")), width, palette)
        case "thinking":
            return _thinking(block, width, palette)
        case "tool":
            head = _run_line(block.run, block.within_agent, width, palette) if block.run else []
            if block.run and not block.run.is_open:
                return head
            details = _call_details(block, width, palette) if block.is_open else _call_outcome(block, width, palette)
            return [*head, *_call_line(block, width, palette), *details]
    return lines_of(Text(block.body.text, palette.style("note"), overflow="fold"), width, palette)


def _thinking(block: ConversationBlock, width: int, palette: Palette) -> list[Strip]:
    quiet = palette.style("quiet")
    text = block.body.text
    if not block.is_open:
        line = f"▸ thinking{' …' if block.streaming else ''} {clip_line(text, max(8, width - 14))}"
        return lines_of(Text(line, quiet, no_wrap=True, overflow="ellipsis"), width, palette)
    head = lines_of(Text("▾ thinking", quiet), width, palette)
    return [*head, *lines_of(Padding(Text(text, quiet, overflow="fold"), (0, 0, 0, 2)), width, palette)]


def _run_line(run: ReadCallRun, within_agent: bool, width: int, palette: Palette) -> list[Strip]:
    text = _folded_line(run.is_open, "" if run.is_running else "ok", palette)
    text.append((_WITHIN if within_agent else "") + run.line, palette.style("tool"))
    return lines_of(text, width, palette)


def _folded_line(is_open: bool, status: str, palette: Palette) -> Text:
    sign, role = _SIGNS.get(status, ("?", "quiet"))
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("▾ " if is_open else "▸ ", palette.style("quiet"))
    return text.append(f"{sign} ", palette.style(role))


def _call_line(block: ConversationBlock, width: int, palette: Palette) -> list[Strip]:
    text = _folded_line(block.is_open, block.status, palette)
    description = visible(purpose(block.name, block.input))
    text.append((_WITHIN if block.within_agent else "") + (description or block.summary), palette.style("tool"))
    if block.agent:
        text.append("  a: its conversation", palette.style("quiet"))
    if block.is_open:
        return lines_of(text, width, palette)
    if description:
        text.append(f"  {block.summary}", palette.style("quiet"))
    if block.diff and block.status == "ok":
        added, removed = change_counts(block.diff)
        counts = Text(f"  +{added}", palette.style("added")).append(f" −{removed}", palette.style("removed"))
        text.truncate(max(_MIN_WIDTH, width - counts.cell_len), overflow="ellipsis")
        text.append_text(counts)
    elif not shown_lines(block.name, block.status, block.result):
        outcome = clip_line(block.result, 120)
        text.append(f"  {outcome}" if outcome else "", palette.style("bad" if block.status == "denied" else "quiet"))
    return lines_of(text, width, palette)


def _call_outcome(block: ConversationBlock, width: int, palette: Palette) -> list[Strip]:
    """A few lines of the result below a folded call."""
    shown = shown_lines(block.name, block.status, block.result)
    if not shown or (block.diff and block.status == "ok"):
        return []
    style = palette.style("bad" if block.status == "error" else "quiet")
    text = Text("\n".join(shown), style, no_wrap=True, overflow="ellipsis")
    return lines_of(Padding(text, (0, 0, 0, 4)), width, palette)


def _call_details(block: ConversationBlock, width: int, palette: Palette) -> list[Strip]:
    inputs = list(_bounded(input_lines(block.name, block.input, block.diff)))
    details = lines_of(Padding(styled_lines(inputs, palette), (0, 0, 0, 4)), width, palette)
    if block.result and not block.diff:
        shown = (Line(line, LineStyle.SAME) for line in block.result.split("\n"))
        result = styled_lines(_bounded(shown), palette)
        rule = lines_of(Text("  ─── result", palette.style("quiet")), width, palette)
        details += [*rule, *lines_of(Padding(result, (0, 0, 0, 4)), width, palette)]
    return details


def _bounded(lines: Iterable[Line]) -> Iterator[Line]:
    for number, line in enumerate(lines):
        if number >= _MAX_LINES:
            yield Line("[more lines are not shown here; export the session for all of them]", LineStyle.HEAD)
            return
        yield line
