"""The shortest path through the engine, on the real CLI."""

from claude_code_mcp.model.options import SessionOptions
from claude_code_mcp.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script


async def test_a_prompt_becomes_a_finished_turn(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("say", "hello"), SessionOptions(cwd=str(sandbox.project)))
    session = turn.session
    outcome = await turn.outcome()
    assert (outcome.ok, outcome.result) == (True, "hello")
    assert session.live
