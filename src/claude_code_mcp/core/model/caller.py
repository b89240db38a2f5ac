"""Who makes a call, and where their client is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOCAL = "local"
"""The principal where nobody else is told apart: the user, who owns the machine and with it every session on it."""


@dataclass(frozen=True, eq=False)
class ClientEnvironment:
    """One client of a server that serves several. Its sessions run in this environment, not in the server's own.

    The variables hold the client's secrets: they are kept in memory, never written to disk and never shown.
    """

    directory: str
    """The client's working directory, absolute."""
    variables: Mapping[str, str] = field(repr=False)
    """All of the client's environment variables."""
    id: str
    """Tells this connection from every other one of the server."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal at a client. Two are equal if they are the same principal at the same connection."""

    principal: str
    """The name under which the policy, budgets and sessions of this person are kept."""
    environment: ClientEnvironment | None = None
    """That of the client; None for a client that has that of this process, as on stdio and over HTTP."""
    key: str = field(init=False, repr=False, compare=False)
    """Tells this caller from others: what a person allows at one client is not allowed at another."""

    def __post_init__(self) -> None:
        key = f"{self.principal}:{self.environment.id}" if self.environment is not None else self.principal
        object.__setattr__(self, "key", key)


LOCAL_CALLER = Caller(LOCAL)

_RESERVED = frozenset({LOCAL, "operator", "unknown", "server"})
_RESERVED_PREFIXES = ("channel:", "group:")


def is_reserved(name: str) -> bool:
    """Whether a name means something to this server, in the audit trail and elsewhere, so that no caller who comes with
    a token can have it."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)
