"""Dialogs: help, text input, a choice, a new session."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Checkbox, Input, Label, OptionList, Static, TextArea
from textual.widgets.option_list import Option

HELP = """\
Everywhere
  Ctrl+P, :    all commands, by name
               (: while nothing is typed)
  Ctrl+N       the next open question, of any session
  F2           new session
  F3, Ctrl+S   sessions: type to filter (~text: in whole
               conversations), Down to go through them with a
               preview, Enter opens at the text, Esc goes back
  F4           what sessions cost
  F5           MCP servers of the hub
  F6, F7       at a usage limit: wait for the
               reset or stop waiting; continue now
  F9           the session's changes;
               there: c comments on a line, s sends all comments
  Ctrl+F       search in the conversation
  Ctrl+B       hide or show the sessions
  Ctrl+T       light or dark
  Ctrl+Q       quit (or Ctrl+C twice); sessions keep running
  Tab          to the next part of the screen

In the input
  Enter        send; during a turn, into that turn
  Ctrl+J       new line; pasted line breaks are kept
  Up, Down     earlier messages
  /            commands of Ctrl+P and of Claude Code
  @            files, completed with Tab
  Esc          interrupt the turn

In the conversation
  Up, Down     select a block
  Enter        expand or collapse it; x: all of them
  y            copy it, or the last answer
  a            the conversation of its subagent
  /  n  N      search, next, previous
  End          jump to the end and follow new output

In a question (Ctrl+N or Tab goes there; it never takes the focus while you type)
  a            allow once, approve a plan
  s            allow for this session
  e            approve a plan and accept edits
  d            deny, with a reason or feedback
  c            change the command before it is allowed
  1-9 Space    choose; Enter answers; t: type an answer
  m            the plan's Markdown source
  o            open the session that asks, if it is not this one
  Esc          later"""


class Dialog(ModalScreen[Any]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]
    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 90%; max-width: 84; height: auto; max-height: 95%; border: round $accent;
        background: $surface; padding: 0 1; overflow-y: auto; }
    Dialog Label { width: 100%; height: auto; }
    Dialog Input, Dialog Checkbox { height: 1; border: none; padding: 0; margin: 0 0 0 2; }
    Dialog TextArea { height: 5; border: round $primary; }
    Dialog OptionList { height: auto; max-height: 16; border: none; }
    Dialog.-short > Vertical { width: 100%; height: 100%; max-height: 100%; border: none; }
    Dialog.-short TextArea { height: 2; border: none; }
    Dialog.-short OptionList { height: 1fr; max-height: 100%; }
    """


class Help(Dialog):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1,q", "dismiss(None)", "Close")]

    def compose(self) -> ComposeResult:
        with Vertical(), VerticalScroll():
            yield Static(Text(HELP))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


class AskLine(Dialog):
    """A line of text; None if cancelled."""

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self._title, self._value = title, value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title, markup=False)
            yield Input(self._value, compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)


class EditCommand(Dialog):
    """An editor for a command; None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "take", "Use it", priority=True)]
    DEFAULT_CSS = """
    EditCommand TextArea { height: 1fr; min-height: 3; max-height: 24; }
    EditCommand > Vertical { height: 80%; }
    """

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Change the command. Ctrl+S uses it and asks again, Esc keeps the original.")
            yield TextArea(self._command, tab_behavior="indent", soft_wrap=True)

    def action_take(self) -> None:
        command = self.query_one(TextArea).text
        if command.strip():
            self.dismiss(command)
        else:
            self.app.notify("An empty command cannot be allowed; deny it instead.", severity="warning")


class Pick(Dialog):
    """A choice; the result is its key."""

    def __init__(self, title: str, options: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._options = title, options

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(self._title, markup=False)
            yield OptionList(*(Option(text, key) for key, text in self._options), markup=False, compact=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)


@dataclass(frozen=True, slots=True)
class NewSessionRequest:
    """The options of a new session, as arguments of `claude_create_session`."""

    prompt: str
    options: dict[str, Any]


class SignedCheckbox(Checkbox):
    """Shows whether it is checked by its sign, not only by color."""

    @property
    def BUTTON_INNER(self) -> str:  # type: ignore[override]  # noqa: N802 - Textual has one sign for both
        return "X" if self.value else " "


class NewSession(Dialog):
    """The dialog for a new session; None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,f2", "start", "Start", priority=True),
    ]

    def __init__(self, directory: str, modes: list[str], *, has_worktrees: bool) -> None:
        super().__init__()
        self._directory, self._modes, self._has_worktrees = directory, modes, has_worktrees

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("New session: Ctrl+S starts it, Tab: next field, Esc closes")
            yield Label("Task")
            yield TextArea(id="prompt", tab_behavior="focus")
            yield Label("Directory")
            yield Input(self._directory, id="directory", compact=True, select_on_focus=False)
            yield Label("Model (empty: Claude Code's own choice)")
            yield Input(id="model", compact=True)
            yield Label(f"Permission mode: {', '.join(self._modes)} (empty: Claude Code's own choice)")
            yield Input(id="mode", compact=True)
            if self._has_worktrees:
                yield SignedCheckbox("in a new git worktree", id="worktree", compact=True)
            yield Button("Start", id="start", compact=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_start()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_start()

    def action_start(self) -> None:
        prompt = self.query_one("#prompt", TextArea).text
        mode = self.query_one("#mode", Input).value.strip()
        if not prompt.strip():
            self.app.notify("A session needs a task.", severity="warning")
            return
        if mode and mode not in self._modes:
            self.app.notify(f"The modes are {', '.join(self._modes)}.", severity="warning")
            return
        model, directory = self.query_one("#model", Input).value.strip(), self.query_one("#directory", Input).value
        wanted = {"workingDirectory": directory.strip(), "model": model, "permissionMode": mode}
        options: dict[str, Any] = {name: value for name, value in wanted.items() if value}
        if self._has_worktrees and self.query_one("#worktree", Checkbox).value:
            options["worktree"] = True
        self.dismiss(NewSessionRequest(prompt, options))
