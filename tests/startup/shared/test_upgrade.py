"""An older server hands over to a newer version when nothing is at work, and no client is lost by it."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import claude_code_mcp
from claude_code_mcp import __version__
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.startup.greeting.client import Client
from tests.support.waiting import until

from .support import SharedPlace, call, opened

OLD = "0.0.1"


def old_installation(root: Path) -> Path:
    """A copy of this package that says of itself that it is older."""
    package = root / "old" / "claude_code_mcp"
    shutil.copytree(Path(claude_code_mcp.__file__).parent, package)
    init = package / "__init__.py"
    text, changed = re.subn(r'__version__ = "[^"]+"', f'__version__ = "{OLD}"', init.read_text())
    assert changed == 1
    init.write_text(text)
    return package.parent


def test_an_older_server_hands_over_when_nothing_is_busy(shared: SharedPlace, sandbox: Sandbox) -> None:
    path = {"PYTHONPATH": str(old_installation(sandbox.root))}
    command = (sys.executable, "-m", "claude_code_mcp")
    gate = sandbox.project / "go on"
    with opened(Client({**shared.environment, **path}, "--shared", command=command)) as old:
        made = call(
            old,
            1,
            "claude_create_session",
            prompt=script("Wait.", tool("Bash", command=f"until [ -e '{gate}' ]; do sleep 0.05; done"), "Done."),
            workingDirectory=str(sandbox.project),
            allowedTools=["Bash"],
        )
        assert [server["version"] for server in shared.status()] == [OLD]
        with opened(shared.client()) as new:
            waiting = call(new, 1, "claude_get_status", sessionId=made["sessionId"])
            assert waiting["status"] == "running"
            [server] = shared.status()
            assert (server["version"], server["handover"], len(server["clients"])) == (OLD, __version__, 2)
            gate.touch()
            done = call(new, 2, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
            assert done["status"] == "completed"
            until(lambda: [server["version"] for server in shared.status()] == [__version__])
            for client in (old, new):
                done = call(client, 3, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
                assert (done["status"], done["result"]) == ("completed", "Done.")
            until(lambda: len(shared.status()[0]["clients"]) == 2)
            assert [server["version"] for server in shared.status()] == [__version__]


@pytest.mark.soak  # as an older version does: the test above
def test_an_earlier_build_of_the_same_version_hands_over_too(shared: SharedPlace, sandbox: Sandbox) -> None:
    package = sandbox.root / "earlier" / "claude_code_mcp"
    shutil.copytree(Path(claude_code_mcp.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in package.glob("*.py"):
        os.utime(file, (1.7e9, 1.7e9))
    command = (sys.executable, "-m", "claude_code_mcp")
    environment = {**shared.environment, "PYTHONPATH": str(package.parent)}
    with opened(Client(environment, "--shared", command=command)):
        [earlier] = shared.status()
        with opened(shared.client()):
            until(lambda: [server["pid"] for server in shared.status()] not in ([], [earlier["pid"]]))
            assert [server["version"] for server in shared.status()] == [__version__]
