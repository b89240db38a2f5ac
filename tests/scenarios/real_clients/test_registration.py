"""The client entries of the documentation are well-formed, and its commands register a server that connects."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.testing import Sandbox
from tests.scenarios.real_clients.serving import Served
from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("entries.md", "clients.md"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[str]:
    """Every `claude mcp add`. A shared server would outlive the test, so the entry is tried without it."""
    return [command.removesuffix(" --shared") for command in re.findall(r"claude mcp add [^`\n]+", PAGE)]


@pytest.mark.parametrize("block", [*blocks("json"), *re.findall(r"`(\{.*\})`", PAGE)])
def test_every_json_entry_names_a_command_or_an_address(block: str) -> None:
    entries = json.loads(block)
    servers = entries.get("mcpServers") or entries.get("context_servers") or entries["servers"]
    assert all("command" in server or "url" in server for server in servers.values())


def test_the_toml_entry_names_a_command() -> None:
    [block] = blocks("toml")
    assert tomllib.loads(block)["mcp_servers"]["claude-code"]["command"] == "claude-code-mcp"


@pytest.mark.parametrize("command", commands(), ids=["stdio", "http"])
def test_claude_code_connects_after_the_command_of_the_page(
    command: str, address: Served, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    assert address.url is not None
    token = address.headers["Authorization"].removeprefix("Bearer ")
    adapted = command.replace("http://127.0.0.1:8765/mcp", address.url).replace("$CLAUDE_CODE_MCP_TOKEN", token)
    _, *words = [COMMAND if word == "claude-code-mcp" else word for word in shlex.split(adapted)]
    claude = find_executable(None, environment)
    for arguments in (words, ["mcp", "list"]):
        output = subprocess.run(
            [claude, *arguments],
            cwd=sandbox.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=True,
        ).stdout
    assert re.search(r"^claude-code: .*Connected", output, re.MULTILINE), output
