"""Joining the session of a terminal while something else happens."""

import os
import time

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.terminal.hook_events import HookEvent
from claude_code_mcp.plugins.terminal.terminals import Terminals
from claude_code_mcp.testing import Sandbox
from tests.support.parts import service_parts

from .test_forged_events import note

SESSION = "11111111-1111-4111-8111-111111111111"


async def test_a_session_that_is_joined_while_the_server_stops_is_left_again(
    sandbox: Sandbox, environment: dict[str, str]
) -> None:
    stopping: list[Terminals] = []

    def stop(options: SessionOptions, *, principal: str) -> None:
        for terminals in stopping:
            terminals.close()

    settings = load_settings({}, state_dir=sandbox.root / "state")
    async with Service(settings, environment, option_checks=[stop], **service_parts()) as service:
        terminals = Terminals(service)
        stopping.append(terminals)
        note(sandbox, SESSION)
        event = HookEvent("Stop", os.getpid(), time.time(), False, SESSION, str(sandbox.project), {})
        with pytest.raises(LimitReached, match="stopping"):
            await terminals.happened(event)
        assert terminals.joined() == []
        assert service.sessions() == []
