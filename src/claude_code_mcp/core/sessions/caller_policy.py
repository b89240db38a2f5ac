"""What the operator's policy lets one caller do."""

import contextlib
from collections.abc import Container, Iterator

from ..model.caller import Caller
from ..model.events import AuditEvent, AuditKind
from ..state.spending import Budget, Period, SpentLine
from .client_environments import ClientEnvironments
from .observers import ObserverList
from .policy_enforcer import PolicyEnforcer


class CallerPolicy:
    """What the operator's policy lets one caller do, at a client with its own environment and directory.

    Nothing is remembered here but the caller: every answer is that of the moment. What a caller switches or changes is
    audited, and so is a refusal.
    """

    def __init__(
        self,
        caller: Caller,
        enforcer: PolicyEnforcer,
        environments: ClientEnvironments,
        observers: ObserverList,
        own_servers: Container[str],
    ) -> None:
        """`enforcer` is that of the service; `own_servers` are the callers who share MCP servers with nobody."""
        self._caller, self._principal = caller, caller.principal
        self._service_enforcer = enforcer
        self._environments = environments
        self._observers = observers
        self._own_servers = own_servers

    @property
    def _enforcer(self) -> PolicyEnforcer:
        """That of the caller's own environment and directory."""
        return self._environments.of(self._caller).enforcer

    @property
    def modes(self) -> tuple[str, ...]:
        """The permission modes that this caller may choose, the most careful first."""
        return self._service_enforcer.modes(self._principal)

    @property
    def requests_per_minute(self) -> int | None:
        """How many requests this caller may send over HTTP; None for any number."""
        return self._service_enforcer.limits.requests_per_minute(self._principal)

    def budgets(self) -> list[tuple[Budget, float]]:
        """What limits this caller's spending, alone and with its groups, and how much of each is spent. Blocks on the
        disk; OSError if it cannot be read."""
        limits = self._service_enforcer.limits
        return [
            (budget, limits.spending.spent(self._principal, budget)) for budget in limits.all_budgets(self._principal)
        ]

    @property
    def sees_all_costs(self) -> bool:
        """Whether this caller is shown what everybody spends."""
        return self._service_enforcer.limits.sees_all_costs(self._principal)

    def check_all_costs(self) -> None:
        """PermissionDenied, which is audited, for a caller who is shown no costs but their own."""
        with self._observers.auditing_refusals(self._principal, "costs of all callers"):
            self._service_enforcer.limits.check_all_costs(self._principal)

    def everybodys_budgets(self) -> list[tuple[str, Budget, float]]:
        """As `PrincipalLimits.everybodys_budgets`; PermissionDenied as in `check_all_costs`, but not audited: this is
        for a thread, since it blocks on the disk."""
        self._service_enforcer.limits.check_all_costs(self._principal)
        return self._service_enforcer.limits.everybodys_budgets()

    def everybodys_spending(self, period: Period, since: str, *, groups: bool) -> list[SpentLine]:
        """As `Spending.by_period`; PermissionDenied as above. Blocks on the disk."""
        self._service_enforcer.limits.check_all_costs(self._principal)
        return self._service_enforcer.limits.spending.by_period(period, since=since, groups=groups)

    def shares_budget(self, group: str) -> bool:
        """Whether what this caller spends counts towards the budget of a group."""
        return any(budget.group == group for budget in self._service_enforcer.limits.budgets(self._principal))

    def directories(self) -> list[str]:
        """Where this caller's sessions may work, or do by default if they may work anywhere. Blocks on the disk."""
        return self._enforcer.directories(self._principal)

    def may_work_in(self, path: str) -> bool:
        """Whether this caller's sessions may work in a directory. Blocks on the disk."""
        return self._enforcer.may_work_in(path, self._principal)

    @property
    def needs_person(self) -> bool:
        """Whether only a person may allow what this caller's sessions ask."""
        return self._service_enforcer.needs_person(self._principal)

    @property
    def bypass_possible(self) -> bool:
        """Whether permission checks may be switched off at all for this caller."""
        return self._service_enforcer.bypass.possible(self._principal)

    @property
    def bypass_on(self) -> bool:
        """Whether they are switched off for this caller, at this client."""
        return self._enforcer.bypass.is_on(self._principal)

    @property
    def bypass_usable(self) -> bool:
        """Whether a session of this caller may skip permission checks now."""
        return self._enforcer.bypass.usable(self._principal)

    def set_bypass(self, on: bool, *, by: str = "") -> None:
        """Lets this caller's sessions skip permission checks, or no longer: those of clients with the same environment
        and directory. `by` is the channel of the confirmation. PermissionDenied where they may never be skipped."""
        with self._observers.auditing_refusals(self._principal, "bypass"):
            changed = self._enforcer.bypass.switch(self._principal, on)
        if changed:
            details = {"on": on, "by": by}
            self._observers.act(AuditEvent(AuditKind.BYPASS_SWITCHED, self._principal, details=details))

    @contextlib.contextmanager
    def steering(self, action: str, server: str) -> Iterator[None]:
        """Around a change to a server of the hub: PermissionDenied if the caller may make none. Audited either way.
        Those who share the servers with nobody may always sign in: it changes nothing for others."""
        with self._observers.auditing_refusals(self._principal, f"{action} {server}"):
            if not (action == "authenticate" and self._principal in self._own_servers):
                self._service_enforcer.check_steering(self._principal)
            yield
        details = {"action": action, "server": server}
        self._observers.act(AuditEvent(AuditKind.HUB_STEERED, self._principal, details=details))
