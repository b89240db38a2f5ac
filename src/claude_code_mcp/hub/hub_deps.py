"""What a hub needs from its owner."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..core.state.database import Database
from ..core.state.documents import Documents
from .auth.credentials import Vault
from .auth.identity_provider import IdentityProvider
from .auth.silent_oauth import Renewals
from .program_place import AS_CONFIGURED, ProgramPlace
from .streams import JsonObject
from .transports.in_process import ServeInProcess
from .transports.stdio_client import ChildEnvironment, unmarked

OnNotification = Callable[[str, str, JsonObject], None]
"""Called with server, method and params of every notification from a server."""


def ignore_notification(server: str, method: str, params: JsonObject) -> None:
    """Ignore all notifications, for hubs that do not forward them."""


def _own_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return os.path.expanduser("~")


@dataclass(frozen=True, slots=True)
class HubDeps:
    """Everything that the hub needs from outside itself."""

    environment: Mapping[str, str]
    """What the programs of stdio servers inherit."""
    database: Database
    """Stores which servers need a sign-in, and their traits."""
    vault: Vault
    """Stores tokens."""
    claude_directory: Path
    """Where IDEs leave their lock files: `~/.claude`."""
    directory: str = field(default_factory=_own_directory)
    """The directory of callers without one."""
    child_environment: ChildEnvironment = unmarked
    """Makes the environment of a server's program, with the mark by which leftover processes are found."""
    on_notification: OnNotification = ignore_notification
    in_process: Mapping[str, ServeInProcess] = field(default_factory=dict)
    """The servers of type `sdk`, by name."""
    identity_provider: IdentityProvider | None = None
    """The organization's identity provider, for servers with `xaa`."""
    client_document: str | None = None
    """The URL of our Client ID Metadata Document, for authorization servers that support it."""
    uses_claude_sign_ins: bool = True
    """Whether a server that Claude Code is signed in to needs no other sign-in."""
    programs: ProgramPlace = AS_CONFIGURED
    """Where the programs of servers run, and those that print headers."""
    renewals: Renewals = field(default_factory=Renewals)
    principal: str = ""
    """The only user of the hub, with separate memory; empty for a shared hub."""

    def documents(self, kind: str) -> Documents:
        """This hub's memory of one kind."""
        return Documents(self.database, f"{kind} for {self.principal}" if self.principal else kind)
