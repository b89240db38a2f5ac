"""Sessions as resources: listed, read in pages, followed, and nobody else's business."""

import asyncio
import json
import uuid
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import MCPError

from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.transcripts.conversation_pages import Extent
from claude_code_mcp.core.transcripts.transcript_lines import folder_of
from claude_code_mcp.plugins.console.event_frames import turn_row
from claude_code_mcp.server.resource_addresses import ResourceAddress, parse
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.core.sessions.support import end_of, options, parked, say
from tests.core.sessions.test_open_elsewhere import open_in_claude
from tests.support.clock import stopped_clock
from tests.support.waiting import HANG_SECONDS

from .conftest import StartCaller, ToolCaller

MODERN = "2026-07-28"
EITHER = pytest.mark.parametrize("mode", ["legacy", pytest.param(MODERN, marks=pytest.mark.soak)], ids=["2025", "2026"])
SECRET = "hidden-behind-7-hills"
LIST = "claude-sessions:///"
ASK = script("Touch", tool("Bash", command="touch asked"), "went on")


def uri_of(session_id: str, view: str = "") -> str:
    return f"claude-session:///{session_id}" + (f"/{view}" if view else "")


async def a_session(caller: ToolCaller, prompt: str = "Greet", *steps: Any) -> str:
    report = await caller.ok("claude_code", prompt=script(prompt, *(steps or ("hello there",))), allowedTools=["Bash"])
    return str(report["sessionId"])


async def read(caller: ToolCaller, uri: str) -> str:
    (content,) = (await caller.client.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    assert str(content.uri) == uri
    return content.text


async def data(caller: ToolCaller, uri: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await read(caller, uri))
    return found


async def unknown(caller: ToolCaller, uri: str) -> None:
    with pytest.raises(MCPError, match="Unknown resource") as refusal:
        await caller.client.read_resource(uri)
    assert refusal.value.error.code == types.INVALID_PARAMS
    assert refusal.value.error.data == {"uri": uri[:200]}


async def subscribe(caller: ToolCaller, uri: str) -> None:
    wanted = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await caller.client.session.send_request(wanted, types.EmptyResult)


# -- reading ------------------------------------------------------------------------------------------------------


@EITHER
async def test_a_session_is_listed_and_every_side_of_it_can_be_read_after_a_restart_too(
    start_caller: StartCaller, mode: str
) -> None:
    caller: ToolCaller = await start_caller(mode, extra={"MY_API_TOKEN": SECRET})
    session_id = await a_session(caller, "Bake bread", tool("Bash", command="echo flour"), "It is baked.")
    listed = {str(one.uri): one for one in (await caller.client.list_resources()).resources}
    assert listed[uri_of(session_id)].name.startswith("Bake bread")
    assert LIST in listed
    templates = (await caller.client.list_resource_templates()).resource_templates
    assert {"claude-session:///{id}/transcript{?cursor,full,thinking,agent}"} < {one.uri_template for one in templates}
    status = await data(caller, uri_of(session_id))
    assert (status["status"], status["result"], status["live"]) == ("completed", "It is baked.", True)
    assert status["workingDirectory"] == str(caller.sandbox.project)
    transcript = await read(caller, uri_of(session_id, "transcript"))
    assert "[Bash] echo flour\n[ok] flour" in transcript
    assert transcript.rstrip().endswith("It is baked.")
    events = await data(caller, uri_of(session_id, "events"))
    assert {"turn_started", "output", "turn_ended"} <= {event["type"] for event in events["events"]}
    assert (await data(caller, f"{uri_of(session_id, 'events')}?cursor={events['nextCursor']}"))["events"] == []
    assert (await data(caller, uri_of(session_id, "questions")))["pendingInputs"] == []
    assert (await data(caller, LIST))["sessions"][0]["sessionId"] == session_id
    assert (await data(caller, f"{LIST}?text=bread"))["sessions"][0]["sessionId"] == session_id
    assert (await data(caller, f"{LIST}?text=cake"))["sessions"] == []
    assert (await data(caller, f"{LIST}costs?by=model"))["total"]["sessions"] == 1

    await say(caller.service, session_id, script(f"say {SECRET}", f"It is {SECRET}."))
    for uri in (LIST, *(uri_of(session_id, view) for view in ("", "transcript", "events", "questions"))):
        assert "hidden-behind" not in await read(caller, uri)
    assert "hidden-behind" not in (await caller.client.list_resources()).model_dump_json()

    before = await data(caller, uri_of(session_id))
    await parked(caller.service.session(session_id))
    other: ToolCaller = await start_caller(mode)
    after = await data(other, uri_of(session_id))
    for name in ("status", "costUsd", "workingDirectory"):
        assert after[name] == before[name]
    assert "It is baked." in str((await data(other, uri_of(session_id, "events")))["events"])


async def test_long_questions_are_paged_and_unknown_parts_are_refused(
    caller: ToolCaller,
) -> None:
    long_line = "an answer that is rather long, goes on and on, and does not end before its very last word"
    long = "\n".join(f"line {number} of {long_line}" for number in range(400))
    session_id = await a_session(caller, "Talk", long)
    text, uri = "", uri_of(session_id, "transcript")
    while uri:
        (content,) = (await caller.client.read_resource(uri)).contents
        assert isinstance(content, types.TextResourceContents)
        uri = str((content.meta or {}).get("next", ""))
        text += content.text.removesuffix(f"\n\n[more: {uri}]") if uri else content.text
    assert long in text
    lines, cursor, pages = [], "", 0
    while True:
        page = await data(caller, uri_of(session_id, "events") + (f"?cursor={cursor}" if cursor else ""))
        lines += [event["line"] for event in page["events"] if event["type"] == "output"]
        cursor, pages = page["nextCursor"], pages + 1
        if not page["hasMore"]:
            break
    assert "\n".join(lines).endswith(long)
    assert pages > 1
    for uri, field in (
        (f"{uri_of(session_id, 'transcript')}?cursor=next", "cursor"),
        (f"{uri_of(session_id, 'transcript')}?agent=../x", "agent"),
        (f"{uri_of(session_id, 'events')}?cursor=next", "cursor"),
        (f"{uri_of(session_id)}?part=other", "part"),
        (f"{LIST}?offset=-1", "offset"),
        (f"{LIST}costs?by=moon", "by"),
        (f"{LIST}costs?since=yesterday", "since"),
    ):
        with pytest.raises(MCPError, match=f"^{field}: "):
            await caller.client.read_resource(uri)


async def test_open_questions_are_a_resource_of_their_own(caller: ToolCaller) -> None:
    asked = await caller.ok("claude_code", prompt=ASK, permissionMode="default")
    (pending,) = asked["pendingInputs"]
    uri = uri_of(asked["sessionId"], "questions")
    (shown,) = (await data(caller, uri))["pendingInputs"]
    assert shown["inputId"] == pending["inputId"]
    assert shown["toolInput"]["command"] == "touch asked"
    await subscribe(caller, uri)
    answered = await caller.ok(
        "claude_respond", sessionId=asked["sessionId"], inputId=shown["inputId"], decision="allow", waitSeconds=50
    )
    assert answered["result"] == "went on"
    assert (caller.sandbox.project / "asked").exists()
    await caller.changes.until(uri)
    assert (await data(caller, uri))["pendingInputs"] == []
    kinds = [event["type"] for event in (await data(caller, uri_of(asked["sessionId"], "events")))["events"]]
    assert kinds.index("question") < kinds.index("answered")


async def test_an_address_that_means_nothing_is_unknown(caller: ToolCaller) -> None:
    no_one = "claude-session:///00000000-0000-4000-8000-000000000000"
    for uri in (
        "claude-session:///",
        "claude-session:///x",
        no_one,
        f"{no_one}/transcript",
        f"{no_one}/other",
        "claude-session:///../../etc/passwd",
        f"{LIST}other",
        f"{LIST}?unknown=1",
        f"{LIST}?offset",
        "file:///etc/passwd",
    ):
        await unknown(caller, uri)


async def test_the_sessions_of_others_do_not_exist(caller: ToolCaller) -> None:
    turn = await caller.service.create(script("Hide", "hidden"), options(caller.sandbox), caller=Caller("ada"))
    await end_of(turn)
    uri = uri_of(turn.session.id)
    for view in ("", "transcript", "events", "questions"):
        await unknown(caller, uri_of(turn.session.id, view))
    with pytest.raises(MCPError, match="Unknown resource"):
        await subscribe(caller, uri)
    assert all(one.live for one in caller.service.sessions(principal="ada"))


@given(st.tuples(st.sampled_from(["", "claude-session:///", LIST]), st.text() | st.text("0af-/?=&%costs")).map("".join))
def test_every_text_is_an_address_or_none(text: str) -> None:
    found = parse(text)
    assert found is None or parse(found.uri) == ResourceAddress(found.view, found.session_id)


# -- following ----------------------------------------------------------------------------------------------------


async def test_client_with_a_handshake_gets_its_subscriptions(
    caller: ToolCaller, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    await caller.client.list_resources()
    session_id = await a_session(caller)
    await caller.changes.until("resources")
    await check_view_and_list_updates(caller, session_id)
    await check_no_updates_after_unsubscribing(caller, session_id)
    await parked(caller.service.session(session_id))
    caller.changes.updated.clear()
    async with open_in_claude(sandbox, environment, session_id, "--resume"):
        await caller.changes.until(uri_of(session_id, "transcript"))  # of what is said in a terminal, too


async def check_view_and_list_updates(caller: ToolCaller, session_id: str) -> None:
    views = ("", "transcript", "events")
    for view in views:
        await subscribe(caller, uri_of(session_id, view))
    await subscribe(caller, LIST)
    caller.changes.updated.clear()
    await say(caller.service, session_id, script("more", "again"))
    for view in views:
        await caller.changes.until(uri_of(session_id, view))
    await caller.changes.until(LIST)
    assert uri_of(session_id, "questions") not in caller.changes.updated


async def check_no_updates_after_unsubscribing(caller: ToolCaller, session_id: str) -> None:
    quiet, loud = uri_of(session_id, "events"), uri_of(session_id)
    await subscribe(caller, quiet)  # a second time
    await say(caller.service, session_id, script("more", "of it"))  # of which a part is still to be told
    unwanted = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=quiet))
    await caller.client.session.send_request(unwanted, types.EmptyResult)
    caller.changes.updated.clear()
    await say(caller.service, session_id, script("more", "again"))
    await caller.changes.until(loud)
    assert quiet not in caller.changes.updated


@pytest.mark.soak
async def test_busy_session_sends_at_most_two_updates_per_second(caller: ToolCaller) -> None:
    # A session of its own: where the client was told of it just before, the first news would wait on the stopped clock.
    await check_update_rate(caller, await a_session(caller))


async def check_update_rate(caller: ToolCaller, session_id: str) -> None:
    uri = uri_of(session_id, "events")
    await subscribe(caller, uri)
    caller.changes.updated.clear()
    with stopped_clock() as clock:
        steps = [tool("Bash", command=f"echo {number}") for number in range(6)]
        await say(caller.service, session_id, script("count", *steps, "\n".join("x" * 500)))
        await caller.changes.until(uri)
        assert len((await data(caller, uri))["events"]) > 10
        assert caller.changes.updated.count(uri) == 1
        await clock.advance(0.49)
        await data(caller, uri)  # behind which everything that was sent before has arrived
        assert caller.changes.updated.count(uri) == 1
        await clock.advance(0.01)
        await data(caller, uri)
        assert caller.changes.updated.count(uri) == 2


@pytest.mark.soak  # tests/plugins/fleet/test_gateway.py, of two machines
async def test_client_of_2026_gets_the_same_changes_on_its_stream(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(MODERN)
    session_id = await a_session(caller)
    uri, updated = uri_of(session_id, "transcript"), set()
    async with caller.client.listen(resources_list_changed=True, resource_subscriptions=[uri, LIST]) as changes:
        await say(caller.service, session_id, script("more", "again"))
        await a_session(caller, "Another")
        async with asyncio.timeout(HANG_SECONDS):
            async for change in changes:
                updated.add(getattr(change, "uri", None) or type(change).__name__)
                if updated >= {uri, LIST, "ResourcesListChanged"}:
                    break


@pytest.mark.soak  # found by it: tests/core/sessions/test_clear.py
async def test_a_session_that_was_cleared_is_followed_under_the_id_that_the_client_knows(caller: ToolCaller) -> None:
    session_id = await a_session(caller)
    await subscribe(caller, uri_of(session_id))
    await say(caller.service, session_id, "/clear")
    assert caller.service.current_id(session_id) != session_id
    await asyncio.sleep(0)
    caller.changes.updated.clear()
    await say(caller.service, session_id, script("afterward", "still here"))
    await caller.changes.until(uri_of(session_id))
    status = await data(caller, uri_of(session_id))
    assert (status["result"], status["previousSessionId"]) == ("still here", session_id)


async def test_a_known_secret_is_in_no_field_of_a_transcript_that_is_shown(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(MODERN, extra={"MY_API_TOKEN": SECRET})
    session_id = str(uuid.uuid4())
    cwd = f"{caller.sandbox.project}/{SECRET}"
    common = {"cwd": cwd, "gitBranch": SECRET, "timestamp": SECRET}
    call = {"type": "tool_use", "id": SECRET, "name": f"Tool {SECRET}", "input": {SECRET: SECRET}}
    back = {"type": "tool_result", "tool_use_id": SECRET, "content": SECRET}
    lines: list[dict[str, Any]] = [
        {"type": "user", "uuid": SECRET, "message": {"content": f"hello {SECRET}"}, **common},
        {
            "type": "assistant",
            "uuid": "2",
            "parentUuid": SECRET,
            "message": {"model": SECRET, "content": [call]},
            **common,
        },
        {"type": "user", "uuid": "3", "parentUuid": "2", "message": {"content": [back]}, **common}
        | {"toolUseResult": {"agentId": SECRET}},
    ]
    folder = caller.sandbox.home / ".claude" / "projects" / folder_of(cwd)
    folder.mkdir(parents=True)
    (folder / f"{session_id}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    stored = caller.service.stored
    for form in ("markdown", "html"):
        exported = await stored.export(session_id, form)
        assert "hello [redacted]" in exported.read_text()
        assert SECRET not in exported.read_text()
    assert SECRET not in await read(caller, f"{uri_of(session_id, 'transcript')}?full=1")
    listed = (await caller.client.list_resources()).model_dump_json()
    assert session_id in listed
    assert SECRET not in listed
    reference = types.PromptReference(type="ref/prompt", name="delegate")
    models = (await caller.client.complete(reference, {"name": "model", "value": ""})).completion.values
    assert "opus" in models
    assert not any(SECRET in model for model in models)
    page = (await stored.page_before(session_id, None, Extent(100_000))).page
    (part,) = page.parts
    assert SECRET not in json.dumps(turn_row(part.number, part.turn, cwd="/"))
    (item,) = part.turn.items
    assert (await stored.item(session_id, part.number, item.id)) == item
