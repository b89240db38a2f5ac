"""The real CLI, with real children, ended in every way."""

import asyncio
import os
import signal
import sys
import uuid

import pytest

from claude_code_mcp.core.claude.protocol import Result
from claude_code_mcp.core.errors import ProcessFailed
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool

from .conftest import ENDLESS, PATIENCE, Start, Started, gone, number_in

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")


BY_ITSELF = 1
"""The exit code of a CLI whose last turn was interrupted and whose stdin was then closed."""


def new_id() -> str:
    return str(uuid.uuid4())


async def with_a_running_child(start_real: Start, sandbox: Sandbox, *, background: bool) -> tuple[Started, int]:
    """A process whose Bash tool is at work, and the id of the shell."""
    started = await start_real(new_id(), allowed_tools=("Bash",))
    command = tool("Bash", command=f"echo $$ > child; {ENDLESS}", run_in_background=background)
    started.process.send(script("Work.", command, "Done."), "m1")
    return started, await number_in(sandbox.project / "child")


async def test_children_of_a_killed_cli_are_swept(start_real: Start, sandbox: Sandbox) -> None:
    started, behind = await with_a_running_child(start_real, sandbox, background=True)
    await started.listener.result()
    command = tool("Bash", command=f"echo $$ > another; {ENDLESS}")
    started.process.send(script("Work.", command, "Done."), "m2")
    child = await number_in(sandbox.project / "another")
    os.kill(started.process.pid, signal.SIGKILL)
    assert (await started.listener.ended()).code == -signal.SIGKILL
    await asyncio.wait_for(started.process.cleaned.wait(), PATIENCE)
    await gone(child, behind)


@pytest.mark.soak  # tests/server/test_disconnect.py
async def test_a_stopped_turn_ends_with_an_interruption_and_a_clean_exit(start_real: Start, sandbox: Sandbox) -> None:
    started, child = await with_a_running_child(start_real, sandbox, background=False)
    assert (await started.process.stop(PATIENCE)).code == BY_ITSELF
    assert [frame.raw["terminal_reason"] for frame in started.listener.of(Result)] == ["aborted_tools"]
    await gone(child)


@pytest.mark.soak  # tests/server/test_disconnect.py
async def test_background_work_does_not_keep_a_stopped_cli_alive(start_real: Start, sandbox: Sandbox) -> None:
    started, child = await with_a_running_child(start_real, sandbox, background=True)
    await started.listener.result()
    await started.process.stop(1.0)
    await gone(child, started.process.pid)


async def test_with_a_question_open_the_model_is_never_told_that_the_stream_closed(
    start_real: Start, model: ScriptedModelThread
) -> None:
    session_id = new_id()
    started = await start_real(session_id)
    started.process.send(script("Write.", tool("Bash", command="touch x"), "Done."), str(uuid.uuid4()))
    await started.listener.question()
    assert (await started.process.stop(PATIENCE)).code == BY_ITSELF
    assert len([one for one in model.requests if one.session_id == session_id]) == 1


@pytest.mark.soak  # test_protocol.py, tests/core/sessions/test_turns.py
async def test_a_message_in_mid_turn_is_unfinished_until_a_result_names_it(start_real: Start) -> None:
    session_id = new_id()
    started = await start_real(session_id)
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    started.process.send(script("Speak.", text("word " * 50, chunks=50, interval=0.01)), first)
    started.process.send(script("Again.", "Again."), second, later=True)
    assert started.process.unfinished == {first, second}
    assert await started.process.settled(PATIENCE)
    assert [frame.message_ids for frame in started.listener.of(Result)] == [[first], [second]]
    await started.process.stop(PATIENCE)
    with pytest.raises(ProcessFailed, match="already in use"):
        await start_real(session_id)  # told with the words of the CLI
