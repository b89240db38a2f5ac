"""The environment of a Claude Code process, and the mark that finds whatever it leaves behind."""

import os
from collections.abc import Mapping

from ..processes.leftovers import MARK

_OF_AN_OUTER_SESSION = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ACCESS_TOKEN",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_CODE_PARENT_SESSION_ID",
    "CLAUDE_CODE_REMOTE",
    "CLAUDE_CODE_CHILD_SESSION",
)


def build_environment(base: Mapping[str, str], extra: Mapping[str, str], mark: str) -> dict[str, str]:
    """The base without what an outer Claude Code session set for itself, plus the caller's own, plus the mark."""
    clean = {name: value for name, value in base.items() if name not in _OF_AN_OUTER_SESSION}
    return {**clean, **extra, MARK: mark}


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts under this environment."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")
