"""The files that configure servers: their order, approval, and faults that stay where they are."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.hub.config_entry import StdioConfig
from claude_code_mcp.hub.config_files import ConfigPaths, ConfigScope, HubConfig, read_configuration


class Disk:
    def __init__(self, root: Path) -> None:
        self.paths = ConfigPaths(root / "config" / "mcp.json", root / ".claude.json", root / "project")
        assert self.paths.project is not None
        self.project = self.paths.project
        self.project.mkdir()
        self.paths.own_file.parent.mkdir()

    def own(self, servers: Any) -> None:
        self.paths.own_file.write_text(json.dumps({"mcpServers": servers}))

    def of_project(self, servers: Any) -> None:
        (self.project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    def claude(self, servers: Any, **of_project: Any) -> None:
        content = {"mcpServers": servers, "projects": {str(self.project): of_project}}
        assert self.paths.claude_file is not None
        self.paths.claude_file.write_text(json.dumps(content))

    def read(self, **options: Any) -> HubConfig:
        return read_configuration(self.paths, {}, **options)


def command(name: str) -> dict[str, str]:
    return {"command": name}


def commands_of(configuration: HubConfig) -> dict[str, str]:
    found = {}
    for name, server in configuration.servers.items():
        assert isinstance(server.config, StdioConfig)
        found[name] = server.config.command
    return found


def test_where_nothing_is_configured_there_are_no_servers_and_no_problems(tmp_path: Path) -> None:
    read = Disk(tmp_path).read()
    assert (dict(read.servers), list(read.problems)) == ({}, [])


def test_our_own_file_beats_local_beats_project_beats_user(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.own({"a": command("own")})
    disk.claude({name: command("user") for name in "abcd"}, mcpServers={name: command("local") for name in "ab"})
    disk.of_project({name: command("project") for name in "abc"})
    read = disk.read(trust_project=True)
    assert commands_of(read) == {"a": "own", "b": "local", "c": "project", "d": "user"}
    assert [read.servers[name].scope for name in "abcd"] == [
        ConfigScope.OWN,
        ConfigScope.LOCAL,
        ConfigScope.PROJECT,
        ConfigScope.USER,
    ]


def test_checkout_cannot_start_programs_without_approval(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.of_project({"x": command("evil"), "y": command("fine"), "z": command("bad")})
    assert disk.read().servers["x"].barred is not None
    disk.claude({}, enabledMcpjsonServers=["y"], disabledMcpjsonServers=["z"])
    servers = disk.read().servers
    assert (servers["x"].barred is None, servers["y"].barred is None) == (False, True)
    trusted = disk.read(trust_project=True).servers
    assert (trusted["x"].barred, trusted["y"].barred) == (None, None)
    assert trusted["z"].barred is not None


def test_a_server_can_be_disabled_where_it_is_configured_or_for_the_project(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.claude({"a": {"command": "a", "disabled": True}, "b": command("b")}, disabledMcpServers=["b"])
    servers = disk.read().servers
    for name in ("a", "b"):
        assert "disabled" in (servers[name].barred or "")


def test_invalid_entry_is_reported_and_others_still_work(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.own({"good": command("x"), "bad": {"type": "http"}, "worse": 3})
    read = disk.read()
    assert commands_of(read) == {"good": "x"}
    bad, worse = (str(problem) for problem in read.problems)
    assert bad.startswith(f"{disk.paths.own_file}: mcpServers.bad: url: ")
    assert worse.startswith(f"{disk.paths.own_file}: mcpServers.worse: ")


def test_a_bad_entry_does_not_hide_a_good_one_of_the_same_name(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.own({"x": {"command": "${MISSING}"}})
    disk.claude({"x": command("user")})
    read = disk.read()
    assert commands_of(read) == {"x": "user"}
    assert "MISSING" in str(read.problems[0])


def test_unset_variable_is_omitted_and_reported_and_its_server_is_used(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.own({"x": {"command": "x", "env": {"A": "${MISSING}", "B": "b"}}})
    read = disk.read()
    config = read.servers["x"].config
    assert isinstance(config, StdioConfig)
    assert config.env == {"B": "b"}
    (problem,) = read.problems
    assert str(problem).startswith(f"{disk.paths.own_file}: mcpServers.x: env.A: ")
    assert "MISSING" in str(problem)


def test_a_file_that_cannot_be_read_takes_no_other_down(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.paths.own_file.write_text("{not json")
    (disk.project / ".mcp.json").write_text("[]")
    disk.claude({"x": command("user")})
    read = disk.read()
    assert commands_of(read) == {"x": "user"}
    assert {problem.file.name for problem in read.problems} == {"mcp.json", ".mcp.json"}
    assert all(problem.entry is None for problem in read.problems)


@pytest.mark.skipif(os.name != "posix", reason="there are pipes and devices in directories on POSIX")
@pytest.mark.parametrize("kind", ["a pipe", "a device", "nested without end"])
def test_whatever_a_checkout_has_in_place_of_its_file_takes_no_other_down(tmp_path: Path, kind: str) -> None:
    disk = Disk(tmp_path)
    disk.own({"a": command("own")})
    place = disk.project / ".mcp.json"
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a device":
        place.symlink_to("/dev/zero")
    else:
        place.write_text("[" * 100_000)
    read = disk.read(trust_project=True)
    assert commands_of(read) == {"a": "own"}
    assert [problem.file for problem in read.problems] == [place]
