"""The interface on a server of its own: one shared server with the real CLI and the scripted model for all stories."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from claude_code_mcp.client.connections import Target
from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.conversation_view import ConversationView
from claude_code_mcp.plugins.tui.question_panel import QuestionPanel, QuestionText
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.startup.shared.support import SharedPlace, shared_place
from tests.support.waiting import HANG_SECONDS


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[SharedPlace]:
    sandbox = Sandbox(tmp_path_factory.mktemp("tui"), model.url)
    # Nobody may use it for long while another test of the package is slow: it would end, as it should.
    environment = sandbox.environment(**{RUN: os.environ[RUN], "CLAUDE_CODE_MCP_SHARED_IDLE_MS": "86400000"})
    with shared_place(sandbox, environment) as shared:
        shared.command("shared", "start")
        yield shared


@pytest.fixture
def sessions(place: SharedPlace) -> Iterator[LiveSessions]:
    """Another client of the same server."""
    with Target().join(place.environment) as client:
        yield LiveSessions(client)


class Screen:
    """The interface as a person sees and uses it."""

    def __init__(self, app: Tui, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def text(self) -> str:
        """All that is on the screen, line by line."""
        screen = self.app.screen
        width, height = self.app.size
        lines = screen._compositor.render_strips()
        return "\n".join(strip.text.ljust(width) for strip in lines[:height])

    @property
    def panel(self) -> QuestionPanel:
        return self.app.screen_stack[0].query_one(QuestionPanel)

    @property
    def view(self) -> ConversationView:
        return self.app.screen_stack[0].query_one(ConversationView)

    @property
    def kinds(self) -> list[str]:
        """What the blocks of the conversation are."""
        return [block.kind for block in self.view.conversation.blocks]

    async def until(self, reached: Callable[[], object], what: str = "") -> None:
        """Waits for what the server, another thread or the next frame does."""
        try:
            async with asyncio.timeout(HANG_SECONDS):
                while not reached():
                    await self.pilot.pause(0.05)
        except TimeoutError:
            raise AssertionError(f"it did not happen: {what}\n{self.text}") from None

    async def shows(self, *texts: str) -> None:
        for text in texts:
            await self.until(lambda text=text: text in self.text, text)  # type: ignore[misc]

    async def asks(self, what: str) -> None:
        """Waits until the panel has a question about this."""

        def is_asked() -> bool:
            asked = self.panel.asked
            return asked is not None and what in f"{asked.question.tool_name} {asked.question.description}"

        await self.until(is_asked, what)

    async def read(self) -> None:
        """Reads the question, page by page, until every line of it was on the screen."""
        text = self.panel.query_one(QuestionText)

        def turn() -> bool:
            if not text.is_read:
                self.panel.action_move(-1 if text.is_left_above else 1, by_page=True)
            return text.is_read

        await self.until(turn, "every line was on the screen")

    async def type(self, text: str) -> None:
        """Types into whatever has the focus."""
        await self.pilot.press(*(_KEYS.get(character, character) for character in text))

    async def say(self, text: str) -> None:
        """Pastes a message and sends it: a script is too long to be typed."""
        self.app.query_one("MessageArea").text = text  # type: ignore[attr-defined]
        self.app.query_one("MessageArea").focus()
        await self.pilot.press("enter")

    @property
    def focused(self) -> str:
        return type(self.app.focused).__name__


_KEYS = {" ": "space", "/": "slash", "?": "question_mark", ".": "full_stop", "@": "at", "-": "minus", ",": "comma"}


@asynccontextmanager
async def opened(
    place: SharedPlace, *, size: tuple[int, int] = (120, 40), session_id: str | None = None
) -> AsyncIterator[Screen]:
    app = Tui(lambda: Target().join(place.environment), str(place.sandbox.project), session_id=session_id)
    async with app.run_test(size=size, notifications=True) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.pump.is_listed)
        yield screen


async def elsewhere(work: Callable[[], object]) -> object:
    """Something that blocks, while the interface goes on."""
    return await asyncio.to_thread(work)


def at(place: SharedPlace) -> dict[str, str]:
    return {"workingDirectory": str(place.sandbox.project)}
