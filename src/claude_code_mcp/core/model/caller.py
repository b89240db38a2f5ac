"""Callers: who makes a call, and their client's environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOCAL = "local"
"""The principal of a server that does not distinguish callers: its user, who owns the machine and all its sessions."""


@dataclass(frozen=True, eq=False)
class ClientEnvironment:
    """One client of a server that serves several. Its sessions run in this environment, not in the server's. The
    variables contain the client's secrets: they are kept in memory only and never shown."""

    directory: str
    """The client's working directory, absolute."""
    variables: Mapping[str, str] = field(repr=False)
    """All of the client's environment variables."""
    id: str
    """Identifies this connection among all connections of the server."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal at a client. Two callers are equal if they are the same principal at the same connection."""

    principal: str
    """The name under which the policy, budgets and sessions of this person are kept."""
    environment: ClientEnvironment | None = None
    """The client's environment; None if it is the environment of this process, as on stdio and over HTTP."""
    key: str = field(init=False, repr=False, compare=False)
    """Distinguishes callers: a permission given at one client does not apply at another."""

    def __post_init__(self) -> None:
        key = f"{self.principal}:{self.environment.id}" if self.environment is not None else self.principal
        object.__setattr__(self, "key", key)


LOCAL_CALLER = Caller(LOCAL)

_RESERVED = frozenset({LOCAL, "operator", "unknown", "server"})
_RESERVED_PREFIXES = ("channel:", "group:")


def is_reserved(name: str) -> bool:
    """Whether a name has a meaning of its own, for example in the audit trail, so that no caller with a token may use
    it."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)
