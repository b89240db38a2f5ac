"""What the server tells an interface: fragments without secrets, history and events under the same ids."""

import asyncio
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest

from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.core.model.events import Event, Message, Output, Partial, ProcessChanged
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.transcripts.event_log import EventLog
from claude_code_mcp.plugins.tui.blocks import ShownConversation
from claude_code_mcp.server.event_pages import _full_page
from claude_code_mcp.testing.script import script, thinking, tool
from tests.startup.greeting.client import request
from tests.startup.shared.support import SharedPlace, opened

from .conftest import at

SECRET = "correct-horse-battery-staple"


class Feed:
    """Reads the log of a session in pages, as an interface does."""

    def __init__(self) -> None:
        self.log = EventLog(1000, 1 << 20)
        self._session: Any = SimpleNamespace(id="s", events=self.log)
        self._redactor = Redactor([SECRET])
        self._position = 0

    def read(self) -> str:
        """The text of the fragments that are new."""
        page = _full_page(self._session, self._position, self._redactor)
        self._position = self.log.position(page["nextCursor"]) or 0
        return "".join(event["text"] for event in page["events"] if event["type"] == "fragment")


def message(parent: str | None = None) -> Message:
    return Message({"type": "assistant", "parent_tool_use_id": parent})


def test_the_beginning_of_a_secret_is_held_back_until_it_is_whole() -> None:
    feed = Feed()
    for part in ("key: ", "correct-horse-", "batt"):
        feed.log.append(Partial(part))
    assert feed.read() == "key: "
    assert feed.read() == ""
    feed.log.append(Partial("ery-staple"))
    assert feed.read() == SECRET, "to be redacted as a whole"


@pytest.mark.parametrize(
    "between", [Output("key:"), ProcessChanged("parked"), message("a subagent"), Message({"type": "system"})]
)
@pytest.mark.parametrize("paged", [False, True])
def test_other_events_do_not_split_a_secret(between: Event, paged: bool) -> None:
    feed, seen = Feed(), list[str]()
    for event in (Partial("key:\ncorrect-"), between, Partial("horse-batt"), between, Partial("ery-staple!")):
        feed.log.append(copy(event))
        seen += [feed.read()] if paged else []
    seen.append(feed.read())
    assert [text for text in seen if text] == (["key:\n", f"{SECRET}!"] if paged else [f"key:\n{SECRET}!"])


def test_a_long_text_does_not_split_a_secret() -> None:
    feed = Feed()
    for part in ("x" * (200 << 10) + "correct-", "horse-battery-staple"):
        feed.log.append(Partial(part))
    page = _full_page(feed._session, 0, feed._redactor)
    first = page["events"][0]["text"]
    assert first.endswith("xxx")
    rest = _full_page(feed._session, feed.log.position(page["nextCursor"]) or 0, feed._redactor)
    assert [event["text"] for event in (*page["events"][1:], *rest["events"])] == [SECRET]


def test_nothing_of_a_text_that_is_complete_comes_with_the_next() -> None:
    feed = Feed()
    feed.log.append(Partial("a cor"))
    assert feed.read() == "a "
    feed.log.append(message())
    feed.log.append(Partial("next"))
    assert feed.read() == "next"


async def test_history_and_feed_know_everything_by_the_same_ids(place: SharedPlace, sessions: LiveSessions) -> None:
    prompt = script("Work.", thinking("Thought.", "First."), "Never reached.")
    made = await asyncio.to_thread(lambda: sessions.create(prompt, **at(place)))
    await asyncio.to_thread(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    more = script("More.", tool("Bash", command="printf x"), "Last.")
    await asyncio.to_thread(lambda: sessions.send(made["sessionId"], more))
    await asyncio.to_thread(lambda: sessions.status(made["sessionId"], waitSeconds=50))
    items = (await asyncio.to_thread(lambda: sessions.resources.items(made["sessionId"])))["items"]
    page = await asyncio.to_thread(lambda: sessions.resources.feed(made["sessionId"]))
    of_feed = [event["messageId"] for event in page["events"] if event["type"] == "turn_started"]
    for event in page["events"]:
        if event["type"] == "message" and event["message"]["type"] == "assistant":
            parts = event["message"]["message"]["content"]
            of_feed += [part["id"] if part["type"] == "tool_use" else event["message"]["uuid"] for part in parts]
    assert [item["kind"] for item in items] == ["prompt", "thinking", "text", "prompt", "tool", "text"]
    assert [item["id"] for item in items][3:] == of_feed
    nothing = await asyncio.to_thread(lambda: sessions.resources.feed(made["sessionId"], page["nextCursor"]))
    # What became of a message is told behind its turn, and is no part of the conversation.
    behind = {event["message"]["type"] for event in nothing["events"]}
    assert behind <= {"command_lifecycle"}


async def test_a_message_of_another_client_into_a_turn_stands_where_it_was_taken_up(
    place: SharedPlace, sessions: LiveSessions
) -> None:
    waits = "until [ -e go ]; do sleep 0.1; done"
    options = {**at(place), "allowedTools": ["Bash"]}
    prompt = script("Work.", tool("Bash", command=waits), "Last.")
    session_id = (await asyncio.to_thread(lambda: sessions.create(prompt, **options)))["sessionId"]
    watching = ShownConversation(session_id)
    while not any(block.kind == "tool" for block in watching.blocks):
        watching.fold(await asyncio.to_thread(lambda: sessions.resources.feed(session_id, watching.cursor, 50)))
    await asyncio.to_thread(lambda: sessions.send(session_id, "By the way."))
    (place.sandbox.project / "go").touch()
    await asyncio.to_thread(lambda: sessions.status(session_id, waitSeconds=50))
    watching.fold(await asyncio.to_thread(lambda: sessions.resources.feed(session_id, watching.cursor)))
    shown_blocks = [(block.kind, block.id) for block in watching.blocks]
    assert [kind for kind, _ in shown_blocks] == ["prompt", "tool", "message", "text"]
    items = (await asyncio.to_thread(lambda: sessions.resources.items(session_id)))["items"]
    assert [(item["kind"], item["id"]) for item in items] == shown_blocks


def test_only_a_client_that_has_a_person_before_it_may_call_what_the_toolsets_leave_out(place: SharedPlace) -> None:
    with opened(place.client()) as client:
        arguments = {"name": "claude_manage_session", "arguments": {"sessionId": "x", "action": "pin"}}
        answer = client.ask(request("tools/call", 1, **arguments))
        assert "Unknown tool" in answer["error"]["message"]
