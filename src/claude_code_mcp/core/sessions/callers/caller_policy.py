"""The operator's policy as it applies to one caller."""

import contextlib
from collections.abc import Container, Iterator

from ...errors import ClaudeCodeError
from ...model.caller import Caller
from ...model.events import AuditEvent, AuditKind
from ...state.spending import Budget, Period, SpentLine
from ..observers import ObserverList
from .client_environments import ClientEnvironments
from .policy_enforcer import PolicyEnforcer


class CallerPolicy:
    """The operator's policy for one caller, at a client with its own environment and directory.

    Keeps no state except the caller: every answer reflects the current policy. Changes by a caller and refusals are
    audited.
    """

    def __init__(
        self,
        caller: Caller,
        enforcer: PolicyEnforcer,
        environments: ClientEnvironments,
        observers: ObserverList,
        own_servers: Container[str],
    ) -> None:
        """`enforcer` is the service's; `own_servers` are the callers with separate MCP servers."""
        self._caller, self._principal = caller, caller.principal
        self._service_enforcer = enforcer
        self._environments = environments
        self._observers = observers
        self._own_servers = own_servers

    @property
    def _enforcer(self) -> PolicyEnforcer:
        """The enforcer for the caller's own environment and directory."""
        return self._environments.of(self._caller).enforcer

    @property
    def modes(self) -> tuple[str, ...]:
        """The permission modes that this caller may choose, the most restrictive first."""
        return self._service_enforcer.modes(self._principal)

    @property
    def requests_per_minute(self) -> int | None:
        """How many requests this caller may send over HTTP; None if unlimited."""
        return self._service_enforcer.limits.requests_per_minute(self._principal)

    def budgets(self) -> list[tuple[Budget, float]]:
        """This caller's budgets, its own and its groups', and how much of each is spent. Blocks on the disk; OSError if
        it cannot be read."""
        limits = self._service_enforcer.limits
        return [
            (budget, limits.spending.spent(self._principal, budget)) for budget in limits.all_budgets(self._principal)
        ]

    @property
    def sees_all_costs(self) -> bool:
        """Whether this caller may see the costs of all callers."""
        return self._service_enforcer.limits.sees_all_costs(self._principal)

    def check_all_costs(self) -> None:
        """Raises PermissionDenied, and audits it, for a caller who may see only their own costs."""
        with self._observers.auditing_refusals(self._principal, "costs of all callers"):
            self._service_enforcer.limits.check_all_costs(self._principal)

    def budgets_of_all_callers(self) -> list[tuple[str, Budget, float]]:
        """Like `PrincipalLimits.budgets_of_all_callers`. Raises PermissionDenied like `check_all_costs`, but without
        auditing it, because this blocks on the disk and runs in a thread."""
        self._service_enforcer.limits.check_all_costs(self._principal)
        return self._service_enforcer.limits.budgets_of_all_callers()

    def spending_of_all_callers(self, period: Period, since: str, *, groups: bool) -> list[SpentLine]:
        """Like `Spending.by_period`; PermissionDenied as above. Blocks on the disk."""
        self._service_enforcer.limits.check_all_costs(self._principal)
        return self._service_enforcer.limits.spending.by_period(period, since=since, groups=groups)

    def shares_budget(self, group: str) -> bool:
        """Whether this caller's spending counts toward a group's budget."""
        return any(budget.group == group for budget in self._service_enforcer.limits.budgets(self._principal))

    def directories(self) -> list[str]:
        """The directories that this caller's sessions may use, or the default directory if they may use any. Blocks on
        the disk."""
        return self._enforcer.directories(self._principal)

    def may_work_in(self, path: str) -> bool:
        """Whether this caller's sessions may work in a directory. Blocks on the disk."""
        return self._enforcer.may_work_in(path, self._principal)

    def readable_directory(self, path: str) -> str:
        """The directory with links resolved. PermissionDenied if this caller's sessions may not work in it or read it,
        InvalidArgument if it is not a usable path. Blocks on the disk."""
        return self._enforcer.readable_directory(path, self._principal)

    def may_list(self, path: str) -> bool:
        """Whether this caller's sessions may work in a directory and read it. Blocks on the disk."""
        try:
            self.readable_directory(path)
        except ClaudeCodeError:
            return False
        return True

    @property
    def needs_person(self) -> bool:
        """Whether only a person may allow the requests of this caller's sessions."""
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
        """Switch permission checks off or on again for this caller's sessions of clients with the same environment and
        directory. `by` is the channel of the confirmation. PermissionDenied where checks may never be skipped."""
        with self._observers.auditing_refusals(self._principal, "bypass"):
            changed = self._enforcer.bypass.switch(self._principal, on)
        if changed:
            details = {"on": on, "by": by}
            self._observers.act(AuditEvent(AuditKind.BYPASS_SWITCHED, self._principal, details=details))

    @contextlib.contextmanager
    def steering(self, action: str, server: str) -> Iterator[None]:
        """Context for a change to a hub server: PermissionDenied if the caller may not make it. Audited either way.
        Callers with separate servers may always sign in, because that affects no one else."""
        with self._observers.auditing_refusals(self._principal, f"{action} {server}"):
            if not (action == "authenticate" and self._principal in self._own_servers):
                self._service_enforcer.check_steering(self._principal)
            yield
        details = {"action": action, "server": server}
        self._observers.act(AuditEvent(AuditKind.HUB_STEERED, self._principal, details=details))
