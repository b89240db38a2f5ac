"""The conversation of a subagent on a screen of its own: what it was asked, what it did and what it answered."""

from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from ..client.live_sessions import LiveSessions
from ..client.resource_reader import Report
from ..model.text import visible
from ..shared.client import CallFailed, NotRunning
from .blocks import ShownConversation
from .conversation_view import ConversationView
from .drawing import Palette
from .key_line import KeyLine
from .pump import ServerLink


class AgentScreen(Screen[None]):
    """Reads the end of the conversation, older pages when somebody scrolls up, and what is new when `r` is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Back"),
        Binding("r", "read_again", "Read again"),
    ]
    DEFAULT_CSS = """
    AgentScreen #title { height: 1; text-style: bold; padding: 0 1; }
    """

    def __init__(self, link: ServerLink, session_id: str, agent: str) -> None:
        super().__init__()
        self._link, self._agent = link, agent
        self._conversation = ShownConversation(session_id)

    def compose(self) -> ComposeResult:
        yield Static(f"Subagent {self._agent}", id="title", markup=False)
        yield ConversationView(Palette(dark=self.app.current_theme.dark), id="agent-conversation")
        yield KeyLine()

    def on_mount(self) -> None:
        view = self.query_one(ConversationView)
        view.show(self._conversation)
        view.focus()
        self.run_worker(self._load_older(), group="older", exclusive=True)

    def on_conversation_view_older_wanted(self) -> None:
        self.run_worker(self._load_older(), group="older", exclusive=True)

    async def _load_older(self) -> None:
        page = await self._page(self._conversation.previous)
        if page is not None:
            self._conversation.add_history(page["items"], page["previous"])
            self.query_one(ConversationView).redraw()

    def action_read_again(self) -> None:
        self.run_worker(self._load_newer(), group="newer", exclusive=True)

    async def _load_newer(self) -> None:
        page = await self._page(None)
        if page is not None:
            self._conversation.add_newer(page["items"])
            self.query_one(ConversationView).redraw()

    async def _page(self, before: str | None) -> Report | None:
        """A page of the conversation; None if it cannot be read, and then the person is notified."""
        read = partial(_items, session_id=self._conversation.session_id, before=before, agent=self._agent)
        try:
            return await self._link.do(read)
        except (CallFailed, NotRunning) as error:
            self.notify(visible(str(error)), severity="error", markup=False)
            return None


def _items(sessions: LiveSessions, session_id: str, before: str | None, agent: str) -> Report:
    return sessions.resources.items(session_id, before, agent)
