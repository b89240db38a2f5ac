"""What the operator's policy lets one caller do beside running sessions, and what is audited of that."""

import contextlib
from collections.abc import Container, Iterator

from ..model.caller import Caller
from ..model.events import AuditEvent, AuditKind
from ..state.spending import Budget
from .acceptance import ObserverList
from .dependencies import ClientEnvironments
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

    def directories(self) -> list[str]:
        """Where this caller's sessions may work, or do by default if they may work anywhere. Blocks on the disk."""
        return self._enforcer.directories(self._principal)

    def may_work_in(self, path: str) -> bool:
        """Whether this caller's sessions may work in a directory. Blocks on the disk."""
        return self._enforcer.may_work_in(path, self._principal)

    @property
    def bypass_possible(self) -> bool:
        """Whether permission checks may be switched off at all for this caller."""
        return self._service_enforcer.bypass_possible(self._principal)

    @property
    def bypass_on(self) -> bool:
        """Whether they are switched off for this caller, at this client."""
        return self._enforcer.bypass_on(self._principal)

    def set_bypass(self, on: bool, *, by: str = "") -> None:
        """Lets this caller's sessions skip permission checks, or no longer: those of clients with the same environment
        and directory. `by` is the channel of the confirmation. PermissionDenied where they may never be skipped."""
        with self._observers.auditing_refusals(self._principal, "bypass"):
            self._enforcer.set_bypass(self._principal, on)
        self._observers.act(AuditEvent(AuditKind.BYPASS_SWITCHED, self._principal, details={"on": on, "by": by}))

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
