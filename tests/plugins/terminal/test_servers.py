"""Servers come and go while a terminal asks; several may run at once."""

import asyncio
import os
from typing import Any

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.model.states import State
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool

from .conftest import StartClaude, StartServer, eventually, question_in
from .test_races import waiting_hooks

ASKS = script("Do it", tool("Bash", command="touch done"), text("All is done."))


async def test_without_a_server_the_terminal_is_answered_at_the_keyboard(claude: StartClaude, sandbox: Sandbox) -> None:
    terminal = claude(ASKS)
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    terminal.type("1")
    await eventually((sandbox.project / "done").exists, "the call")


async def test_a_dialog_that_is_older_than_the_server_is_answered_from_elsewhere(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox
) -> None:
    terminal = claude(ASKS)
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    server, _ = await start_server()
    question = await question_in(server)
    server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "done").exists, "the call")


async def test_the_next_server_asks_what_the_last_one_has_left_open(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox
) -> None:
    first, end_first = await start_server()
    claude(ASKS)
    asked = await question_in(first)
    await end_first()
    assert not first.broker.pending()
    second, _ = await start_server()
    question = await question_in(second)
    assert question.session_id == asked.session_id
    assert question.id != asked.id
    second.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "done").exists, "the call")


async def test_what_was_answered_while_no_server_ran_is_not_asked_again(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox
) -> None:
    first, end_first = await start_server()
    terminal = claude(script("Do it", tool("Bash", command="touch done"), tool("Bash", command="touch more")))
    asked = await question_in(first)
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    await end_first()
    terminal.type("1")
    await eventually((sandbox.project / "done").exists, "the first call")
    second, _ = await start_server()
    question = await question_in(second)
    assert question.tool_input["command"] == "touch more"
    await eventually(lambda: len(waiting_hooks(terminal.process.pid)) == 1, "the end of the first hook")
    assert [one.tool_input["command"] for one in second.broker.pending()] == ["touch more"]
    assert question.session_id == asked.session_id


async def test_a_server_finds_the_terminals_that_are_open(start_server: StartServer, claude: StartClaude) -> None:
    terminal = claude(script("Say it", text("Said.")))
    await asyncio.to_thread(terminal.until, "Said. ")
    server, _ = await start_server()
    found = await eventually(server.sessions, "the session in the terminal")
    assert found[0].outside is not None
    await eventually(lambda: found[0].state is State.IDLE, "its state")


async def test_two_servers_ask_and_the_first_answer_counts(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox, tmp_path: Any
) -> None:
    first, _ = await start_server()
    pid_file = next((sandbox.root / "state" / "terminal").iterdir())
    os.rename(pid_file, pid_file.with_name("1.sock"))  # both servers are in this process
    second, _ = await start_server()
    claude(ASKS)
    await question_in(first)
    question = await question_in(second)
    second.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "done").exists, "the call")
    await eventually(lambda: not first.broker.pending(), "the end of the question at the other server")
