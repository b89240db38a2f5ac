"""Files of a project that sandboxed sessions can write to, and the hub, whose programs run outside of every sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.hub.config_entry import StdioConfig, parse_entry
from claude_code_mcp.hub.config_files import ConfigPaths, read_configuration
from claude_code_mcp.hub.program_place import NotStarted, ProgramPlace

ATTACKS = json.loads(Path(__file__).with_name("hub_files.json").read_text())
FILES = [attack for attack in ATTACKS if "own" not in attack]
PROGRAMS = [attack for attack in ATTACKS if "own" in attack]


class Machine:
    """The operator's files, a project below them, and where the hub's programs run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project, self.elsewhere, self.own = (
            root / "work" / "project",
            root / "elsewhere",
            root / "state" / "programs",
        )
        for directory in (self.project / ".claude", self.elsewhere, self.own):
            directory.mkdir(parents=True)
        (root / "link").symlink_to(self.project)
        self.programs = ProgramPlace(str(self.own), (str(self.project),))

    def write(self, name: str, content: Any) -> Path:
        path = self.root / name
        path.write_text(json.dumps(content))
        return path

    def named(self, text: str) -> str:
        names = {"project": self.project, "elsewhere": self.elsewhere, "link": self.root / "link", "programs": self.own}
        for name, path in names.items():
            text = text.replace(f"{{{name}}}", str(path) if not text.startswith("$") else f"{{{name}}}")
        return text


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("attack", FILES, ids=[attack["attack"] for attack in FILES])
def test_no_file_that_a_session_can_write_to_has_the_hub_start_a_program(
    machine: Machine, attack: dict[str, Any]
) -> None:
    of_project = {"enabledMcpjsonServers": attack.get("approved", []), "hasTrustDialogAccepted": True}
    if attack.get("trusted"):
        of_project["enableAllProjectMcpServers"] = True
    paths = ConfigPaths(
        machine.write("mcp.json", {"mcpServers": {"own": {"command": "of-the-operator"}}}),
        machine.write(".claude.json", {"projects": {str(machine.project): of_project}}),
        machine.project,
        programs=machine.programs,
        managed=machine.root / "managed",
    )
    machine.write("work/.mcp.json", {"mcpServers": attack.get("above", {})})
    machine.write("work/project/.mcp.json", {"mcpServers": attack.get("mcp", {})})
    machine.write("work/project/.claude/settings.local.json", attack.get("local", {}))
    server = read_configuration(paths, {}).servers[attack["server"]]
    if "command" in attack:
        assert isinstance(server.config, StdioConfig)
        assert (server.config.command, server.barred) == (attack["command"], None)
    else:
        assert server.locked, "no call of a tool can enable it"
        assert attack["barred"] in str(server.barred)


@pytest.mark.parametrize("attack", PROGRAMS, ids=[attack["attack"] for attack in PROGRAMS])
def test_no_program_of_the_hub_runs_where_a_session_can_write(machine: Machine, attack: dict[str, Any]) -> None:
    entry = {
        key: [machine.named(item) for item in value] if isinstance(value, list) else machine.named(value)
        for key, value in attack["own"].items()
    }
    config = parse_entry("tool", entry, {})
    if "refused" in attack:
        with pytest.raises(NotStarted, match=attack["refused"]):
            machine.programs.placed(config, str(machine.project))
        return
    placed = machine.programs.placed(config, str(machine.project))
    assert isinstance(placed, StdioConfig)
    assert placed.cwd == machine.named(attack["runs_in"])
    assert "${workspaceFolder}" not in placed.args
