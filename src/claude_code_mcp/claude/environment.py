"""The environment of a Claude Code process, and the mark that finds whatever it leaves behind."""

import os
from collections.abc import Mapping

from ..child_environment import DEPTH, MARK, child_environment


def build_environment(base: Mapping[str, str], extra: Mapping[str, str], mark: str) -> dict[str, str]:
    """What any child may have of the base, plus the caller's own, plus the mark and the depth, which nobody can set."""
    clean = child_environment(base)
    return {**clean, **extra, MARK: mark, DEPTH: clean[DEPTH]}


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts under this environment."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")
