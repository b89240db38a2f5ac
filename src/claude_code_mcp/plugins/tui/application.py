"""The application: the connection to the server, the keys, and everything that can be done, by name: for the palette,
for commands in the input, and for the help.

It is a client of the server and holds nothing of its own: when it ends, however it ends, sessions and questions are as
they were.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, OptionList, TextArea
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState

from ...client.connections import McpClient
from .conversation_view import ConversationView, even_if_late
from .input_box import InputBox, MessageArea
from .main_screen import STYLE, MainScreen
from .pump import Pump, ServerLink
from .question_panel import QuestionPanel
from .screens import AgentScreen, CostsScreen, Dialog, Help, ServersScreen
from .session_actions import SessionActions, SessionOnScreen
from .session_list import SessionSidebar


@dataclass(frozen=True, slots=True)
class PersonCommand:
    """Something that a person can have done; `/name` in the input does the same as choosing it."""

    name: str
    summary: str
    keys: str = ""
    """The keys that do the same, for people."""
    for_session: bool = False
    """Whether it is done to a session, and is not there without one."""


COMMANDS = (
    PersonCommand("new", "begin a session: task, directory, model, mode, worktree", "F2"),
    PersonCommand("sessions", "go to the list of sessions", "F3"),
    PersonCommand("question", "go to the next open question, of any session", "Ctrl+N"),
    PersonCommand("search", "find a text in this conversation", "Ctrl+F", True),
    PersonCommand("copy", "copy the selected block, or the last answer", "y", True),
    PersonCommand("interrupt", "stop the turn and keep the session", "Esc", True),
    PersonCommand("wait", "wait for the reset of a usage limit and continue then, or not", "F6", True),
    PersonCommand("continue", "continue now with what a usage limit has stopped", "F7", True),
    PersonCommand("model", "switch the model", "", True),
    PersonCommand("mode", "switch the permission mode", "", True),
    PersonCommand("diff", "what the session has changed; a worktree is merged or discarded there", "F9", True),
    PersonCommand("merge", "merge its worktree into the branch that it began on", "", True),
    PersonCommand("discard", "remove its worktree and its branch", "", True),
    PersonCommand("rewind", "take the files back to a message, where there are checkpoints", "", True),
    PersonCommand("move", "have it go on at another machine of the fleet", "", True),
    PersonCommand("rename", "give it a title", "", True),
    PersonCommand("tag", "give it a tag", "", True),
    PersonCommand("pin", "keep it at the top of the list", "", True),
    PersonCommand("unpin", "let it go down the list again", "", True),
    PersonCommand("archive", "leave it out of the list", "", True),
    PersonCommand("unarchive", "put it back on the list", "", True),
    PersonCommand("fork", "copy the conversation into a session of its own", "", True),
    PersonCommand("export", "write the conversation to a file", "", True),
    PersonCommand("share", "let somebody else watch it, or answer too", "", True),
    PersonCommand("unshare", "take that back from somebody", "", True),
    PersonCommand("cancel", "end the session: it takes no more messages", "", True),
    PersonCommand("delete", "remove the session for good", "", True),
    PersonCommand("costs", "what sessions have cost", "F4"),
    PersonCommand("mcp", "the MCP servers of the hub", "F5"),
    PersonCommand("list", "hide or show the list of sessions", "Ctrl+B"),
    PersonCommand("theme", "light or dark", "Ctrl+T"),
    PersonCommand("help", "all keys", "F1"),
    PersonCommand("quit", "leave; sessions run on", "Ctrl+Q, Ctrl+C twice"),
)
NAMES = tuple(command.name for command in COMMANDS)


def matching(commands: Iterable[PersonCommand], wanted: str) -> list[PersonCommand]:
    """The commands with all of these words in name or summary; those whose name begins with the text first."""
    terms = wanted.casefold().split()
    found = [command for command in commands if all(term in f"{command.name} {command.summary}" for term in terms)]
    return sorted(found, key=lambda command: not command.name.startswith("".join(terms)))


class CommandPalette(Dialog):
    """Takes a text, and shows the commands that fit; the value is the name of the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,ctrl+n", "move(1)", "Down", show=False, priority=True),
        Binding("up,ctrl+p", "move(-1)", "Up", show=False, priority=True),
        Binding("pagedown", "move(8)", "Page down", show=False, priority=True),
        Binding("pageup", "move(-8)", "Page up", show=False, priority=True),
    ]

    def __init__(self, *, has_session: bool) -> None:
        super().__init__()
        self._possible = [command for command in COMMANDS if has_session or not command.for_session]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Input(placeholder="what to do", compact=True, select_on_focus=False)
            yield OptionList(markup=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show(event.value)

    def _show(self, wanted: str) -> None:
        listing = self.query_one(OptionList)
        found = matching(self._possible, wanted)
        listing.set_options([Option(_line(command), command.name) for command in found])
        listing.highlighted = 0 if found else None

    def action_move(self, step: int) -> None:
        listing = self.query_one(OptionList)
        if listing.option_count:
            at = (listing.highlighted or 0) + step
            listing.highlighted = (
                min(max(0, at), listing.option_count - 1) if abs(step) > 1 else at % (listing.option_count)
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        chosen = self.query_one(OptionList).highlighted_option
        if chosen is not None:
            self.dismiss(chosen.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option.id)


def _line(command: PersonCommand) -> Text:
    keys = f" ({command.keys})" if command.keys else ""
    line = Text(command.name, "bold", no_wrap=True, overflow="ellipsis", end="")
    return line.append(f"  {command.summary}{keys}", "not bold")


# -- the application --------------------------------------------------------------------------------------------------


_LEAVE_WITHIN = 3.0
"""Seconds in which a second Ctrl-C leaves."""


class Tui(App[None]):
    """`open_client` connects to the server, and is called again when the connection is lost."""

    TITLE = "claude-code-mcp"
    ENABLE_COMMAND_PALETTE = False
    CSS = STYLE
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "command('question')", "Question"),
        Binding("ctrl+p", "commands", "All", priority=True),
        Binding("f3,ctrl+s", "command('sessions')", "Sessions"),
        Binding("f2", "command('new')", "New"),
        Binding("f9", "command('diff')", "Diff"),
        Binding("f4", "command('costs')", "Costs"),
        Binding("f5", "command('mcp')", "Servers"),
        Binding("f1", "command('help')", "Help"),
        Binding("ctrl+q", "quit", "Leave"),
        Binding("f6", "command('wait')", "Wait for the limit", show=False, priority=True),
        Binding("f7", "command('continue')", "Continue now", show=False, priority=True),
        Binding("f8", "commands", "All", show=False),
        Binding("colon", "commands", "All", show=False),
        Binding("question_mark", "command('help')", "Help", show=False),
        Binding("ctrl+f", "command('search')", "Search", show=False, priority=True),
        Binding("ctrl+b", "command('list')", "Hide sessions", show=False),
        Binding("ctrl+t", "command('theme')", "Light/dark", show=False),
        Binding("ctrl+c", "copy_or_leave", "Leave", show=False, priority=True),
        Binding("escape", "command('interrupt')", "Interrupt", show=False),
    ]

    def __init__(
        self,
        open_client: Callable[[], McpClient],
        directory: str,
        *,
        session_id: str | None = None,
        light: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.link = ServerLink(open_client)
        self.theme = "textual-light" if light else "textual-dark"
        self._directory = directory
        self._wanted_session = session_id
        self._clock = clock
        self._commands: dict[str, Callable[[str], object]] = {}
        """What the palette offers, by name; nothing until the main screen is there."""
        self._leaves_until = 0.0
        """Until when another Ctrl-C leaves, by the monotonic clock."""

    def get_default_screen(self) -> Screen[Any]:
        return MainScreen(self.link, self._clock)

    @property
    def main(self) -> MainScreen:
        """The screen below all dialogs."""
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    @property
    def pump(self) -> Pump:
        return self.main.pump

    def on_main_screen_ready(self) -> None:
        main = self.main
        area = main.query_one(MessageArea)
        on_screen = SessionOnScreen(lambda: self.target, main.open_session, area.put_back)
        self._actions = SessionActions(self, self.link, main.pump, self._directory, on_screen)
        self._commands = {
            **self._actions.commands(),
            "sessions": lambda _: self._go_to_list(),
            "question": lambda _: main.questions.go_on(),
            "search": lambda _: self.run_worker(main.search.ask(), group="search", exclusive=True),
            "copy": lambda _: main.query_one(ConversationView).action_copy(),
            "costs": lambda _: self.push_screen(CostsScreen(self.link.do)),
            "mcp": lambda _: self.push_screen(ServersScreen(self.link.do)),
            "list": lambda _: main.layout_by_size.show_list(not main.layout_by_size.is_list_shown),
            "theme": lambda _: self._switch_theme(),
            "help": lambda _: self.push_screen(Help()),
            "commands": lambda _: self.action_commands(),
            "quit": lambda _: self.exit(),
        }
        box = main.query_one(InputBox)
        pump = main.pump
        box.known_commands = lambda: [*NAMES, *(pump.conversation.commands if pump.conversation else ())]
        box.directory = lambda: (pump.conversation and pump.conversation.cwd) or self._directory
        self.run_worker(self.link.run(self._link_changed, main.pump.resource_changed), group="link")
        self.run_worker(main.pump.follow_list(), group="list")
        self.run_worker(main.pump.follow_growth(), group="growth")
        if self._wanted_session is not None:
            main.open_session(self._wanted_session)

    def set_timer(self, *arguments: Any, **options: Any) -> Timer:
        """As everywhere, but it fires on a busy machine too. By such a timer of 8 ms Textual hands a new size to the
        screens, and it sets no other one meanwhile: if it were lost, the layout would stay as it is from then on."""
        return even_if_late(super().set_timer(*arguments, **options))

    def on_resize(self, event: events.Resize) -> None:
        # By the event: `self.size` is still the one before, since the application's own handler comes after this one.
        self.main.layout_by_size.fit(event.size)

    async def on_unmount(self) -> None:
        await self.link.close()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self.main.show_problem(f"{type(event.worker.error).__name__}: {event.worker.error}")

    def _link_changed(self) -> None:
        if not self.link.problem:
            # Exclusive: a connection that is lost again at once must not leave two of these behind.
            self.run_worker(self.pump.connected(), group="connected", exclusive=True)
            self.main.problem = ""
        self.main.draw_lines()

    # -- what the input needs ---------------------------------------------------------------------------------

    def on_input_box_sent(self, event: InputBox.Sent) -> None:
        """Does what a command of ours says; every other text is a message."""
        name, _, rest = event.text.strip().partition(" ")
        if name.startswith("/") and name[1:] in NAMES:
            self.action_command(name[1:], rest.strip())
        else:
            self._actions.say(event.text)

    def on_input_box_wanted(self, event: InputBox.Wanted) -> None:
        self.action_command(event.command)

    def on_conversation_view_copied(self, event: ConversationView.Copied) -> None:
        self.copy_to_clipboard(event.text)
        self.notify(f"{len(event.text)} characters copied.")

    def on_conversation_view_agent_wanted(self, event: ConversationView.AgentWanted) -> None:
        self.push_screen(AgentScreen(self.link.do, event.session_id, event.agent, lambda: self.pump.progress))

    # -- commands ---------------------------------------------------------------------------------------------

    def action_command(self, name: str, argument: str = "") -> None:
        """Does what the palette has under this name. Keys that belong to the main screen do nothing on another one."""
        if self.screen is self.main and name in self._commands:
            self._commands[name](argument)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the main screen are not offered on another one, where they would do nothing."""
        if action in ("command", "commands") and self.screen_stack and self.screen is not self.main:
            return False
        return super().check_action(action, parameters)

    def action_commands(self) -> None:
        def choose(name: str | None) -> None:
            if name is not None:
                self._commands[name]("")

        if self.screen is self.main and self._commands:
            self.push_screen(CommandPalette(has_session=self.target is not None), choose)

    def action_copy_or_leave(self) -> None:
        """Copies what is selected; otherwise the first Ctrl-C says what the second one does, which leaves."""
        focused = self.screen.focused
        selected = focused.selected_text if isinstance(focused, Input | TextArea) else self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
        elif time.monotonic() < self._leaves_until:
            self.exit()
        else:
            self._leaves_until = time.monotonic() + _LEAVE_WITHIN
            self.notify("Ctrl-C again leaves; sessions run on.", timeout=_LEAVE_WITHIN)

    def _switch_theme(self) -> None:
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
        self.main.repaint()

    # -- sessions and questions -------------------------------------------------------------------------------

    def _go_to_list(self) -> None:
        self.main.layout_by_size.show_list(True)
        self.main.query_one(SessionSidebar).focus_filter()

    @property
    def target(self) -> str | None:
        """The highlighted session while the list has the focus, else the one that is shown."""
        focused = self.main.focused
        if isinstance(focused, OptionList) and focused.highlighted_option is not None:
            return focused.highlighted_option.id
        return self.main.current

    def on_question_panel_left(self, event: QuestionPanel.Left) -> None:
        # It also leaves when the application ends, and then there is no screen any more.
        if self.screen_stack and not (event.by_focus and self.main.query_one(QuestionPanel).is_entered):
            self.main.questions.leave()

    def on_question_panel_session_wanted(self, event: QuestionPanel.SessionWanted) -> None:
        self.main.open_session(event.session_id)

    def on_question_panel_answered(self, event: QuestionPanel.Answered) -> None:
        answer = self.main.questions.answer(event.asked, event.decision, self._actions.send_answer)
        self.run_worker(answer)
