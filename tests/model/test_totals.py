"""What each result used, however the CLI tells it: nothing lost, nothing counted twice."""

from typing import Any

import pytest

from claude_code_mcp.model.usage import ModelUsage, Totals, Usage


def model_usage(tokens: int) -> dict[str, Any]:
    return {"inputTokens": tokens, "outputTokens": tokens // 10, "costUSD": tokens / 1e6}


def result(since: dict[str, int] | None = None, **totals: int) -> dict[str, Any]:
    told: dict[str, Any] = {"modelUsage": {name: model_usage(tokens) for name, tokens in totals.items()}}
    told["total_cost_usd"] = sum(totals.values()) / 1e6
    if since is not None:
        told["model_usage_since_last_result"] = {name: model_usage(tokens) for name, tokens in since.items()}
    return told


def tokens(usage: Usage) -> dict[str, int]:
    return {name: part.input_tokens for name, part in usage.models.items()}


def restored(**totals: int) -> Usage:
    parts = {name: ModelUsage(count, count // 10, cost_usd=count / 1e6) for name, count in totals.items()}
    return Usage(parts)


def used(totals: Totals, *results: dict[str, Any]) -> list[dict[str, int]]:
    return [tokens(totals.used_by(one)) for one in results]


def test_growing_totals_are_told_apart() -> None:
    assert used(Totals(), result(a=10), result(a=30), result(a=30, b=5)) == [{"a": 10}, {"a": 20}, {"b": 5}]


def test_a_result_of_which_nothing_is_new_used_nothing() -> None:
    totals = Totals()
    assert used(totals, result(a=10), result(a=10)) == [{"a": 10}, {}]
    assert totals.used_by({}) == Usage()


def test_what_the_result_says_itself_counts() -> None:
    assert used(Totals(), result({"a": 4}, a=10), result({"a": 1}, a=11), result(a=20)) == [
        {"a": 4},
        {"a": 1},
        {"a": 9},
    ]


def test_restored_totals_are_not_counted_again() -> None:
    assert used(Totals(restored(a=100)), result(a=120), result(a=150)) == [{"a": 20}, {"a": 30}]
    assert used(Totals(restored(a=100)), result(a=100, b=7)) == [{"b": 7}]


@pytest.mark.parametrize("first", [{"a": 20}, {"b": 500}], ids=["less than before", "without a model from before"])
def test_totals_that_begin_from_nothing_count_whole(first: dict[str, int]) -> None:
    totals = Totals(restored(a=100))
    assert used(totals, result(None, **first)) == [first]
    again = {name: count + 5 for name, count in first.items()}
    assert used(totals, result(None, **again)) == [dict.fromkeys(first, 5)]


def test_a_cost_without_models_is_counted_too() -> None:
    totals = Totals()
    costs = [totals.used_by({"total_cost_usd": amount}).cost_usd for amount in (0.5, 0.75, 0.75)]
    assert costs == pytest.approx([0.5, 0.25, 0.0])


def test_sums_of_floats_that_differ_in_the_last_digit_are_the_same() -> None:
    base = Usage({"a": ModelUsage(3, cost_usd=0.1 + 0.2)})
    told = {"modelUsage": {"a": {"inputTokens": 3, "costUSD": 0.3}}}
    assert Totals(base).used_by(told) == Usage()
