"""A place for the real CLI to run in: its own home, a project directory and a clean environment."""

import os
import sys
from pathlib import Path

_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL")
_INHERITED_ON_WINDOWS = (
    "PATH", "PATHEXT", "SYSTEMROOT", "WINDIR", "SYSTEMDRIVE", "COMSPEC", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMDATA", "USERNAME",
)  # fmt: skip
SHORT_RUN = {"BUN_JSC_useDFGJIT": "0", "BUN_JSC_useConcurrentJIT": "0", "BUN_JSC_numberOfGCMarkers": "1"}
"""A process that lives for a few turns loses a sixth of its time to a compiler whose work never pays, and to threads
that wait for garbage to collect."""
_XDG = ("cache", "config", "data", "state")


def model_environment(model_url: str, api_key: str = "sk-scripted") -> dict[str, str]:
    """The variables that make Claude Code use a scripted model and nothing else on the network."""
    return {
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": api_key,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


class Sandbox:
    """Directories under `root` and the environment that keeps Claude Code inside them."""

    def __init__(self, root: Path, model_url: str) -> None:
        """Create the directories; `root` need not exist yet."""
        self.root = root
        self.model_url = model_url
        self.home = root / "home"
        """The home directory; Claude Code keeps its sessions in `.claude` below it."""
        self.project = root / "project"
        """An empty directory to run in."""
        self.temporary = root / "tmp"
        """Where temporary files go."""
        for directory in (self.home, self.project, self.temporary):
            directory.mkdir(parents=True, exist_ok=True)

    def environment(self, **extra: str) -> dict[str, str]:
        """The whole environment for a process; `extra` adds to it or replaces."""
        windows = sys.platform == "win32"
        inherited = _INHERITED_ON_WINDOWS if windows else _INHERITED
        kept = {name: os.environ[name] for name in inherited if name in os.environ}
        places = self._windows_places() if windows else self._posix_places()
        return {**kept, **places, **SHORT_RUN, **model_environment(self.model_url), **extra}

    def _posix_places(self) -> dict[str, str]:
        xdg = {f"XDG_{kind.upper()}_HOME": str(self.home / ".xdg" / kind) for kind in _XDG}
        return {"HOME": str(self.home), "TMPDIR": str(self.temporary), **xdg}

    def _windows_places(self) -> dict[str, str]:
        return {
            "USERPROFILE": str(self.home),
            "HOME": str(self.home),
            "APPDATA": str(self.home / "AppData" / "Roaming"),
            "LOCALAPPDATA": str(self.home / "AppData" / "Local"),
            "TEMP": str(self.temporary),
            "TMP": str(self.temporary),
        }
