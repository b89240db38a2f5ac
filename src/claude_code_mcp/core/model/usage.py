"""What a turn used: tokens and money, by model, and list prices.

The CLI reports the usage since its last result, or on some versions only totals since it started (`Totals`). Unreadable
parts of a report count as nothing; `impossible_amount` finds impossible amounts. Claude Code knows the prices of its
models and reports dollars; those count. The bounds here are the minimum cost that a report must reach, and the cost of
tokens that no report includes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_ABSURD = 1 << 60
SYNTHETIC = "<synthetic>"
"""The model of an answer that the CLI produced itself."""
UNNAMED = "unknown"
"""The model of an amount that the CLI reported without a model."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model consumed."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def all_input_tokens(self) -> int:
        """Those of the cache too."""
        return self.input_tokens + self.cache_read_tokens + self.cache_creation_tokens

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_creation_tokens + other.cache_creation_tokens,
            self.cost_usd + other.cost_usd,
        )

    def __sub__(self, other: "ModelUsage") -> "ModelUsage":
        """The difference, never negative: totals that the CLI lost must not become a credit."""
        return ModelUsage(
            max(0, self.input_tokens - other.input_tokens),
            max(0, self.output_tokens - other.output_tokens),
            max(0, self.cache_read_tokens - other.cache_read_tokens),
            max(0, self.cache_creation_tokens - other.cache_creation_tokens),
            max(0.0, self.cost_usd - other.cost_usd),
        )

    def __or__(self, other: "ModelUsage") -> "ModelUsage":
        """The larger value of each count."""
        return ModelUsage(
            max(self.input_tokens, other.input_tokens),
            max(self.output_tokens, other.output_tokens),
            max(self.cache_read_tokens, other.cache_read_tokens),
            max(self.cache_creation_tokens, other.cache_creation_tokens),
            max(self.cost_usd, other.cost_usd),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage by model; the sum is the cost."""

    models: Mapping[str, ModelUsage] = field(default_factory=dict)

    @property
    def cost_usd(self) -> float:
        return sum(usage.cost_usd for usage in self.models.values())

    @property
    def total(self) -> ModelUsage:
        return sum(self.models.values(), ModelUsage())

    def __add__(self, other: "Usage") -> "Usage":
        names = {**self.models, **other.models}
        return Usage({name: self.of_model(name) + other.of_model(name) for name in names})

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage({name: usage - other.of_model(name) for name, usage in self.models.items()})

    def __or__(self, other: "Usage") -> "Usage":
        """The larger value of each count of each model."""
        names = {**self.models, **other.models}
        return Usage({name: self.of_model(name) | other.of_model(name) for name in names})

    @classmethod
    def of_answers(cls, answers: Iterable[tuple[str, ModelUsage]]) -> "Usage":
        """The sum of answers, each with its model. Linear in their number, however many models a forger names: adding
        one by one would copy all of them each time."""
        models: dict[str, ModelUsage] = {}
        for model, used in answers:
            models[model] = models.get(model, ModelUsage()) + used
        return cls(models)

    def of_model(self, name: str) -> ModelUsage:
        return self.models.get(name, ModelUsage())


def read_usage(raw: object) -> Usage:
    """Parse the CLI's `modelUsage`. Anything unreadable counts as nothing."""
    if not isinstance(raw, dict):
        return Usage()
    return Usage({str(name): _read_model(value) for name, value in raw.items() if isinstance(value, dict)})


def _read_model(raw: dict[str, Any]) -> ModelUsage:
    return ModelUsage(
        int(read_number(raw, "inputTokens")),
        int(read_number(raw, "outputTokens")),
        int(read_number(raw, "cacheReadInputTokens")),
        int(read_number(raw, "cacheCreationInputTokens")),
        read_number(raw, "costUSD"),
    )


def read_number(raw: Mapping[str, Any], key: str) -> float:
    """Parse a count or an amount; 0 if it is invalid. JSON can contain NaN, infinities and numbers of any length."""
    value = raw.get(key)
    return value if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


_AMOUNTS = ("total_cost_usd", "num_turns")
_BY_MODEL = ("modelUsage", "model_usage_since_last_result")


def impossible_amount(result: Mapping[str, Any]) -> str | None:
    """The name of a count or amount in a result that no CLI can report: negative, not a number, or out of bounds; None
    if there is none. Missing values and values of another type are ignored."""
    return next((name for name, value in _amounts(result) if not _is_possible(value)), None)


def _amounts(result: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name in _AMOUNTS:
        yield name, result.get(name)
    by_model = [(name, result.get(name)) for name in _BY_MODEL]
    tables = [(name, table) for name, models in by_model if isinstance(models, Mapping) for table in models.values()]
    for name, table in [*tables, ("usage", result.get("usage"))]:
        if isinstance(table, Mapping):
            yield from ((f"{name}.{key}", value) for key, value in table.items())


def _is_possible(value: object) -> bool:
    if not isinstance(value, int | float):
        return True
    return math.isfinite(value) and 0 <= value < _ABSURD if isinstance(value, float) else 0 <= value < _ABSURD


class Totals:
    """The known totals of one process. Takes each of its results once, in order."""

    def __init__(self, restored: Usage | None = None) -> None:
        """`restored` is the total in the transcript that a process resumes. The CLI may count from there or from zero;
        its first result shows which."""
        self._known = restored or Usage()
        self._reported = Usage()
        """The last totals that this process reported."""

    def shrink(self, result: Mapping[str, Any]) -> bool:
        """Whether a result has smaller totals than an earlier one, which a process never does by itself. False without
        totals."""
        totals = _read_totals(result)
        return bool(totals.models) and not _continues(totals, self._reported)

    def used_by(self, result: Mapping[str, Any]) -> Usage:
        """The usage since the last result. Nothing is counted twice, whichever figures the CLI reports."""
        totals = _read_totals(result)
        since = result.get("model_usage_since_last_result")
        if isinstance(since, dict):
            # Both have the same amounts, unless one of them is wrong.
            used = read_usage(since) | (totals - self._reported if self._reported.models else Usage())
        elif _continues(totals, self._known):
            used = totals - self._known
        else:
            used = totals  # it restarted its count at zero
        if totals.models:
            self._known = self._reported = totals
        return Usage({name: part for name, part in used.models.items() if part != ModelUsage()})


def _read_totals(result: Mapping[str, Any]) -> Usage:
    by_model = read_usage(result.get("modelUsage"))
    cost = read_number(result, "total_cost_usd")
    if by_model.models or not cost:
        return by_model
    return Usage({UNNAMED: ModelUsage(cost_usd=cost)})


def _continues(totals: Usage, known: Usage) -> bool:
    """Whether these totals include the known ones: restored totals have every model with at least as much."""
    return all(name in totals.models and _at_least(totals.models[name], part) for name, part in known.models.items())


def _at_least(more: ModelUsage, less: ModelUsage) -> bool:
    return (
        more.input_tokens >= less.input_tokens
        and more.output_tokens >= less.output_tokens
        and more.cache_read_tokens >= less.cache_read_tokens
        and more.cache_creation_tokens >= less.cache_creation_tokens
        and more.cost_usd >= less.cost_usd * (1 - 1e-9)  # sums of floats, added up in another order
    )


_HIGHEST = (15.0, 75.0, 1.5, 18.75)
"""Dollars for a million tokens of input, output, reading from the cache and writing to it."""
_LOWEST = {
    **dict.fromkeys(("3-opus", "opus-4-0", "opus-4-1", "opus-4-2025"), _HIGHEST),
    "opus": (4.0, 20.0, 0.2, 5.0),
    "mythos": (8.0, 40.0, 0.2, 10.0),
    "fable": (8.0, 40.0, 0.2, 10.0),
    "sonnet": (2.0, 10.0, 0.1, 2.5),
}
"""The lowest list price that any model of a family has had; the first matching part of a name counts."""
_LOWEST_OF_ALL = (0.1, 0.5, 0.01, 0.125)


def at_most(tokens: ModelUsage) -> ModelUsage:
    """The tokens at the highest list price."""
    return _priced(tokens, _HIGHEST)


def at_least(tokens: ModelUsage, model: str) -> ModelUsage:
    """The tokens at the lowest list price of the model's family."""
    return _priced(tokens, next((price for name, price in _LOWEST.items() if name in model.lower()), _LOWEST_OF_ALL))


def _priced(tokens: ModelUsage, price: tuple[float, float, float, float]) -> ModelUsage:
    counts = (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_tokens, tokens.cache_creation_tokens)
    return replace(tokens, cost_usd=sum(count * each for count, each in zip(counts, price, strict=True)) / 1e6)
