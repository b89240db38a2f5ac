"""Where the Claude Code executable is: named explicitly, on PATH, or inside the wheel that carries it.

The wheel is never imported, which would take most of a second: only its directory is looked up.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import ExecutableNotFound

_CARRIER = "claude_agent_sdk"
_INSTALL = "Install it with `pip install 'claude-code-mcp[cli]'` or set CLAUDE_CODE_PATH to the executable."


def find_executable(explicit: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """The absolute path of the explicit one if that is named, else of `claude` on PATH, else of the bundled one.

    Raises ExecutableNotFound, also for an explicit one that is no executable file: it is not passed over.
    """
    if explicit:
        found = _on_path(os.path.expanduser(explicit), environment)
        if found is None:
            raise ExecutableNotFound(
                f"CLAUDE_CODE_PATH names {explicit!r}, which is not an executable file. {_INSTALL}"
            )
        return found
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


def _on_path(name: str, environment: Mapping[str, str] | None) -> str | None:
    found = shutil.which(name, path=None if environment is None else environment.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None  # it will be run in another directory
