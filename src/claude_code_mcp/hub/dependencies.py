"""What the hub is given by whoever runs it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from .auth.credentials import FileVault, KeyringVault, Vault
from .auth.oauth import Assert
from .config_entry import ServerConfig
from .transports.in_process import ServeInProcess
from .transports.stdio import ChildEnvironment, unmarked

Permit = Callable[[str, str, str, dict[str, Any]], Awaitable[None]]


"""Caller, server, tool and arguments of a call about to be made; raises PermissionDenied to stop it."""


Notified = Callable[[str, str, dict[str, Any]], None]


"""Server, method and params of every notification that a server sends."""


async def permit_all(caller: str, server: str, tool: str, arguments: dict[str, Any]) -> None:
    """For hubs whose callers are all trusted."""


def hear_nothing(server: str, method: str, params: dict[str, Any]) -> None:
    """For hubs that pass no notifications on."""


@dataclass(frozen=True, slots=True)
class HubDeps:
    """Everything that the hub needs from outside itself."""

    environment: Mapping[str, str]
    """What the programs of stdio servers inherit."""
    state_directory: Path
    """Where it is remembered who needs to sign in."""
    vault: Vault
    """Where tokens are kept."""
    claude_directory: Path
    """Where IDEs leave their lock files: `~/.claude`."""
    child_environment: ChildEnvironment = unmarked
    """How children are tied to the life of this process."""
    permit: Permit = permit_all
    notified: Notified = hear_nothing
    in_process: Mapping[str, ServeInProcess] = field(default_factory=dict)
    """The servers of type `sdk`, by name."""
    assert_identity: Assert | None = None
    """Gets assertions of the organisation's identity provider, for servers with `xaa`."""

    @classmethod
    def usual(
        cls, environment: Mapping[str, str], state_directory: Path, claude_directory: Path, **more: Any
    ) -> "HubDeps":
        """Tokens in the system's keyring, or below the state directory: where all who share it find them again."""
        vault = KeyringVault(FileVault(state_directory / "credentials"))
        return cls(environment, state_directory, vault, claude_directory, **more)


_PATIENCE = 1.0


"""Seconds after which a server that is still not there lets the next one begin: it waits for something, and a server
that hangs must not hold up those behind it."""


class ConnectSlot:
    """One server's turn; it ends once, by whoever is first to end it."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class ConnectThrottle:
    """Places for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def turn(self, config: ServerConfig) -> ConnectSlot:
        return ConnectSlot(self._local if config.is_local else self._remote)
