"""The application: the connection to the server, the keys, and the commands. It is a client without state: when it
ends, for any reason, sessions and questions are unaffected."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, TextArea
from textual.worker import Worker, WorkerState

from ...client.connections import McpClient
from .conversation_view import ConversationView, fire_when_overdue
from .dialog_screens import Help
from .input_box import InputBox, MessageArea
from .main_screen import SHORT, STYLE, MainScreen
from .palette import NAMES, CommandProvider, SearchedPalette
from .question_panel import QuestionPanel
from .screens import AgentScreen, CostsScreen, ServersScreen
from .server_link import ServerLink
from .server_updates import Pump
from .session_actions import SessionActions, SessionOnScreen
from .session_list import SessionSidebar

_LEAVE_WITHIN = 3.0
"""Seconds within which a second Ctrl-C quits."""


class Tui(App[None]):
    """`open_client` connects to the server, and is called again when the connection is lost."""

    TITLE = "claude-code-mcp"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {CommandProvider}
    CSS = STYLE
    VERTICAL_BREAKPOINTS = [(0, "-short"), (SHORT, "-tall")]  # noqa: RUF012 - as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "command('question')", "Question"),
        Binding("f3,ctrl+s", "command('sessions')", "Sessions"),
        Binding("f2", "command('new')", "New"),
        Binding("f9", "command('diff')", "Diff"),
        Binding("f4", "command('costs')", "Costs", show=False),
        Binding("f5", "command('mcp')", "Servers", show=False),
        Binding("f1", "command('help')", "Help"),
        Binding("ctrl+q", "quit", "Leave", show=False),
        Binding("f6", "command('wait')", "Wait for the reset", show=False, priority=True),
        Binding("f7", "command('continue')", "Continue now", show=False, priority=True),
        Binding("ctrl+p", "command_palette", "Commands", show=False, priority=True),
        Binding("f8", "command_palette", "Commands", show=False),
        Binding("colon", "command_palette", "Commands", show=False),
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
        """The palette's commands by name; empty until the main screen exists."""
        self._leaves_until = 0.0
        """Until when another Ctrl-C quits, by the monotonic clock."""

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
        on_screen = SessionOnScreen(lambda: main.target, main.open_session, area.restore_text)
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
            "commands": lambda _: self.action_command_palette(),
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
        """Like the original, but fires on a busy machine too. Textual uses such a timer of 8 ms to pass a new size to
        the screens and sets no other meanwhile: if it were lost, the layout would never change again."""
        return fire_when_overdue(super().set_timer(*arguments, **options))

    def on_resize(self, event: events.Resize) -> None:
        # From the event: `self.size` is still the old one, because the application's own handler runs after this one.
        self.main.layout_by_size.fit(event.size)

    async def on_unmount(self) -> None:
        await self.link.close()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self.main.show_problem(f"{type(event.worker.error).__name__}: {event.worker.error}")

    def _link_changed(self) -> None:
        if not self.link.problem:
            # Exclusive: a connection that is lost again at once must not leave two of these workers behind.
            self.run_worker(self.pump.connected(), group="connected", exclusive=True)
            self.main.problem = ""
        self.main.draw_lines()

    def on_input_box_sent(self, event: InputBox.Sent) -> None:
        """Runs a command of ours; any other text is a message."""
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

    def action_command(self, name: str, argument: str = "") -> None:
        """Runs the palette's command with this name. Keys of the main screen do nothing on another one."""
        if self.screen is self.main and name in self._commands:
            self._commands[name](argument)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the main screen are not offered on others, where they would do nothing."""
        if action in ("command", "command_palette") and self.screen_stack and self.screen is not self.main:
            return False
        return super().check_action(action, parameters)

    def action_command_palette(self) -> None:
        self.push_screen(SearchedPalette())

    def action_copy_or_leave(self) -> None:
        """Copies the selection; otherwise the first Ctrl-C explains that a second one quits."""
        focused = self.screen.focused
        selected = focused.selected_text if isinstance(focused, Input | TextArea) else self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
        elif time.monotonic() < self._leaves_until:
            self.exit()
        else:
            self._leaves_until = time.monotonic() + _LEAVE_WITHIN
            self.notify("Ctrl-C again quits; sessions keep running.", timeout=_LEAVE_WITHIN)

    def _switch_theme(self) -> None:
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
        self.main.repaint()

    def _go_to_list(self) -> None:
        self.main.layout_by_size.show_list(True)
        self.main.query_one(SessionSidebar).focus_filter()

    def on_question_panel_left(self, event: QuestionPanel.Left) -> None:
        # The focus also leaves when the application ends, and then no screen exists.
        if self.screen_stack and not (event.by_focus and self.main.query_one(QuestionPanel).is_entered):
            self.main.questions.leave()

    def on_question_panel_session_wanted(self, event: QuestionPanel.SessionWanted) -> None:
        self.main.open_session(event.session_id)

    def on_question_panel_answered(self, event: QuestionPanel.Answered) -> None:
        answer = self.main.questions.answer(event.asked, event.decision, self._actions.send_answer)
        self.run_worker(answer)
