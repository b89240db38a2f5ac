"""The greeting of the real command on real pipes: the same answers, only sooner, and nothing lost on the way."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as SdkClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.server.manifest import first_answers
from claude_code_mcp.server.server import McpServer
from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS

from .client import (
    BROKEN,
    INITIALIZED,
    LEGACY,
    MODERN,
    PLAIN,
    WRONG,
    Client,
    HeldClient,
    Message,
    enveloped,
    initialize,
    lines,
    request,
    unknown_tool,
)

pytestmark = pytest.mark.usefixtures("needs_fresh_manifest")
SETTINGS: dict[str, dict[str, str]] = {
    "defaults": {},
    "other settings": {"LOG_LEVEL": "error", "MAX_SESSIONS": "3", "CLAUDE_CODE_MCP_ON_DISCONNECT": "keep"},
    "one toolset": {"CLAUDE_CODE_MCP_TOOLSETS": "sessions"},
}


def is_greeted(environment: dict[str, str]) -> bool:
    """Whether a start with these settings is greeted: with a server that cannot start, only the greeting answers."""
    with Client({**environment, **BROKEN}) as client:
        client.send(initialize())
        assert client.process.stdout is not None
        return bool(client.process.stdout.readline())


def wait_for_a_manifest(environment: dict[str, str]) -> Path:
    """Runs the server until it has left a manifest in the cache, which it does before it ends."""
    with Client(environment, warm=True) as client:
        client.ask(initialize())
        assert client.end()[0] == 0
    (manifest,) = cache(environment).iterdir()
    return manifest


def cache(environment: dict[str, str]) -> Path:
    return Path(environment["XDG_CACHE_HOME"]) / "claude-code-mcp"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
async def test_greeted_answers_are_those_of_the_server(environment: dict[str, str], settings: dict[str, str]) -> None:
    chosen = {**environment, **settings}
    if not is_greeted(chosen):
        wait_for_a_manifest(chosen)
    expected, otherwise = await first_answers(McpServer(Service(load_settings(settings))).server())
    for version in [*LEGACY, "2099-01-01"]:
        spoken = version if version in LEGACY else otherwise
        with Client({**chosen, **BROKEN}) as client:
            assert client.ask(initialize(version))["result"] == expected["initialize"][spoken]
            assert client.ask(request("tools/list", "list"))["result"] == expected["tools/list"][spoken]
    with Client({**chosen, **BROKEN}) as client:
        assert client.ask(enveloped("server/discover", 0))["result"] == expected["server/discover"][MODERN]
        assert client.ask(enveloped("tools/list", 1))["result"] == expected["tools/list"][MODERN]


def test_the_plain_start_gives_the_same_answers(environment: dict[str, str]) -> None:
    said = []
    for chosen in (BROKEN, PLAIN):
        with Client({**environment, **chosen}, warm=chosen is PLAIN) as client:
            said.append([client.ask(initialize()), client.ask(request("tools/list", "list"))])
    assert said[0] == said[1]


def test_a_client_that_sends_everything_at_once_gets_each_answer_once(environment: dict[str, str]) -> None:
    with Client(environment) as client:
        client.send(
            initialize(),
            INITIALIZED,
            request("tools/list", 1),
            unknown_tool("call"),
            request("ping", 2),
            unknown_tool(3),
        )
        answers = client.answers(5)
        assert answers[0]["result"]["protocolVersion"] == LEGACY[-1]
        assert answers[1]["result"]["tools"]
        assert answers[2]["result"] == {}
        assert answers["call"]["error"]["message"] == answers[3]["error"]["message"] == "Unknown tool: no_such_tool"
        assert client.ask(request("ping", 4))["result"] == {}
        assert client.end() == (0, [], "")


def test_a_modern_client_that_sends_everything_at_once_gets_each_answer_once(environment: dict[str, str]) -> None:
    with HeldClient(environment) as client:
        call = enveloped("tools/call", "call", name="no_such_tool", arguments={})
        client.send(enveloped("server/discover", 0), enveloped("tools/list", 1), call)
        answers = client.answers(2)
        assert MODERN in answers[0]["result"]["supportedVersions"]
        assert answers[1]["result"]["tools"]
        client.load()
        assert client.read()["error"]["message"] == "Unknown tool: no_such_tool"
        assert client.end() == (0, [], "")


def test_the_server_takes_over_in_the_era_of_the_greeting(environment: dict[str, str]) -> None:
    with HeldClient(environment) as client:
        client.ask(initialize())
        client.load()
        assert client.ask(enveloped("tools/list", 1))["error"]["code"] == -32600
    with HeldClient(environment) as client:
        client.ask(enveloped("server/discover", 0))
        client.load()
        assert client.ask(initialize(request_id=1))["error"]["code"] == -32022


def test_bytes_that_come_one_by_one_are_put_together(environment: dict[str, str]) -> None:
    with HeldClient(environment) as client:
        for byte in lines(initialize(), INITIALIZED, request("tools/list", 1), request("ping", 2)):
            client.write(bytes([byte]))
        assert set(client.answers(2)) == {0, 1}
        client.load()
        assert client.read() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        assert client.end() == (0, [], "")


def test_a_line_that_is_cut_by_the_change_of_hands_arrives_whole(environment: dict[str, str]) -> None:
    call = lines(request("tools/call", 3, name="no_such_tool", arguments={"text": "x" * 500_000}))
    with HeldClient(environment) as client:
        client.send(initialize(), INITIALIZED, request("ping", 1))
        client.write(call[:200_000])
        assert client.read()["id"] == 0
        client.load()
        assert client.read()["id"] == 1
        client.write(call[200_000:])
        assert client.read()["id"] == 3
        assert client.end() == (0, [], "")


def test_a_long_input_waits_for_the_server(environment: dict[str, str]) -> None:
    calls = [
        request("tools/call", number, name="no_such_tool", arguments={"text": "x" * 100_000}) for number in range(50)
    ]
    with Client(environment, warm=True) as client:
        client.send(initialize(request_id="hello"), INITIALIZED, *calls)
        assert set(client.answers(51)) == {"hello", *range(50)}
        assert client.end() == (0, [], "")


GARBAGE = {
    b"garbage": -32700,
    b"\xff\xfe": -32700,
    b"[]": -32600,
    b"[1, 2]": -32600,
    b'{"jsonrpc": "2.0"}': None,
    b" ": None,
}


def test_non_requests_are_left_to_the_server(environment: dict[str, str]) -> None:
    garbage = b"".join(line + b"\n" for line in GARBAGE)
    refused = [code for code in GARBAGE.values() if code] * 2
    with HeldClient(environment) as client:
        client.write(lines(initialize(), INITIALIZED) + garbage + lines(request("ping", 1)) + garbage)
        client.send(request("tools/list", 2))
        client.load()
        answers = [client.read() for _ in range(3 + len(refused))]
        assert client.end() == (0, [], "")
    assert {answer["id"] for answer in answers if "result" in answer} == {0, 1, 2}
    assert [answer["error"]["code"] for answer in answers if "error" in answer] == refused


def test_a_request_called_off_after_its_answer_does_no_harm(environment: dict[str, str]) -> None:
    with HeldClient(environment) as client:
        called_off = [
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": n}} for n in (0, 1)
        ]
        client.send(
            enveloped("server/discover", 0), enveloped("tools/list", 1), *called_off, enveloped("tools/list", 2)
        )
        assert set(client.answers(3)) == {0, 1, 2}
        client.load()
        call = enveloped("tools/call", "call", name="no_such_tool", arguments={})
        assert "error" in client.ask(call)
        assert client.end() == (0, [], "")


CONVERSATION = [initialize(), INITIALIZED, request("tools/list", 1), request("ping", 2)]


PARTIAL = b'{"jsonrpc": "2.0", "id": 9, "meth'
ENDS = [(count, partial) for count in range(len(CONVERSATION) + 1) for partial in (b"", PARTIAL)]
QUICK_ENDS = [(0, b""), (0, PARTIAL), (2, b""), (3, PARTIAL)]


@pytest.mark.parametrize(
    ("count", "partial"), [end if end in QUICK_ENDS else pytest.param(*end, marks=pytest.mark.soak) for end in ENDS]
)
def test_input_may_end_at_any_point(environment: dict[str, str], count: int, partial: bytes) -> None:
    with HeldClient(environment) as client:
        client.write(lines(*CONVERSATION[:count]) + partial)
        code, said, errors = client.end()
    assert (code, errors) == (0, "")
    asked = [message["id"] for message in CONVERSATION[:count] if "id" in message]
    assert [answer["id"] for answer in said if "result" in answer] == asked
    assert [answer["error"]["code"] for answer in said if "error" in answer] == ([-32700] if partial else [])


def test_the_last_line_needs_no_end(environment: dict[str, str]) -> None:
    with Client(environment) as client:
        client.write(lines(initialize()).rstrip())
        code, said, _ = client.end()
    assert (code, [answer["id"] for answer in said]) == (0, [0])


def told_to_a_caller(answer: Message) -> str:
    """What a refused call is told, as text."""
    result = answer["result"]
    assert result["isError"]
    assert result["structuredContent"]["error"]["code"] == "INVALID_ARGUMENT"
    return str(result["content"][0]["text"])


SERVE = ["serve", "--on-disconnect", "keep"]


@pytest.mark.parametrize(
    ("arguments", "greeting"),
    [
        ([], {}),
        (SERVE, PLAIN),
        pytest.param(SERVE, {}, marks=pytest.mark.soak),
        pytest.param([], PLAIN, marks=pytest.mark.soak),
    ],
    ids=["greeted", "plain with flags", "greeted with flags", "plain"],
)
def test_invalid_settings_are_reported_with_every_call(
    environment: dict[str, str], arguments: list[str], greeting: dict[str, str]
) -> None:
    with Client({**environment, **WRONG, **greeting}, *arguments, warm=greeting is PLAIN) as client:
        assert "result" in client.ask(initialize())
        client.send(INITIALIZED)
        assert client.ask(request("tools/list", 1))["result"]["tools"]
        for number in (2, 3):
            call = request("tools/call", number, name="claude_list_sessions", arguments={})
            assert "MAX_SESSIONS='many' is not valid" in told_to_a_caller(client.ask(call))
        code, said, errors = client.end()
    assert (code, said) == (2, [])
    assert errors.startswith("claude-code-mcp: MAX_SESSIONS='many'")
    assert errors.count("\n") == 1


def broken_files(place: Path) -> dict[str, tuple[dict[str, str], list[str], str]]:
    """By name: variables, arguments, and a part of what a caller is told."""
    (place / "policy.toml").write_text("default = 'nobody'\n[profiles", encoding="utf-8")
    (place / "mcp.json").write_text("{", encoding="utf-8")
    return {
        "policy missing": ({"CLAUDE_CODE_MCP_POLICY": str(place / "none")}, [], "The policy file"),
        "policy broken": ({"CLAUDE_CODE_MCP_POLICY": str(place / "policy.toml")}, [], "policy.toml"),
        "hub file broken": ({"CLAUDE_CODE_MCP_HUB_FILE": str(place / "mcp.json")}, [], "mcp.json"),
        "configuration missing": ({}, ["serve", "--config", str(place / "none")], "configuration file"),
        "flag unknown": ({}, ["serve", "--nonsense"], "--nonsense"),
    }


BROKEN_FILES = ["policy missing", "policy broken", "hub file broken", "configuration missing", "flag unknown"]


@pytest.mark.parametrize("broken", BROKEN_FILES)
def test_other_start_errors_are_also_reported(environment: dict[str, str], tmp_path: Path, broken: str) -> None:
    variables, arguments, part = broken_files(tmp_path)[broken]
    with Client({**environment, **variables}, *arguments, warm=True) as client:
        assert "result" in client.ask(initialize())
        client.send(INITIALIZED)
        call = request("tools/call", 1, name="claude_list_sessions", arguments={})
        assert part in told_to_a_caller(client.ask(call))
        code, _, errors = client.end()
    assert code == 2
    assert part in errors


def test_invalid_settings_are_reported_to_a_silent_client(environment: dict[str, str]) -> None:
    with Client({**environment, **WRONG}, warm=True) as client:
        code, said, errors = client.end()
    assert (code, said) == (2, [])
    assert errors.startswith("claude-code-mcp: MAX_SESSIONS='many'")


TOOLSET = {"CLAUDE_CODE_MCP_TOOLSETS": "sessions"}


def test_settings_that_change_the_answers_are_greeted_from_the_second_start(environment: dict[str, str]) -> None:
    chosen = {**environment, **TOOLSET}
    assert not is_greeted(chosen)
    wait_for_a_manifest(chosen)
    assert is_greeted(chosen)
    assert not is_greeted({**environment, "CLAUDE_CODE_MCP_TOOLSETS": "query"})


def test_a_damaged_cache_is_passed_over_and_renewed(environment: dict[str, str]) -> None:
    chosen = {**environment, **TOOLSET}
    manifest = wait_for_a_manifest(chosen)
    whole = manifest.read_bytes()
    for damage in (b"", b"{}", b"garbage\n" * 100, b'{"crc32": 0}\n{}\n'):
        manifest.write_bytes(damage)
        assert not is_greeted(chosen)
    assert wait_for_a_manifest(chosen).read_bytes() == whole


def test_unwritable_cache_only_disables_the_greeting(environment: dict[str, str], tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the directory should be")
    with Client({**environment, **TOOLSET, "XDG_CACHE_HOME": str(occupied)}, warm=True) as client:
        assert "result" in client.ask(initialize())
        assert client.end() == (0, [], "")
    assert occupied.read_text() == "a file where the directory should be"


@pytest.mark.parametrize("mode", ["auto", *(pytest.param(mode, marks=pytest.mark.soak) for mode in ("legacy", MODERN))])
async def test_the_client_of_the_sdk_lists_and_calls(environment: dict[str, str], mode: str) -> None:
    transport = stdio_client(StdioServerParameters(command=COMMAND, env=environment))
    async with SdkClient(transport, mode=mode) as client:
        assert "claude_create_session" in {tool.name for tool in (await client.list_tools()).tools}
        result: Any = await client.call_tool("claude_list_sessions", {})
        assert not result.is_error
        assert (await client.list_tools()).tools


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGTERM, {-signal.SIGTERM, 0}), (signal.SIGINT, {130, 0})])
def test_a_signal_during_the_greeting_ends_it(environment: dict[str, str], number: int, codes: set[int]) -> None:
    with Client(environment) as client:
        client.ask(initialize())
        client.process.send_signal(number)
        assert client.process.wait(HANG_SECONDS) in codes
        assert client.end()[1:] == ([], "")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_after_the_greeting_signals_end_the_server_in_order(environment: dict[str, str], number: int) -> None:
    """They reach the server only if it runs in the main thread."""
    with Client(environment) as client:
        client.ask(initialize())
        client.ask(request("ping", 1))
        client.process.send_signal(number)
        assert client.process.wait(HANG_SECONDS) == 0
        assert client.end()[1:] == ([], "")


def test_greeting_ends_when_the_client_stops_reading(environment: dict[str, str]) -> None:
    with Client(environment) as client:
        assert client.process.stdout is not None
        assert client.process.stderr is not None
        client.process.stdout.close()
        client.send(initialize(), request("tools/list", 1))
        assert client.process.stderr.read() == b""
        assert client.process.wait(HANG_SECONDS) == 0


def test_a_server_that_cannot_be_loaded_says_so(environment: dict[str, str]) -> None:
    load = "def load(): 1 / 0"
    code = (
        f"import sys\nfrom claude_code_mcp.startup.greeting.loop import greet\n{load}\nsys.exit(greet(['serve'], load))"
    )
    with Client(environment, command=(os.path.join(os.path.dirname(COMMAND), "python"), "-c", code)) as client:
        client.ask(initialize())
        assert client.process.wait(HANG_SECONDS) == 1
        assert "ZeroDivisionError" in client.end()[2]


def test_the_fast_way_in_imports_next_to_nothing() -> None:
    python = os.path.join(os.path.dirname(COMMAND), "python")
    results = [
        subprocess.run(
            [python, "-c", f"import sys{more}; print(*sys.modules)"], capture_output=True, text=True, check=True
        )
        for more in ("", ", claude_code_mcp.cli.main, claude_code_mcp.startup.greeting.loop")
    ]
    before, after = (set(result.stdout.split()) for result in results)
    startup = (".greeting", ".greeting.loop", ".greeting.first_answers", "")
    others = ("", ".sdk_version", ".cli", ".cli.main", ".core", ".core.processes", ".core.processes.environment")
    ours = {f"claude_code_mcp{name}" for name in (*others, *(f".startup{name}" for name in startup))}
    assert after - before == ours | {"_json", "binascii", "select"}
