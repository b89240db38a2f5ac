"""What the server tells an interface: fragments without secrets, history and events under the same ids."""

import asyncio
from types import SimpleNamespace
from typing import Any

from claude_code_mcp.client.live_sessions import LiveSessions
from claude_code_mcp.core.model.events import PartialRun
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.plugins.tui.blocks import ShownConversation
from claude_code_mcp.server.event_pages import _fragment
from claude_code_mcp.testing.script import script, thinking, tool
from tests.greeting.client import request
from tests.shared.support import SharedPlace, opened

from .conftest import at

SECRET = "correct-horse-battery-staple"


def shown(parts: list[str], *, is_last: bool) -> tuple[Any, int]:
    redactor = Redactor()
    redactor.add([SECRET])
    run = PartialRun(first=1, parts=parts, seq=len(parts))
    return _fragment(run, SimpleNamespace(last_seq=len(parts) if is_last else 99), redactor)


def test_the_beginning_of_a_secret_is_held_back_until_it_is_whole() -> None:
    fields, reached = shown(["key: ", "correct-horse-", "batt"], is_last=True)
    assert (fields["text"], reached) == ("key: ", 1)
    assert shown(["correct"], is_last=True) == (None, 0)
    fields, reached = shown(["key: ", "correct-horse-", "battery-staple"], is_last=True)
    assert reached == 3


def test_what_was_followed_by_something_else_is_not_held_back() -> None:
    fields, reached = shown(["a cor"], is_last=False)
    assert (fields["text"], reached) == ("a cor", 1)


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
    told = [(block.kind, block.id) for block in watching.blocks]
    assert [kind for kind, _ in told] == ["prompt", "tool", "message", "text"]
    items = (await asyncio.to_thread(lambda: sessions.resources.items(session_id)))["items"]
    assert [(item["kind"], item["id"]) for item in items] == told


def test_only_a_client_that_has_a_person_before_it_may_call_what_the_toolsets_leave_out(place: SharedPlace) -> None:
    with opened(place.client()) as client:
        arguments = {"name": "claude_manage_session", "arguments": {"sessionId": "x", "action": "pin"}}
        answer = client.ask(request("tools/call", 1, **arguments))
        assert "Unknown tool" in answer["error"]["message"]
