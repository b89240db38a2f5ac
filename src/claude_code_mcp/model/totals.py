"""What each result of one process used, from what the CLI tells: the difference itself, or only growing totals.

Newer CLIs say in every result what was used since the last one. Older ones have totals alone: of the process, or of
the whole session where they take the totals of an earlier process over from the transcript. Pure.
"""

from collections.abc import Mapping
from typing import Any

from .usage import ModelUsage, Usage, read_number, read_usage

_UNNAMED = "unknown"
"""The model of an amount that the CLI gave without saying which model it was for."""


class Totals:
    """The totals of one process, as far as they are known. Each result is taken once, in order."""

    def __init__(self, restored: Usage | None = None) -> None:
        """`restored` is what the transcript says at the start of a process that resumes it. The CLI may begin with
        that or from nothing, which its first result tells."""
        self._known = restored or Usage()

    def used_by(self, result: Mapping[str, Any]) -> Usage:
        """What was used since the last result; nothing is counted twice, whichever way the CLI tells it."""
        totals = _read_totals(result)
        since = result.get("model_usage_since_last_result")
        if isinstance(since, dict):
            used = read_usage(since)
        elif _continues(totals, self._known):
            used = totals - self._known
        else:
            used = totals  # it began to count from nothing
        if totals.models:
            self._known = totals
        return _without_unused(used)


def _read_totals(result: Mapping[str, Any]) -> Usage:
    by_model = read_usage(result.get("modelUsage"))
    cost = read_number(result, "total_cost_usd")
    if by_model.models or not cost:
        return by_model
    return Usage({_UNNAMED: ModelUsage(cost_usd=cost)})


def _continues(totals: Usage, known: Usage) -> bool:
    """Whether these totals contain the known ones: totals that are restored have every model with at least as much."""
    return all(name in totals.models and _at_least(totals.models[name], part) for name, part in known.models.items())


def _at_least(more: ModelUsage, less: ModelUsage) -> bool:
    return (
        more.input_tokens >= less.input_tokens
        and more.output_tokens >= less.output_tokens
        and more.cache_read_tokens >= less.cache_read_tokens
        and more.cache_creation_tokens >= less.cache_creation_tokens
        and more.cost_usd >= less.cost_usd * (1 - 1e-9)  # sums of floats, added up in another order
    )


def _without_unused(usage: Usage) -> Usage:
    return Usage({name: part for name, part in usage.models.items() if part != ModelUsage()})
