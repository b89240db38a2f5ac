"""Files of a project that sandboxed sessions can write to, and the hub, whose programs run outside of every sandbox."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.hub.client_hubs import Hubs
from claude_code_mcp.hub.config_changes import HubSource, following
from claude_code_mcp.hub.config_entry import StdioConfig, parse_entry
from claude_code_mcp.hub.config_files import ConfigPaths, read_configuration
from claude_code_mcp.hub.factory import make_hub
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.program_place import NotStarted, ProgramPlace
from tests.support.waiting import until_true

ATTACKS = json.loads(Path(__file__).with_name("hub_files.json").read_text())
FILES = [attack for attack in ATTACKS if "own" not in attack]
PROGRAMS = [attack for attack in ATTACKS if "own" in attack]
USER = {"users": {"command": "of-the-operator"}}


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
        (self.project / "linked").symlink_to("/bin/sh")
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
        machine.write(".claude.json", {"projects": {str(machine.project): of_project}, "mcpServers": USER}),
        machine.project,
        machine.write("settings.json", {}),
        programs=machine.programs,
        managed=machine.root / "managed",
    )
    machine.write("work/.mcp.json", {"mcpServers": attack.get("above", {})})
    machine.write("work/project/.mcp.json", {"mcpServers": attack.get("mcp", {})})
    machine.write("work/project/.claude/settings.local.json", attack.get("local", {}))
    if "linked" in attack:
        settings = machine.write("elsewhere/settings.json", attack["linked"])
        (machine.project / ".claude" / "settings.json").symlink_to(settings)
    else:
        machine.write("work/project/.claude/settings.json", attack.get("shared", {}))
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


# -- while the hub is open --------------------------------------------------------------------------------------------


DENIES = {"deniedMcpServers": [{"serverName": "own"}]}


class Operator:
    """The operator of a hub of all servers, whose project is open to sessions."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        (machine.root / "home" / ".claude").mkdir(parents=True)
        self.environment = {"HOME": str(machine.root / "home"), "CLAUDE_CODE_MCP_HUB": "all"}
        self.settings = load_settings(
            {},
            hub="all",
            hub_file=self.configure("own"),
            state_dir=machine.root / "state",
            default_cwd=str(machine.project),
        )

    def configure(self, name: str) -> Path:
        return self.machine.write("mcp.json", {"mcpServers": {name: {"command": "of-the-operator"}}})

    def deny(self, settings: Any) -> None:
        self.machine.write("home/.claude/settings.json", settings)

    def open_to_sessions(self, directory: str) -> list[str]:
        return [str(self.machine.project)]

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        project = str(self.machine.project)
        source = HubSource(self.settings, self.environment, project, open_to_sessions=self.open_to_sessions)
        configuration = source.read()
        hub = make_hub(self.settings, configuration, self.environment)
        async with hub, following(hub, configuration, source):
            yield hub


@pytest.fixture
def operator(machine: Machine) -> Operator:
    return Operator(machine)


def states(hub: Hub) -> dict[str, str]:
    return {status.name: status.state for status in hub.status()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((".mcp.json", text) for text in ("{", "[]", '{"mcpServers": 1}')),
        *((f".claude/{name}", "{") for name in ("settings.json", "settings.local.json")),
    ],
)
async def test_no_file_of_a_session_keeps_the_operators_changes_from_the_hub(
    machine: Machine, operator: Operator, name: str, text: str
) -> None:
    async with operator.hub() as hub:
        assert states(hub)["own"] != "disabled"
        (machine.project / name).write_text(text)
        operator.deny(DENIES)
        await until_true(lambda: states(hub)["own"] == "disabled", "the denial has no effect")
        operator.configure("later")
        await until_true(lambda: [*states(hub)] == ["later"], "neither has another file of servers")


async def test_denial_applies_even_if_another_operator_file_is_unreadable(machine: Machine, operator: Operator) -> None:
    async with operator.hub() as hub:
        (machine.root / "mcp.json").write_text("{")
        await until_true(lambda: "cannot be read" in str(hub.problems))
        assert states(hub)["own"] != "disabled", "in the middle of an edit the servers stay"
        operator.deny(DENIES)
        await until_true(lambda: states(hub)["own"] == "disabled", "the denial has no effect")
        operator.deny({})
        operator.configure("own")
        await until_true(lambda: states(hub)["own"] != "disabled", "a file that can be read again counts")


async def test_a_denial_reaches_a_client_that_came_while_a_file_could_not_be_read(
    machine: Machine, operator: Operator
) -> None:
    (machine.root / "home" / ".claude.json").write_text("{")
    hubs = Hubs(operator.settings, linger=0, open_to_sessions=operator.open_to_sessions)
    async with hubs.use(ClientEnvironment(str(machine.project), operator.environment, "one")) as hub:
        assert states(hub)["own"] != "disabled"
        operator.deny(DENIES)
        await until_true(lambda: states(hub)["own"] == "disabled", "the denial has no effect")
    await hubs.close()
