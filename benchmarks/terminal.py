"""The terminal interface while 5,000 events stream and somebody scrolls: how long a frame takes, what is kept."""

import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Any

from claude_code_mcp.client.connections import CallFailed, McpClient
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.plugins.tui.blocks import ShownConversation
from claude_code_mcp.plugins.tui.conversation_view import ConversationView

from .common import Figure, Place, benchmark

_EVENTS = 5_000
_PER_FRAME = 20
_DELTAS = 100_000
_FRAME_MS = 33.0
_MAX_MB = 16.0
_ID = "10000000-0000-4000-8000-000000000000"


class _SilentServer(McpClient):
    """There is a server, and nothing happens on it: what is drawn comes from the benchmark alone."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def close(self) -> None:
        self._ended.set()

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        self._ended.wait()
        raise CallFailed("it has ended")


@benchmark
async def terminal_frames(_: Place) -> Sequence[Figure]:
    """Frames of the terminal interface."""
    times = await _frames()
    worst = quantiles(times, n=20)[-1]
    grown = _memory()
    return [
        Figure(
            "a frame of the terminal interface, 5,000 events",
            "30 frames a second",
            f"{median(times):.1f} ms",
            f"95% within {worst:.1f} ms",
            f"95% ≤ {_FRAME_MS:g} ms",
            worst <= _FRAME_MS,
        ),
        Figure("memory after 100,000 deltas in it", "-", f"{grown:.1f} MB", "", f"≤ {_MAX_MB:g} MB", grown <= _MAX_MB),
    ]


async def _frames() -> list[float]:
    """Milliseconds of CPU from an answer of the server to lines on the screen, every fourth frame after a scroll."""
    server, times = _SilentServer(), []
    app = Tui(lambda: server, "/")
    async with app.run_test(size=(120, 40)) as pilot:
        view = app.main.query_one(ConversationView)
        conversation = ShownConversation(_ID)
        view.show(conversation)
        for number, page in enumerate(_pages()):
            began = time.thread_time()
            conversation.fold(page)
            view.redraw()
            if number % 4 == 1:
                view.scroll_relative(y=-7, animate=False)
            elif number % 4 == 3:
                view.action_follow()
            for line in range(view.size.height):
                view.render_line(line)
            times.append((time.thread_time() - began) * 1000)
            await pilot.pause(0)
        server.close()
    return times


def _pages() -> Iterator[dict[str, Any]]:
    """Answers with headings, code and lists, in fragments; a call with its result after each."""
    text = "## Part\n\nSome **bold** words and `code`.\n\n- one\n- two\n\n```python\nx = [1, 2]\nprint(x)\n```\n\n"
    fragments = [{"type": "fragment", "kind": "text", "text": text[at : at + 8]} for at in range(0, len(text), 8)]
    events: list[dict[str, Any]] = []
    for number in range(_EVENTS):
        events.append(fragments[number % len(fragments)])
        if number % 60 == 59:
            events += _call(number)
        if len(events) >= _PER_FRAME:
            yield {"sessionId": _ID, "events": events, "nextCursor": "a-1", "session": {"status": "running"}}
            events = []


def _call(number: int) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": f"make part{number}"}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "done\n" * 20}
    contents: list[tuple[str, dict[str, Any]]] = [
        ("assistant", {"type": "text", "text": f"Part {number} is next."}),
        ("assistant", use),
        ("user", result),
    ]
    return [
        {
            "type": "message",
            "message": {"type": role, "uuid": f"{role}{number}{part['type']}", "message": {"content": [part]}},
        }
        for role, part in contents
    ]


def _memory() -> float:
    """Megabytes that a conversation holds after so many deltas."""
    conversation = ShownConversation(_ID)
    delta = {"type": "fragment", "kind": "text", "text": "words and more\n\n"}
    tracemalloc.start()
    for _ in range(_DELTAS // 100):
        page = {"sessionId": _ID, "events": [delta] * 100, "nextCursor": "a-1", "session": {}}
        conversation.fold(page)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 1e6
