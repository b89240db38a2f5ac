"""Any size from 20×6 up, and any change of it while a session streams and keys are pressed."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from textual import timer
from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.widgets import Footer

from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.blocks import ShownConversation
from claude_code_mcp.plugins.tui.conversation_view import ConversationView
from claude_code_mcp.plugins.tui.drawn_blocks import Palette, markdown_lines
from claude_code_mcp.plugins.tui.input_box import MessageArea
from claude_code_mcp.plugins.tui.main_screen import NARROW
from claude_code_mcp.plugins.tui.session_list import SessionSidebar
from claude_code_mcp.testing.script import script, text
from tests.startup.shared.support import SharedPlace
from tests.support.waiting import HANG_SECONDS

from . import recorded
from .conftest import Screen, at, elsewhere, opened
from .recorded import ANSWER, NOW, SHOP, RecordedServer

KEYS = [
    "ctrl+n",
    "escape",
    "f3",
    "down",
    "down",
    "up",
    "enter",
    "tab",
    "shift+tab",
    "ctrl+p",
    "f1",
    "f2",
    "f4",
    "f5",
    "ctrl+b",
    "ctrl+t",
    "pageup",
    "pagedown",
    "end",
    "home",
    "x",
    "slash",
    "backspace",
    "a",
    "question_mark",
    "colon",
    "left",
]
NESTED = "> " * 40 + "quoted\n\n" + "".join(f"{'   ' * depth}- item{depth}\n" for depth in range(20))
TABLE = "|" + "|".join(f" h{number} " for number in range(30)) + "|\n" + "|-" * 30 + "|\n" + "| c " * 30 + "|\n"


class StreamingServer(RecordedServer):
    """Has more of an answer after every fifth step of the walk, headings, code and tables among it."""

    def __init__(self, question: Any) -> None:
        super().__init__(question)
        self._pieces = 0
        self.steps = threading.Semaphore(0)

    def close(self) -> None:
        super().close()
        self.steps.release()

    def _read(self, uri: str) -> dict[str, Any]:
        if "cursor=" not in uri or "full=1" not in uri or self._ended.is_set():
            return super()._read(uri)
        self.steps.acquire()
        self._pieces += 1
        page = super()._read(uri.replace("cursor=", "from="))
        piece = (ANSWER, NESTED, TABLE, "word " * 50)[self._pieces % 4]
        return {**page, "events": [{"type": "fragment", "kind": "text", "text": piece}]}


def check(screen: Screen, size: tuple[int, int]) -> None:
    """What must hold at every size: the layout is that of this size, and what is shown is within the screen."""
    app = screen.app
    assert tuple(app.size) == size
    main = app.main
    sidebar, middle = main.query_one(SessionSidebar), main.query_one("#middle")
    assert sidebar.display == main.layout_by_size.is_list_shown
    assert middle.display == (size[0] >= NARROW or not main.layout_by_size.is_list_shown)
    if app.screen is main and size[0] >= 20 and size[1] >= 6:
        assert main.focused is not None, "keys must go somewhere"
        for part in main.query(Footer):
            assert part.region.bottom <= size[1]
        for shown in (sidebar, middle):
            assert not shown.display or (shown.region.right <= size[0] and shown.region.width >= 16)


def is_laid_out(screen: Screen, size: tuple[int, int]) -> bool:
    """Whether the terminal has this size and the main screen, if it is the one that is shown, is drawn for it."""
    main = screen.app.main
    is_drawn = screen.app.screen is not main or size[0] < 20 or size[1] < 6
    return tuple(screen.app.size) == size and (is_drawn or main.query_one("#parts").size.width == size[0])


async def walk(screen: Screen, steps: int, seed: int, on_step: Callable[[], None] = lambda: None) -> None:
    """Resizes and presses keys at random."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    size = (screen.app.size.width, screen.app.size.height)
    for number in range(steps):
        if number % 5 == 0:
            on_step()
        if chance.random() < 0.6:
            largest = chance.choice([(60, 20), (220, 70)])
            least = (1, 1) if chance.random() < 0.1 else (20, 6)
            size = chance.randint(least[0], largest[0]), chance.randint(least[1], largest[1])
            await screen.pilot.resize_terminal(*size)
        else:
            await screen.pilot.press(chance.choice(KEYS))
        await screen.until(lambda: is_laid_out(screen, size), f"the size {size}")  # noqa: B023
        await screen.pilot.pause()
        check(screen, size)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("steps", "seed"),
    [(12, 1), *(pytest.param(500, seed, marks=pytest.mark.soak) for seed in (2, 3))],
)
@pytest.mark.parametrize(
    "question",
    [recorded.PERMISSION, pytest.param(recorded.PLAN_REVIEW, marks=pytest.mark.soak)],
    ids=["permission", "plan"],
)
async def test_it_is_resized_at_random_while_a_session_streams(question: Any, steps: int, seed: int) -> None:
    server = StreamingServer(question)
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await walk(screen, steps, seed, server.steps.release)
        assert app.is_running


@pytest.mark.soak
async def test_it_is_resized_500_times_while_the_real_server_streams(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    made = sessions.create(
        script("Stream.", text(f"{ANSWER}\n{NESTED}", repeat=10, chunks=600, interval=0.2)), **at(place)
    )
    async with opened(place, session_id=made["sessionId"]) as screen:
        await screen.shows("● working")
        await walk(screen, 500, random.randrange(1 << 32))
        assert screen.app.is_running
    await elsewhere(lambda: sessions.cancel(made["sessionId"]))


class HeldUp:
    """The clock of a process that is held up for a second whenever a timer that fires once looks at it."""

    def __init__(self) -> None:
        self._late = 0.0

    def get_time(self) -> float:
        task = asyncio.current_task()
        if task is None or not task.get_name().startswith("set_timer"):
            return time.monotonic()
        self._late += 1
        return time.monotonic() + self._late


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_time", HeldUp())


@pytest.mark.usefixtures("held_up")
async def test_a_new_size_is_laid_out_however_late_a_busy_machine_comes_to_it() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("The cart shows the wr…")
        for size in ((100, 30), (60, 20)):
            await pilot.resize_terminal(*size)
            await screen.until(lambda size=size: is_laid_out(screen, size), f"the size {size}")  # type: ignore[misc]


async def test_completions_are_laid_out_between_two_sizes_when_nothing_is_left_for_them() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(24, 12)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: app.pump.is_listed)
        await pilot.press("slash", "m")
        await screen.shows("  mode ")
        # The parts are those of the new size before the screen has it: the list takes all columns that there are.
        app.main.layout_by_size.fit(Size(109, 40))
        await pilot.pause()
        app.main._refresh_layout()
        await pilot.resize_terminal(109, 40)
        await screen.until(lambda: is_laid_out(screen, (109, 40)))
        await screen.shows("  mode ")


@pytest.mark.usefixtures("held_up")
async def test_the_rest_of_a_long_conversation_is_drawn_however_late() -> None:
    conversation = ShownConversation("long")
    conversation.add_history(
        [{"kind": "text", "id": f"t{number}", "text": "words " * 90} for number in range(400)], None
    )
    app = OneConversation(conversation)
    async with app.run_test(size=(100, 30)) as pilot:
        view = app.query_one(ConversationView)
        async with asyncio.timeout(HANG_SECONDS):
            while not view._order or not all(each.is_current(view._text_width, view.palette) for each in view._order):
                await pilot.pause(0.02)


async def test_the_rows_of_the_list_are_cut_to_the_size_that_there_is_now() -> None:
    server = RecordedServer()
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = Screen(app, pilot)
        await screen.shows("The cart shows the wr…")
        await pilot.resize_terminal(200, 50)
        await screen.shows("The cart shows the wrong total.…")
        await pilot.resize_terminal(80, 24)
        await screen.shows("The cart shows the wr…")


@pytest.mark.parametrize(
    "size",
    [(20, 6), *(pytest.param(size, marks=pytest.mark.soak) for size in ((30, 10), (40, 20))), (200, 50)],
    ids=str,
)
async def test_a_message_is_sent_and_a_question_answered_at_any_size(size: tuple[int, int]) -> None:
    server = RecordedServer(recorded.PERMISSION)
    app = Tui(lambda: server, "/src/shop", session_id=SHOP, clock=lambda: NOW)
    async with app.run_test(size=(200, 50)) as pilot:
        screen = Screen(app, pilot)
        await screen.until(lambda: screen.panel.asked is not None)
        await pilot.resize_terminal(*size)
        await screen.until(lambda: app.size == Size(*size))
        await pilot.press("h", "i")
        assert app.main.query_one(MessageArea).text == "hi"
        await screen.shows("hi", "Permission")
        await pilot.press("ctrl+n")
        await screen.shows("Claude Code")
        await pilot.press("d")
        await screen.type("no")
        await screen.shows("no")
        await pilot.press("escape", "escape")
        assert screen.focused == "MessageArea"
        await pilot.press("f3")
        await screen.shows("filter sessions")
        await pilot.press("escape")
        await screen.until(lambda: screen.focused == "MessageArea")


@pytest.mark.parametrize("make", [lambda: NESTED, lambda: TABLE, lambda: f"> {TABLE}", lambda: ANSWER])
def test_markdown_is_drawn_at_any_width_and_loses_nothing(make: Callable[[], str]) -> None:
    source = make()
    words = {word for word in ("quoted", "item19", "h29", "quantities", "https://example.org/cart") if word in source}
    for width in range(1, 60):
        drawn = "".join(strip.text.strip() for strip in markdown_lines(source, width, Palette()))
        assert words <= {word for word in words if word in drawn.replace(" ", "")}, width


class OneConversation(App[None]):
    """Nothing but a conversation."""

    def __init__(self, conversation: ShownConversation) -> None:
        super().__init__()
        self._conversation = conversation

    def compose(self) -> ComposeResult:
        yield ConversationView(Palette(dark=True), id="conversation")

    def on_mount(self) -> None:
        self.query_one(ConversationView).show(self._conversation)


async def test_long_conversation_draws_only_visible_blocks_at_once() -> None:
    conversation = ShownConversation("long")
    items = [
        {"kind": "text", "id": f"t{number}", "text": f"Answer {number}. " + "words " * 40} for number in range(400)
    ]
    conversation.add_history(items, None)
    app = OneConversation(conversation)
    async with app.run_test(size=(100, 30)) as pilot:
        view = app.query_one(ConversationView)

        def left() -> int:
            drawn = view._order
            return sum(not block.is_current(view._text_width, view.palette) for block in drawn)

        async def all_drawn() -> None:
            async with asyncio.timeout(HANG_SECONDS):
                while left() or not view._order:
                    await pilot.pause(0.02)

        await all_drawn()
        view.following = False
        view.scroll_to(y=view._starts[200], animate=False, immediate=True)
        await pilot.pause()
        for width in (60, 90, 50, 100, 40):
            # Resized again before the last size is drawn whole: each time only what is in sight counts.
            await pilot.resize_terminal(width, 30)
            await pilot.pause()
            assert view._text_width == width - 4
            top = round(view.scroll_y)
            numbers = {view._number_at(line) for line in range(top, top + view.size.height)}
            assert all(
                number is not None and view._order[number].is_current(view._text_width, view.palette)
                for number in numbers
            )
            assert view._order[min(number for number in numbers if number is not None)].block.id == "t200"
        view.redraw()
        await all_drawn()
        first = view._number_at(round(view.scroll_y))
        assert first is not None
        assert view._order[first].block.id == "t200"
        whole = sum(len(block.strips) for block in view._order)
        assert (view._total, view.virtual_size.height) == (whole, whole)
