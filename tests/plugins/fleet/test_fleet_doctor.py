"""What `doctor` says of a fleet."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("nats", reason="the extra `fleet` is not installed")

from claude_code_mcp import __version__
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.plugins.fleet.doctor import FleetState, check_fleet, judged
from claude_code_mcp.plugins.fleet.host import hosting
from claude_code_mcp.plugins.fleet.machines import Machine

HERE = Machine("m1", "one", __version__, "2.1.325", frozenset(), 4, 0, 8 << 30, False, ())
WHOLE = FleetState(0.3, __version__, (HERE,))


def test_healthy_fleet() -> None:
    found = list(judged(WHOLE))
    assert all(finding.ok for finding in found)
    machines, _, versions = found
    assert "1" in machines.detail.split()
    assert __version__ in versions.detail


@pytest.mark.parametrize(
    ("state", "subject", "detail"),
    [
        (replace(WHOLE, clock_ahead=90.0), "fleet's clock", "90 s ahead"),
        (replace(WHOLE, clock_ahead=-90.0), "fleet's clock", "90 s behind"),
        (replace(WHOLE, gateway_version="9.9"), "fleet's versions", "gateway"),
        (replace(WHOLE, machines=(replace(HERE, version="9.9"),)), "fleet's versions", "one "),
        (replace(WHOLE, machines=(replace(HERE, cli_version=""),)), "fleet", "one "),
    ],
)
def test_problem_is_reported_with_a_fix(state: FleetState, subject: str, detail: str) -> None:
    (wrong,) = [found for found in judged(state) if not found[1]]
    assert wrong[0] == subject
    assert detail in wrong[2]
    assert wrong[3]


def test_a_machine_that_is_gone_is_named() -> None:
    assert "laptop" in next(judged(replace(WHOLE, gone=("laptop",))))[2]


def test_doctor_skips_fleet_checks_without_a_fleet(tmp_path: Path) -> None:
    assert list(check_fleet(load_settings({}, state_dir=tmp_path))) == []


async def test_a_fleet_is_asked_while_it_is_up_and_missed_when_it_is_not(tmp_path: Path) -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_FLEET_DIR": str(tmp_path / "trees")}, state_dir=tmp_path)
    async with hosting(tmp_path / "fleet", host="127.0.0.1", port=-1, name="server"):
        found = await asyncio.to_thread(lambda: list(check_fleet(settings)))
    assert [(finding.subject, finding.ok) for finding in found] == [
        ("fleet", True),
        ("fleet's clock", True),
        ("fleet's versions", True),
        ("fleet's disk", True),
        ("fleet's disk", True),
    ]
    assert "1 do not respond: server" in found[0].detail, "only the fleet's server runs here, and no machine"
    found = await asyncio.to_thread(lambda: list(check_fleet(settings)))
    assert found[0][:2] == ("fleet", False)


def test_damaged_or_incomplete_fleet_settings_are_findings(tmp_path: Path) -> None:
    half = load_settings({"CLAUDE_CODE_MCP_NATS": "tls://127.0.0.1:1"}, state_dir=tmp_path)
    assert [(subject, ok) for subject, ok, *_ in check_fleet(half)] == [("fleet", False)]
    stored = tmp_path / "fleet" / "server" / "server.json"
    stored.parent.mkdir(parents=True)
    for text, mode in (("{}", 0o644), ("no JSON", 0o600), ("{}", 0o600), ("[]", 0o600)):
        stored.write_text(text, encoding="utf-8")
        stored.chmod(mode)
        found = list(check_fleet(load_settings({}, state_dir=tmp_path)))
        assert [(subject, ok) for subject, ok, *_ in found if subject == "fleet"] == [("fleet", False)], text
