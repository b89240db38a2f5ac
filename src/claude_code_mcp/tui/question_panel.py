"""An open question above the input: all of it, and the keys that answer it.

The keys count only while the panel has the focus, which it never takes by itself, and which it gives back with every
answer: no letter of a message that somebody is typing can allow anything, and no key that was meant for one question
answers the next.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widgets import Input, Static

from ..client.deciding import ACCEPT_EDITS, NoAnswer, decide
from ..client.live_sessions import OpenQuestion
from ..client.question_view import question_lines
from ..model.question import Choice, QuestionKind
from ..model.text import clip_line, visible
from .choosing import Choosing
from .drawing import DrawnMarkdown, Palette, styled_lines

_ENTER_HINT = "Ctrl+N or Tab: answer"


class QuestionPanel(Vertical, can_focus=True):
    """Shows one question at a time; `Answered` has the arguments of `claude_respond`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "decide('allow')", "Allow"),
        Binding("s", "decide('session')", "Session"),
        Binding("e", "decide('edits')", "Accept edits"),
        Binding("d", "deny", "Deny…"),
        Binding("t", "say", "Type an answer"),
        Binding("m", "source", "Source"),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("space", "mark", "Mark", show=False),
        Binding("enter", "confirm", "Confirm"),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("escape", "leave", "Back"),
    ]
    DEFAULT_CSS = """
    QuestionPanel { height: auto; max-height: 60%; display: none; border: round $warning; padding: 0 1; }
    QuestionPanel:focus, QuestionPanel:focus-within { border: heavy $warning; }
    QuestionPanel VerticalScroll { height: auto; max-height: 100%; }
    QuestionPanel Static { height: auto; }
    QuestionPanel #asked-by { height: 1; }
    QuestionPanel Input { height: 1; border: none; display: none; padding: 0; }
    """

    class Answered(Message):
        def __init__(self, asked: OpenQuestion, decision: dict[str, Any]) -> None:
            super().__init__()
            self.asked = asked
            self.decision = decision

    class Left(Message):
        """The person has turned to something else."""

    def __init__(self, palette: Palette, *, id: str) -> None:  # noqa: A002 - as Textual has it
        super().__init__(id=id)
        self.palette = palette
        self.asked: OpenQuestion | None = None
        self.closed_text = ""
        """Why the question that is shown can no longer be answered."""
        self._choosing: Choosing | None = None
        self._as_source = False
        self._on_text: Callable[[str], None] = lambda _: None

    def compose(self) -> ComposeResult:
        yield Static(id="asked-by", markup=False)
        with VerticalScroll(can_focus=False):
            yield Static(id="question", markup=False)
        yield Input(compact=True, select_on_focus=False)
        yield Static(id="keys", markup=False)

    # -- what is shown ----------------------------------------------------------------------------------------

    def show(self, asked: OpenQuestion | None) -> None:
        """Shows a question, or none. Whatever was begun for another one is dropped."""
        if asked is not None and self.asked is not None and asked.id == self.asked.id:
            return
        self.asked, self.closed_text, self._as_source = asked, "", False
        is_choice = asked is not None and asked.question.kind is QuestionKind.USER_QUESTION
        self._choosing = Choosing(asked) if is_choice and asked is not None else None
        self._hide_input()
        self.display = asked is not None
        if asked is not None:
            self.query_one(VerticalScroll).scroll_home(animate=False)
        self.redraw()

    def close_with(self, text: str) -> None:
        """The question was answered elsewhere: says so, and takes no key any more."""
        self.closed_text = text
        self._hide_input()
        self.redraw()

    def redraw(self) -> None:
        if self.asked is None:
            return
        session = self.asked.session
        title = visible(clip_line(session.get("displayText") or session["sessionId"][:8], 60))
        self.query_one("#asked-by", Static).update(Text(f"{self._what} · {title}", self.palette.style("ask")))
        if self.closed_text:
            self.query_one("#question", Static).update(Text(self.closed_text))
        else:
            self.query_one("#question", Static).update(self._question())
        self.query_one("#keys", Static).update(Text(self._keys, self.palette.style("quiet")))
        self.refresh_bindings()

    @property
    def _what(self) -> str:
        assert self.asked is not None
        kinds = {QuestionKind.PERMISSION: "Permission", QuestionKind.PLAN_REVIEW: "Plan"}
        return kinds.get(self.asked.question.kind, "Question")

    def _question(self) -> RenderableType:
        assert self.asked is not None
        question = self.asked.question
        if self._choosing is not None:
            return self._choice()
        plan = question.tool_input.get("plan")
        if question.kind is QuestionKind.PLAN_REVIEW and isinstance(plan, str) and not self._as_source:
            return DrawnMarkdown(visible(plan), self.palette)
        return styled_lines(question_lines(question), self.palette)

    def _choice(self) -> RenderableType:
        choosing = self._choosing
        assert choosing is not None
        part = choosing.part
        if part is None:
            return Text("This question has no parts that could be answered; it can be denied.")
        head = Text(" ".join(filter(None, (visible(part.question), choosing.progress))), self.palette.style("head"))
        return Group(head, *(self._option(part, number, choosing) for number in range(len(part.options))))

    def _option(self, part: Choice, number: int, choosing: Choosing) -> Text:
        label, description = part.options[number]
        box = ("[x]" if number in choosing.marked else "[ ]") if part.several else ""
        pointer = "❯" if number == choosing.cursor else " "
        text = Text(f"{pointer} {number + 1} {box}{' ' if box else ''}{visible(label)}", Style(meta={"option": number}))
        if description and description != label:
            text.append(f"  {visible(description)}", self.palette.style("quiet"))
        return text

    @property
    def _keys(self) -> str:
        if self.asked is None or self.closed_text:
            return "Esc: close"
        if not self.has_focus and not self.has_focus_within:
            return _ENTER_HINT
        if self.query_one(Input).display:
            return "Enter: send, Esc: back"
        match self.asked.question.kind:
            case QuestionKind.PERMISSION:
                session = ", s: for this session" if self.asked.for_session else ""
                return f"a: allow once{session}, d: deny with a reason, PgUp/PgDn: scroll, Esc: later"
            case QuestionKind.PLAN_REVIEW:
                edits = ", e: approve and accept edits" if ACCEPT_EDITS in self.asked.question.modes else ""
                return f"a: approve{edits}, d: feedback, m: as written, PgUp/PgDn: scroll, Esc: later"
        return "1-9 or ↑↓: choose, Space: mark, Enter: answer, t: type, d: decline, Esc: later"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Which keys there are for this question."""
        if self.asked is None or action == "leave":
            return True
        kind = self.asked.question.kind
        if self.closed_text:
            return False
        if action == "decide":
            allowed = {
                "allow": kind is not QuestionKind.USER_QUESTION,
                "session": kind is QuestionKind.PERMISSION and self.asked.for_session,
                "edits": kind is QuestionKind.PLAN_REVIEW and ACCEPT_EDITS in self.asked.question.modes,
            }
            return allowed[str(parameters[0])]
        if action in ("say", "mark", "confirm"):
            return kind is QuestionKind.USER_QUESTION
        return action != "source" or kind is QuestionKind.PLAN_REVIEW

    # -- answering --------------------------------------------------------------------------------------------

    def action_decide(self, decision: str) -> None:
        if self.asked is not None and not self.closed_text:
            try:
                self._answer(decide(self.asked, decision))
            except NoAnswer as error:
                self.app.notify(str(error), severity="warning", markup=False)

    def action_deny(self) -> None:
        what = "feedback" if self.asked and self.asked.question.kind is QuestionKind.PLAN_REVIEW else "reason"
        self._ask_text(f"{what}, or nothing; Enter denies", lambda text: self._answer(self._denied(text)))

    def _denied(self, text: str) -> dict[str, Any]:
        assert self.asked is not None
        return decide(self.asked, "deny", text.strip())

    def action_say(self) -> None:
        self._ask_text("your answer", lambda text: self._chosen(self._choosing.say(text) if self._choosing else None))

    def _ask_text(self, hint: str, on_text: Callable[[str], None]) -> None:
        line = self.query_one(Input)
        line.value, line.placeholder, line.display = "", hint, True
        self._on_text = on_text
        line.focus()
        self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if self.closed_text:
            return
        text = event.value
        self._hide_input()
        self.focus()
        self._on_text(text)

    def _hide_input(self) -> None:
        self.query_one(Input).display = False

    def action_move(self, step: int) -> None:
        if self._choosing is not None:
            self._choosing.move(step)
            self.redraw()
        else:
            self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_page(self, step: int) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.scroll_relative(y=step * max(1, scroll.size.height - 1), animate=False)

    def action_mark(self) -> None:
        if self._choosing is not None:
            self._choosing.mark()
            self.redraw()

    def action_confirm(self) -> None:
        if self._choosing is not None:
            self._chosen(self._choosing.confirm())

    def on_key(self, event: events.Key) -> None:
        if self._choosing is not None and self.has_focus and event.key in "123456789" and not self.closed_text:
            event.stop()
            self._choosing.mark(int(event.key) - 1)
            self.redraw()

    def on_click(self, event: events.Click) -> None:
        """A click on an option marks it, or answers with it where one is to be chosen and it is marked already."""
        number = event.style.meta.get("option")
        if self._choosing is None or self.closed_text or not isinstance(number, int):
            return
        is_marked = number in self._choosing.marked and not (self._choosing.part and self._choosing.part.several)
        self._choosing.mark(number)
        self._chosen(self._choosing.confirm() if is_marked else None)

    def _chosen(self, decision: dict[str, Any] | None) -> None:
        if decision is not None:
            self._answer(decision)
        else:
            self.redraw()

    def action_source(self) -> None:
        self._as_source = not self._as_source
        self.redraw()

    def _answer(self, decision: dict[str, Any]) -> None:
        if self.asked is not None and not self.closed_text:
            self.post_message(self.Answered(self.asked, decision))

    def action_leave(self) -> None:
        if self.query_one(Input).display:
            self._hide_input()
            self.focus()
            self.redraw()
            return
        self.post_message(self.Left())

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()
