"""The greeting and the tools of plug-ins, over real stdio: unknown at the first start, announced, known at the next."""

from pathlib import Path

import pytest

from claude_code_mcp.startup.greeting.first_answers import place_with_plugins

from .client import BROKEN, INITIALIZED, Client, enveloped, initialize, request

NOTER = """
from claude_code_mcp import Arguments, Call, Tool, ToolOutput
from claude_code_mcp.plugin import Plugin
from mcp_types import ToolAnnotations

class Note(Arguments):
    text: str

class Noted(ToolOutput):
    characters: int

async def note(call: Call, arguments: Note) -> Noted:
    return Noted(characters=len(arguments.text))

class NoterPlugin(Plugin):
    name = "noter"

    def tools(self, settings):
        yield Tool("note", "Note", "Takes a note.", Note, Noted, note, ToolAnnotations())
"""


class Installation:
    """A directory with a distribution that has a plug-in, as `pip install --target` makes it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        (place / "noter.py").write_text(NOTER)

    def install(self, version: str) -> None:
        self.uninstall()
        metadata = self.place / f"noter-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: noter\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text("[claude_code_mcp.plugins]\nnoter = noter:NoterPlugin\n")

    def uninstall(self) -> None:
        for old in self.place.glob("*.dist-info"):
            old.rename(self.place / f"{old.name}.removed")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    made = Installation(tmp_path / "site")
    made.install("1.0")
    return made


@pytest.fixture
def with_plugin(environment: dict[str, str], installation: Installation, tmp_path: Path) -> dict[str, str]:
    return {**environment, "PYTHONPATH": str(installation.place), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def listed(client: Client, number: int = 1) -> set[str]:
    return {tool["name"] for tool in client.ask(request("tools/list", number))["result"]["tools"]}


def greeted_with(environment: dict[str, str], *arguments: str) -> set[str]:
    """The tools that a start lists whose server is never loaded."""
    broken = {**environment, "PYTHONPATH": f"{environment['PYTHONPATH']}:{BROKEN['PYTHONPATH']}"}
    with Client(broken, *arguments) as client:
        client.ask(initialize())
        client.send(INITIALIZED)
        return listed(client)


def test_tools_of_a_plug_in_are_announced_at_the_first_start_and_known_at_the_next(
    with_plugin: dict[str, str], installation: Installation
) -> None:
    with Client(with_plugin) as client:
        assert client.ask(initialize())["result"]["capabilities"]["tools"] == {"listChanged": True}
        client.send(INITIALIZED)
        assert "note" not in listed(client)
        assert client.read() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert "note" in listed(client, 2)
        answer = client.ask(request("tools/call", 3, name="note", arguments={"text": "four"}))
        assert answer["result"]["structuredContent"] == {"characters": 4}
        assert client.end()[0] == 0
    assert "note" in greeted_with(with_plugin)
    assert "note" not in greeted_with({**with_plugin, "CLAUDE_CODE_MCP_PLUGINS_OFF": "noter"})
    installation.install("1.1")
    assert "note" not in greeted_with(with_plugin), "its tools may be others now"
    installation.uninstall()
    assert "note" not in greeted_with(with_plugin)


@pytest.mark.soak
def test_client_with_current_tools_is_not_notified(with_plugin: dict[str, str]) -> None:
    leave_manifest(with_plugin)
    with Client(with_plugin) as client:
        client.ask(initialize())
        client.send(INITIALIZED)
        assert "note" in listed(client)
        client.ask(request("tools/call", 2, name="note", arguments={"text": ""}))
        assert client.end() == (0, [], "")


def test_a_client_without_a_handshake_is_sent_nothing_on_its_own(with_plugin: dict[str, str]) -> None:
    with Client(with_plugin) as client:
        client.ask(enveloped("server/discover", 1))
        assert "note" not in str(client.ask(enveloped("tools/list", 2)))
        assert client.end() == (0, [], "")


@pytest.mark.soak
def test_other_settings_have_their_manifest_with_the_tools_too(with_plugin: dict[str, str]) -> None:
    leave_manifest(with_plugin, "--toolsets", "query")
    assert greeted_with(with_plugin, "--toolsets", "query") == {"note", "claude_code_query"}


def leave_manifest(environment: dict[str, str], *arguments: str) -> None:
    """A first start, which ends when it has left its manifest."""
    with Client(environment, *arguments) as client:
        client.ask(initialize())
        client.send(INITIALIZED)
        client.ask(request("tools/call", 1, name="note", arguments={"text": ""}))
        assert client.end()[0] == 0


@pytest.mark.usefixtures("with_plugin")
def test_a_server_with_tools_that_change_leaves_nothing() -> None:
    assert place_with_plugins(["serve", "--toolsets", "hub-tools"]) is None
