"""An open question above the input: its origin, its complete text, and the keys that answer it, part by part.

The panel shows a question of the session on the screen. A question of another session is shown only on request, names
its session, and disappears when the user turns to something else. Keys count only while the panel has the focus, which
it never takes by itself and returns with every answer: no letter of a message can allow anything, and no key for one
question answers the next.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, assert_never

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.errors import NoWidget
from textual.message import Message
from textual.widgets import Input, Static

from ...client.live_sessions import OpenQuestion
from ...client.styled_lines import Line, NoAnswer, decide, question_lines
from ...client.styled_lines import Style as LineStyle
from ...core.model.question import Choice, Question, QuestionKind
from ...core.model.text import clip_line, visible
from ...core.questions.kinds import ACCEPT_EDITS, Reaction, kind_class
from ...core.questions.presentation import describe, is_described
from .dialog_screens import EditCommand
from .drawn_blocks import DrawnAtAnyWidth, Palette, lines_of, styled_lines
from .part_answers import PartAnswers

_ENTER_HINT = "Ctrl+N or Tab: answer"
_COVERED = 0.25
"""Seconds between checks whether a notification still covers the question."""
_WARNING = 2.0
"""Seconds for which the hint is shown that a question has to be read first."""
_LOW = 3
"""Below this height, pages of a question do not overlap."""


def head_line(asked: OpenQuestion, palette: Palette, *, elsewhere: bool, also_here: bool) -> Text:
    """The question's origin. One from another session says so first, and whether the shown session asks too."""
    session = asked.session
    title = visible(clip_line(session.display_text or session.session_id[:8], 60))
    kind = kind_class(asked.question.kind).title
    line = Text(no_wrap=True, overflow="ellipsis")
    if elsewhere:
        line.append(" another session ", palette.style("ask") + palette.style("found")).append(" ")
    line.append(f"{kind} · {title}", palette.style("ask"))
    return line.append(" · this session asks too: Esc", palette.style("bad")) if elsewhere and also_here else line


def question_body(
    asked: OpenQuestion, parts: PartAnswers | None, palette: Palette, *, as_source: bool
) -> RenderableType:
    """The complete question; if it has several parts, the current one."""
    question = asked.question
    if parts is not None:
        return DrawnAtAnyWidth(_choice(parts, palette), palette)
    plan = question.tool_input.get("plan")
    if question.kind is QuestionKind.PLAN_REVIEW and isinstance(plan, str) and not as_source:
        return DrawnAtAnyWidth(visible(plan), palette, is_markdown=True)
    return styled_lines(_decided_on(asked), palette)


def _decided_on(asked: OpenQuestion) -> Iterator[Line]:
    """A question as lines. A command's heading is Claude's description of its purpose. The last line says what "for
    this session" allows, so that it was on the screen before the key counts."""
    question = replace(asked.question, session_rules=())
    purpose = question.tool_input.get("description")
    if is_editable(question) and isinstance(purpose, str) and purpose.strip():
        yield Line(visible(" ".join(purpose.split())), LineStyle.HEAD)
        others = {name: value for name, value in question.tool_input.items() if name != "description"}
        question = replace(question, tool_input=others)
    if is_editable(question) and not is_described(
        question.tool_name, "command", question.tool_input["command"], question.description
    ):
        # The description is the beginning and the end of a long command, which is shown whole below it.
        question = replace(question, description="Run a command")
    yield from question_lines(question)
    rules = session_meaning(asked.question.session_rules)
    if rules and Reaction.SESSION in asked.reactions:
        yield Line(f"s, for this session: {rules}", LineStyle.HEAD)


def _choice(parts: PartAnswers, palette: Palette) -> RenderableType:
    part = parts.part
    if part is None:
        return Text("This question cannot be answered here; you can deny it.")
    return Group(
        part_head(parts, palette), *(_option(part, number, parts, palette) for number in range(len(part.options)))
    )


def option_lines(parts: PartAnswers, width: int, palette: Palette) -> tuple[int, int]:
    """The first line of the option at the cursor and the first line after it, at this width."""
    part = parts.part
    if part is None:
        return 0, 0
    drawn = [part_head(parts, palette), *(_option(part, each, parts, palette) for each in range(parts.cursor + 1))]
    heights = [len(lines_of(line, width, palette)) for line in drawn]
    return sum(heights[:-1]), sum(heights)


def part_head(parts: PartAnswers, palette: Palette) -> Text:
    asked = parts.part.question if parts.part is not None else ""
    return Text(" ".join(filter(None, (visible(asked), parts.progress))), palette.style("head"))


def _option(part: Choice, number: int, parts: PartAnswers, palette: Palette) -> Text:
    label, description = part.options[number]
    box = ("[x]" if number in parts.marked else "[ ]") if part.several else ""
    pointer = "❯" if number == parts.cursor else " "
    text = Text(f"{pointer} {number + 1} {box}{' ' if box else ''}{visible(label)}", Style(meta={"option": number}))
    if description and description != label:
        text.append(f"  {visible(description)}", palette.style("quiet"))
    return text


class AnswerKey(NamedTuple):
    """A key that answers a question or acts on it."""

    key: str
    label: str
    short: str
    """The key and its label in minimal width."""
    action: str
    needs_reading: bool = False
    """Whether it approves, and therefore works only after everything was on the screen."""


def answer_keys(asked: OpenQuestion, *, elsewhere: bool) -> list[AnswerKey]:
    """The keys for a question while its panel has the focus."""
    question = asked.question
    keys: list[AnswerKey] = []
    match question.kind:
        case QuestionKind.PERMISSION:
            keys.append(AnswerKey("a", "allow once", "a allow", "decide('allow')", True))
            if Reaction.SESSION in asked.reactions:
                keys.append(AnswerKey("s", "for this session", "s session", "decide('session')", True))
            keys.append(AnswerKey("d", "deny with a reason", "d deny", "deny"))
            if is_editable(question):
                keys.append(AnswerKey("c", "change it", "c change", "edit"))
        case QuestionKind.PLAN_REVIEW:
            keys.append(AnswerKey("a", "approve", "a approve", "decide('allow')", True))
            if Reaction.EDITS in asked.reactions:
                keys.append(AnswerKey("e", "approve and accept edits", "e +edits", "decide('edits')", True))
            keys.append(AnswerKey("d", "feedback", "d feedback", "deny"))
            keys.append(AnswerKey("m", "as written", "m source", "source"))
        case QuestionKind.USER_QUESTION | QuestionKind.SERVER_FORM:
            keys.append(AnswerKey("↑↓ or 1-9", "choose", "↑↓", "move(1)"))
            keys.append(AnswerKey("Space", "mark", "Space", "mark"))
            keys.append(AnswerKey("Enter", "answer", "Enter", "confirm", True))
            keys.append(AnswerKey("t", "type", "t type", "say"))
            keys.append(AnswerKey("d", "decline", "d no", "deny"))
        case _:
            assert_never(question.kind)
    if elsewhere:
        keys.append(AnswerKey("o", "open that session", "o open", "open_asking"))
    return [*keys, AnswerKey("Esc", "later", "Esc", "leave")]


def is_editable(question: Question) -> bool:
    """Whether the call is a command, which can be edited before it is allowed."""
    return question.kind is QuestionKind.PERMISSION and isinstance(question.tool_input.get("command"), str)


def with_command(asked: OpenQuestion, command: str) -> OpenQuestion:
    """The question with another command. It can be allowed only once, because session rules refer to Claude's original
    command."""
    question = asked.question
    tool_input = {**question.tool_input, "command": command}
    changed = replace(
        question, tool_input=tool_input, description=describe(question.tool_name, tool_input), session_rules=()
    )
    return replace(asked, question=changed, for_session=False)


def session_meaning(rules: Sequence[str]) -> str:
    """What "for this session" allows, explained for permission modes; empty if unknown."""
    in_words = {f"mode {ACCEPT_EDITS}": "accepts all file edits"}
    return visible(", ".join(in_words.get(rule, rule) for rule in rules))


def keys_text(keys: Iterable[AnswerKey], lines_left: int, palette: Palette, *, is_above: bool, is_short: bool) -> Text:
    """The keys, clickable. While some lines were not on the screen, shows their number, and strikes out approving
    keys."""
    text = Text(overflow="fold")
    if lines_left:
        arrow, key, step = ("↑", "PgUp", -1) if is_above else ("↓", "PgDn", 1)
        more = f"{arrow}{lines_left} {key}" if is_short else f"{arrow} {lines_left} more {_lines(lines_left)}: {key}"
        text.append(more, palette.style("ask") + Style(meta={"action": f"move({step}, True)"}))
    for key, label, short, action, needs_reading in keys:
        text.append((" " if is_short else ", ") if text else "")
        style = palette.style("quiet") + Style(meta={"action": action})
        if needs_reading and lines_left:
            style += Style(strike=True)
        text.append(short if is_short else f"{key}: {label}", style)
    return text


def _lines(count: int) -> str:
    return "line" if count == 1 else "lines"


def is_answer_possible(asked: OpenQuestion, action: str, parameters: tuple[object, ...]) -> bool:
    """Whether an action of the panel applies to this question."""
    if action == "decide":
        return str(parameters[0]) in asked.reactions
    if action == "edit":
        return is_editable(asked.question)
    if action in ("say", "confirm"):
        return Reaction.SAY in asked.reactions
    return action != "source" or asked.question.kind is QuestionKind.PLAN_REVIEW


class AnswerLine(Input):
    """The line for a reason or a typed answer, hidden until needed."""

    DEFAULT_CSS = "AnswerLine { height: 1; border: none; display: none; padding: 0; }"

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=False)
        self._on_text: Callable[[str], None] = lambda _: None

    def ask(self, hint: str, on_text: Callable[[str], None]) -> None:
        """Asks for a line, which is passed to `on_text`; replaces an earlier request."""
        self.value, self.placeholder, self.display = "", hint, True
        self._on_text = on_text
        self.screen.set_focus(self)  # at once, so that the next key is the first of the line

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        # A line that was hidden meanwhile, because its question was closed, answers nothing.
        if self.display:
            self.display = False
            self.screen.set_focus(self.screen.query_one(QuestionPanel))
            self._on_text(event.value)


class QuestionText(VerticalScroll, can_focus=False):
    """The text to decide on, scrollable. Knows which of its lines were on the screen."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[int] = set()
        self._seen_at = (0, 0)
        self.is_read = False
        """Whether every line was on the screen."""

    def begin(self) -> None:
        """Another text is shown, from its first line."""
        self._seen, self.is_read = set(), False
        self.scroll_home(animate=False)

    def look(self) -> bool:
        """Records the lines that are on the screen. Lines folded at another width are other lines. Returns whether a
        notification covers some of them."""
        size = (self.size.width, self.virtual_size.height)
        if size != self._seen_at:
            self._seen, self._seen_at = set(), size
        try:
            shown = self.screen.find_widget(self).visible_region
        except NoWidget:
            return False
        toasts = [toast.region.intersection(shown) for toast in self.screen.query("Toast")]
        covered = {row for toast in toasts if toast.area for row in range(toast.y, toast.bottom)}
        first = round(self.scroll_y) - self.region.y
        self._seen.update(first + row for row in range(shown.y, shown.bottom) if row not in covered)
        self.is_read = self.is_read or self.lines_left == 0
        return bool(covered) and not self.is_read

    @property
    def lines_left(self) -> int:
        """The number of lines that were not on the screen yet."""
        return 0 if self.is_read else len(set(range(self.virtual_size.height)) - self._seen)

    @property
    def is_left_above(self) -> bool:
        """Whether the first of them is above the visible lines."""
        return not set(range(round(self.scroll_y))) <= self._seen

    class Moved(Message):
        """Different lines may be visible."""

    def on_resize(self) -> None:
        self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def watch_virtual_size(self) -> None:
        # A scrollbar that appears takes columns, which adds lines.
        self.post_message(self.Moved())


class QuestionPanel(Vertical, can_focus=True):
    """Shows one question at a time; `Answered` has the arguments of `claude_respond`. Approving works only after every
    line of the question was on the screen, denying always."""

    # Not in the footer, which may truncate them: the panel itself shows all of them.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "decide('allow')", "Allow", show=False),
        Binding("s", "decide('session')", "Session", show=False),
        Binding("e", "decide('edits')", "Accept edits", show=False),
        Binding("d", "deny", "Deny…", show=False),
        Binding("c", "edit", "Change…", show=False),
        Binding("t", "say", "Type an answer", show=False),
        Binding("m", "source", "Source", show=False),
        Binding("o", "open_asking", "Open session", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("space", "mark", "Mark, or page down", show=False),
        Binding("enter", "confirm", "Confirm", show=False),
        Binding("pageup", "move(-1, True)", "Page up", show=False),
        Binding("pagedown", "move(1, True)", "Page down", show=False),
        Binding("home", "move(-1000000, True)", "Begin", show=False),
        Binding("end", "move(1000000, True)", "End", show=False),
        Binding("escape", "leave", "Later", show=False),
    ]
    DEFAULT_CSS = """
    QuestionPanel { height: auto; max-height: 60%; display: none; border: round $warning; padding: 0 1; }
    QuestionPanel:focus, QuestionPanel:focus-within { border: heavy $warning; max-height: 80%; }
    QuestionPanel.-elsewhere { border: double $error; }
    QuestionPanel QuestionText { height: auto; max-height: 100%; }
    QuestionPanel Static { height: auto; }
    QuestionPanel #head { dock: top; height: auto; }
    QuestionPanel #asked-by { height: 1; }
    """

    class Answered(Message):
        def __init__(self, asked: OpenQuestion, decision: dict[str, Any]) -> None:
            super().__init__()
            self.asked = asked
            self.decision = decision

    class Left(Message):
        """The user turned to something else: `by_focus` by moving there, possibly returning meanwhile."""

        def __init__(self, *, by_focus: bool = False) -> None:
            super().__init__()
            self.by_focus = by_focus

    class SessionWanted(Message):
        """The user wants to see the session that asks."""

        def __init__(self, session_id: str) -> None:
            super().__init__()
            self.session_id = session_id

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.palette = palette
        self.asked: OpenQuestion | None = None
        self.elsewhere = False
        """Whether it belongs to another session than the one on the screen."""
        self.also_here = False
        """Whether the session on the screen has an open question too."""
        self.closed_text = ""
        """Why the shown question can no longer be answered."""
        self._left_with: str | None = None
        """The question that was shown when the terminal lost the focus while its keys came here."""
        self._parts: PartAnswers | None = None
        self._original: OpenQuestion | None = None
        """Claude's original question, after the user edited the command."""
        self._as_source = False

    def compose(self) -> ComposeResult:
        # Docked above the question, which may be longer than the available room: keys and answer are always visible,
        # and the question has exactly the remaining lines.
        with Vertical(id="head"):
            yield Static(id="asked-by", markup=False)
            yield Static(id="keys", markup=False)
            yield AnswerLine()
        with QuestionText():
            yield Static(id="question", markup=False)

    def show(self, asked: OpenQuestion | None, *, elsewhere: bool = False, also_here: bool = False) -> None:
        """Shows a question, or none. Drops unfinished answers to another one."""
        changed = (elsewhere, also_here) != (self.elsewhere, self.also_here)
        self.elsewhere, self.also_here = elsewhere, also_here
        self.set_class(elsewhere, "-elsewhere")
        # The same question must stay unchanged: the list is read all the time, and a partial answer would be lost.
        if asked is not None and self.asked is not None and asked.id == self.asked.id:
            if changed:
                self.redraw()
            return
        self.asked, self.closed_text, self._as_source = asked, "", False
        self._original = None
        self._parts = PartAnswers(asked) if asked is not None and asked.question.choices else None
        self.query_one(AnswerLine).display = False
        self.display = asked is not None
        if asked is not None:
            self._text.begin()
        self.redraw()

    def close_with(self, text: str) -> None:
        """The question was answered elsewhere: says so and ignores further keys."""
        self.closed_text = text
        self.query_one(AnswerLine).display = False
        self.redraw()

    def redraw(self) -> None:
        if self.asked is None:
            return
        head = head_line(self.asked, self.palette, elsewhere=self.elsewhere, also_here=self.also_here)
        self.query_one("#asked-by", Static).update(head)
        if self.closed_text:
            self.query_one("#question", Static).update(Text(self.closed_text))
        else:
            body = question_body(self.asked, self._parts, self.palette, as_source=self._as_source)
            if self._original is not None:
                body = Group(Text("You changed this command.", self.palette.style("ask")), body)
            self.query_one("#question", Static).update(body)
            # After the layout: only then is the size of this text known; before, it is the size of the previous text.
            self.call_after_refresh(self._look)
        self._draw_keys()
        self.refresh_bindings()

    def _draw_keys(self) -> None:
        if self.asked is None:
            return
        keys = Text(style=self.palette.style("quiet"))
        if self.closed_text:
            keys.append("Esc: close")
        elif not self.is_entered:
            keys.append(_ENTER_HINT)
            if left := self._text.lines_left:
                keys.append(f" · {left} more {_lines(left)}", self.palette.style("ask"))
        elif self.query_one(AnswerLine).display:
            keys.append("Enter: send, Esc: back")
        else:
            keys = keys_text(
                answer_keys(self.asked, elsewhere=self.elsewhere),
                self._text.lines_left,
                self.palette,
                is_above=self._text.is_left_above,
                is_short=self.screen.has_class("-short"),
            )
        self.query_one("#keys", Static).update(keys)

    @property
    def _text(self) -> QuestionText:
        return self.query_one(QuestionText)

    def on_question_text_moved(self, event: QuestionText.Moved) -> None:
        event.stop()
        self.call_after_refresh(self._look)

    def _look(self) -> None:
        """Records which lines of the question are visible."""
        text = self.query_one("#question", Static)
        # Without this, the layout may still be the previous text's.
        lines = text.get_content_height(self.size, self.app.size, text.content_size.width)
        is_laid_out = 0 < lines == text.content_size.height
        if self.asked is not None and is_laid_out and self.screen.is_current and self._text.look():
            self.set_timer(_COVERED, self._look)
        self._draw_keys()

    def _is_unread(self) -> bool:
        """Whether some of the question was not on the screen yet; then says so."""
        if self._text.is_read:
            return False
        left, key = self._text.lines_left, "PgUp" if self._text.is_left_above else "PgDn"
        # It covers the unread text, so only briefly.
        self.app.notify(f"Read it first: {left} more {_lines(left)} ({key}).", severity="warning", timeout=_WARNING)
        return True

    @property
    def is_entered(self) -> bool:
        """Whether keys go to the question, or to the line for its answer."""
        return self.has_focus or self.has_focus_within

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys apply to this question."""
        if self.asked is None or action == "leave":
            return True
        if self.closed_text:
            return False
        if action == "open_asking":
            return self.elsewhere
        return is_answer_possible(self.asked, action, parameters)

    def action_decide(self, decision: str) -> None:
        if self.asked is not None and not self.closed_text and not self._is_unread():
            try:
                self._answer({**decide(self.asked, decision), **self._updated_input()})
            except NoAnswer as error:
                self.app.notify(str(error), severity="warning", markup=False)

    def _updated_input(self) -> dict[str, Any]:
        """The argument of `claude_respond` for an edited command."""
        if self._original is None or self.asked is None:
            return {}
        return {"updatedInput": dict(self.asked.question.tool_input)}

    def action_edit(self) -> None:
        asked = self.asked
        if asked is None:
            return

        def changed(command: str | None) -> None:
            # The question may have been answered elsewhere, or another one may be shown by now.
            if command is None or self.asked is not asked or self.closed_text:
                return
            original = self._original or asked
            is_same = command == original.question.tool_input["command"]
            self.asked, self._original = (original, None) if is_same else (with_command(original, command), original)
            self._text.begin()
            self.focus()
            self.redraw()

        self.app.push_screen(EditCommand(str(asked.question.tool_input["command"])), changed)

    def action_deny(self) -> None:
        what = "feedback" if self.asked and self.asked.question.kind is QuestionKind.PLAN_REVIEW else "reason"
        asked = self.asked
        if asked is not None:
            deny = f"{what}, or nothing; Enter denies"
            self.query_one(AnswerLine).ask(deny, lambda text: self._answer(decide(asked, "deny", text.strip())))

    def action_say(self) -> None:
        parts = self._parts
        if parts is not None:
            self.query_one(AnswerLine).ask("your answer", lambda text: self._chosen(parts.say(text)))

    def action_move(self, step: int, by_page: bool = False) -> None:
        scroll = self._text
        if self._parts is not None and not by_page:
            self._parts.move(step)
            self._show_cursor()
        else:
            height = scroll.size.height
            page = height - 1 if height > _LOW else max(1, height)
            scroll.scroll_relative(y=step * page if by_page else step, animate=False)

    def action_mark(self) -> None:
        """Marks the option at the cursor; without options, shows the next page."""
        if self._parts is not None:
            self._parts.mark()
            self._show_cursor()
        else:
            self.action_move(1, by_page=True)

    def _show_cursor(self) -> None:
        """Draws the options, and scrolls to the one at the cursor."""
        self.redraw()
        if self._parts is not None:
            text = self._text
            width = self.query_one("#question", Static).content_size.width
            first, last = option_lines(self._parts, width, self.palette)
            if first < text.scroll_y or last > text.scroll_y + text.size.height:
                text.scroll_to(y=first, animate=False)

    def action_confirm(self) -> None:
        if self._parts is not None and not self._is_unread():
            self._chosen(self._parts.confirm())

    def on_key(self, event: events.Key) -> None:
        if self._parts is not None and self.has_focus and event.key in "123456789" and not self.closed_text:
            event.stop()
            self._parts.mark(int(event.key) - 1)
            self._show_cursor()

    def on_click(self, event: events.Click) -> None:
        """A click on a key acts like the key. A click on an option marks it, or answers with it if it is a marked
        single choice."""
        action, number = event.style.meta.get("action"), event.style.meta.get("option")
        if isinstance(action, str):
            self.focus()
            self.call_later(self.run_action, action)
            return
        if self._parts is None or self.closed_text or not isinstance(number, int):
            return
        is_marked = number in self._parts.marked and not (self._parts.part and self._parts.part.several)
        self._parts.mark(number)
        self._chosen(self._parts.confirm() if is_marked and not self._is_unread() else None)

    def _chosen(self, decision: dict[str, Any] | None) -> None:
        if decision is not None:
            self._answer(decision)
        else:
            self._text.begin()  # of the next part
            self.redraw()

    def action_source(self) -> None:
        self._as_source = not self._as_source
        self.redraw()

    def _answer(self, decision: dict[str, Any]) -> None:
        if self.asked is not None and not self.closed_text:
            self.post_message(self.Answered(self._original or self.asked, decision))

    def action_leave(self) -> None:
        line = self.query_one(AnswerLine)
        if line.display:
            line.display = False
            self.screen.set_focus(self)
            self.redraw()
            return
        self.post_message(self.Left())

    def action_open_asking(self) -> None:
        if self.asked is not None:
            self.post_message(self.SessionWanted(self.asked.session.session_id))

    def on_focus(self) -> None:
        before, self._left_with = self._left_with, None
        if before is not None and (self.asked is None or self.asked.id != before):
            # The terminal lost the focus while another question had the keys: a key meant for that one must not count
            # here.
            self.post_message(self.Left())
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()
        if not self.app.app_focus:
            self._left_with = self.asked.id if self.asked is not None else ""
        else:
            # After the next part has the focus, which may be the input line for the answer.
            self.call_after_refresh(self._check_left)

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._check_left)

    def on_descendant_focus(self) -> None:
        self.redraw()

    def _check_left(self) -> None:
        if self.asked is not None and not self.closed_text and not self.is_entered and self.app.app_focus:
            self.post_message(self.Left(by_focus=True))
