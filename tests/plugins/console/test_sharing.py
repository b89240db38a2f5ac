"""A session that its owner shares: what the second person sees and may do, under their name, until it is taken back."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.server.test_tasks import envelope
from tests.server.tools.wires import MODERN
from tests.support import warm_commands
from tests.support.program import http_server
from tests.support.waiting import until

from .conftest import Console, running_console
from .console_client import Answer, Browser
from .test_conversation import answer, ended, question_of, say, start


def share(owner: Browser, session: str, person: str, access: str = "watch") -> Answer:
    return owner.ask("PUT", f"/api/sessions/{session}/shares/{person}", {"access": access})


def unshare(owner: Browser, session: str, person: str) -> Answer:
    return owner.ask("DELETE", f"/api/sessions/{session}/shares/{person}")


def listed(browser: Browser) -> dict[str, Any]:
    found = browser.get("/api/sessions").json
    return {row["sessionId"]: row for row in [*found["attention"], *found["sessions"]]}


@pytest.fixture(scope="module")
def unshared(console: Console) -> str:
    """A session of Alice's that has said hello, and that is shared with nobody."""
    alice = console.browser("alice")
    made = start(alice, console, script("Hello.", text("Hello!")))
    ended(alice, made)
    return made


@pytest.fixture
def session(alice: Browser, unshared: str) -> Iterator[str]:
    """The same for a test that shares it; it is taken back afterward."""
    yield unshared
    unshare(alice, unshared, "carol")
    assert alice.get(f"/api/sessions/{unshared}/shares").json["shares"] == []


def test_a_watcher_sees_all_of_it_and_changes_nothing(console: Console, alice: Browser, session: str) -> None:
    carol, dave = console.browser("carol"), console.browser("dave")
    assert carol.get(f"/api/sessions/{session}").status == 404
    shared = share(alice, session, "carol")
    assert shared.json["shares"][0] | {"since": ""} == {"with": "carol", "access": "watch", "since": ""}
    rows = [listed(who)[session] for who in (carol, alice)] + [carol.get(f"/api/sessions/{session}").json["session"]]
    found = [(row["sharedBy"], row["access"]) for row in rows]
    assert found == [("alice", "watch"), (None, None), ("alice", "watch")]
    turns = carol.get(f"/api/sessions/{session}/turns").json["turns"]
    assert "Hello!" in json.dumps(turns)
    assert carol.get(f"/api/sessions/{session}/timeline").json["turns"][0]["number"] == 1
    assert carol.get(f"/api/sessions/{session}/shares").json["owner"] == "alice"
    refused = [
        carol.post(f"/api/sessions/{session}/messages", {"message": "mine"}),
        carol.post(f"/api/sessions/{session}/interrupt"),
        carol.post(f"/api/sessions/{session}/cancel"),
        carol.post(f"/api/sessions/{session}/fork", {"message": "mine"}),
        carol.post(f"/api/sessions/{session}/manage", {"action": "rename", "text": "mine"}),
        share(carol, session, "dave"),
        unshare(carol, session, "carol"),
        carol.get(f"/api/sessions/{session}/files"),
        carol.get(f"/api/sessions/{session}/file?path=README.md"),
    ]
    assert [found.status for found in refused] == [403] * len(refused), [found.body for found in refused]
    for path in ("", "/turns", "/timeline", "/shares"):
        assert dave.get(f"/api/sessions/{session}{path}").status == 404
    assert session not in listed(dave)


def test_a_second_person_answers_and_writes_under_their_name(console: Console, alice: Browser, session: str) -> None:
    carol = console.browser("carol")
    share(alice, session, "carol", "answer")
    prompt = script(
        "Write it.", tool("Write", file_path=str(console.project / "theirs.txt"), content="x"), text("Done.")
    )
    sent = carol.post(f"/api/sessions/{session}/messages", {"message": prompt})
    assert sent.status == 202, sent.body
    question = question_of(carol, session)
    assert [each["canAllowForSession"] for each in (question, question_of(alice, session))] == [False, True]
    beyond = answer(carol, question, decision="allow", scope="session")
    assert (beyond.status, "alice" in beyond.json["error"]["message"]) == (403, True)
    assert answer(carol, question, decision="allow").status == 200
    assert ended(alice, session).data["result"] == "Done."
    late = answer(alice, question, decision="deny")
    assert late.status == 409
    assert "carol" in late.json["error"]["by"]
    last = alice.get(f"/api/sessions/{session}/turns").json["turns"][-1]
    assert "[carol] " in json.dumps(last)
    options = carol.post(f"/api/sessions/{session}/messages", {"message": "x", "permissionMode": "plan"})
    assert options.status in (400, 403), "how it goes on is the owner's"
    console.audited('"act": "session_shared"', '"who": "carol"')


def test_open_views_of_a_share_end_when_it_is_revoked(console: Console, alice: Browser, session: str) -> None:
    carol = console.browser("carol")
    share(alice, session, "carol", "answer")
    with carol.stream(f"?session={session}&after=0-0") as events:
        assert next(events)
        assert unshare(alice, session, "carol").json["shares"] == []
        for event in events:
            assert session not in json.dumps(event.data) or event.name != "items"
    assert carol.get(f"/api/events?session={session}").status == 404
    assert carol.get(f"/api/sessions/{session}/turns").status == 404
    assert session not in listed(carol)
    console.audited('"act": "session_unshared"')


@pytest.mark.soak  # before it was: the test above
def test_open_views_of_a_share_end_also_after_a_clear(console: Console, alice: Browser) -> None:
    carol, session = console.browser("carol"), start(alice, console, script("Hello.", text("Hello!")))
    ended(alice, session)
    share(alice, session, "carol")
    with carol.stream(f"?session={session}&after=0-0") as events:
        assert next(events)
        say(alice, session, "/clear")
        ended(alice, session)
        assert unshare(alice, session, "carol").json["shares"] == []
        say(alice, session, script("Go on.", text("Nobody else hears this.")))
        ended(alice, session)
        assert "Nobody else hears this." not in json.dumps([event.data for event in events])


def test_other_server_with_the_same_state_is_notified(console: Console, alice: Browser, session: str) -> None:
    with http_server(console.environment, console.project, "127.0.0.1:0") as second:
        carol = Browser(second.base)
        assert carol.sign_in(token=console.tokens["carol"]).status == 200
        share(alice, session, "carol")
        until(lambda: carol.get(f"/api/sessions/{session}/turns").status == 200, "it is not shared there")
        with carol.stream(f"?session={session}&after=0-0") as events:
            assert next(events)
            unshare(alice, session, "carol")
            for _ in events:
                pass  # until the stream ends
        assert carol.get(f"/api/sessions/{session}/turns").status == 404


def test_share_reduced_to_watching_restricts(console: Console, alice: Browser, session: str) -> None:
    carol = console.browser("carol")
    share(alice, session, "carol", "answer")
    share(alice, session, "carol", "watch")
    assert carol.post(f"/api/sessions/{session}/messages", {"message": "mine"}).status == 403
    assert carol.get(f"/api/sessions/{session}").status == 200


@pytest.mark.parametrize("name", ["alice", "local", "operator", "%20", "group:"])
def test_there_are_names_that_nothing_is_shared_with(alice: Browser, unshared: str, name: str) -> None:
    assert share(alice, unshared, name).status == 400
    assert alice.get(f"/api/sessions/{unshared}/shares").json["shares"] == []


# -- over MCP ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(console: Console, person: str) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {console.tokens[person]}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=120) as http,
        Client(streamable_http_client(f"{console.base}/mcp", http_client=http), mode="legacy") as client,
    ):
        yield client


async def used(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    return dict(result.structured_content or {})


@pytest.mark.soak  # on the page: above
async def test_tools_are_also_denied(tmp_path: Path, model: ScriptedModelThread) -> None:
    with running_console(tmp_path, model.url, CLAUDE_CODE_MCP_TOOLSETS="sessions,care") as console:
        async with client_of(console, "alice") as alice, client_of(console, "carol") as carol:
            step = tool("Write", file_path=str(console.project / "theirs.txt"), content="x")
            prompt = script("Write.", step, text("Done."))
            session = (await used(alice, "claude_create_session", prompt=prompt))["sessionId"]
            reading: dict[str, Any] = {"sessionId": session}
            asking = await used(alice, "claude_get_status", **reading, waitSeconds=50)
            assert "pendingInputs" in asking, asking
            question = asking["pendingInputs"][0]["inputId"]
            answering: dict[str, Any] = {"sessionId": session, "inputId": question, "decision": "allow"}
            assert (await used(carol, "claude_get_status", **reading))["error"]["code"] == "SESSION_NOT_FOUND"
            looking: dict[str, Any] = {"sessionId": session, "action": "diff"}
            assert (await used(carol, "claude_manage_session", **looking))["error"]["code"] == "SESSION_NOT_FOUND"
            sharing: dict[str, Any] = {"sessionId": session, "action": "share", "text": "carol"}
            assert {"carol", "watch"} <= {*(await used(alice, "claude_manage_session", **sharing))["message"].split()}
            seen = await used(carol, "claude_get_status", **reading)
            assert seen["pendingInputs"][0]["inputId"] == question
            listing = (await used(carol, "claude_list_sessions"))["sessions"]
            watched = [{"with": "carol", "access": "watch"}]
            assert [(row["sessionId"], row["owner"], row["sharedWith"]) for row in listing] == [
                (session, "alice", watched)
            ]
            assert (seen["owner"], seen["sharedWith"]) == ("alice", watched)
            own_report = await used(alice, "claude_get_status", **reading)
            assert ("owner" in own_report, own_report["sharedWith"]) == (False, watched)
            shares = await used(carol, "claude_manage_session", sessionId=session, action="shares")
            assert (shares["message"], shares["owner"], shares["sharedWith"]) == ("carol: watch", "alice", watched)
            assert (await used(carol, "claude_respond", **answering))["error"]["code"] == "PERMISSION_DENIED"
            own = await used(carol, "claude_manage_session", sessionId=session, action="delete", confirm=True)
            assert own["error"]["code"] == "PERMISSION_DENIED"
            await used(alice, "claude_manage_session", **sharing, access="answer")
            done = await used(carol, "claude_respond", **answering, waitSeconds=50)
            assert done["result"] == "Done."
            # She may read the conversation, and with it what its calls have changed.
            changed = await used(carol, "claude_manage_session", **looking)
            assert (changed["source"], "+++ b/theirs.txt" in changed["message"]) == ("conversation", True)
            await used(alice, "claude_manage_session", sessionId=session, action="unshare", text="carol")
            assert (await used(carol, "claude_manage_session", **looking))["error"]["code"] == "SESSION_NOT_FOUND"
            assert (await used(carol, "claude_get_status", **reading))["error"]["code"] == "SESSION_NOT_FOUND"
            after = await used(alice, "claude_get_status", **reading)
            assert (after["result"], "sharedWith" in after) == ("Done.", False)


@pytest.mark.soak  # on the page: above
def test_shell_commands_are_also_denied(tmp_path: Path, model: ScriptedModelThread) -> None:
    with running_console(tmp_path, model.url, CLAUDE_CODE_MCP_TOOLSETS="sessions,care") as console:
        alice = console.browser("alice")
        session = start(alice, console, script("Hello.", text("Hello!")))
        ended(alice, session)

        def command(person: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            server = ("--url", console.base, f"--token={console.tokens[person]}")
            return warm_commands.run((*arguments, *server), console.environment, console.project)

        assert command("carol", "show", session).returncode == 3
        shared = command("alice", "sessions", "share", session, "carol")
        assert (shared.returncode, shared.stdout) == (0, "carol may watch it.\n"), shared.stderr
        assert "shared    with carol (watch)\n" in command("alice", "show", session).stdout
        assert "owner     alice\n" in command("carol", "show", session).stdout
        assert "[alice] " in command("carol", "ps", "--all").stdout
        refused = command("carol", "sessions", "share", session, "dave", "--access", "answer")
        assert (refused.returncode, "alice" in refused.stderr) == (4, True)
        assert command("carol", "sessions", "unshare", session, "carol").returncode == 4
        more = command("alice", "sessions", "share", session, "carol", "--access", "answer", "--json")
        assert json.loads(more.stdout)["sharedWith"] == [{"with": "carol", "access": "answer"}]
        assert command("alice", "sessions", "share", session, "local").returncode == 2
        taken = command("alice", "sessions", "unshare", session, "carol")
        assert (taken.returncode, taken.stdout) == (0, "No longer shared with carol.\n")
        assert command("carol", "show", session).returncode == 3
        console.audited('"act": "session_shared"', '"act": "session_unshared"')


@pytest.mark.soak
async def test_a_watcher_who_leaves_ends_nothing_of_the_owners(tmp_path: Path, model: ScriptedModelThread) -> None:
    with running_console(
        tmp_path, model.url, CLAUDE_CODE_MCP_TOOLSETS="sessions", CLAUDE_CODE_MCP_ON_DISCONNECT="stop"
    ) as console:
        alice, carol = console.browser("alice"), console.browser("carol")
        prompt = script("Write.", tool("Write", file_path=str(console.project / "theirs.txt"), content="x"))
        session, own = start(alice, console, prompt), start(carol, console, prompt)
        asked = question_of(alice, session)
        question_of(carol, own)
        share(alice, session, "carol")
        async with client_of(console, "carol") as client:
            for each in (own, session):
                assert "pendingInputs" in await used(client, "claude_get_status", sessionId=each)
        await asyncio.to_thread(ended, carol, own)
        assert alice.get(f"/api/sessions/{session}").json["questions"] == [asked]


async def test_task_of_another_person_ends_with_the_share(console: Console, tmp_path: Path) -> None:
    async def ask(method: str, named: str, **params: Any) -> dict[str, Any]:
        headers = {
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {console.tokens['carol']}",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": method,
            "Mcp-Name": named,
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": envelope()}}
        async with httpx2.AsyncClient(timeout=60) as http:
            body = (await http.post(f"{console.base}/mcp", json=message, headers=headers)).text
        return dict(json.loads(body[body.index("{") :])["result"])

    alice, begun, go_on = console.browser("alice"), tmp_path / "begun", tmp_path / "go-on"
    async with client_of(console, "alice") as client:
        made = await used(client, "claude_create_session", prompt=script("Hi.", text("Hi.")), allowedTools=["Bash"])
    session = made["sessionId"]
    await asyncio.to_thread(ended, alice, session)
    share(alice, session, "carol", "answer")
    waits = tool("Bash", command=f"touch {begun}; until [ -e {go_on} ]; do sleep 0.1; done")
    arguments = {"sessionId": session, "message": script("Wait.", waits, text("For alice.")), "waitSeconds": 50}
    task = await ask("tools/call", "claude_send_message", name="claude_send_message", arguments=arguments)
    assert task["resultType"] == "task", task
    await asyncio.to_thread(until, begun.exists)
    assert unshare(alice, session, "carol").status == 200
    go_on.touch()
    assert (await asyncio.to_thread(ended, alice, session)).data["result"] == "For alice."
    seen = await ask("tasks/get", task["taskId"], taskId=task["taskId"])
    while seen["status"] == "working":
        seen = await ask("tasks/get", task["taskId"], taskId=task["taskId"])
    assert seen["status"] == "cancelled", seen
