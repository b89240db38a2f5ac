"""Tokens and money add up. What each result used is neither lost nor counted twice, whatever the CLI reports."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.usage import ModelUsage, Totals, Usage, read_usage
from tests.support.tables import every_row

COUNTS = st.integers(0, 10**9)
CENTS = st.integers(0, 10**6).map(lambda cents: cents / 64)  # exact in binary, so that sums are too
MODELS = st.builds(ModelUsage, COUNTS, COUNTS, COUNTS, COUNTS, CENTS)
USAGES = st.builds(Usage, st.dictionaries(st.sampled_from(["opus", "sonnet", "haiku"]), MODELS))


@given(USAGES, USAGES, USAGES)
def test_totals_add_up_in_any_order(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Usage() == one


@given(USAGES, USAGES)
def test_what_was_added_can_be_taken_away(one: Usage, two: Usage) -> None:
    left = (one + two) - two
    assert left.total == one.total
    assert {name: left.models[name] for name in one.models} == one.models


@given(USAGES, USAGES)
def test_difference_is_never_negative(one: Usage, two: Usage) -> None:
    left = (one - two).total
    assert min(left.input_tokens, left.output_tokens, left.cache_read_tokens, left.cache_creation_tokens) >= 0
    assert left.cost_usd >= 0


@given(USAGES)
def test_the_total_is_the_sum_over_the_models(usage: Usage) -> None:
    assert usage.total.input_tokens == sum(model.input_tokens for model in usage.models.values())
    assert usage.total.cost_usd == usage.cost_usd


def test_the_shape_of_the_cli_is_read() -> None:
    raw = {
        "claude-opus": {
            "inputTokens": 10,
            "outputTokens": 20,
            "cacheReadInputTokens": 30,
            "cacheCreationInputTokens": 40,
            "costUSD": 0.5,
            "contextWindow": 200_000,
        },
        "claude-haiku": {"inputTokens": 1},
    }
    assert read_usage(raw) == Usage(
        {"claude-opus": ModelUsage(10, 20, 30, 40, 0.5), "claude-haiku": ModelUsage(input_tokens=1)}
    )


@every_row("raw", [None, [], "x", 5, {}, {"opus": None}, {"opus": "much"}])
def test_invalid_usage_counts_as_zero(raw: object) -> None:
    assert read_usage(raw) == Usage()


@every_row("number", ['"5"', "null", "-5", "NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "[1]"])
def test_invalid_number_counts_as_zero(number: str) -> None:
    raw = json.loads(f'{{"opus": {{"inputTokens": {number}, "costUSD": {number}, "outputTokens": 3}}}}')
    assert read_usage(raw) == Usage({"opus": ModelUsage(output_tokens=3)})


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["inputTokens", "outputTokens", "cacheReadInputTokens", "costUSD"])


@given(st.dictionaries(st.text(), st.dictionaries(FIELDS, JSON) | JSON) | JSON)
def test_no_input_at_all_makes_reading_fail(raw: Any) -> None:
    assert math.isfinite(read_usage(raw).cost_usd)


def model_usage(tokens: int) -> dict[str, Any]:
    return {"inputTokens": tokens, "outputTokens": tokens // 10, "costUSD": tokens / 1e6}


def result(since: dict[str, int] | None = None, **totals: int) -> dict[str, Any]:
    report: dict[str, Any] = {"modelUsage": {name: model_usage(tokens) for name, tokens in totals.items()}}
    report["total_cost_usd"] = sum(totals.values()) / 1e6
    if since is not None:
        report["model_usage_since_last_result"] = {name: model_usage(tokens) for name, tokens in since.items()}
    return report


def tokens(usage: Usage) -> dict[str, int]:
    return {name: part.input_tokens for name, part in usage.models.items()}


def restored(**totals: int) -> Usage:
    parts = {name: ModelUsage(count, count // 10, cost_usd=count / 1e6) for name, count in totals.items()}
    return Usage(parts)


def used(totals: Totals, *results: dict[str, Any]) -> list[dict[str, int]]:
    return [tokens(totals.used_by(result)) for result in results]


def test_growing_totals_are_distinguished() -> None:
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


@every_row("first", [{"a": 20}, {"b": 500}])
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
    report = {"modelUsage": {"a": {"inputTokens": 3, "costUSD": 0.3}}}
    assert Totals(base).used_by(report) == Usage()
