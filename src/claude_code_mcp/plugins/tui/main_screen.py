"""The main screen: sessions on one side, the conversation in the middle, questions and the input below it. Draws the
data of the server updates. The layout depends only on the terminal's size: in a narrow one the session list replaces
the conversation while it is open, in a low one frames and hints make room for text."""

import contextlib
from collections.abc import Callable
from typing import ParamSpec

from textual.app import ComposeResult, ScreenStackError
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Footer, OptionList, Static

from ...client.live_sessions import OpenQuestion
from ...core.model.text import visible
from .blocks import ShownConversation
from .conversation_view import ConversationView
from .dialog_screens import AskLine
from .drawn_blocks import Palette
from .input_box import InputBox, MessageArea
from .question_panel import QuestionPanel
from .question_queue import QuestionQueue
from .server_link import ServerLink
from .server_updates import Pump, sought
from .session_list import SessionSidebar, ShownRow, arranged, asking_elsewhere
from .status_lines import status_line, top_line

_SEARCHED_PAGES = 20
P = ParamSpec("P")
NARROW, WIDE, SHORT = 60, 100, 16
MIN_SIZE = Size(20, 6)
"""The smallest usable terminal."""
_REST = 0.15
"""Seconds that a row must stay highlighted before its session is shown."""

STYLE = """
#top { height: 1; background: $panel; }
#status { height: 1; padding: 0 1; }
#middle { height: 1fr; }
#too-small { display: none; height: 1fr; }
.-wide SessionSidebar { width: 36; }
.-narrow SessionSidebar { width: 1fr; border-right: none; }
.-short InputBox { max-height: 4; }
.-short MessageArea, .-short MessageArea:focus { min-height: 1; max-height: 3; border: none; }
.-short InputBox OptionList { max-height: 2; }
.-short QuestionPanel { height: 1; border: none; }
.-short QuestionPanel #keys, .-short QuestionPanel QuestionText { display: none; }
.-short QuestionPanel:focus #keys, .-short QuestionPanel:focus-within #keys { display: block; }
.-short QuestionPanel:focus, .-short QuestionPanel:focus-within { height: 1fr; max-height: 100%; border: none; }
.-short QuestionPanel:focus QuestionText, .-short QuestionPanel:focus-within QuestionText {
    display: block; height: 1fr; }
.-short.-answering ConversationView, .-short.-answering #status, .-short.-answering InputBox,
.-short.-answering #top, .-short.-answering Footer { display: none; }
.-tiny #top, .-tiny #parts, .-tiny Footer { display: none; }
.-tiny #too-small { display: block; }
CommandPalette SearchIcon { display: none; }
CommandPalette #--input { padding: 0 1; }
CommandPalette.-short > Vertical { margin-top: 0; }
CommandPalette.-short #--input, CommandPalette.-short CommandInput { height: 1; border: none; }
CommandPalette.-short CommandList { max-height: 100vh; border: none; }
"""
"""The style sheet of the main screen and of Textual's command palette. It belongs to the application, because a
screen's style sheet applies only after the screen was pushed."""


def while_shown(draw: Callable[P, None]) -> Callable[P, None]:
    """Ignores events while the screen is being removed."""

    def drawn(*arguments: P.args, **named: P.kwargs) -> None:
        with contextlib.suppress(NoMatches, ScreenStackError, IndexError):
            draw(*arguments, **named)

    return drawn


def size_classes(size: Size) -> dict[str, bool]:
    """The style classes for a size."""
    return {
        "-narrow": size.width < NARROW,
        "-wide": size.width >= WIDE,
        "-short": size.height < SHORT,
        "-tiny": size.width < MIN_SIZE.width or size.height < MIN_SIZE.height,
    }


class ScreenLayout:
    """The session list next to the conversation or, in a narrow terminal, in its place while it is open."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._size = MIN_SIZE
        self._is_hidden = False
        """For terminals with room for both."""
        self._is_wanted = False
        """For terminals in which the list replaces the conversation."""

    def fit(self, size: Size) -> None:
        """Arranges the parts for a terminal of this size. The focus stays if its part remains."""
        self._size = size
        screen = self._screen
        screen.update_classes(size_classes(size), animate=False)
        if not screen.query(MessageArea):
            return  # the first size is known before the parts exist
        sidebar, middle = screen.query_one(SessionSidebar), screen.query_one("#middle")
        sidebar.display = self.is_list_shown
        middle.display = not (self._is_narrow and self._is_wanted)
        if not middle.display and not sidebar.has_focus_within:
            sidebar.focus_filter()
        elif not sidebar.display and sidebar.has_focus_within:
            screen.query_one(MessageArea).focus()
        elif screen.focused is None and screen.app.app_focus:
            screen.query_one(MessageArea).focus()  # everything was hidden while the terminal was too small

    @property
    def _is_narrow(self) -> bool:
        return self._size.width < NARROW

    @property
    def is_list_shown(self) -> bool:
        return self._is_wanted if self._is_narrow else not self._is_hidden

    def show_list(self, shown: bool) -> None:
        """Shows or hides the list."""
        if self._is_narrow:
            self._is_wanted = shown
        else:
            self._is_hidden = not shown
        self.fit(self._size)

    def leave_list(self) -> None:
        """Shows the conversation again if the list replaced it."""
        self._is_wanted = False
        self.fit(self._size)


class SessionPreview:
    """Previews of sessions; `follow` shows one. A typed message goes to the session on the screen, previewed or not."""

    def __init__(self, screen: Screen[None], follow: Callable[[str], None]) -> None:
        self._screen = screen
        self._follow = follow
        self._timer: Timer | None = None
        self.is_shown = False
        self.before: str | None = None
        """The session on the screen before the first preview."""

    def preview_later(self, session_id: str, current: str | None) -> None:
        """A session was highlighted; it is shown if that lasts."""
        self._stop()
        if session_id != current:
            self._timer = self._screen.set_timer(_REST, lambda: self._show(session_id, current))

    @property
    def is_due(self) -> bool:
        """Whether a preview is about to be shown."""
        return self._timer is not None

    def _show(self, session_id: str, current: str | None) -> None:
        self._timer = None
        if not self.is_shown:
            self.is_shown, self.before = True, current
        self._follow(session_id)

    def end(self) -> None:
        """Ends the preview; the shown session stays."""
        self._stop()
        self.is_shown, self.before = False, None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None


class ConversationSearch:
    """Searches the conversation on the screen, including older pages."""

    def __init__(self, screen: Screen[None], pump: Pump) -> None:
        self._screen = screen
        self._pump = pump
        self._searched_text = ("", "")
        """The session being opened at a search result, and the text."""

    async def load_older(self) -> int:
        """Reads a page of older history; returns the number of new blocks."""
        conversation = self._pump.conversation
        if conversation is None or not conversation.has_older:
            return 0
        added = await self._pump.load_older(conversation)
        self._screen.query_one(ConversationView).redraw()
        return added

    async def ask(self) -> None:
        """Asks for a text and goes to its last occurrence."""
        text = await self._screen.app.push_screen_wait(AskLine("Search in this conversation"))
        if text and not await self._go_to(text):
            self._screen.notify("Not found.")

    def seek(self, session_id: str, text: str) -> None:
        """Opens a session at a search result: `go_to_searched_text` goes there."""
        self._searched_text = (session_id, text)

    def go_to_searched_text(self) -> None:
        """Goes to the searched text once the end of its conversation is loaded."""
        session_id, text = self._searched_text
        shown = self._screen.query_one(ConversationView).conversation
        if text and session_id == shown.session_id and shown.blocks:
            self._searched_text = ("", "")
            self._screen.run_worker(self._go_to(text), group="sought", exclusive=True)

    async def _go_to(self, text: str) -> int:
        """Goes to the last occurrence of a text; returns the number of known ones."""
        view = self._screen.query_one(ConversationView)
        found = view.search(text)
        for _ in range(_SEARCHED_PAGES):
            if found or not await self.load_older():
                break
            found = view.search(text)
        if found:
            self._screen.notify(f"{found} found; n and N move between them.")
            view.focus()
        return found


class MainScreen(Screen[None]):
    """The screen below all dialogs."""

    class Ready(Message):
        """All parts exist."""

    def __init__(self, link: ServerLink, clock: Callable[[], float]) -> None:
        super().__init__()
        self._link = link
        self._clock = clock
        self.pump = Pump(link, self)
        self.rows: list[ShownRow] = []
        self.problem = ""
        self.layout_by_size = ScreenLayout(self)
        self.preview = SessionPreview(self, self._follow)
        self.search = ConversationSearch(self, self.pump)

    @property
    def palette(self) -> Palette:
        return Palette(dark=self.app.current_theme.dark)

    def compose(self) -> ComposeResult:
        yield Static(f"The terminal must be at least {MIN_SIZE.width}x{MIN_SIZE.height}.", id="too-small", markup=False)
        yield Static(id="top", markup=False)
        with Horizontal(id="parts"):
            yield SessionSidebar(self.palette, id="sessions")
            with Vertical(id="middle"):
                yield ConversationView(self.palette, id="conversation")
                yield Static(id="status", markup=False)
                yield QuestionPanel(self.palette, id="panel")
                yield InputBox(id="input")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.questions = QuestionQueue(self.query_one(QuestionPanel), self.pump, self.focus_input)
        self.set_interval(1.0, self.draw_lines)
        self.layout_by_size.fit(self.app.size)
        self.focus_input()
        self.draw_lines()
        self.post_message(self.Ready())

    def focus_input(self) -> None:
        """Moves the focus to the input."""
        self.query_one(MessageArea).focus()

    def on_descendant_focus(self) -> None:
        self.set_class(self.query_one(QuestionPanel).is_entered, "-answering")
        if self.preview.is_shown and not self.query_one(SessionSidebar).has_focus_within:
            # The user moved to it: text typed from now on is for this session.
            self.preview.end()
            self.draw_lines()

    def repaint(self) -> None:
        """Redraws everything in the theme's colors."""
        for part in (ConversationView, SessionSidebar, QuestionPanel):
            self.query_one(part).palette = self.palette  # type: ignore[attr-defined]
        self.query_one(ConversationView).redraw()
        self.query_one(SessionSidebar).show(self.rows, self.current)
        self.query_one(QuestionPanel).redraw()
        self.draw_lines()

    @property
    def current(self) -> str | None:
        """The session on the screen."""
        conversation = self.pump.conversation
        return conversation.session_id if conversation is not None else None

    @property
    def target(self) -> str | None:
        """The highlighted session while the list has the focus, otherwise the shown one."""
        focused = self.focused
        if isinstance(focused, OptionList) and focused.highlighted_option is not None:
            return focused.highlighted_option.id
        return self.current

    @while_shown
    def draw_lines(self) -> None:
        """Draws the lines above and below the conversation."""
        palette = self.palette
        row = next((row for row in self.rows if row.id == self.current), None)
        title = row.title if row is not None else ("new session" if self.current is None else "")
        problem = visible(self._link.problem or self.problem)
        asking = asking_elsewhere(self.rows, self.current)
        sharing = row.sharing if row is not None else ""
        top = top_line(title, asking, problem, palette, is_preview=self.preview.is_shown, sharing=sharing)
        self.query_one("#top", Static).update(top)
        self.query_one("#status", Static).update(status_line(self.pump.conversation, self._clock(), palette))

    @while_shown
    def list_changed(self) -> None:
        text, ids = self.pump.found
        # The results for another text do not apply to this one.
        found = ids if text == self.pump.wanted else frozenset()
        self.rows = arranged(self.pump.live, self.pump.stored, self._clock(), self.pump.wanted, found)
        self.problem = ""
        self.query_one(SessionSidebar).show(self.rows, self.current)
        self.draw_lines()

    @while_shown
    def conversation_opened(self) -> None:
        self.query_one(ConversationView).show(self.pump.conversation or ShownConversation(""))
        # The row at the user's cursor stays highlighted while they go through the list.
        self.query_one(SessionSidebar).show(self.rows, self.current, keep_highlight=self.preview.is_shown)
        self.questions.choose()
        self.draw_lines()

    @while_shown
    def conversation_changed(self) -> None:
        self.query_one(ConversationView).redraw()
        self.draw_lines()
        self.search.go_to_searched_text()

    @while_shown
    def questions_changed(self) -> None:
        self.questions.choose()
        self.draw_lines()

    @while_shown
    def question_closed(self, asked: OpenQuestion, how: str) -> None:
        self.questions.closed(asked, how)

    @while_shown
    def show_problem(self, problem: str) -> None:
        self.problem = visible(problem)
        self.draw_lines()

    def open_session(self, session_id: str | None) -> None:
        """Shows a session; None: a new one, which begins with a message."""
        self.preview.end()
        self._follow(session_id)

    def _follow(self, session_id: str | None) -> None:
        self.questions.forget()
        self.run_worker(self.pump.follow(session_id), group="conversation", exclusive=True)

    def on_session_sidebar_filtered(self, event: SessionSidebar.Filtered) -> None:
        self.pump.wanted = event.wanted
        self.list_changed()
        self.pump.list_again()

    def on_session_sidebar_highlighted(self, event: SessionSidebar.Highlighted) -> None:
        if self.query_one("#middle").display:
            self.preview.preview_later(event.session_id, self.current)

    def on_session_sidebar_opened(self, event: SessionSidebar.Opened) -> None:
        is_shown = event.session_id == self.current
        if not is_shown:
            self.open_session(event.session_id)
        self.preview.end()
        self.leave_list()
        self.search.seek(event.session_id, sought(event.wanted))
        if is_shown:
            self.search.go_to_searched_text()

    def on_session_sidebar_list_left(self) -> None:
        if self.preview.is_shown:
            self.open_session(self.preview.before)
        else:
            # A pending preview must not replace the session that the next keys are meant for.
            self.preview.end()
        self.leave_list()

    def leave_list(self) -> None:
        """Returns to the input, and to the conversation if the list replaced it."""
        self.layout_by_size.leave_list()
        self.focus_input()
        self.draw_lines()

    def on_conversation_view_older_wanted(self) -> None:
        self.run_worker(self.search.load_older(), group="older", exclusive=True)
