"""Who approves the servers of a project: a person in Claude Code, or the operator; never the project itself."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.hub.config_entry import StdioConfig
from claude_code_mcp.hub.config_files import HubConfig, hub_servers

SERVERS = {"mcpServers": {"p": {"command": "from the project"}}}


class Place:
    """A home, and a project in a git repository below it."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.repository = root / "repository"
        self.project = self.repository / "packages" / "one"
        self.project.mkdir(parents=True)
        (self.repository / ".git").mkdir()
        (self.home / ".claude").mkdir(parents=True)

    def write(self, file: Path, content: Any) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))

    def claude(self, **projects: Any) -> None:
        known = {str(getattr(self, name)): entry for name, entry in projects.items()}
        self.write(self.home / ".claude.json", {"projects": known})

    def read(self, **settings: Any) -> HubConfig:
        given = load_settings({}, hub="all", hub_file=self.home / "own.json", **settings)
        return hub_servers(given, {"HOME": str(self.home)}, self.project)

    def usable(self, **settings: Any) -> list[str]:
        return [name for name, server in self.read(**settings).servers.items() if server.barred is None]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path.resolve())
    place.write(place.project / ".mcp.json", SERVERS)
    return place


def test_an_approval_of_the_repository_counts_below_it(place: Place) -> None:
    assert place.usable() == []
    place.claude(repository={"enabledMcpjsonServers": ["p"], "mcpServers": {"l": {"command": "local"}}})
    assert place.usable() == ["l", "p"]


def test_an_approval_in_the_users_settings_counts(place: Place) -> None:
    place.write(place.home / ".claude" / "settings.json", {"enableAllProjectMcpServers": True})
    assert place.usable() == ["p"]


@pytest.mark.parametrize("where", ["project", "repository"])
def test_local_settings_approve_only_where_a_person_trusts_the_project(place: Place, where: str) -> None:
    place.write(getattr(place, where) / ".claude" / "settings.local.json", {"enabledMcpjsonServers": ["p"]})
    assert place.usable() == [], "a checkout may bring such a file along"
    place.claude(repository={"hasTrustDialogAccepted": True})
    assert place.usable() == ["p"]


def test_shared_settings_of_a_project_never_approve_and_may_reject(place: Place) -> None:
    place.claude(repository={"hasTrustDialogAccepted": True})
    shared = place.project / ".claude" / "settings.json"
    place.write(shared, {"enableAllProjectMcpServers": True, "enabledMcpjsonServers": ["p"]})
    assert place.usable() == []
    place.write(shared, {"disabledMcpjsonServers": ["p"]})
    place.claude(repository={"enabledMcpjsonServers": ["p"]})
    assert "rejected" in (place.read().servers["p"].barred or "")


def test_the_operator_trusts_directories_or_every_project(place: Place) -> None:
    assert place.usable(trusted_projects=str(place.home)) == []
    assert place.usable(trusted_projects=f"{place.home},{place.repository}") == ["p"]
    assert place.usable(trusted_projects="*") == ["p"]
    assert place.usable(trusted_projects=str(place.repository)[:-3]) == [], "a name is not a directory above"


def test_a_file_above_the_project_counts_and_the_nearest_comes_first(place: Place) -> None:
    above = {"mcpServers": {"p": {"command": "far"}, "q": {"command": "far"}}}
    place.write(place.repository / ".mcp.json", above)
    servers = place.read(trusted_projects="*").servers
    commands = {
        name: server.config.command for name, server in servers.items() if isinstance(server.config, StdioConfig)
    }
    assert commands == {"p": "from the project", "q": "far"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_above_the_project_is_left_out(place: Place) -> None:
    place.write(place.repository / ".mcp.json", {"mcpServers": {"q": {"command": "evil"}}})
    os.chown(place.repository / ".mcp.json", 12345, 12345)
    assert "q" not in place.read(trusted_projects="*").servers


def test_a_working_tree_has_the_approvals_of_its_repository_and_of_no_other(place: Place, tmp_path: Path) -> None:
    place.claude(repository={"enabledMcpjsonServers": ["p"]})
    tree, inside = tmp_path.resolve() / "tree", place.repository / ".git" / "worktrees" / "tree"
    inside.mkdir(parents=True)
    place.write(tree / ".mcp.json", SERVERS)
    (tree / ".git").write_text(f"gitdir: {inside}\n")
    place.project = tree
    assert place.usable() == [], "the repository does not know of this tree"
    (inside / "gitdir").write_text(f"{tree / '.git'}\n")
    assert place.usable() == ["p"]
