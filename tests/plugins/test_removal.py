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

_CHECK_COPIES = """
import contextlib, importlib, io, json, os, pathlib, sys, traceback

def import_all():
    import claude_code_mcp
    root = pathlib.Path(claude_code_mcp.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return root

def output_of(*arguments):
    from claude_code_mcp.cli.main import main
    sys.argv = ["claude-code-mcp", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main()
    return output.getvalue()

def check(place):
    sys.path.insert(0, place)
    assert import_all().parent == pathlib.Path(place)
    assert "sessions" in output_of("--help")
    assert json.loads(output_of("doctor", "--json"))

import_all()  # with the libraries, which take most of the time and stay for the copies
for name in [name for name in sys.modules if name.partition(".")[0] == "claude_code_mcp"]:
    del sys.modules[name]
importlib.invalidate_caches()
for place in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            check(place)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"in {place}")
"""


def copy_without(plugin: str, place: Path) -> Path:
    """A copy of the package without the plug-in and those that build on it through its interface."""
    interface = f"plugins.{plugin}.interface"
    gone = {plugin, *(other for other, used in INTERFACES.items() if interface in used)}
    missing = {PACKAGE / "plugins" / name for name in gone}

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory, name) in missing}

    # Compiled modules are copied too, and stay valid: the copies have the times of the originals.
    shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=left_out)
    return place


@pytest.fixture(params=PLUGINS)
def without(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The directory with a package that lacks one plug-in."""
    return copy_without(request.param, tmp_path / "installed")


def _run(place: Path | None, environment: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env={**environment, "PYTHONPATH": str(place or ""), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=environment["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_session_asks_is_answered_and_ends(without: Path, environment: dict[str, str], sandbox: Sandbox) -> None:
    prompt = script("Try.", tool("Bash", command="touch made", description="d"), "all done")
    code = (REPOSITORY / "tests" / "plugins" / "story_client.py").read_text(encoding="utf-8")
    done = _run(without, environment, "-c", code, str(sandbox.project), prompt)
    assert done.returncode == 0, done.stderr[-3000:]
    story = json.loads(done.stdout)
    assert story["asked"] == "waiting_for_input"
    assert story["status"] == "completed"
    assert story["result"] == "all done"
    assert os.listdir(sandbox.project) == ["made"]
    assert story["listed"] == 1


def test_everything_else_can_be_imported_and_the_command_line_works(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    places = [str(copy_without(plugin, tmp_path / plugin)) for plugin in PLUGINS]
    done = _run(None, environment, "-c", _CHECK_COPIES, *places)
    assert done.returncode == 0, done.stderr[-3000:]
