"""Where a client is from: the directory and the environment of the process that connects to this server."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class ClientOrigin:
    """One client of a server that serves several. Its sessions run in this environment, not in the server's own.

    The environment holds the client's secrets: it is kept in memory, never written to disk and never shown.
    """

    directory: str
    """The client's working directory, absolute."""
    environment: Mapping[str, str] = field(repr=False)
    """All of the client's variables."""
    id: str
    """Tells this connection from every other one of the server."""
