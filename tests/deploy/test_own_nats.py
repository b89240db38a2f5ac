"""A fleet on the operator's own NATS, by the lines of the manifests and with the permissions that the page names."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats", reason="the extra `fleet` is not installed")

from claude_code_mcp.plugins.fleet.nats_server import executable
from tests.support.own_nats import OwnServer
from tests.support.ports import free_port

from .deployment import ROOT, workloads
from .processes import environment, output_of, running

REPORT = "$KV.fleet_machines.ID"


def permissions_on_the_page(without: str | None = None) -> dict[str, Any]:
    page = (ROOT / "docs" / "fleet.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^(publish|subscribe) +(.*)$", page, re.MULTILINE))
    assert re.search(r"^allow_responses +1, within a minute$", page, re.MULTILINE)
    return {
        "pub": {"allow": [subject for subject in listed["publish"].split() if subject != without]},
        "sub": {"allow": listed["subscribe"].split()},
        "resp": {"max": 1, "ttl": 60 * 10**9},
    }


@pytest.mark.soak
# Where the gateway reports, machines need fewer permissions. tests/plugins/fleet/test_doors.py tests the other way.
@pytest.mark.parametrize("reports", [pytest.param("machine", marks=pytest.mark.soak), "gateway"])
def test_gateway_and_machine_find_each_other_with_credentials(tmp_path: Path, reports: str) -> None:
    server = OwnServer(tmp_path)
    permissions = permissions_on_the_page(REPORT if reports == "gateway" else None)
    assert (REPORT in permissions["pub"]["allow"]) is (reports == "machine")
    users = {
        "claude-code-mcp-gateway": server.credentials("gateway", 0),
        "claude-code-mcp-runner": server.credentials("runner", 1, permissions),
    }
    lines = {str(each).removeprefix("fleet-nats/"): each.main["args"] for each in workloads() if "nats/" in str(each)}
    url, http = f"nats://127.0.0.1:{server.port}", f"127.0.0.1:{free_port()}"

    def command(name: str) -> list[str]:
        here = {"/credentials/nats.creds": str(users[name]), "0.0.0.0:8765": http, "$(POD_NAME)": f"{name}-0"}
        words = [url if word.startswith("tls://") else here.get(word, word) for word in lines[name]]
        return ["claude-code-mcp", *words]

    def variables(name: str) -> dict[str, str]:
        (tmp_path / name).mkdir(exist_ok=True)
        return environment(tmp_path / name, tmp_path / name / "state") | {"CLAUDE_CODE_MCP_FLEET_REPORTS": reports}

    with (
        running(
            [executable(), "-c", str(server.configuration())],
            {},
            "Server is ready",
            exit_codes=(0, 1),  # it tells of the signal
        ),
        running(
            command("claude-code-mcp-gateway"),
            variables("claude-code-mcp-gateway"),
            f"http://{http}/mcp",
        ),
        running(
            command("claude-code-mcp-runner"),
            variables("claude-code-mcp-runner"),
            "claude-code-mcp-runner-0 (",
        ),
    ):
        credentials = str(users["claude-code-mcp-gateway"])
        status = ["claude-code-mcp", "fleet", "status", "--json", "--nats", url, "--creds", credentials]
        machines = json.loads(output_of(status, variables("claude-code-mcp-gateway")))
    assert {machine["capacity"] for machine in machines if not machine["gone"]} == {1, 6}
    assert "claude-code-mcp-runner-0" in {machine["name"] for machine in machines}
