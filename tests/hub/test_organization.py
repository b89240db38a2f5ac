"""What an organization's managed settings say about MCP servers holds for the hub as it does for Claude Code.

The rows are decided by the hub and by the real Claude Code, side by side."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.hub import config_files
from claude_code_mcp.hub.address_patterns import fits, matches, written
from claude_code_mcp.hub.client_hubs import Hubs
from claude_code_mcp.hub.config_changes import HubSource, following
from claude_code_mcp.hub.config_files import ConfigPaths, ConfigScope, HubConfig, read_configuration
from claude_code_mcp.hub.factory import make_hub
from claude_code_mcp.testing import Sandbox
from tests.support.bubblewrap import missing
from tests.support.managed_settings import with_managed_settings, write
from tests.support.program import COMMAND

needs_bubblewrap = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SERVER = str(Path(__file__).parent.parent / "support" / "mute_mcp_server.py")


def program(*arguments: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [SERVER, *arguments]}


def remote(url: str, kind: str = "http") -> dict[str, Any]:
    return {"type": kind, "url": url}


class Case(NamedTuple):
    """Managed settings, and servers with whether each may be used."""

    settings: dict[str, Any]
    servers: dict[str, tuple[dict[str, Any], bool]]


BY_COMMAND = [sys.executable, SERVER, "allowed"]
CASES = {
    "denied by name": Case(
        {"deniedMcpServers": [{"serverName": "bad"}, {"serverName": "Other"}]},
        {"bad": (program(), False), "Bad": (program(), True), "other": (program(), True), "good": (program(), True)},
    ),
    "denied by command": Case(
        {"deniedMcpServers": [{"serverCommand": [sys.executable, SERVER, "x"]}]},
        {"bad": (program("x"), False), "more": (program("x", "y"), True), "less": (program(), True)},
    ),
    "denied by address": Case(
        {"deniedMcpServers": [{"serverUrl": "http://*.denied.invalid/*"}, {"serverUrl": "http://127.0.0.1:9/secret"}]},
        {
            "below": (remote("http://a.denied.invalid/mcp"), False),
            "far-below": (remote("http://a.b.denied.invalid/x"), False),
            "upper-case": (remote("HTTP://A.DENIED.INVALID/mcp".replace("HTTP", "http")), False),
            "dot": (remote("http://a.denied.invalid./mcp"), False),
            "port": (remote("http://a.denied.invalid:8080/mcp"), False),
            "sse": (remote("http://a.denied.invalid/mcp", "sse"), False),
            "number": (remote("http://2130706433:9/secret"), False),
            "short": (remote("http://127.1:9/secret"), False),
            "dots": (remote("http://127.0.0.1:9/x/../secret"), False),
            "user": (remote("http://me@127.0.0.1:9/secret"), False),
            "itself": (remote("http://denied.invalid/mcp"), True),
            "other-path": (remote("http://127.0.0.1:9/open"), True),
            "other-port": (remote("http://127.0.0.1:8/secret"), True),
        },
    ),
    "a host alone covers its paths": Case(
        {"deniedMcpServers": [{"serverUrl": "https://one.invalid"}, {"serverUrl": "https://two.invalid/"}]},
        {
            "one": (remote("https://one.invalid/deep/mcp"), False),
            "one-port": (remote("https://one.invalid:444/mcp"), True),
            "one-plain": (remote("http://one.invalid/mcp"), True),
            "two": (remote("https://two.invalid/mcp"), True),
            "two-root": (remote("https://two.invalid/"), False),
            "usual-port": (remote("https://one.invalid:443/mcp"), False),
        },
    ),
    "every address": Case(
        {"deniedMcpServers": [{"serverUrl": "*"}]},
        {"any": (remote("http://127.0.0.1:9/x"), False), "program": (program(), True)},
    ),
    "allowed by name": Case(
        {"allowedMcpServers": [{"serverName": "good"}]},
        {"good": (program(), True), "bad": (program(), False), "far": (remote("http://127.0.0.1:9/x"), False)},
    ),
    "an empty list allows nothing": Case({"allowedMcpServers": []}, {"any": (program(), False)}),
    "where commands are listed, names allow no program": Case(
        {"allowedMcpServers": [{"serverName": "named"}, {"serverCommand": BY_COMMAND}]},
        {
            "named": (program(), False),
            "listed": (program("allowed"), True),
            "far": (remote("http://127.0.0.1:9/x"), False),
        },
    ),
    "where addresses are listed, names allow no address": Case(
        {"allowedMcpServers": [{"serverName": "named"}, {"serverUrl": "http://127.0.0.1:9/good/*"}]},
        {
            "named": (remote("http://127.0.0.1:9/x"), False),
            "good": (remote("http://127.0.0.1:9/good/a"), True),
            "dots": (remote("http://127.0.0.1:9/good/../x"), False),
            "host": (remote("http://127.0.0.1:9@evil.invalid/good/a"), False),
        },
    ),
    "denied and allowed is denied": Case(
        {"allowedMcpServers": [{"serverName": "both"}], "deniedMcpServers": [{"serverName": "both"}]},
        {"both": (program(), False)},
    ),
    "a list that is none allows nothing": Case({"allowedMcpServers": "all"}, {"any": (program(), False)}),
}


def read(directory: Path, settings: Any, servers: dict[str, Any], **paths: Any) -> HubConfig:
    managed = write(directory / "managed", {"managed-settings.json": json.dumps(settings)})
    claude = directory / ".claude.json"
    claude.write_text(json.dumps({"mcpServers": servers}))
    return read_configuration(ConfigPaths(directory / "none.json", claude, managed=managed, **paths), {})


def allowed_by(configuration: HubConfig) -> set[str]:
    return {name for name, server in configuration.servers.items() if server.barred is None}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_hub_decides_by_the_lists_of_the_organization(tmp_path: Path, case: Case) -> None:
    found = read(tmp_path, case.settings, {name: entry for name, (entry, _) in case.servers.items()})
    assert allowed_by(found) == {name for name, (_, good) in case.servers.items() if good}
    for server in found.servers.values():
        assert server.barred is None or (server.locked and "organization" in server.barred)


@needs_bubblewrap
# What the hub decides is tested for all of them.
@pytest.mark.parametrize(
    "case",
    [case if number < 1 else pytest.param(case, marks=pytest.mark.soak) for number, case in enumerate(CASES.values())],
    ids=CASES,
)
def test_claude_code_decides_in_the_same_way(tmp_path: Path, sandbox: Sandbox, case: Case) -> None:
    managed = write(tmp_path / "managed", {"managed-settings.json": json.dumps(case.settings)})
    servers = {name: entry for name, (entry, _) in case.servers.items()}
    (sandbox.home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    environment = sandbox.environment(MCP_TIMEOUT="3000")
    command = with_managed_settings(managed, [find_executable(None, environment), "mcp", "list"])
    done = subprocess.run(command, env=environment, cwd=sandbox.project, capture_output=True, text=True, check=False)
    listed = set(re.findall(r"^(\S+): ", done.stdout, re.MULTILINE))
    assert listed & set(servers) == {name for name, (_, good) in case.servers.items() if good}, (
        done.stdout + done.stderr
    )


# -- spellings that are worth a denial though Claude Code would let them pass ------------------------------------------


@pytest.mark.parametrize(
    ("address", "pattern", "denied"),
    [
        ("http://127.0.0.1:9/%73ecret", "http://127.0.0.1:9/secret", True),
        ("http://[0:0:0:0:0:0:0:1]:9/x", "http://[::1]:9/*", True),
        ("http://0x7f.0.0.1:9/x", "http://127.0.0.1:9/*", True),
        ("http://%65vil.invalid/x", "http://evil.invalid/*", True),
        ("http://evil.invalid\\@good.invalid/x", "http://evil.invalid/*", True),
        ("http://good.invalid\\@evil.invalid/x", "http://evil.invalid/*", False),
        ("http://evil.invalid/%2e%2e/x", "http://evil.invalid/x", True),
        ("http:\t//evil.invalid/x", "http://evil.invalid/*", True),
        ("http://bücher.invalid/x", "http://xn--bcher-kva.invalid/*", True),
        ("http://notevil.invalid/x", "http://evil.invalid/*", False),
        ("http://evil.invalid.example/x", "http://evil.invalid/*", False),
        ("wss://evil.invalid/x", "*://evil.invalid/*", True),
    ],
)
def test_no_spelling_of_an_address_escapes_a_denial(tmp_path: Path, address: str, pattern: str, denied: bool) -> None:
    kind = "ws" if address.startswith("ws") else "http"
    settings = {"deniedMcpServers": [{"serverUrl": pattern}]}
    found = read(tmp_path, settings, {"x": remote(address, kind)})
    barred = [server.barred for server in found.servers.values()]
    assert barred == [None] if not denied else "x" not in allowed_by(found)


def test_variables_in_an_entry_are_looked_at_as_written_and_as_they_become(tmp_path: Path) -> None:
    denied = ["evil"], ["${TOOL}"], ["/src/evil"]
    settings = {"deniedMcpServers": [{"serverCommand": command} for command in denied]}
    managed = write(tmp_path / "managed", {"managed-settings.json": json.dumps(settings)})
    claude = tmp_path / ".claude.json"
    entries = {"a": {"command": "${NAME}"}, "b": {"command": "${TOOL}"}, "c": {"command": "tool"}}
    entries |= {"d": {"command": "${PWD}/evil"}, "e": {"command": "${NAME:-x}"}}
    claude.write_text(json.dumps({"mcpServers": entries}))
    environment = {"NAME": "evil", "TOOL": "tool"}
    found = read_configuration(ConfigPaths(tmp_path / "none", claude, managed=managed), environment)
    assert allowed_by(found) == set()


@pytest.mark.parametrize("host", ["good.invalid/x?", "evil.invalid/", "*", "me@evil.invalid", "a b", ""])
def test_a_variable_does_not_make_more_of_an_allowed_address(tmp_path: Path, host: str) -> None:
    settings = {"allowedMcpServers": [{"serverUrl": "http://${HOST}.corp.invalid/*"}]}
    managed = write(tmp_path / "managed", {"managed-settings.json": json.dumps(settings)})
    claude = tmp_path / ".claude.json"
    claude.write_text(json.dumps({"mcpServers": {"x": remote("http://evil.invalid/x.corp.invalid/a")}}))
    found = read_configuration(ConfigPaths(tmp_path / "none", claude, managed=managed), {"HOST": host})
    assert allowed_by(found) == set()


# -- where the lists are -----------------------------------------------------------------------------------------------


def test_files_next_to_the_settings_count_together(tmp_path: Path) -> None:
    write(
        tmp_path / "managed",
        {
            "managed-settings.d/10-a.json": json.dumps({"deniedMcpServers": [{"serverName": "a"}]}),
            "managed-settings.d/20-b.json": json.dumps({"deniedMcpServers": [{"serverName": "b"}]}),
            "managed-settings.d/.hidden.json": json.dumps({"deniedMcpServers": [{"serverName": "d"}]}),
        },
    )
    settings = {"deniedMcpServers": [{"serverName": "c"}]}
    assert allowed_by(read(tmp_path, settings, {name: program() for name in "abcd"})) == {"d"}


def test_our_own_file_is_bound_too(tmp_path: Path) -> None:
    managed = write(
        tmp_path / "managed", {"managed-settings.json": json.dumps({"deniedMcpServers": [{"serverName": "bad"}]})}
    )
    own = tmp_path / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {"bad": program(), "good": program()}}))
    assert allowed_by(read_configuration(ConfigPaths(own, managed=managed), {})) == {"good"}


def test_a_user_may_deny_and_allow_what_is_left_open_and_a_project_may_only_take_away(tmp_path: Path) -> None:
    user, project = tmp_path / ".claude" / "settings.json", tmp_path / "project"
    write(project / ".claude", {})
    (project / ".claude").mkdir(parents=True)
    user.parent.mkdir()
    servers = {name: program(name) for name in ("managed", "mine", "theirs")}
    paths = {"user_settings": user, "project": project}

    def decided(settings: Any, users: Any, projects: Any) -> set[str]:
        user.write_text(json.dumps(users))
        (project / ".claude" / "settings.json").write_text(json.dumps(projects))
        return allowed_by(read(tmp_path, settings, servers, **paths))

    allow = {name: {"allowedMcpServers": [{"serverName": name}]} for name in servers}
    deny = {name: {"deniedMcpServers": [{"serverName": name}]} for name in servers}
    assert decided({}, deny["mine"], deny["theirs"]) == {"managed"}
    assert decided(allow["managed"], allow["mine"], allow["theirs"]) == {"managed", "mine"}
    only = {**allow["managed"], "allowManagedMcpServersOnly": True}
    assert decided(only, allow["mine"], {}) == {"managed"}
    assert decided(only, deny["managed"], {}) == set()
    assert decided({}, {}, allow["theirs"]) == {"theirs"}


def test_settings_that_were_sent_to_claude_code_count(tmp_path: Path) -> None:
    user = tmp_path / ".claude" / "settings.json"
    user.parent.mkdir()
    (user.parent / "remote-settings.json").write_text(json.dumps({"deniedMcpServers": [{"serverName": "bad"}]}))
    found = read(tmp_path, {}, {"bad": program(), "good": program()}, user_settings=user)
    assert allowed_by(found) == {"good"}


@pytest.mark.parametrize("content", ["{", "[]", '{"deniedMcpServers": {"serverName": "x"}}'])
def test_managed_settings_that_cannot_be_read_allow_nothing(tmp_path: Path, content: str) -> None:
    managed = write(tmp_path / "managed", {"managed-settings.json": content})
    claude = tmp_path / ".claude.json"
    claude.write_text(json.dumps({"mcpServers": {"any": program()}}))
    found = read_configuration(ConfigPaths(tmp_path / "none", claude, managed=managed), {})
    assert "organization" in str(found.servers["any"].barred)


@pytest.mark.parametrize("leads_to", ["managed-settings.d", "nowhere", "managed-settings.json"])
def test_a_directory_of_managed_settings_that_cannot_be_read_allows_nothing(tmp_path: Path, leads_to: str) -> None:
    """A link to itself, to nothing, or to a file."""
    servers = {"any": program()}
    assert allowed_by(read(tmp_path, {}, servers)) == {"any"}, "there is no such directory"
    (tmp_path / "managed" / "managed-settings.d").symlink_to(leads_to)
    found = read(tmp_path, {}, servers)
    assert "managed-settings.d" in str(found.servers["any"].barred)
    paths = ConfigPaths(tmp_path / "none.json", managed=tmp_path / "managed")
    assert tmp_path / "managed" / "managed-settings.d" in config_files.denial_files(paths), (
        "it is followed all the same"
    )


def test_a_wrong_entry_is_reported_and_the_others_hold(tmp_path: Path) -> None:
    settings = {"deniedMcpServers": [{"serverName": "a", "serverUrl": "b"}, {"serverName": "bad"}]}
    found = read(tmp_path, settings, {"bad": program()})
    assert allowed_by(found) == set()
    assert any("serverName" in str(problem) for problem in found.problems)


# -- servers that the organization provides ----------------------------------------------------------------------------


def test_where_the_organization_provides_servers_they_are_the_only_ones(tmp_path: Path) -> None:
    provided = {"mcpServers": {"given": program(), "denied": program(), "variable": {"command": "${TOOL}"}}}
    settings = {"deniedMcpServers": [{"serverName": "denied"}], "allowedMcpServers": []}
    managed = write(
        tmp_path / "managed",
        {"managed-mcp.json": json.dumps(provided), "managed-settings.json": json.dumps(settings)},
    )
    own, claude = tmp_path / "mcp.json", tmp_path / ".claude.json"
    own.write_text(json.dumps({"mcpServers": {"own": program()}}))
    claude.write_text(json.dumps({"mcpServers": {"user": program(), "given": program("another")}}))
    everything = read_configuration(ConfigPaths(own, claude, managed=managed), {"TOOL": "x"})
    assert allowed_by(everything) == {"given"}
    assert everything.servers["given"].scope == "managed"
    assert "managed-mcp.json" in str(everything.servers["user"].barred)
    assert allowed_by(read_configuration(ConfigPaths(own, managed=managed), {})) == set()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_file_of_provided_servers_that_cannot_be_read_keeps_its_control(tmp_path: Path, content: str) -> None:
    managed = write(tmp_path / "managed", {"managed-mcp.json": content})
    own = tmp_path / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {"own": program()}}))
    assert allowed_by(read_configuration(ConfigPaths(own, managed=managed), {})) == set()


# -- in force ----------------------------------------------------------------------------------------------------------


@needs_bubblewrap
@pytest.mark.parametrize("extent", ["all", pytest.param("own", marks=pytest.mark.soak)])
def test_a_denied_server_is_never_started_and_says_why(tmp_path: Path, sandbox: Sandbox, extent: str) -> None:
    settings = {"deniedMcpServers": [{"serverName": "bad"}]}
    managed = write(tmp_path / "managed", {"managed-settings.json": json.dumps(settings)})
    started = {name: str(tmp_path / f"{name}-started") for name in ("bad", "good")}
    servers = {"mcpServers": {name: program("--touch", path) for name, path in started.items()}}
    file = sandbox.home / ".claude.json" if extent == "all" else tmp_path / "mcp.json"
    file.write_text(json.dumps(servers))
    environment = sandbox.environment(CLAUDE_CODE_MCP_HUB=extent, CLAUDE_CODE_MCP_HUB_FILE=str(tmp_path / "mcp.json"))
    command = with_managed_settings(managed, [COMMAND, "mcp", "status", "--json"])
    done = subprocess.run(command, env=environment, cwd=sandbox.project, capture_output=True, text=True, check=False)
    states = {server["name"]: server for server in json.loads(done.stdout)}
    assert (states["bad"]["state"], states["good"]["state"]) == ("disabled", "connected"), done.stdout + done.stderr
    assert "denied by your organization" in states["bad"]["reason"]
    assert (Path(started["bad"]).exists(), Path(started["good"]).exists()) == (False, True)


async def test_later_denial_ends_the_connection_and_cannot_be_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    managed = write(tmp_path / "managed", {"managed-settings.json": "{}"})
    monkeypatch.setattr(config_files, "managed_directory", lambda: managed)
    own = tmp_path / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {"notes": program()}}))
    settings = load_settings({}, hub_file=own, state_dir=tmp_path / "state", hub="own")
    environment = sandbox.environment()
    source = HubSource(settings, environment)
    async with make_hub(settings, configuration := source.read(), environment) as hub:
        assert [status.state for status in await hub.connect()] == ["connected"]
        async with following(hub, configuration, source):
            changes: asyncio.Queue[frozenset[str]] = asyncio.Queue()
            hub.watch_servers(changes.put_nowait)
            write(managed, {"managed-settings.json": json.dumps({"deniedMcpServers": [{"serverName": "notes"}]})})
            assert await asyncio.wait_for(changes.get(), 40) == {"notes"}
            (status,) = hub.status()
            assert (status.state, "organization" in str(status.reason)) == ("disabled", True)
            with pytest.raises(PermissionDenied):
                hub.enable("notes")


@pytest.mark.parametrize("where", ["managed-settings.json", "managed-settings.d/10-later.json"])
async def test_client_hub_applies_a_later_denial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, where: str
) -> None:
    """Its users may be in several projects, so that it follows none of their files; an organization's it does."""
    managed = write(tmp_path / "managed", {"managed-settings.json": "{}"})
    monkeypatch.setattr(config_files, "managed_directory", lambda: managed)
    (sandbox.home / ".claude.json").write_text(json.dumps({"mcpServers": {"notes": program(), "other": program()}}))
    settings = load_settings({}, hub_file=tmp_path / "mcp.json", state_dir=tmp_path / "state", hub="all")
    hubs = Hubs(settings, linger=0)
    origin = ClientEnvironment(str(sandbox.project), sandbox.environment(CLAUDE_CODE_MCP_HUB="all"), "one")
    async with hubs.use(origin) as hub:
        assert [status.state for status in await hub.connect()] == ["connected", "connected"]
        changes: asyncio.Queue[frozenset[str]] = asyncio.Queue()
        hub.watch_servers(changes.put_nowait)
        for denied in (["notes"], ["notes", "other"]):  # the second is a change of a file that came later, too
            (managed / where).parent.mkdir(exist_ok=True)
            entries = [{"serverName": name} for name in denied]
            write(managed, {where: json.dumps({"deniedMcpServers": entries})})
            assert await asyncio.wait_for(changes.get(), 40) == {denied[-1]}
            states = {status.name: status.state for status in hub.status()}
            assert {name for name, state in states.items() if state == "disabled"} == set(denied)
            with pytest.raises(PermissionDenied):
                hub.enable(denied[-1])
        async with hubs.use(origin) as same:
            assert same is hub, "who comes now has the same servers, and shares it"
    await hubs.close()


def test_an_organization_provides_servers_that_need_no_list_and_can_be_denied(tmp_path: Path) -> None:
    provided = {
        "wiki": {"type": "http", "url": "https://wiki.example/mcp"},
        "old": {"type": "sse", "url": "https://old.example/sse"},
        "denied": {"type": "http", "url": "https://denied.example"},
        "program": {"command": "x"},
        "helper": {"type": "http", "url": "https://wiki.example", "headersHelper": "x"},
        "variable": {"type": "http", "url": "https://${HOST}/"},
    }
    settings = {
        "managedMcpServers": provided,
        "allowedMcpServers": [],
        "deniedMcpServers": [{"serverUrl": "https://denied.example*"}],
    }
    managed = write(tmp_path / "managed", {"managed-settings.json": json.dumps(settings)})
    user = tmp_path / ".claude.json"
    user.write_text(json.dumps({"mcpServers": {"wiki": {"command": "evil"}, "mine": {"command": "x"}}}))
    remote = tmp_path / "claude" / "remote-settings.json"
    remote.parent.mkdir()
    remote.write_text(json.dumps({"managedMcpServers": {"sent": {"type": "http", "url": "https://sent.example"}}}))
    paths = ConfigPaths(tmp_path / "mcp.json", user, None, remote.with_name("settings.json"), managed=managed)
    read = read_configuration(paths, {})
    assert allowed_by(read) == {"wiki", "old"}
    assert read.servers["wiki"].scope is ConfigScope.MANAGED
    assert read.servers["denied"].locked
    assert "sent" not in read.servers
    assert sorted(str(problem.entry) for problem in read.problems) == [
        "managedMcpServers.helper",
        "managedMcpServers.program",
        "managedMcpServers.variable",
    ]


# -- patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "fitting"),
    [("*", "", True), ("a*b", "ab", True), ("a*b", "aXbX", False), ("*a*a*", "aa", True), ("*a*a*", "a", False),
     ("ab*ba", "aba", False), ("", "", True), ("a", "A", False)],
)  # fmt: skip
def test_star_matches_any_characters(pattern: str, text: str, fitting: bool) -> None:
    assert matches(pattern, text) is fitting


def test_invalid_address_matches_only_the_star() -> None:
    assert written("no address") is None
    assert not fits("no address", "http://*")
    assert fits("no address", "*")
