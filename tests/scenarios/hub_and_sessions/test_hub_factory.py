"""Which servers the hub has: the server and the commands give one answer."""

import argparse
import json
from pathlib import Path

import pytest

from claude_code_mcp.commands.mcp.configure import load_configuration
from claude_code_mcp.config import load_settings
from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.hub_factory import hub_configuration


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that Claude Code knows by its real path: one server of its own, and two in `.mcp.json`."""
    project = tmp_path / "project"
    project.mkdir()
    checked_in = {name: {"command": name} for name in ("approved", "unapproved")}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": checked_in}))
    known = {"mcpServers": {"local": {"command": "local"}}, "enabledMcpjsonServers": ["approved"]}
    claude = {"mcpServers": {"user": {"command": "user"}}, "projects": {str(project.resolve()): known}}
    (tmp_path / ".claude.json").write_text(json.dumps(claude))
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"own": {"command": "own"}}}))
    return project


@pytest.mark.parametrize("extent", ["own", "all"])
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
def test_the_server_and_the_command_agree_on_a_project_that_is_reached_by_a_link(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool, extent: str
) -> None:
    directory = project
    if linked:
        directory = tmp_path / "link"
        directory.symlink_to(project)
    environment = {
        "CLAUDE_CONFIG_DIR": str(tmp_path),
        "CLAUDE_CODE_MCP_HUB": extent,
        "CLAUDE_CODE_MCP_HUB_FILE": str(tmp_path / "mcp.json"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    served = hub_configuration(load_settings(environment), environment, str(directory))
    listed = load_configuration(argparse.Namespace(all=False, project=directory))
    assert served == listed
    usable = {name for name, server in served.servers.items() if server.barred is None}
    assert usable == ({"own"} if extent == "own" else {"own", "local", "approved", "user"})


@pytest.mark.parametrize(("extent", "works"), [("off", True), ("own", True), ("all", False)])
def test_a_directory_that_is_gone_matters_only_to_a_hub_that_reads_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extent: str, works: bool
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    settings = load_settings({}, hub=extent, hub_file=tmp_path / "mcp.json")
    try:
        hub_configuration(settings, {"HOME": str(tmp_path)})
    except InvalidArgument:
        assert not works
    else:
        assert works


def test_a_hub_that_is_off_has_no_servers(project: Path) -> None:
    settings = load_settings({}, hub="off", hub_file=project.parent / "mcp.json")
    assert hub_configuration(settings, {}, str(project)).servers == {}
