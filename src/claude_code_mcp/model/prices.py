"""What tokens cost, where only bounds are known: list prices of the API, for what no CLI has put a price on.

Claude Code knows the prices of its models and reports dollars; those count. These bounds say what a report must come to
at least, and what tokens cost that no report has.
"""

from dataclasses import replace

from .usage import ModelUsage

_HIGHEST = (15.0, 75.0, 1.5, 18.75)
"""Dollars for a million tokens of input, output, reading from the cache and writing to it."""
_LOWEST = {
    "opus": (4.0, 20.0, 0.2, 5.0),
    "mythos": (8.0, 40.0, 0.2, 10.0),
    "fable": (8.0, 40.0, 0.2, 10.0),
    "sonnet": (2.0, 10.0, 0.1, 2.5),
}
"""The lowest list price that any model of a family has had."""
_LOWEST_OF_ALL = (0.1, 0.5, 0.01, 0.125)


def at_most(tokens: ModelUsage) -> ModelUsage:
    """The tokens with what they cost at the highest list price."""
    return _priced(tokens, _HIGHEST)


def at_least(tokens: ModelUsage, model: str) -> ModelUsage:
    """The tokens with what they cost at the lowest list price of the model's family."""
    return _priced(tokens, next((price for name, price in _LOWEST.items() if name in model.lower()), _LOWEST_OF_ALL))


def _priced(tokens: ModelUsage, price: tuple[float, float, float, float]) -> ModelUsage:
    counts = (tokens.input_tokens, tokens.output_tokens, tokens.cache_read_tokens, tokens.cache_creation_tokens)
    return replace(tokens, cost_usd=sum(count * each for count, each in zip(counts, price, strict=True)) / 1e6)
