"""Whether somebody is logged in to Claude Code on this machine: asked of the CLI, or judged by what it would use."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..claude.executable import find_executable
from ..config import load_settings
from ..errors import ClaudeCodeError
from ..model.paths import config_directory
from ..processes.environment import child_environment

ADVICE = "`claude-code-mcp claude auth login`, or set ANTHROPIC_API_KEY"
_CLI_TIMEOUT = 30.0
_CREDENTIALS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)


class Login(NamedTuple):
    """Whether somebody is logged in, and by what."""

    exists: bool
    method: str


def login_of(path: str) -> Login:
    """Asks Claude Code; a version without that command is judged by the credentials that it would use."""
    try:
        status = json.loads(run_cli(path, "auth", "status", "--json").stdout)
        return Login(bool(status["loggedIn"]), str(status.get("authMethod")))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return Login(has_credentials(), "judged by variables and files")


def has_credentials() -> bool:
    """Whether Claude Code finds a credential in the places that can be looked at without it."""
    stored = Path(config_directory(os.environ)) / ".credentials.json"
    in_keychain = sys.platform == "darwin"  # which only Claude Code itself may open
    return in_keychain or any(os.environ.get(name) for name in _CREDENTIALS) or stored.is_file()


def missing_login(config: Path | None) -> str:
    """What to do where it is certain that nobody is logged in; empty otherwise. Costs nothing where a credential is to
    be seen, and else a start of the CLI, which alone knows of helpers and settings that lead to one."""
    if has_credentials():
        return ""
    try:
        login = login_of(find_executable(load_settings(file=config).claude_path))
    except ClaudeCodeError:
        return ""  # what is wrong there is reported by the server, which needs more than this
    return (
        ""
        if login.exists
        else f"Nobody is logged in to Claude Code: {ADVICE}. `claude-code-mcp doctor` checks the rest."
    )


def run_cli(
    path: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    directory: str | None = None,
    timeout: float = _CLI_TIMEOUT,
) -> "subprocess.CompletedProcess[str]":
    """Runs Claude Code with an environment as sessions have it and these `variables`, and waits for its end. Raises
    OSError and SubprocessError."""
    return subprocess.run(
        [path, *arguments],
        env={**child_environment(os.environ), **(variables or {})},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
