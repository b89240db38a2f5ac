"""When a server is killed, the CLI it ran ends by itself, and so do the children of that."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from claude_code_mcp.claude.executable import find_executable
from claude_code_mcp.claude.tether import tether
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool

from ..conftest import RUN
from .conftest import ENDLESS, gone, number_in, runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")


def description(sandbox: Sandbox, environment: dict[str, str], command: str) -> str:
    given = {
        "state_dir": str(sandbox.root / "state"),
        "claude_path": find_executable(),
        "cwd": str(sandbox.project),
        "prompt": script("Wait.", tool("Bash", command=command), "Done."),
    }
    return json.dumps({"given": given, "environment": environment})


@pytest.mark.parametrize(
    ("path", "launcher"), [(os.environ["PATH"], "setpriv"), ("/nowhere", Path(sys.executable).name)]
)
async def test_the_cli_and_its_children_end_when_their_host_is_killed(
    sandbox: Sandbox, environment: dict[str, str], path: str, launcher: str
) -> None:
    if launcher == "setpriv" and "setpriv" not in tether([])[0]:
        pytest.skip("this Linux has no setpriv of util-linux")
    noted = sandbox.project / "child"
    host = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.claude.a_host",
        description(sandbox, environment, f"echo $$ > child; {ENDLESS}"),
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": path, RUN: os.environ[RUN], "HOME": str(sandbox.home)},
        cwd=Path(__file__).parents[2],
    )
    try:
        assert host.stdout is not None
        used, cli = (await host.stdout.readline()).decode().split()
        child = await number_in(noted)
        assert Path(used).name == launcher
        assert runs(int(cli))
        assert runs(child)
    finally:
        host.kill()
        await host.communicate()
    await gone(int(cli), child)


def test_the_command_itself_is_passed_on_unchanged() -> None:
    assert tether(["/bin/claude", "--help", "-x"])[-3:] == ["/bin/claude", "--help", "-x"]
