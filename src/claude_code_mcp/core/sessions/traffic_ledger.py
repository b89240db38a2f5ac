"""Accounts for a process's model usage, where this server carries the traffic: how much is charged, and when.

Claude Code knows the prices of its models. So for tokens that its results claim, its dollar amounts are charged, but at
least the lowest list price. Tokens that are still unclaimed when a result arrives or the process ends are charged at
the highest list price: a command of the session used them, or a report was withheld. Until then, while no turn is
running, they are charged at the lowest price.
"""

from collections import defaultdict
from dataclasses import replace

from ..model.usage import ModelUsage, Usage, at_least, at_most

UNREPORTED = "unreported"
"""The model name for tokens that no result has claimed."""


class TrafficLedger:
    """The account of one process. Amounts only grow, and nothing is charged twice."""

    def __init__(self) -> None:
        self._counted: defaultdict[str, ModelUsage] = defaultdict(ModelUsage)
        self._claimed = ModelUsage()
        self._listed = ModelUsage()
        """Tokens that were charged as unreported."""
        self._charged = 0.0

    def count(self, usage: Usage) -> None:
        """Add the usage of API answers to the account."""
        for model, used in usage.models.items():
            self._counted[model] += used

    @property
    def due_usd(self) -> float:
        """The minimum still to be charged for the counted usage."""
        return max(0.0, self._least - self._charged)

    @property
    def unclaimed(self) -> Usage:
        """Counted usage that is neither claimed nor charged so far, at the minimum that it will cost."""
        tokens = replace(self._uncovered - self._listed, cost_usd=self.due_usd)
        return Usage({UNREPORTED: tokens} if tokens != ModelUsage() else {})

    def charge(self, claimed: Usage, *, final: bool) -> Usage:
        """What to charge now that a result has claimed this much, or nothing. `final` is false while more of the
        counted usage may still be claimed."""
        self._claimed += claimed.total
        uncovered = self._uncovered
        beyond = at_most(uncovered).cost_usd if final else 0.0
        due = max(0.0, max(self._claimed.cost_usd + beyond, self._least) - self._charged)
        self._charged += due
        if due <= claimed.cost_usd:
            return _scaled(claimed, due)
        # Tokens are listed once, though their price may become known in two steps.
        tokens, self._listed = replace(uncovered - self._listed, cost_usd=0.0), self._listed | uncovered
        return claimed + Usage({UNREPORTED: replace(tokens, cost_usd=due - claimed.cost_usd)})

    @property
    def _uncovered(self) -> ModelUsage:
        return replace(sum(self._counted.values(), ModelUsage()) - self._claimed, cost_usd=0.0)

    @property
    def _least(self) -> float:
        return sum(at_least(used, model).cost_usd for model, used in self._counted.items())


def _scaled(claimed: Usage, cost: float) -> Usage:
    """The claim with its dollars reduced to the part that was not charged before."""
    if not claimed.cost_usd or cost == claimed.cost_usd:
        return claimed
    share = cost / claimed.cost_usd
    return Usage({name: replace(used, cost_usd=used.cost_usd * share) for name, used in claimed.models.items()})
