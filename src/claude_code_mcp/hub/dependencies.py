"""What all connections of a hub share: what its owner provides (environment, storage, callbacks), and the places for
connecting.

A few local servers, which cost a process each, and more remote ones are connected to at the same time. Only the
beginning of an attempt is throttled, not the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from .auth.credentials import FileVault, KeyringVault, Vault
from .auth.cross_app_access import GetAssertion
from .config_entry import ServerConfig
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


Permit = Callable[[str, str, str, JsonObject], Awaitable[None]]
"""Is awaited with caller, server, tool and arguments before each call; raises PermissionDenied to stop it."""
OnNotification = Callable[[str, str, JsonObject], None]
"""Is called with server, method and params of every notification that a server sends."""


async def permit_all(caller: str, server: str, tool: str, arguments: JsonObject) -> None:
    """For hubs whose callers are all trusted, or checked elsewhere."""


def ignore_notification(server: str, method: str, params: JsonObject) -> None:
    """For hubs that pass no notifications on."""


@dataclass(frozen=True, slots=True)
class HubDeps:
    """Everything that the hub needs from outside itself."""

    environment: Mapping[str, str]
    """What the programs of stdio servers inherit."""
    state_directory: Path
    """Where it is remembered which servers need a sign-in."""
    vault: Vault
    """Where tokens are kept."""
    claude_directory: Path
    """Where IDEs leave their lock files: `~/.claude`."""
    child_environment: ChildEnvironment = unmarked
    """Makes the environment of a server's program, with the mark by which leftover processes are found."""
    permit: Permit = permit_all
    on_notification: OnNotification = ignore_notification
    in_process: Mapping[str, ServeInProcess] = field(default_factory=dict)
    """The servers of type `sdk`, by name."""
    get_assertion: GetAssertion | None = None
    """Gets assertions of the organisation's identity provider, for servers with `xaa`."""

    @classmethod
    def usual(
        cls, environment: Mapping[str, str], state_directory: Path, claude_directory: Path, **others: Any
    ) -> "HubDeps":
        """Keeps tokens in the system's keyring, or where there is none in files below the state directory."""
        vault = KeyringVault(FileVault(state_directory / "credentials"))
        return cls(environment, state_directory, vault, claude_directory, **others)
