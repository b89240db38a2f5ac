"""The other commands, as typed in a shell."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import claude_code_mcp
from claude_code_mcp import __version__
from claude_code_mcp.core.claude.executable import find_executable, read_version
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.transports.tokens_file import load_tokens
from tests.support import warm_commands
from tests.support.every_setting import every_variable
from tests.support.waiting import HANG_SECONDS


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run(arguments, environment)


def test_version_is_reported(environment: dict[str, str]) -> None:
    for flag in ("--version", "-V"):
        ours, place, claude = run(environment, flag).stdout.splitlines()
        assert ours == f"claude-code-mcp {__version__}"
        assert Path(place.removeprefix("installed in ")).samefile(Path(claude_code_mcp.__file__).parent)
        assert find_executable(None, environment) in claude
        assert read_version(claude.split()[2]) is not None


def test_help_names_every_command(environment: dict[str, str]) -> None:
    output = run(environment, "--help").stdout
    assert all(command in output for command in ("serve", "demo", "doctor", "config", "sessions", "mcp"))


@pytest.mark.parametrize("arguments", [["nonsense"], ["serve", "--nonsense"], ["config", "emacs"]])
def test_invalid_call_is_explained_in_two_lines(environment: dict[str, str], arguments: list[str]) -> None:
    answer = run(environment, *arguments)
    assert answer.returncode == 2
    assert "usage:" in answer.stderr


def test_an_argument_that_may_be_left_out_is_not_named_as_missing(environment: dict[str, str]) -> None:
    answer = run(environment, "answer")
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].endswith("required: ID")


@pytest.mark.parametrize("arguments", [["serve"], [], ["doctor"], ["config"], ["serve", "--http", "127.0.0.1:0"]])
def test_a_setting_that_does_not_parse_is_named(environment: dict[str, str], arguments: list[str]) -> None:
    answer = run({**environment, "MAX_SESSIONS": "many"}, *arguments)
    assert answer.returncode in (1, 2)
    assert "MAX_SESSIONS='many'" in answer.stderr + answer.stdout
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:99999"])
def test_a_bad_address_is_refused(environment: dict[str, str], address: str) -> None:
    answer = run(environment, "serve", "--http", address)
    assert answer.returncode == 2
    assert "HOST:PORT" in answer.stderr


@pytest.mark.soak  # so does the deep check of test_doctor.py
def test_doctor_finds_everything_in_order_and_runs_a_turn(environment: dict[str, str]) -> None:
    answer = run(environment, "doctor", "--deep")
    assert answer.returncode == 0, answer.stdout
    assert "a turn on the scripted model: answered" in answer.stdout
    assert "Everything works." in answer.stdout


def test_doctor_says_what_to_fix(environment: dict[str, str], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    broken = {**environment, "CLAUDE_CODE_PATH": "/nowhere/claude", "CLAUDE_CODE_MCP_STATE_DIR": str(blocked)}
    answer = run(broken, "doctor")
    assert answer.returncode == 1
    assert "WRONG  Claude Code" in answer.stdout
    assert "WRONG  state directory" in answer.stdout
    assert answer.stdout.count("fix: ") == 2


def test_config_prints_all_settings_without_secrets(environment: dict[str, str]) -> None:
    secret = "s3cret-s3cret-s3cret-s3cret-abc"
    answer = run({**environment, "CLAUDE_CODE_MCP_TOKEN": secret, "MAX_SESSIONS": "7"}, "config")
    assert all(f"{variable}=" in answer.stdout for variable in every_variable())
    assert "MAX_SESSIONS=7\n" in answer.stdout
    assert "CLAUDE_CODE_MCP_TOOLSETS=sessions,code,query\n" in answer.stdout, "as the variable takes it"
    assert secret not in answer.stdout


def test_config_prints_json_that_starts_this_server(environment: dict[str, str]) -> None:
    printed = set()
    for client in ("claude-desktop", "cursor", "vscode"):
        output = run(environment, "config", client).stdout
        parsed = json.loads(output[output.index("{") :])
        ((_, server),) = (parsed.get("mcpServers") or parsed["servers"]).items()
        assert server["args"][-1] == "--shared"
        assert "--shared" not in run(environment, "config", client, "--own").stdout
        printed.add((server["command"], *server["args"][:-1]))
    [command] = printed
    answer = subprocess.run([*command, "--version"], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("claude-code-mcp ")


def test_config_prints_toml_for_codex(environment: dict[str, str]) -> None:
    output = run(environment, "config", "codex").stdout
    parsed = tomllib.loads(output.split("\n", 1)[1])
    assert parsed["mcp_servers"]["claude-code"]["command"]


def test_the_demo_tells_the_whole_story(environment: dict[str, str]) -> None:
    answer = run(environment, "demo")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for text in (
        "return a + b",
        "Ticket 7 is closed.",
        "the person picks 'pytest'",
        "plan_review",
        "interrupted",
        "removed everything it created",
        "config CLIENT --install",
        "'Fix ticket 7.'",
    ):
        assert text in answer.stdout
    assert "SCRIPT:" not in answer.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list", "--limit", "-1"],
        ["sessions", "list", "--limit", "0"],
        ["sessions", "show", "x", "--lines", "-5"],
        ["mcp", "status", "--connect-timeout", "-1"],
        ["mcp", "call", "x", "y", "--timeout", "-1"],
        ["mcp", "login", "x", "--timeout", "nan"],
    ],
)
def test_invalid_limit_is_refused(environment: dict[str, str], arguments: list[str]) -> None:
    answer = run(environment, *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert f"argument {arguments[-2]}: {arguments[-1]} is not" in answer.stderr


def test_config_as_json_has_every_setting_and_no_secret(environment: dict[str, str]) -> None:
    secret = "s3cret-s3cret-s3cret-s3cret-abc"
    answer = run({**environment, "CLAUDE_CODE_MCP_TOKEN": secret, "MAX_SESSIONS": "7"}, "config", "--json")
    values = json.loads(answer.stdout)
    assert sorted(values) == sorted(every_variable())
    assert values["MAX_SESSIONS"] == 7
    assert values["CLAUDE_CODE_MCP_TOKENS_FILE"] is None
    assert secret not in answer.stdout
    assert run(environment, "config", "cursor", "--json").returncode == 2


def test_a_token_is_new_each_time_and_good_for_the_server(environment: dict[str, str]) -> None:
    tokens = [run(environment, "token").stdout.strip() for _ in range(2)]
    assert tokens[0] != tokens[1]
    for token in tokens:
        settings = load_settings({"CLAUDE_CODE_MCP_TOKEN": token})
        assert load_tokens(settings) == {token: "default"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/nowhere/claude", "'/nowhere/claude', which is not an executable file"),
        (shutil.which("false"), "The demo failed"),
    ],
    ids=["missing", "broken"],
)
def test_the_demo_without_a_cli_that_works_ends_with_one_line(
    environment: dict[str, str], path: str, expected: str
) -> None:
    answer = run({**environment, "CLAUDE_CODE_PATH": path}, "demo")
    assert answer.returncode == (1 if "failed" in expected else 5)
    (line,) = answer.stderr.splitlines()
    assert line.startswith("claude-code-mcp: ")
    assert expected in line


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST_TOOLS = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def test_flags_of_serve_need_no_serve(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "claude_code_mcp", "--toolsets", "query"]
    lines = f"{json.dumps(INITIALIZE)}\n{json.dumps(LIST_TOOLS)}\n"
    answer = subprocess.run(
        command, env=environment, input=lines, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    replies = {reply["id"]: reply["result"] for reply in map(json.loads, answer.stdout.splitlines())}
    assert [tool["name"] for tool in replies[2]["tools"]] == ["claude_code_query"]
    mistake = run(environment, "--nonsense")
    assert mistake.returncode == 2
    assert "usage: claude-code-mcp" in mistake.stderr
    assert "--nonsense" in mistake.stderr
