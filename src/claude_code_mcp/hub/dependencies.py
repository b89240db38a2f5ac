"""What all connections of a hub share: what its owner provides (environment, storage, callbacks), and the places for
connecting.

A few local servers, which cost a process each, and more remote ones are connected to at the same time. Only the
beginning of an attempt is throttled, not the connection.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from ..state.database import Database
from ..state.documents import Documents
from .auth.credentials import FileVault, KeyringVault, Vault
from .auth.identity_provider import IdentityProvider
from .auth.silent_oauth import Renewals
from .config_entry import ServerConfig
from .program_place import AS_CONFIGURED, ProgramPlace
from .streams import JsonObject
from .transports.in_process import ServeInProcess
from .transports.stdio import ChildEnvironment, unmarked

_LONGEST_HOLD = 1.0
"""Seconds after which a slot is released although the server is not connected yet: a server that hangs must not hold
up those behind it."""


class ConnectSlot:
    """The place of one server among those that are connecting. Released once, by the first of several who may."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Waits for a place, and keeps it until `release`, but no longer than `_LONGEST_HOLD`."""
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_LONGEST_HOLD, self.release)

    def release(self) -> None:
        """Does nothing where the slot is not held, or no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class ConnectThrottle:
    """Places for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def slot(self, config: ServerConfig) -> ConnectSlot:
        return ConnectSlot(self._local if config.is_local else self._remote)


OnNotification = Callable[[str, str, JsonObject], None]
"""Is called with server, method and params of every notification that a server sends."""


def ignore_notification(server: str, method: str, params: JsonObject) -> None:
    """For hubs that pass no notifications on."""


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
    """Where it is remembered which servers need a sign-in, and what else they have shown of themselves."""
    vault: Vault
    """Where tokens are kept."""
    claude_directory: Path
    """Where IDEs leave their lock files: `~/.claude`."""
    directory: str = field(default_factory=_own_directory)
    """The directory of callers that are in none of their own."""
    child_environment: ChildEnvironment = unmarked
    """Makes the environment of a server's program, with the mark by which leftover processes are found."""
    on_notification: OnNotification = ignore_notification
    in_process: Mapping[str, ServeInProcess] = field(default_factory=dict)
    """The servers of type `sdk`, by name."""
    identity_provider: IdentityProvider | None = None
    """The organisation's, for servers with `xaa`."""
    client_document: str | None = None
    """The address of our Client ID Metadata Document, by which authorization servers know us that take such."""
    uses_claude_sign_ins: bool = True
    """Whether a server that Claude Code is signed in to needs no other sign-in."""
    programs: ProgramPlace = AS_CONFIGURED
    """Where the programs of servers run, and those that print headers."""
    renewals: Renewals = field(default_factory=Renewals)
    principal: str = ""
    """Whose the hub is alone, with a memory of its own; empty for one that is shared."""

    def documents(self, kind: str) -> Documents:
        """What this hub remembers of one kind."""
        return Documents(self.database, f"{kind} for {self.principal}" if self.principal else kind)


def usual_vault(state_directory: Path, principal: str = "") -> Vault:
    """The system's keyring, or where there is none files below the state directory. Principals see each other's
    secrets neither here nor there."""
    return KeyringVault(FileVault(state_directory / "credentials"), principal)
