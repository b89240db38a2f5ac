"""What a process is charged for what the server has counted of its traffic, whatever it claims itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.model.usage import ModelUsage, Usage
from claude_code_mcp.core.sessions.traffic_ledger import UNREPORTED, TrafficLedger

TABLE = json.loads((Path(__file__).parents[2] / "scenarios" / "attacks" / "costs.json").read_text())


def taken(ledger: TrafficLedger, step: dict[str, Any]) -> Usage:
    """What is charged in one step."""
    if "counted" in step:
        model, read, written = step["counted"]
        ledger.count(Usage({model: ModelUsage(read, written)}))
        return Usage()
    read, written, dollars = step.get("claimed", (0, 0, 0.0))
    claimed = Usage({"m": ModelUsage(read, written, cost_usd=dollars)}) if "claimed" in step else Usage()
    return ledger.charge(claimed, final="idle" not in step)


@pytest.mark.parametrize("row", TABLE, ids=[row["attack"] for row in TABLE])
def test_the_table_of_costs(row: dict[str, Any]) -> None:
    ledger = TrafficLedger()
    charges = [taken(ledger, step) for step in row["steps"]]
    assert all(charge.cost_usd >= 0 for charge in charges)
    assert sum(charge.cost_usd for charge in charges) == pytest.approx(row["charged"])


def test_unclaimed_tokens_are_listed_once() -> None:
    ledger = TrafficLedger()
    ledger.count(Usage({"claude-opus-5-5": ModelUsage(1000, 10)}))
    first, second = ledger.charge(Usage(), final=False), ledger.charge(Usage(), final=True)
    assert first.of_model(UNREPORTED).input_tokens == 1000
    assert second.of_model(UNREPORTED).input_tokens == 0
    assert second.cost_usd > 0
    assert ledger.charge(Usage(), final=True).cost_usd == 0


def test_the_least_that_is_due_is_known_before_anything_is_claimed() -> None:
    ledger = TrafficLedger()
    ledger.count(Usage({"claude-opus-5-5": ModelUsage(1_000_000, 0)}))
    assert ledger.due_usd == pytest.approx(4.0)
    ledger.charge(Usage({"m": ModelUsage(1_000_000, cost_usd=4.0)}), final=True)
    assert ledger.due_usd == 0


def test_expensive_model_of_a_family_has_its_own_price() -> None:
    for model in ("claude-opus-4-1-20250805", "claude-opus-4-20250514"):
        ledger = TrafficLedger()
        ledger.count(Usage({model: ModelUsage(1_000_000, 0)}))
        assert ledger.due_usd == pytest.approx(15.0)
