"""Where Claude Code keeps its files under an environment. Nothing is read here."""

import os
from collections.abc import Mapping
from pathlib import Path


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts and the user's settings."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")


def user_file(environment: Mapping[str, str]) -> Path:
    """The CLI's `.claude.json`: beside its configuration directory, or in it if that was set explicitly."""
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home or Path.home()) / ".claude.json"
