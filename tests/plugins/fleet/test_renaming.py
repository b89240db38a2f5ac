"""What a person calls a session is shown while its machine is gone, and goes along when another one takes it."""

import asyncio
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.core.state.session_marks import Marks
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.support.fleet import ManagingComputer, continued, front_of, processes_of
from tests.support.tool_calls import call, finished
from tests.support.waiting import until


async def test_titles_tags_and_pins_are_listed_while_their_machine_is_gone_and_go_along(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = places = [ManagingComputer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up():
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.joined("laptop", ticket=server.ticket):
                made = [
                    await finished(
                        client, "claude_create_session", prompt=script(word, "done"), machine="laptop",
                        workingDirectory=str(laptop.project), waitSeconds=50,
                    )
                    for word in ("newer soon", "put away", "plain")
                ]  # fmt: skip
                named, archived, plain = (each["sessionId"] for each in made)
                for change in ({"action": "rename", "text": "The heron"}, {"action": "pin"}):
                    await call(client, "claude_manage_session", sessionId=named, **change)
                await call(client, "claude_manage_session", sessionId=archived, action="archive")
                # Also what is typed at the machine itself, which its runner does not see.
                await asyncio.to_thread(laptop.run, "sessions", "tag", named, "birds")
                await asyncio.to_thread(
                    until, lambda: not marked_renamed(laptop), "the fleet's copies have their old names still"
                )
            rows = await until_gone(client, named, plain)
            assert [row["sessionId"] for row in rows] == [named, plain], "what is pinned comes first"
            first = rows[0]
            assert (first["displayText"], first["tag"], first["pinned"]) == ("The heron", "birds", True)
            (away,) = await until_gone(client, archived, archived=True)
            assert "put away" in away["displayText"]
            for change in ({"action": "rename", "text": "Another"}, {"action": "unpin"}):
                refused = await client.call_tool("claude_manage_session", {"sessionId": named, **change})
                assert refused.is_error
                said = str(refused.content)
                assert (
                    "is on machine laptop, which is offline. Only the machine that has it can change its title" in said
                )
            # Where it goes on it is called the same, and can be called otherwise again.
            assert (await continued(client, named, script("go on", "here")))["machine"] == "server"
            (row,) = [
                row for row in (await call(client, "claude_list_sessions"))["sessions"] if row["sessionId"] == named
            ]
            assert (row["displayText"], row["tag"], row["pinned"], row["machine"]) == (
                "The heron", "birds", True, "server",
            )  # fmt: skip
            await call(client, "claude_manage_session", sessionId=named, action="rename", text="Another")
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors + laptop.errors


def marked_renamed(place: ManagingComputer) -> frozenset[str]:
    return Marks(database_in(place.root / "state")).read().renamed


async def until_gone(client: Client, *session_ids: str, **wanted: Any) -> list[dict[str, Any]]:
    """What is listed, once these are all the sessions, and their machine is gone."""
    for _ in range(100):
        rows: list[dict[str, Any]] = (await call(client, "claude_list_sessions", **wanted))["sessions"]
        if all(row.get("machineGone") for row in rows) and {row["sessionId"] for row in rows} == {*session_ids}:
            return rows
        await asyncio.sleep(0.3)
    raise AssertionError(rows)
