"""The first minutes at 80×24: no sessions, no MCP servers, no account, and whatever is pressed says something true."""

import os
from pathlib import Path

from claude_code_mcp.client.connections import Target
from claude_code_mcp.plugins.tui.application import Tui
from claude_code_mcp.testing import Sandbox
from tests.conftest import RUN
from tests.startup.shared.support import shared_place

from .conftest import Screen

KEYS = {
    "f1": "Everywhere",
    "f2": "New session",
    "f3": "filter sessions",
    "f4": "Costs by day: $0.0000 in 0 sessions",
    "f5": "No MCP servers are configured",
    "f6": "No session is selected.",
    "f7": "No session is selected.",
    "f8": "Search for commands",
    "f9": "No session is selected.",
    "f10": "Type a message to start",
    "f11": "Type a message to start",
    "f12": "Type a message to start",
    "ctrl+p": "Search for commands",
    "ctrl+n": "Type a message to start",
    "ctrl+f": "Type a message to start",
}
"""What is to be read after each key, on the screen that a new user begins with."""


async def test_every_key_works_without_configuration(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, "http://127.0.0.1:9")
    program, called = tmp_path / "claude", tmp_path / "called"
    program.write_text(f'#!/bin/sh\necho "$@" >> {called}\nexit 1\n')
    program.chmod(0o755)
    environment = sandbox.environment(**{RUN: os.environ[RUN], "CLAUDE_CODE_PATH": str(program)})
    del environment["ANTHROPIC_API_KEY"]
    with shared_place(sandbox, environment) as place:
        place.command("shared", "start")
        app = Tui(lambda: Target().join(place.environment), str(sandbox.project))
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            screen = Screen(app, pilot)
            await screen.until(lambda: app.pump.is_listed)
            for key, wanted in KEYS.items():
                await pilot.press(key)
                await screen.shows(wanted)
                line = screen.text.split("\n")[-1]
                assert len(line.rstrip()) <= 80
                assert app.main.problem == "", key
                if app.screen is not app.main:
                    await pilot.press("escape")
                await screen.until(lambda: app.screen is app.main, f"{key} is left with Esc")
            await screen.shows("Type a message to start")
    # Nothing of all this needs Claude Code, which would take its time to start.
    assert not called.exists()
