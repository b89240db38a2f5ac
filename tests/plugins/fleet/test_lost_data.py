"""A machine that keeps its key but loses its data: its sessions go on from the fleet's copy."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import stdio_client

from claude_code_mcp.plugins.fleet.leases import Holding
from claude_code_mcp.plugins.fleet.ownership import MAX_HELD
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.support.fleet import Computer, continued, front_of
from tests.support.tool_calls import call, finished
from tests.support.waiting import until_true

pytestmark = pytest.mark.programs


async def test_sessions_of_a_machine_that_has_lost_its_data_continue_from_the_copy(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = (Computer(tmp_path / name, model.url) for name in ("server", "laptop"))
    with server.up():
        async with Client(stdio_client(front_of(server)), mode="legacy") as client:
            with laptop.joined("laptop", ticket=server.ticket):
                made = await finished(
                    client, "claude_create_session", prompt=script("remember the word heron", "I will"),
                    machine="laptop", workingDirectory=str(laptop.project), waitSeconds=50,
                )  # fmt: skip
            state = laptop.root / "state"
            for kept in state.iterdir():
                if kept.name != "fleet":
                    shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
            shutil.rmtree(laptop.home / ".claude" / "projects")
            with laptop.joined("laptop"):
                await until_true(lambda: "this machine has lost the data of 1 session;" in laptop.errors)
                assert made["sessionId"] in laptop.errors
                listed = await call(client, "claude_list_sessions")
                assert made["sessionId"] in [row["sessionId"] for row in listed["sessions"]]
                answer = await continued(client, made["sessionId"], script("go on", "here"))
                assert answer["result"] == "here"
                assert "heron" in str(model.requests[-1].body)


def test_the_answer_to_a_machine_that_holds_many_sessions_fits_in_a_message() -> None:
    holding = Holding("0" * 36, "m" * 26, 1000, "p" * 60, 10**9, False, False, "r" * 32, 10**6)
    assert len(json.dumps([asdict(holding)] * MAX_HELD)) < 1 << 20
