"""What `create` and `send` give back: the session, the message and the outcome that can be waited for."""

import asyncio

import pytest

from claude_code_mcp.model.events import TurnStarted
from claude_code_mcp.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text

from .support import end_of, event, options


async def test_who_gives_up_waiting_does_not_end_the_turn(service: Service, sandbox: Sandbox) -> None:
    gate = sandbox.project / "go"
    turn = await service.create(script("slow", text("done", until=str(gate))), options(sandbox))
    assert turn.message_id == (await event(turn.session, TurnStarted)).message_id
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(turn.outcome(), 0.05)
    assert not turn.done()
    gate.touch()
    assert (await end_of(turn)).result == "done"
    assert turn.done()
    assert (await turn.outcome()).result == "done", "an outcome can be asked for again"
