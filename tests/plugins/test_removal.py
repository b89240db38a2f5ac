"""The product without its plug-ins: their directories are removed from a copy of the package, all together and one at a
time, and the core stories must pass without them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

import claude_code_mcp
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support.paths import REPOSITORY
from tests.test_architecture import INTERFACES

PACKAGE = Path(claude_code_mcp.__file__).parent
PLUGINS = sorted(path.parent.name for path in PACKAGE.glob("plugins/*/__init__.py"))

_CHECK_COPY = """
import contextlib, importlib, io, json, os, pathlib, sys, traceback

place, parts = sys.argv[1], json.loads(sys.argv[2])  # the parts are a plug-in and those that are removed with it
sys.path.insert(0, place)
plugins, away = pathlib.Path(place, "claude_code_mcp", "plugins"), pathlib.Path(place, "away")
away.mkdir()

def import_all(directory):
    for path in sorted(directory.rglob("*.py")):
        name = ".".join(path.relative_to(place).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            importlib.import_module(name)

@contextlib.contextmanager
def without(names):
    for name in names:
        os.rename(plugins / name, away / name)
    importlib.invalidate_caches()
    yield
    for name in names:
        os.rename(away / name, plugins / name)

def output_of(*arguments):
    from claude_code_mcp.cli.main import main
    sys.argv = ["claude-code-mcp", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        main()
    return output.getvalue()

def check_command_line():
    assert "sessions" in output_of("--help")
    assert json.loads(output_of("doctor", "--json"))

def apart(what, check, *arguments):
    # In a process that has imported nothing of the plug-ins.
    if (child := os.fork()) == 0:
        try:
            check(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(what)

with without(parts):
    import_all(pathlib.Path(place, "claude_code_mcp"))
    apart("without any", check_command_line)
for name, (needed, removed) in parts.items():
    with without(parts.keys() - {name, *needed}):
        apart(f"the imports of {name} with none of the others", import_all, plugins / name)
    with without(removed):
        apart(f"without {name}", check_command_line)
"""


def removed_with(plugin: str) -> set[str]:
    """The plug-in and those that build on it through its interface."""
    interface = f"plugins.{plugin}.interface"
    return {plugin, *(other for other, used in INTERFACES.items() if interface in used)}


def needed_by(plugin: str) -> set[str]:
    """The plug-ins whose interface it uses."""
    return {used.split(".")[1] for used in INTERFACES.get(plugin, set())}


def copy_without(plugins: Collection[str], place: Path) -> Path:
    """The directory with a copy of the package without these plug-ins."""
    missing = {PACKAGE / "plugins" / name for name in plugins}

    def left_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory, name) in missing}

    # Compiled modules are copied too, and stay valid: the copies have the times of the originals.
    shutil.copytree(PACKAGE, place / PACKAGE.name, ignore=left_out)
    return place


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


@pytest.mark.parametrize(
    "removed",
    [
        pytest.param(PLUGINS, id="all"),
        *(pytest.param(removed_with(plugin), id=plugin, marks=pytest.mark.soak) for plugin in PLUGINS),
    ],
)
def test_a_session_asks_is_answered_and_ends(
    removed: Collection[str], tmp_path: Path, environment: dict[str, str], sandbox: Sandbox
) -> None:
    place = copy_without(removed, tmp_path / "installed")
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
    tmp_path: Path, environment: dict[str, str]
) -> None:
    place = copy_without([], tmp_path / "installed")
    parts = {plugin: (sorted(needed_by(plugin)), sorted(removed_with(plugin))) for plugin in PLUGINS}
    done = _run(None, environment, "-c", _CHECK_COPY, str(place), json.dumps(parts))
    assert done.returncode == 0, done.stderr[-3000:]
