"""Claude Code at exact versions, from npm, kept in the user's cache: too large to be installed for every run."""

import json
import os
import platform
import sys
from pathlib import Path

import platformdirs

from claude_code_mcp.core.claude.executable import bundled_executable
from tests.support.npm import Unavailable, install

BUNDLED = "bundled"
WIDER = "TEST_CLI_VERSIONS"
"""More versions to run the contract on, separated by commas."""

TOTALS_ONLY = "2.1.290"
"""One that tells only totals of the whole session, and would begin in mode `auto`."""
_ALWAYS = ("2.1.0", TOTALS_ONLY, BUNDLED)
"""The oldest, which counts costs from each start of a process, and the newest are among them. `make soak` has more."""

_PACKAGE = "@anthropic-ai/claude-code"
_ARCHITECTURES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def chosen_versions() -> tuple[str, ...]:
    wider = [one.strip() for one in os.environ.get(WIDER, "").split(",") if one.strip()]
    return tuple(dict.fromkeys((*_ALWAYS, *wider)))


def executable_of(version: str) -> str:
    """The path of this version, installed now if it is not yet. Raises Unavailable."""
    if version == BUNDLED:
        found = bundled_executable()
        if found is None:
            raise Unavailable("no Claude Code is bundled")
        return found
    place = Path(platformdirs.user_cache_dir("claude-code-mcp-tests")) / "cli" / version
    place.mkdir(parents=True, exist_ok=True)
    manifest = place / "wanted.json"
    manifest.write_text(json.dumps({"private": True, "dependencies": {_PACKAGE: version}}), encoding="utf-8")
    install(manifest, place)
    return _program(place / "node_modules")


def _program(modules: Path) -> str:
    """Later versions are a binary in a package for the platform, earlier ones a script that needs node."""
    name = "claude.exe" if sys.platform == "win32" else "claude"
    system = f"{sys.platform}-{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
    candidates = (modules / f"{_PACKAGE}-{system}" / name, modules / ".bin" / name)
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise Unavailable(f"no program for {system} in the package")
