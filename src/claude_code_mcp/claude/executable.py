"""Where the Claude Code executable is, found without importing anything of it."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import ExecutableNotFound

OLDEST_VERSION = (2, 1, 0)
"""The oldest Claude Code that this release works with: older ones do not speak all of the control protocol."""

_CARRIER = "claude_agent_sdk"
_INSTALL = "Install it with `pip install 'claude-code-mcp[cli]'` or set CLAUDE_CODE_PATH to the executable."


def find_executable(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """The explicit path if given, else `claude` on PATH, else the bundled one."""
    if explicit:
        return _explicit(explicit, environment)
    found = _on_path("claude", environment) or bundled_executable()
    if found is None:
        raise ExecutableNotFound(f"No Claude Code executable was found on PATH or bundled. {_INSTALL}")
    return found


def bundled_executable() -> str | None:
    """The binary inside the carrier wheel, if that is installed."""
    spec = importlib.util.find_spec(_CARRIER)
    if spec is None or spec.origin is None:
        return None
    name = "claude.exe" if sys.platform == "win32" else "claude"
    candidate = Path(spec.origin).parent / "_bundled" / name
    return str(candidate) if os.access(candidate, os.X_OK) else None


def _explicit(given: str, environment: Mapping[str, str] | None) -> str:
    found = _on_path(os.path.expanduser(given), environment)
    if found is None:
        raise ExecutableNotFound(f"CLAUDE_CODE_PATH names {given!r}, which is not an executable file. {_INSTALL}")
    return found


def _on_path(name: str, environment: Mapping[str, str] | None) -> str | None:
    found = shutil.which(name, path=None if environment is None else environment.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None  # it will be run in another directory
