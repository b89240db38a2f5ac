"""Which servers of a project the user has approved in Claude Code.

Claude Code keeps approvals in three files: `~/.claude.json` under the project (the root of its git repository, if it is
in one), the user's `settings.json`, and the project's `.claude/settings.local.json`. A checkout can contain the last
one, so it counts only for a project that is trusted according to `~/.claude.json`. The shared `.claude/settings.json`
of a project can only reject, never approve.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.private_files import GIT_FILE, named_in

_TRUSTED = "hasTrustDialogAccepted"
ALL_PROJECTS = "*"


@dataclass(frozen=True, slots=True)
class Approvals:
    """The approvals and rejections for one project."""

    trusts_all: bool = False
    approved: frozenset[str] = frozenset()
    rejected: frozenset[str] = frozenset()
    disabled: frozenset[str] = field(default=frozenset())
    """Servers of any scope that the user switched off for this project."""

    def objection(self, name: str) -> str | None:
        """Why a server of `.mcp.json` may not be used; None if it may."""
        if name in self.rejected:
            return "rejected for this project in Claude Code"
        return None if self.trusts_all or name in self.approved else "from .mcp.json, and not approved"


def read_approvals(trusted: Sequence[Mapping[str, Any]], untrusted: Sequence[Mapping[str, Any]]) -> Approvals:
    """Combine files: all may reject, only trusted ones approve."""
    return Approvals(
        any(content.get("enableAllProjectMcpServers") is True for content in trusted),
        _names(trusted, "enabledMcpjsonServers"),
        _names([*trusted, *untrusted], "disabledMcpjsonServers"),
        _names(trusted, "disabledMcpServers"),
    )


def _names(contents: Iterable[Mapping[str, Any]], key: str) -> frozenset[str]:
    lists = (content.get(key) for content in contents)
    return frozenset(name for names in lists if isinstance(names, list) for name in names if isinstance(name, str))


def is_trusted(claude: Mapping[str, Any], places: Iterable[Path]) -> bool:
    """Whether one of these directories is trusted according to Claude Code's file."""
    return any(project_entry(claude, place).get(_TRUSTED) is True for place in places)


def project_entry(claude: Mapping[str, Any], place: Path) -> Mapping[str, Any]:
    """A directory's entry in `~/.claude.json`."""
    projects = claude.get("projects")
    entry = projects.get(str(place).replace(os.sep, "/")) if isinstance(projects, dict) else None
    if entry is None and isinstance(projects, dict):
        entry = projects.get(str(place))
    return entry if isinstance(entry, dict) else {}


def is_trusted_by_operator(project: Path, directories: Iterable[str]) -> bool:
    """Whether the operator trusts a project: a configured directory is the project or an ancestor, or all are trusted.
    Blocks on the disk."""
    for directory in directories:
        if directory == ALL_PROJECTS or project.is_relative_to(Path(directory).expanduser().resolve()):
            return True
    return False


def project_roots(project: Path) -> list[Path]:
    """The directories under whose names Claude Code may know a project: itself, the root of its git repository, and
    the main working tree if that is another. Blocks on the disk."""
    root = next((place for place in (project, *project.parents) if os.path.exists(place / ".git")), None)
    if root is None:
        return [project]
    return list(dict.fromkeys([project, root, *_main_tree(root)]))


def _main_tree(root: Path) -> list[Path]:
    """The main working tree of a linked one, whose `.git` is a file that leads to `MAIN/.git/worktrees/NAME`."""
    link = root / ".git"
    target = Path(named_in(link, GIT_FILE) or root)
    if target.parent.name != "worktrees" or target.parent.parent.name != ".git":
        return []
    # The link must be mutual: a checkout could name another project's repository to get its approvals.
    leads_back = named_in(target / "gitdir") == os.path.realpath(link)
    return [target.parent.parent.parent] if leads_back else []
