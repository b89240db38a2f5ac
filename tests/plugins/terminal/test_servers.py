"""Servers come and go while a terminal asks; several may run at once."""

import asyncio
import os

from claude_code_mcp.core.model.question import Answer, Question
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool

from .conftest import StartClaude, StartServer, eventually, press
from .test_races import waiting_hooks


async def test_servers_come_and_go_while_a_terminal_asks(
    start_server: StartServer, claude: StartClaude, sandbox: Sandbox
) -> None:
    waits = "until [ -e go ]; do sleep 0.1; done; rm go"  # so that no other dialog gets a key that is pressed again
    names = (f"nobody; {waits}", "older", "next", f"meanwhile; {waits}", "after", "several")
    commands = [f"touch {name}" for name in names]
    terminal = claude(script("Do it", *(tool("Bash", command=one) for one in commands), text("All is done.")))

    async def ran(name: str) -> None:
        await eventually((sandbox.project / name).exists, f"the call that touches {name}")

    async def asked(server: Service, number: int) -> Question:
        """The one question of a server, once it is the one of this call. The hook of a dialog that was answered while
        no server ran ends when it has found one."""
        pending = server.broker.pending
        await eventually(
            lambda: [one.tool_input["command"] for one in pending()] == [commands[number]],
            f"the question of {commands[number]}",
        )
        (question,) = pending()
        assert isinstance(question, Question)
        return question

    async def next_hook(before: list[int]) -> None:
        """Waits until a hook runs that is none of these."""
        await eventually(lambda: {*waiting_hooks(terminal.process.pid)} - {*before}, "the hook of the next call")

    def allow(server: Service, question: Question) -> None:
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)

    # Without a server, the terminal is answered at the keyboard.
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    before = waiting_hooks(terminal.process.pid)
    await press(terminal, "1", (sandbox.project / "nobody").exists, "the call that no server was asked about")
    (sandbox.project / "go").touch()
    # A dialog that is older than the server is answered from elsewhere.
    await next_hook(before)
    server, end = await start_server()
    question = await asked(server, 1)
    allow(server, question)
    await ran("older")
    # The next server asks what the last one has left open.
    left = await asked(server, 2)
    await end()
    assert not server.broker.pending()
    server, end = await start_server()
    question = await asked(server, 2)
    assert question.session_id == left.session_id
    assert question.id != left.id
    allow(server, question)
    await ran("next")
    # What is answered while no server runs is not asked again.
    await asked(server, 3)
    await end()
    before = waiting_hooks(terminal.process.pid)
    await press(terminal, "1", (sandbox.project / "meanwhile").exists, "the call that no server saw end")
    (sandbox.project / "go").touch()
    await next_hook(before)
    server, end = await start_server()
    question = await asked(server, 4)
    await eventually(lambda: len(waiting_hooks(terminal.process.pid)) == 1, "the end of the hook before")
    assert question.session_id == left.session_id
    assert server.broker.pending() == [question]
    # Two servers ask, and the first answer counts.
    (socket,) = (sandbox.root / "state" / "terminal").iterdir()
    os.rename(socket, socket.with_name("1.sock"))  # both servers are in this process
    second, end_second = await start_server()
    allow(server, question)
    await ran("after")
    await asked(server, 5)
    allow(second, await asked(second, 5))
    await ran("several")
    await eventually(lambda: not server.broker.pending(), "the end of the question at the other server")
    await end_second()
    await end()
    # A server finds the terminals that are open.
    server, _ = await start_server()
    (found,) = await eventually(server.sessions, "the session in the terminal")
    assert found.outside is not None
    await eventually(lambda: found.state is State.IDLE, "its state")
