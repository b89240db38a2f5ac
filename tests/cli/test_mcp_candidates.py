"""What Tab completes in the interactive client."""

import sys
from pathlib import Path
from typing import Any

from claude_code_mcp.cli.mcp.line_editor import Candidates
from tests.hub.conftest import local, start_hub

__all__ = ["start_hub"]  # a fixture for the tests here too

FULL = {"command": sys.executable, "args": ["-S", str(Path(__file__).parent.parent / "hub" / "full_server.py")]}
COMMANDS = {"call": ("NAME", "call a tool"), "complete": ("NAME", ""), "quit": ("", "end")}
LINES = {
    "": ["call ", "complete ", "quit"],
    "c": ["call ", "complete "],
    "nonsense ": [],
    "quit ": [],
    "call ad": ["address", "address_first"],
    "call echo ": ["color=", "dry="],
    "call echo color=red d": ["dry="],
    "call echo color=r": ["red"],
    "call echo dry=": ["true", "false"],
    "call echo size=": [],
    "call nonsense ": [],
    "read full://note": ["full://note", "full://notes/"],
    "read full://notes/A": ["full://notes/Ada"],
    "watch full://note": ["full://note", "full://notes/"],
    "prompt ": ["greet "],
    "prompt greet ": ["who="],
    "prompt greet who=A": ["Ada"],
    "prompt greet who=A x": [],
    "complete g": ["greet "],
    "complete greet ": ["who"],
    "complete full://notes/{name} ": ["name"],
}


async def test_lines_are_completed_with_what_the_server_has(start_hub: Any) -> None:
    hub = await start_hub({"full": FULL, "plain": local()})
    candidates = Candidates(hub, "full", COMMANDS)
    found = {line: [each.text for each in await candidates.of(line)] for line in LINES}
    assert found == LINES
    [suggested] = await candidates.of("prompt greet who=A")
    assert suggested.replaces == 1
    assert await Candidates(hub, "plain", COMMANDS).of("prompt ") == [], "a server without prompts"


async def test_a_server_that_is_not_there_completes_nothing(start_hub: Any) -> None:
    hub = await start_hub({"gone": {"command": "no-such-program"}})
    assert await Candidates(hub, "gone", COMMANDS).of("call e") == []
