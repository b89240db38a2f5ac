"""A terminal on a machine of a fleet: its gateway shows it only if the machine's user said so."""

import asyncio
import json
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.support.fleet import Computer

from .conftest import StartClaude, eventually

ASKS = script("Do it", tool("Bash", command="touch done"), text("All is done."))
SETTING = "CLAUDE_CODE_MCP_TERMINAL_IN_FLEET"


class Desk(Computer):
    """The computer at which the terminal is."""

    setting = "1"

    def variables(self) -> dict[str, str]:
        return {**super().variables(), SETTING: self.setting}

    async def questions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(await asyncio.to_thread(self.run, "questions", "--json"))
        return found


@pytest.fixture
def desk(sandbox: Sandbox, model: ScriptedModelThread) -> Desk:
    return Desk(sandbox.root, model.url)


@pytest.mark.soak
async def test_a_gateway_shows_a_terminal_only_if_its_user_said_so(
    desk: Desk, sandbox: Sandbox, claude: StartClaude
) -> None:
    desk.setting = "0"
    with desk.up(name="desk"):
        terminal = claude(ASKS)
        await asyncio.to_thread(terminal.until, "Do you want to proceed?")
        assert await desk.questions() == []
    assert not (sandbox.project / "done").exists()
    assert terminal.process.poll() is None
    desk.setting = "1"
    with desk.up(name="desk") as program:
        while not (asked := await desk.questions()):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        assert "touch done" in asked[0]["description"]
        assert "desk" in await asyncio.to_thread(desk.run, "ps")
        await asyncio.to_thread(desk.run, "answer", asked[0]["inputId"], "allow")
        await eventually((sandbox.project / "done").exists, "the call")
        assert program.poll() is None
