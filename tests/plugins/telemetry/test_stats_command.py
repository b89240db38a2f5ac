"""The figures of a running server from the shell, and starts that the policy stops."""

import json
import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox
from tests.support import warm_commands
from tests.support.program import http_server

TOKEN = "figures-token-5f0c9d2e7b41a86c"


def stats(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return warm_commands.run(["stats", *arguments], environment)


def test_the_figures_come_as_a_table(environment: dict[str, str], sandbox: Sandbox) -> None:
    guarded = {**environment, "CLAUDE_CODE_MCP_METRICS_TOKEN": TOKEN}
    with http_server(guarded, sandbox.project) as server:
        shown = stats(guarded, server.base.removeprefix("http://"))
        raw = stats(guarded, "--raw", server.url)
        samples = json.loads(stats(guarded, "--json", server.url).stdout)
        refused = stats(environment, server.base)
    assert shown.returncode == raw.returncode == 0
    rows = {line.rpartition("  ")[0].strip(): line.rpartition("  ")[2] for line in shown.stdout.splitlines()}
    assert rows["sessions place=live"] == "0"
    assert rows["memory_bytes process=server"].endswith("MB")
    live = {"name": "claude_code_mcp_sessions", "labels": {"place": "live"}, "value": 0}
    assert live in samples
    assert "# TYPE claude_code_mcp_sessions gauge" in raw.stdout
    assert (refused.returncode, "401" in refused.stderr) == (4, True)


def test_missing_server_is_reported_in_one_line(environment: dict[str, str]) -> None:
    for where in ("127.0.0.1:1", "not an address", "127.0.0.1:99999"):
        failed = stats(environment, where)
        assert failed.returncode in (2, 5)
        assert failed.stderr.count("\n") == 1


@pytest.mark.parametrize("how", [[], ["--http", "127.0.0.1:0"]], ids=["stdio", "http"])
@pytest.mark.parametrize(
    ("policy", "named"), [("[profiles.x]\nrots = []", "profiles.x.rots"), ("deny = ", "not valid TOML"), (None, "read")]
)
def test_a_policy_that_does_not_parse_stops_the_start(
    environment: dict[str, str], tmp_path: Path, how: list[str], policy: str | None, named: str
) -> None:
    file = tmp_path / "policy.toml"
    if policy is not None:
        file.write_text(policy)
    settings = {**environment, "CLAUDE_CODE_MCP_POLICY": str(file)}
    stopped = warm_commands.run(["serve", "--on-disconnect", "stop", *how], settings)
    assert stopped.returncode == 2
    (line,) = stopped.stderr.splitlines()
    assert named in line
    assert str(file) in line
