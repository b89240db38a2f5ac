"""The application: sessions on one side, the conversation in the middle, questions and the input below it.

It is a client of the server and holds nothing of its own: when it ends, however it ends, sessions and questions are as
they were.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec

from textual.app import ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.worker import Worker, WorkerState

from ..client.live_sessions import OpenQuestion
from ..model.text import visible
from ..shared.client import McpClient
from .acting import OWN_COMMANDS, Acting
from .conversation_view import ConversationView
from .drawing import Palette
from .input_box import InputBox, MessageArea
from .link import ServerLink
from .popups import AskLine, Help
from .pump import Pump
from .question_panel import QuestionPanel
from .session_list import SessionSidebar
from .session_rows import SessionRow, arranged, asking_elsewhere
from .status_line import status_line, top_line

_SMALL = 100
"""Columns below which the list of sessions is narrow."""
_CLOSED_SHOWN = 4.0
"""Seconds that a question stays on the screen which was answered elsewhere."""
_SEARCHED_PAGES = 20


P = ParamSpec("P")


def while_shown(draw: Callable[P, None]) -> Callable[P, None]:
    """What comes while the screen is being taken down is drawn nowhere."""

    def drawn(*arguments: P.args, **named: P.kwargs) -> None:
        with contextlib.suppress(NoMatches, ScreenStackError, IndexError):
            draw(*arguments, **named)

    return drawn


class Tui(Acting):
    """`open_client` connects to the server, and is called again when the connection is lost."""

    TITLE = "claude-code-mcp"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "question", "Question"),
        Binding("f1", "help", "Help"),
        Binding("question_mark", "help", "Help", show=False),
        Binding("f2", "new", "New"),
        Binding("f3,ctrl+s", "sessions", "Sessions"),
        Binding("f4", "costs", "Costs"),
        Binding("f5", "servers", "Servers"),
        Binding("f8", "menu", "More"),
        Binding("ctrl+f", "search", "Search", show=False, priority=True),
        Binding("ctrl+b", "toggle_sessions", "Hide sessions", show=False),
        Binding("ctrl+t", "toggle_theme", "Light/dark", show=False),
        Binding("escape", "interrupt", "Interrupt", show=False),
        Binding("ctrl+q", "quit", "Leave"),
    ]
    CSS = """
    #top { height: 1; background: $panel; }
    #status { height: 1; padding: 0 1; }
    #middle { height: 1fr; }
    """

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
        self.pump = Pump(self.link, self)
        self.directory = directory
        self._wanted_session = session_id
        self._clock = clock
        self._rows: list[SessionRow] = []
        self._problem = ""
        self.theme = "textual-light" if light else "textual-dark"
        self._shown_elsewhere: str | None = None
        """A question of another session that the person has asked for."""

    @property
    def main(self) -> Screen[Any]:
        """The screen below all dialogs."""
        return self.screen_stack[0]

    @property
    def palette(self) -> Palette:
        return Palette(dark=self.current_theme.dark)

    def compose(self) -> ComposeResult:
        yield Static(id="top", markup=False)
        with Horizontal():
            yield SessionSidebar(self.palette, id="sessions")
            with Vertical(id="middle"):
                yield ConversationView(self.palette, id="conversation")
                yield Static(id="status", markup=False)
                yield QuestionPanel(self.palette, id="panel")
                yield InputBox(id="input")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        box = self.main.query_one(InputBox)
        box.known_commands = self._commands
        box.directory = self._working_directory
        box.area.focus()
        self.run_worker(self.link.run(self._link_changed, self.pump.resource_changed), group="link")
        self.run_worker(self.pump.follow_list(), group="list")
        self.run_worker(self.pump.follow_growth(), group="growth")
        self.set_interval(1.0, self._draw_lines)
        self.on_resize()
        self._draw_lines()
        if self._wanted_session is not None:
            self.open_session(self._wanted_session)

    def on_resize(self) -> None:
        self.main.query_one(SessionSidebar).styles.width = 26 if self.size.width < _SMALL else 36

    async def on_unmount(self) -> None:
        await self.link.close()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR:
            self._problem = visible(f"{type(event.worker.error).__name__}: {event.worker.error}")

    def _commands(self) -> list[str]:
        conversation = self.pump.conversation
        return [*OWN_COMMANDS, *(conversation.commands if conversation is not None else ())]

    def _working_directory(self) -> str:
        conversation = self.pump.conversation
        return conversation.cwd if conversation is not None and conversation.cwd else self.directory

    # -- what the pump tells ----------------------------------------------------------------------------------

    @while_shown
    def _link_changed(self) -> None:
        if not self.link.problem:
            self.run_worker(self.pump.connected(), group="connected", exclusive=True)
            self._problem = ""
        self._draw_lines()

    @while_shown
    def list_changed(self) -> None:
        self._rows = arranged(self.pump.live, self.pump.stored, self._clock(), self.pump.wanted)
        self._problem = ""
        self.main.query_one(SessionSidebar).show(self._rows, self._current)
        self._draw_lines()

    @while_shown
    def conversation_opened(self) -> None:
        conversation = self.pump.conversation
        assert conversation is not None
        self.main.query_one(ConversationView).show(conversation)
        self.main.query_one(SessionSidebar).show(self._rows, self._current)
        self._choose_question()

    @while_shown
    def conversation_changed(self) -> None:
        self.main.query_one(ConversationView).redraw()
        self._draw_lines()

    @while_shown
    def questions_changed(self) -> None:
        self._choose_question()
        self._draw_lines()

    @while_shown
    def question_closed(self, asked: OpenQuestion, how: str) -> None:
        panel = self.main.query_one(QuestionPanel)
        text = f"Answered elsewhere: {how}" if how else "The question is no longer open."
        if panel.asked is not None and panel.asked.id == asked.id:
            panel.close_with(text)
            self.set_timer(_CLOSED_SHOWN, self._drop_closed)
        else:
            self.notify(visible(f"{asked.question.description}: {how or 'no longer open'}"), markup=False)

    @while_shown
    def show_problem(self, problem: str) -> None:
        self._problem = visible(problem)
        self._draw_lines()

    # -- what is drawn ----------------------------------------------------------------------------------------

    @property
    def _current(self) -> str | None:
        conversation = self.pump.conversation
        return conversation.session_id if conversation is not None else None

    @while_shown
    def _draw_lines(self) -> None:
        palette, screen = self.palette, self.main
        row = next((row for row in self._rows if row.id == self._current), None)
        title = row.title if row is not None else ("new session" if self._current is None else "")
        problem = visible(self.link.problem or self._problem)
        asking = asking_elsewhere(self._rows, self._current)
        screen.query_one("#top", Static).update(top_line(title, asking, problem, palette))
        screen.query_one("#status", Static).update(status_line(self.pump.conversation, self._clock(), palette))

    def action_toggle_theme(self) -> None:
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"
        for widget in (ConversationView, SessionSidebar, QuestionPanel):
            self.main.query_one(widget).palette = self.palette  # type: ignore[attr-defined]
        self.main.query_one(ConversationView).redraw()
        self.main.query_one(SessionSidebar).show(self._rows, self._current)
        self.main.query_one(QuestionPanel).redraw()
        self._draw_lines()

    def action_toggle_sessions(self) -> None:
        sessions = self.main.query_one(SessionSidebar)
        sessions.display = not sessions.display

    def action_help(self) -> None:
        self.push_screen(Help())

    # -- sessions ---------------------------------------------------------------------------------------------

    def action_sessions(self) -> None:
        sessions = self.main.query_one(SessionSidebar)
        sessions.display = True
        sessions.focus_filter()

    def on_session_sidebar_filtered(self, event: SessionSidebar.Filtered) -> None:
        self.pump.wanted = event.wanted
        self.list_changed()
        self.pump.list_again()

    def on_session_sidebar_opened(self, event: SessionSidebar.Opened) -> None:
        self.open_session(event.session_id)
        self.main.query_one(MessageArea).focus()

    def open_session(self, session_id: str) -> None:
        self._shown_elsewhere = None
        self.run_worker(self.pump.follow(session_id), group="conversation", exclusive=True)

    @property
    def target(self) -> str | None:
        """The highlighted session while the list has the focus, else the one that is shown."""
        focused = self.main.focused
        if isinstance(focused, OptionList) and focused.highlighted_option is not None:
            return focused.highlighted_option.id
        return self._current

    def on_input_box_sent(self, event: InputBox.Sent) -> None:
        self.say(event.text)

    # -- the conversation -------------------------------------------------------------------------------------

    def on_conversation_view_older_wanted(self) -> None:
        self.run_worker(self._load_older(), group="older", exclusive=True)

    async def _load_older(self) -> int:
        conversation = self.pump.conversation
        if conversation is None or not conversation.has_older:
            return 0
        added = await self.pump.load_older(conversation)
        self.main.query_one(ConversationView).redraw()
        return added

    def on_conversation_view_copied(self, event: ConversationView.Copied) -> None:
        self.copy_to_clipboard(event.text)
        self.notify(f"{len(event.text)} characters copied.")

    def action_search(self) -> None:
        self.run_worker(self._search(), group="search", exclusive=True)

    async def _search(self) -> None:
        text = await self.push_screen_wait(AskLine("Search in this conversation"))
        if not text:
            return
        view = self.main.query_one(ConversationView)
        found = view.search(text)
        for _ in range(_SEARCHED_PAGES):
            if found or not await self._load_older():
                break
            found = view.search(text)
        self.notify(f"{found} found; n and N go on." if found else "Not found.")
        if found:
            view.focus()

    # -- questions --------------------------------------------------------------------------------------------

    def _choose_question(self) -> None:
        """Shows the question that was asked for, else the first of this session; never changes the focus."""
        panel = self.main.query_one(QuestionPanel)
        if panel.closed_text:
            return
        asked = self.pump.open_questions()
        wanted = [entry for entry in asked if entry.id == self._shown_elsewhere]
        own = [entry for entry in asked if entry.session["sessionId"] == self._current]
        shown = next(iter((*wanted, *own)), None)
        before = panel.asked
        if (panel.has_focus or panel.has_focus_within) and (shown is None or before is None or shown.id != before.id):
            self.main.query_one(MessageArea).focus()  # a key that was meant for one question is for no other
        panel.show(shown)

    @while_shown
    def _drop_closed(self) -> None:
        panel = self.main.query_one(QuestionPanel)
        if panel.closed_text and not panel.has_focus:
            self._leave_panel()

    def action_question(self) -> None:
        """Goes to the question that is shown or, from there, to the next one, of whatever session."""
        panel, asked = self.main.query_one(QuestionPanel), self.pump.open_questions()
        if not asked:
            self.notify("No open questions.")
            return
        ids = [entry.id for entry in asked]
        shown = panel.asked.id if panel.asked is not None and not panel.closed_text else ""
        if shown not in ids or panel.has_focus:
            at = ids.index(shown) + 1 if shown in ids else 0
            panel.closed_text = ""
            self._shown_elsewhere = ids[at % len(ids)]
            panel.show(asked[at % len(ids)])
        panel.focus()

    def on_question_panel_left(self) -> None:
        self._shown_elsewhere = None
        self._leave_panel()

    def _leave_panel(self) -> None:
        """Back to the input; the panel shows what is open in this session."""
        panel = self.main.query_one(QuestionPanel)
        if panel.closed_text:
            panel.closed_text = ""
            panel.show(None)
        if panel.has_focus or panel.has_focus_within:
            self.main.query_one(MessageArea).focus()
        self._choose_question()

    def on_question_panel_answered(self, event: QuestionPanel.Answered) -> None:
        self.run_worker(self._answer(event.asked, event.decision))

    async def _answer(self, asked: OpenQuestion, decision: dict[str, Any]) -> None:
        self.pump.answered.add(asked.id)
        self.main.query_one(MessageArea).focus()  # before anything is awaited: the next key is for no other question
        if await self.ask(lambda sessions: sessions.answer(asked, decision)) is None:
            self.pump.answered.discard(asked.id)
        else:
            self._shown_elsewhere = None
            self.pump.list_again()
        self._choose_question()
