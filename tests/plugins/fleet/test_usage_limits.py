"""A session that waits for a usage limit when its machine is lost continues at another one."""

import os
import signal
import time
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.support.fleet import MortalComputer, front_of, gone_machines
from tests.support.tool_calls import call, finished
from tests.support.waiting import until_true

pytestmark = pytest.mark.programs
WAITS = (10, 60, 240)
"""Seconds until the limit is reset: the next one is tried where the machine was not killed in time."""


class SubscribedComputer(MortalComputer):
    def variables(self) -> dict[str, str]:
        return {**super().variables(), **SUBSCRIPTION}


@pytest.mark.soak
async def test_the_wait_of_a_lost_machine_ends_at_another(tmp_path: Path, model: ScriptedModelThread) -> None:
    server, laptop = (SubscribedComputer(tmp_path / name, model.url) for name in ("server", "laptop"))
    prompt = ""

    def sent() -> int:
        return len([request for request in model.requests if request.prompt == prompt])

    with server.up():
        ticket: str | None = server.ticket
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            for wait in WAITS:
                prompt = script(f"work on it for {wait}", limited(time.time() + wait))
                with laptop.joined("laptop", ticket=ticket) as runner:
                    made = await call(
                        client, "claude_create_session", prompt=prompt, machine="laptop", onLimit="wait",
                        workingDirectory=str(laptop.project), waitSeconds=50,
                    )  # fmt: skip
                    os.kill(runner.pid, signal.SIGKILL)
                ticket = None  # it has a key
                if made["status"] == "limit_reached" and sent() == 1:
                    break
                await until_true(lambda: gone_machines(server) == {"laptop"})
            assert (made["status"], sent()) == ("limit_reached", 1)
            await until_true(lambda: sent() == 2)
            status = await finished(client, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
    assert (status["machine"], status["turnCount"]) == ("server", 2)
    assert sent() == 2
