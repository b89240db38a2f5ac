"""The product without one of its plug-ins: their directories are removed one at a time from a copy of the package, and
the core stories must pass without them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import claude_code_mcp
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support.paths import REPOSITORY
from tests.test_architecture import INTERFACES

PACKAGE = Path(claude_code_mcp.__file__).parent
PLUGINS = sorted(path.parent.name for path in PACKAGE.glob("plugins/*/__init__.py"))

_IMPORT_ALL = """
import importlib, pathlib, sys
import claude_code_mcp
root = pathlib.Path(claude_code_mcp.__file__).parent
assert str(root).startswith(sys.argv[1]), root
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""


@pytest.fixture(params=PLUGINS)
def without(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The name of the plug-in that is missing, and the directory with the package."""
    place = tmp_path / "installed"
    # With it go the plug-ins that build on it through its interface.
    interface = f"plugins.{request.param}.interface"
    gone = {request.param, *(plugin for plugin, used in INTERFACES.items() if interface in used)}
    missing = {PACKAGE / "plugins" / name for name in gone}

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory, name) in missing}

    # Compiled modules are copied too, and stay valid: the copies have the times of the originals.
    shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=left_out)
    return request.param, place


def _run(place: Path, environment: dict[str, str], *command: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env={**environment, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=environment["HOME"],
        input=text,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_session_asks_is_answered_and_ends(
    without: tuple[str, Path], environment: dict[str, str], sandbox: Sandbox
) -> None:
    _, place = without
    prompt = script("Try.", tool("Bash", command="touch made", description="d"), "all done")
    code = (REPOSITORY / "tests" / "plugins" / "story_client.py").read_text(encoding="utf-8")
    done = _run(place, environment, "-c", code, str(sandbox.project), prompt)
    assert done.returncode == 0, done.stderr[-3000:]
    story = json.loads(done.stdout)
    assert story["asked"] == "waiting_for_input"
    assert story["status"] == "completed"
    assert story["result"] == "all done"
    assert os.listdir(sandbox.project) == ["made"]
    assert story["listed"] == 1


def test_everything_else_can_be_imported_and_the_command_line_works(
    without: tuple[str, Path], environment: dict[str, str]
) -> None:
    _, place = without
    done = _run(place, environment, "-c", _IMPORT_ALL, str(place))
    assert done.returncode == 0, done.stderr[-3000:]
    listed = _run(place, environment, "-m", "claude_code_mcp", "--help")
    assert listed.returncode == 0, listed.stderr[-3000:]
    assert "sessions" in listed.stdout
    doctor = _run(place, environment, "-m", "claude_code_mcp", "doctor", "--json")
    assert doctor.stdout, doctor.stderr[-3000:]
    assert "Traceback" not in doctor.stderr
