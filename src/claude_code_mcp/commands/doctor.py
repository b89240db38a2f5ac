"""`doctor`: looks at everything a session needs and says what to fix."""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..claude.environment import config_directory
from ..claude.executable import find_executable
from ..config import Settings, load_settings
from ..errors import ClaudeCodeError
from ..private_files import private_directory

_NEEDED_DISK = 500 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    told: str
    fix: str = ""

    def line(self) -> str:
        advice = f"\n        fix: {self.fix}" if self.fix and not self.ok else ""
        return f"{'ok   ' if self.ok else 'WRONG'}  {self.what}: {self.told}{advice}"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check that everything a session needs is there",
        description="Finds the Claude Code executable and its version, checks settings, directories and disk, and "
        "says what to fix. With --deep it also runs a whole turn on the scripted model; no account is needed.",
    )
    parser.add_argument("--deep", action="store_true", help="also run a turn on the scripted model")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    print(f"claude-code-mcp {__version__}, Python {sys.version.split()[0]} on {sys.platform}")
    wrong = 0
    for finding in _look(arguments.config, deep=arguments.deep):
        print(finding.line(), flush=True)
        wrong += not finding.ok
    print("Everything is in order." if not wrong else f"{wrong} to fix.")
    return 1 if wrong else 0


def _look(config: Path | None, *, deep: bool) -> Iterator[Finding]:
    try:
        settings = load_settings(file=config)
    except ClaudeCodeError as error:
        yield Finding("settings", False, error.message, "correct it, or unset it to use the default")
        return
    yield Finding("settings", True, "all of them parse")
    yield _executable(settings)
    yield _writable("state directory", settings.state_dir, "set CLAUDE_CODE_MCP_STATE_DIR to one that is")
    yield _writable("Claude Code's directory", Path(config_directory(os.environ)), "check HOME and its owner")
    yield _disk(Path(tempfile.gettempdir()))
    yield _tether()
    if deep:
        yield asyncio.run(_turn(settings))


def _executable(settings: Settings) -> Finding:
    try:
        path = find_executable(settings.claude_path)
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except ClaudeCodeError as error:
        return Finding("Claude Code", False, error.message, "pip install 'claude-code-mcp[cli]'")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Claude Code", False, f"it does not run: {error}", "install it again")
    return Finding("Claude Code", True, f"{answer.stdout.strip()} at {path}")


def _writable(what: str, directory: Path, fix: str) -> Finding:
    try:
        private_directory(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        return Finding(what, False, f"{directory} cannot be written to: {error.strerror}", fix)
    return Finding(what, True, str(directory))


def _disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free
    return Finding("disk", free > _NEEDED_DISK, f"{free >> 20} MB free in {directory}", "free at least 500 MB")


def _tether() -> Finding:
    if sys.platform != "linux":
        told = "sessions end after their turn if this server is killed"
    else:
        told = "sessions end at once if this server is killed"
    return Finding("clean-up after a kill", True, told)


async def _turn(settings: Settings) -> Finding:
    from ..model.options import SessionOptions  # noqa: PLC0415 - only the deep look runs a session
    from ..service import Service, outcome_of  # noqa: PLC0415
    from ..testing import Sandbox, ScriptedModel  # noqa: PLC0415
    from ..testing.script import script  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        async with ScriptedModel() as model:
            sandbox = Sandbox(Path(directory), model.url)
            private = settings.model_copy(update={"state_dir": sandbox.root / "state"})
            try:
                async with Service(private, sandbox.environment()) as service:
                    options = SessionOptions(cwd=str(sandbox.project))
                    _, delivery = await service.create(script("Say hello.", "hello"), options)
                    outcome = await asyncio.wait_for(outcome_of(delivery), 60)
            except (ClaudeCodeError, TimeoutError) as error:
                return Finding("a turn on the scripted model", False, str(error) or "no answer within 60 s")
    told = f"answered in {outcome.duration_ms} ms" if outcome.ok else f"{outcome.code}: {outcome.detail}"
    return Finding("a turn on the scripted model", outcome.ok and outcome.result == "hello", told)
