"""Everything that a session needs, looked at one by one: what `doctor` tells."""

import argparse
import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..claude.executable import MINIMUM_VERSION, find_executable, read_version, version_text
from ..claude.user_config import config_directory
from ..config import Settings, load_settings
from ..errors import ClaudeCodeError, ExecutableNotFound
from ..private_files import private_directory
from ..processes.environment import child_environment
from ..processes.spawn import containment

_NEEDED_DISK = 500 << 20


_PATIENCE = 30.0


_CREDENTIALS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)


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

    def data(self) -> dict[str, object]:
        return {"what": self.what, "ok": self.ok, "told": self.told, "fix": None if self.ok else self.fix or None}


def look(config: Path | None) -> Iterator[Finding | Settings]:
    """What was found, one by one; the settings too, once they are known. Without them there is nothing more to see."""
    try:
        settings = load_settings(file=config)
    except ClaudeCodeError as error:
        yield Finding("settings", False, error.message, "correct it, or unset it to use the default")
        return
    yield settings
    yield Finding("settings", True, "all of them parse")
    yield from _claude(settings)
    yield _policy(settings)
    yield from _tokens(settings)
    yield from _hub(settings)
    yield from _default_directory(settings)
    yield _state(settings.state_dir)
    if isinstance(settings.audit_file, Path):
        yield _writable("directory of the audit trail", settings.audit_file.parent, "set CLAUDE_CODE_MCP_AUDIT_FILE")
    yield _writable("Claude Code's directory", Path(config_directory(os.environ)), "check HOME and its owner")
    yield _disk(Path(tempfile.gettempdir()))
    yield _containment()


def _claude(settings: Settings) -> Iterator[Finding]:
    what = "Claude Code"
    try:
        path = find_executable(settings.claude_path)
    except ExecutableNotFound as error:
        fix = "pip install 'claude-code-mcp[cli]'"
        if settings.claude_path:
            fix = "correct CLAUDE_CODE_PATH, or unset it to use `claude` on PATH or the bundled one"
        yield Finding(what, False, error.message, fix)
        return
    version = _version(path)
    if isinstance(version, str):
        yield Finding(what, False, f"{path} {version}", _reinstall(settings))
        return
    told = f"{version_text(version)} at {path}"
    if version < MINIMUM_VERSION:
        told += f", older than {version_text(MINIMUM_VERSION)}, the oldest that works"
        yield Finding(what, False, told, f"update it: `{path} update`, or install it again")
        return
    yield Finding(what, True, told)
    yield _login(path)


def _reinstall(settings: Settings) -> str:
    return "CLAUDE_CODE_PATH must name the `claude` executable" if settings.claude_path else "install it again"


def _version(path: str) -> tuple[int, int, int] | str:
    """The version, or what is wrong with the program."""
    try:
        answer = _ask(path, "--version")
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    found = read_version(answer.stdout) if "Claude Code" in answer.stdout else None
    if answer.returncode or found is None:
        return "runs, but does not say that it is Claude Code"
    return found


def _login(path: str) -> Finding:
    """Asks Claude Code; one that cannot say is judged by what it would look at."""
    try:
        told = json.loads(_ask(path, "auth", "status", "--json").stdout)
        logged_in, how = bool(told["loggedIn"]), str(told.get("authMethod"))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        logged_in, how = _has_credentials(), "judged by variables and files"
    fix = "`claude-code-mcp claude auth login`, or set ANTHROPIC_API_KEY"
    return Finding("login", logged_in, how if logged_in else "nobody is logged in: every turn would fail", fix)


def _has_credentials() -> bool:
    stored = Path(config_directory(os.environ)) / ".credentials.json"
    in_keychain = sys.platform == "darwin"  # which only Claude Code itself may open
    return in_keychain or any(os.environ.get(name) for name in _CREDENTIALS) or stored.is_file()


def _ask(path: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [path, *arguments],
        env=child_environment(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PATIENCE,
        check=False,
    )


def _policy(settings: Settings) -> Finding:
    from ..app import read_policy  # noqa: PLC0415 - loads the MCP SDK

    told = f"{settings.policy_file or 'built in'}, profile {settings.profile or 'by default'}"
    return _sound(
        "policy", lambda: read_policy(settings, "remote"), told, "correct the file, or CLAUDE_CODE_MCP_PROFILE"
    )


def _tokens(settings: Settings) -> Iterator[Finding]:
    from ..server.transports.bearer import load_tokens  # noqa: PLC0415

    if settings.http_token is not None or settings.http_tokens_file is not None:
        yield _sound("tokens", lambda: load_tokens(settings), "all of them can be used", "correct it, as it says")


def _sound(what: str, read: Callable[[], object], told: str, fix: str) -> Finding:
    try:
        read()
    except ClaudeCodeError as error:
        return Finding(what, False, error.message, fix)
    return Finding(what, True, told)


def _hub(settings: Settings) -> Iterator[Finding]:
    from ..hub_factory import hub_configuration  # noqa: PLC0415

    if settings.hub == "off":
        return
    found = hub_configuration(settings, os.environ, settings.default_cwd)
    for problem in found.problems:
        yield Finding("MCP servers", False, str(problem), "correct the entry, or `claude-code-mcp mcp remove` it")
    if not found.problems:
        yield Finding("MCP servers", True, f"{len(found.servers)} configured")


def _default_directory(settings: Settings) -> Iterator[Finding]:
    if settings.default_cwd is None:
        return
    usable = os.path.isdir(settings.default_cwd) and os.access(settings.default_cwd, os.R_OK | os.X_OK)
    told = settings.default_cwd if usable else f"{settings.default_cwd} is not a directory that can be entered"
    yield Finding("default directory", usable, told, "set CLAUDE_CODE_DEFAULT_CWD to one that is there, or unset it")


def _state(directory: Path) -> Finding:
    found = _writable("state directory", directory, "set CLAUDE_CODE_MCP_STATE_DIR to one that is")
    if found.ok and sys.platform != "win32" and stat.S_IMODE(directory.stat().st_mode) & 0o022:
        return Finding(found.what, False, f"others may write to {directory}", f"chmod 700 {directory}")
    return found


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


def _containment() -> Finding:
    kind = containment()
    told = {
        "supervisor": "a supervisor ends everything that a session starts with it, also if this server is killed",
        "marks": "what a session leaves behind is found by a mark, at its end or when the next server starts",
    }[kind]
    return Finding("containment", True, f"{kind}: {told}")


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check that everything a session needs is there",
        description="Finds the Claude Code executable, its version and whether somebody is logged in; checks settings, "
        "policy, tokens, MCP servers, directories and disk; and says what to fix. The exit code is 1 when something "
        "will not work. With --deep it also runs a whole turn on the scripted model; no account is needed.",
    )
    parser.add_argument("--deep", action="store_true", help="also run a turn on the scripted model")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = _findings(arguments.config, deep=arguments.deep)
    return _as_json(findings) if arguments.json else _as_lines(findings)


def _as_lines(findings: Iterator[Finding]) -> int:
    print(f"claude-code-mcp {__version__}, Python {sys.version.split()[0]} on {sys.platform}")
    wrong = 0
    for finding in findings:
        print(finding.line(), flush=True)
        wrong += not finding.ok
    print("Everything is in order." if not wrong else f"{wrong} to fix.")
    return 1 if wrong else 0


def _as_json(findings: Iterator[Finding]) -> int:
    found = list(findings)
    ok = all(finding.ok for finding in found)
    told = {
        "version": __version__,
        "python": sys.version.split()[0],
        "platform": sys.platform,
        "ok": ok,
        "findings": [finding.data() for finding in found],
    }
    print(json.dumps(told, indent=2, ensure_ascii=False))
    return 0 if ok else 1


def _findings(config: Path | None, *, deep: bool) -> Iterator[Finding]:
    settings: Settings | None = None
    for found in look(config):
        if isinstance(found, Settings):
            settings = found
        else:
            yield found
    if deep and settings is not None:
        yield asyncio.run(_turn(settings))


async def _turn(settings: Settings) -> Finding:
    from ..model.options import SessionOptions  # noqa: PLC0415 - only the deep look runs a session
    from ..service import Service  # noqa: PLC0415
    from ..testing import Sandbox, ScriptedModel  # noqa: PLC0415
    from ..testing.script import script  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as directory:
        async with ScriptedModel() as model:
            sandbox = Sandbox(Path(directory), model.url)
            private = settings.model_copy(update={"state_dir": sandbox.root / "state"})
            try:
                async with Service(private, sandbox.environment()) as service:
                    options = SessionOptions(cwd=str(sandbox.project))
                    turn = await service.create(script("Say hello.", "hello"), options)
                    outcome = await asyncio.wait_for(turn.outcome(), 60)
            except (ClaudeCodeError, TimeoutError) as error:
                return Finding("a turn on the scripted model", False, str(error) or "no answer within 60 s")
    told = f"answered in {outcome.duration_ms} ms" if outcome.ok else f"{outcome.code}: {outcome.detail}"
    return Finding("a turn on the scripted model", outcome.ok and outcome.result == "hello", told)
