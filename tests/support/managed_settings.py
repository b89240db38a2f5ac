"""A process for which the directory of Claude Code's managed settings is one of the test's: in a mount namespace, since
no variable and no setting can move that directory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def with_managed_settings(directory: Path, command: Sequence[str]) -> list[str]:
    """The command, run where `/etc/claude-code` is this directory and everything else is as it is."""
    mounts = [part for name in sorted(os.listdir("/etc")) for part in ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")]
    return [
        *("bwrap", "--dev-bind", "/", "/", "--tmpfs", "/etc", *mounts),
        *("--ro-bind", str(directory), "/etc/claude-code", "--die-with-parent", "--", *command),
    ]


def write(directory: Path, files: Mapping[str, str]) -> Path:
    """Makes the directory with these files."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory
