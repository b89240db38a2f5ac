"""The keyboard and an answer from elsewhere at the same moment: the call runs once, and no dialog and no hook stays."""

import asyncio
import contextlib
import random

import psutil
import pytest

from claude_code_mcp.core.errors import QuestionClosed
from claude_code_mcp.core.model.question import Answer, Question
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool

from .conftest import StartClaude, eventually


def waiting_hooks(pid: int) -> list[int]:
    """The hooks of a terminal that run."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any("send_event.py" in word for word in child.cmdline()):
                    found.append(child.pid)
    return found


def ran(sandbox: Sandbox, name: str) -> list[int]:
    """The numbers of the calls of a terminal that ran."""
    return sorted(map(int, (sandbox.project / f"calls{name}").read_text().split()))


async def race(server: Service, claude: StartClaude, sandbox: Sandbox, rounds: int, name: str = "") -> tuple[int, int]:
    """How often the keyboard and how often the other was first, at a terminal of this name."""
    calls = [tool("Bash", command=f"echo {number} >> calls{name}", description="Count") for number in range(rounds)]
    terminal = claude(script("Count", *calls, text("Counted.")))

    def pending() -> list[Question]:
        return [one for one in server.broker.pending() if str(one.tool_input["command"]).endswith(f" calls{name}")]

    first = await eventually(pending, "the first question")
    session = server.session(first[0].session_id)
    chance = random.Random(f"{rounds}{name}")
    keyboard = elsewhere = 0
    for _ in range(rounds):
        try:
            await eventually(lambda: pending() or session.outcome, "the next question")
        except TimeoutError:
            raise AssertionError(f"{keyboard}:{elsewhere}, {session.state}: {terminal.shown[-3000:]}") from None
        if session.outcome is not None:
            break
        question = pending()[0]
        await eventually(lambda: session.state.value == "waiting", "the dialog")
        lead = chance.uniform(-0.3, 0.3)
        await asyncio.sleep(max(0.0, -lead))

        async def answer(delay: float = max(0.0, lead), question_id: str = question.id) -> bool:
            await asyncio.sleep(delay)
            try:
                server.respond(session.id, question_id, Answer(allow=True), by="web", person=True)
            except QuestionClosed:
                return False
            return True

        answering = asyncio.ensure_future(answer(0.0 if lead < 0 else lead))
        terminal.type("1")
        if await answering:
            elsewhere += 1
        else:
            keyboard += 1
        await eventually(lambda gone=question.id: server.broker.find(session.id, gone) is None, "the end")  # type: ignore[misc]
    await eventually(lambda: session.outcome, "the end of the turn")
    assert session.outcome is not None
    assert session.outcome.result == "Counted."
    assert ran(sandbox, name) == [*range(rounds)]
    assert not pending()
    await eventually(lambda: not waiting_hooks(terminal.process.pid), "the end of the hooks")
    assert terminal.process.poll() is None
    return keyboard, elsewhere


@pytest.mark.soak
async def test_both_at_once_at_two_terminals(server: Service, claude: StartClaude, sandbox: Sandbox) -> None:
    await asyncio.gather(race(server, claude, sandbox, 3, "a"), race(server, claude, sandbox, 3, "b"))
    assert len(server.sessions()) == 2


@pytest.mark.soak  # test_both_at_once_at_two_terminals
@pytest.mark.time_limit(3600)
async def test_both_at_once_two_hundred_times(server: Service, claude: StartClaude, sandbox: Sandbox) -> None:
    keyboard, elsewhere = await race(server, claude, sandbox, 200)
    assert keyboard
    assert elsewhere


@pytest.mark.soak  # test_both_at_once_at_two_terminals
@pytest.mark.parametrize("count", [2, 10])
async def test_many_terminals_at_once(server: Service, claude: StartClaude, sandbox: Sandbox, count: int) -> None:
    terminals = [
        claude(script("Do it", tool("Bash", command=f"touch file{number}"), text("Done."))) for number in range(count)
    ]
    await eventually(lambda: len(server.broker.pending()) == count, "the questions of all")
    assert len(server.sessions()) == count
    for number, question in enumerate(server.broker.pending()):
        server.respond(question.session_id, question.id, Answer(allow=number % 2 == 0), by="web", person=True)
    sessions = server.sessions()
    await eventually(lambda: all(session.outcome for session in sessions), "the end of all turns")
    assert len(list(sandbox.project.glob("file*"))) == count // 2
    assert all(terminal.process.poll() is None for terminal in terminals)
