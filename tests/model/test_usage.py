"""Tokens and money add up."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.model.usage import ModelUsage, Usage, read_usage

COUNTS = st.integers(0, 10**9)
CENTS = st.integers(0, 10**6).map(lambda cents: cents / 64)  # exact in binary, so that sums are too
MODELS = st.builds(ModelUsage, COUNTS, COUNTS, COUNTS, COUNTS, CENTS)
USAGES = st.builds(Usage, st.dictionaries(st.sampled_from(["opus", "sonnet", "haiku"]), MODELS))


@given(USAGES, USAGES, USAGES)
def test_addition_has_no_favourites(one: Usage, two: Usage, three: Usage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Usage() == one


@given(USAGES, USAGES)
def test_what_was_added_can_be_taken_away(one: Usage, two: Usage) -> None:
    left = (one + two) - two
    assert left.total == one.total
    assert {name: left.models[name] for name in one.models} == one.models


@given(USAGES, USAGES)
def test_a_difference_is_never_less_than_nothing(one: Usage, two: Usage) -> None:
    left = (one - two).total
    assert min(left.input_tokens, left.output_tokens, left.cache_read_tokens, left.cache_creation_tokens) >= 0
    assert left.cost_usd >= 0


@given(USAGES)
def test_the_total_is_the_sum_over_the_models(usage: Usage) -> None:
    assert usage.total.input_tokens == sum(one.input_tokens for one in usage.models.values())
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


@pytest.mark.parametrize("raw", [None, [], "x", 5, {}, {"opus": None}, {"opus": "much"}])
def test_what_is_no_usage_counts_as_nothing(raw: object) -> None:
    assert read_usage(raw) == Usage()


@pytest.mark.parametrize("number", ['"5"', "null", "-5", "NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "[1]"])
def test_a_number_that_cannot_be_one_counts_as_nothing(number: str) -> None:
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
