"""How much each principal may have at once, use in a minute and spend."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import LimitReached, PermissionDenied
from ...model.usage import Usage
from ...policy.policy import GroupBudget, Limits, Policy
from ...rate_limit import MinuteLimit
from ...state.spending import Budget, BudgetWarning, NotedAmount, Spending


class PrincipalLimits:
    """The limits of each principal on concurrent sessions, rates and spending (LimitReached beyond them), and the
    permission to see all costs."""

    def __init__(self, policy: Policy, spending: Spending) -> None:
        self.spending = spending
        self._policy = policy
        self.new_sessions = MinuteLimit(
            lambda principal: policy.profile(principal).limits.sessions_per_minute,
            sentence="You may start {most} sessions per minute",
        )
        """The limit of each principal on new sessions."""
        self._tokens = MinuteLimit(
            lambda principal: policy.profile(principal).limits.tokens_per_minute,
            sentence="Your sessions may use {most} tokens per minute",
        )
        self._admitting: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By principal, the number of messages being sent to each session that is not busy yet."""

    @contextmanager
    def room(self, session_id: str, principal: str, limits: Limits, working: Sequence[str]) -> Iterator[None]:
        """Context in which a session that is sent a message counts as working. Raises LimitReached if the principal has
        too many working sessions, and RateLimited if its sessions have recently used too many tokens.

        `limits` are the principal's, `working` its busy sessions. Two simultaneous messages count each other.
        """
        self._tokens.check_of(limits.tokens_per_minute, principal)
        limit, admitting = limits.sessions, self._admitting[principal]
        taken = {*admitting, *working}
        if limit is not None and session_id not in taken and len(taken) >= limit:
            raise LimitReached(
                f"You have {limit} busy sessions, which is your limit. Wait for one to finish.", limit=limit
            )
        admitting[session_id] += 1
        try:
            yield
        finally:
            # With two messages to one session, the last one to be accepted or refused ends the count.
            admitting[session_id] -= 1
            if not admitting[session_id]:
                del admitting[session_id]

    def use_tokens(self, principal: str, usage: Usage) -> None:
        """Count the tokens of a turn toward the rate limit. As in the API's limits, tokens read from the cache do not
        count: every step of a long conversation reads all of it."""
        total = usage.total
        self._tokens.use(principal, total.input_tokens + total.cache_creation_tokens + total.output_tokens)

    def requests_per_minute(self, principal: str) -> int | None:
        """How many requests a principal may send over HTTP; None if unlimited."""
        return self._policy.profile(principal).limits.requests_per_minute

    def counts(self, principal: str, limits: Limits | None = None) -> bool:
        """Whether this principal's spending is limited, per day or month, individually or in a group."""
        return bool(self.all_budgets(principal, limits))

    def budgets(self, principal: str) -> list[Budget]:
        """The budgets of a principal other than its own daily one."""
        return [budget for budget in self.all_budgets(principal) if budget.period != "day" or budget.group is not None]

    def all_budgets(self, principal: str, limits: Limits | None = None) -> list[Budget]:
        """All budgets of a principal: its own daily and monthly ones, and those of its groups. `limits` are its own, if
        already looked up."""
        limits = limits or self._policy.profile(principal).limits
        found = _budgets_of(None, limits)
        for group in self._policy.counted_groups(principal):
            found += _budgets_of(group, self._policy.budgets.get(group, GroupBudget()))
        return found

    def sees_all_costs(self, principal: str) -> bool:
        """Whether the operator lets the principal see all costs."""
        return self._policy.profile(principal).costs == "everybody"

    def check_all_costs(self, principal: str) -> None:
        """PermissionDenied for a caller who may see only their own costs. All code that reads others' costs calls this
        first."""
        if not self.sees_all_costs(principal):
            raise PermissionDenied("The operator's policy shows you only your own costs.", field="of")

    def budgets_of_all_callers(self) -> list[tuple[str, Budget, float]]:
        """The budgets of all groups, and of all principals that have spent something this month or that the policy
        names: each with its principal (empty for a group) and the spent amount, the most exhausted one first. Blocks on
        the disk; OSError if it cannot be read."""
        spenders = (line.principal for line in self.spending.by_period("month", since=self.spending.this_month()))
        found = [
            (principal, budget)
            for principal in dict.fromkeys((*spenders, *self._policy.principals))
            for budget in self.all_budgets(principal)
            if budget.group is None
        ]
        for group, limits in self._policy.budgets.items():
            found += [("", budget) for budget in _budgets_of(group, limits)]
        rows = [(principal, budget, self.spending.spent(principal, budget)) for principal, budget in found]
        return sorted(rows, key=lambda row: row[2] / row[1].limit, reverse=True)

    def write_cost(self, noted: NotedAmount) -> list[BudgetWarning]:
        """Write a noted cost; return the budget warnings that it triggers. Each warning is returned only once, by one
        server. Blocks on the disk; OSError if it cannot be written."""
        return self.spending.write(noted, self.all_budgets(noted.principal))

    def spendable(self, principal: str, session_id: str) -> float | None:
        """The dollars that a process of the session may spend: its reservation; None if unlimited."""
        limits = self._policy.profile(principal).limits
        if not self.counts(principal, limits):
            return None
        limit, reserved = limits.daily_usd, self.spending.reserved(session_id)
        if reserved is not None or limit is None:
            return reserved  # of a month nothing is known here without a look at the disk
        return max(0.0, limit - self.spending.today(principal))

    def reserve(
        self, principal: str, session_id: str, wanted: float | None, working: int, process_left: float | None
    ) -> float:
        """Reserve a part of a principal's daily budget for a session and return it; LimitReached if nothing is left.

        The amount is `wanted` (None: any amount), but at most a fair share among the sessions that may work at once, of
        which `working` others do. If the rest of its process's budget, `process_left`, is within that and not much
        less, that amount is reserved: a process learns its budget only when it starts. Blocks on the disk.
        """
        limits = self._policy.profile(principal).limits
        limit = math.inf if limits.daily_usd is None else limits.daily_usd
        budgets = self.budgets(principal)
        shares = 2 if limits.sessions is None else max(1, limits.sessions - working)

        def share(left: float) -> float:
            fair = left / shares if wanted is None else min(wanted, left / shares)
            return process_left if process_left is not None and fair / 2 <= process_left <= fair else fair

        try:
            amount = self.spending.reserve(principal, session_id, limit, share, budgets)
            spent_up = next((each for each in budgets if self.spending.spent(principal, each) >= each.limit), None)
        except OSError as error:  # without the file the rest is unknown
            raise LimitReached(f"No part of today's budget can be reserved: {error.strerror or error}.") from None
        if not amount and (spent_up is not None or math.isinf(limit)):
            raise _over(spent_up or budgets[0], spent=spent_up is not None)
        if not amount:
            raise _over(Budget(limit, "day"), spent=self.spending.today(principal) >= limit)
        return amount

    def session_budget_spent(self, principal: str, limit: float) -> str:
        """The message that a session's budget is spent, and who set it."""
        if limit == self._policy.profile(principal).limits.session_usd:
            return f"The operator's budget of ${limit:g} per session is spent."
        return f"The session's own budget of ${limit:g} (maxBudgetUsd) is spent."

    def reservation_spent(self, session_id: str) -> str:
        """The message that a session has spent its reservation, with the budget that it came from."""
        budget = self.spending.tightest_budget(session_id)
        name = "your budget for today" if budget is None else budget.name
        return f"The turn has spent its share of {name}. If some of it is left, the next message can use it."


def _budgets_of(group: str | None, limits: Limits | GroupBudget) -> list[Budget]:
    daily = [] if limits.daily_usd is None else [Budget(limits.daily_usd, "day", group)]
    return daily if limits.monthly_usd is None else [*daily, Budget(limits.monthly_usd, "month", group)]


def _over(budget: Budget, *, spent: bool) -> LimitReached:
    when = "at midnight UTC" if budget.period == "day" else "at the start of the next month (UTC)"
    how = f"spent; it resets {when}" if spent else "spent, or reserved for busy sessions"
    return LimitReached(f"{budget.name[0].upper()}{budget.name[1:]} is {how}.", limit=budget.limit)
