"""Shared parts of a hub's connections: what its owner provides, and what is remembered about servers between runs.

A few local servers, which each cost a process, and more remote ones connect concurrently. Only the start of an attempt
is throttled, not the connection.

Only use shows that a server does not support probing, requests roots or asks questions; and its offer is known only
after it has started, which can take long. All of that is stored, so that it is learned once. Unreadable memory counts
as empty; memory that cannot be written lasts as long as the hub.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from pydantic import BaseModel, ValidationError

from ..core.state.database import Database
from ..core.state.documents import Documents
from .auth.credentials import FileVault, KeyringVault, Vault
from .auth.identity_provider import IdentityProvider
from .auth.oauth_providers import Renewals
from .config_entry import ServerConfig
from .config_files import AS_CONFIGURED, ProgramPlace
from .streams import JsonObject
from .transports import ChildEnvironment, ServeInProcess, unmarked

_MAX_HOLD = 1.0
"""Seconds after which a slot is released even if the server is not connected: a hanging server must not block those
behind it."""


class ConnectSlot:
    """The slot of one connecting server. Released once, by the first of several possible callers."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Wait for a slot, and hold it until `release`, but no longer than `_MAX_HOLD`."""
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_MAX_HOLD, self.release)

    def release(self) -> None:
        """Release the slot; a no-op if it is not held (any more)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class ConnectThrottle:
    """The slots for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def slot(self, config: ServerConfig) -> ConnectSlot:
        return ConnectSlot(self._local if config.is_local else self._remote)


OnNotification = Callable[[str, str, JsonObject], None]
"""Called with server, method and params of every notification from a server."""


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
    """Stores which servers need a sign-in, and their traits."""
    vault: Vault
    """Where tokens are kept."""
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
    """The organisation's, for servers with `xaa`."""
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


def usual_vault(state_directory: Path, principal: str = "") -> Vault:
    """The system's keyring, or files in the state directory if there is none. Principals cannot see each other's
    secrets."""
    return KeyringVault(FileVault(state_directory / "credentials"), principal)


# -- server memory ----------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
"""Bytes; a larger offer is not stored."""


class Offer(BaseModel):
    """A server's information and lists at its last connection."""

    capabilities: types.ServerCapabilities = types.ServerCapabilities()
    server_info: types.Implementation | None = None
    instructions: str | None = None
    tools: list[types.Tool] = []
    prompts: list[types.Prompt] = []


class Traits(BaseModel):
    """The known traits of one server."""

    handshake_only: bool = False
    """It exits or stays silent when probed, and needs `initialize`."""
    asks_for_roots: bool = False
    asks_questions: bool = False
    offer: Offer | None = None


class ServerMemory:
    """The traits of servers by fingerprint. `load` reads them; others are read on first use."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[str, Traits] = {}
        self._writing = asyncio.Lock()

    async def load(self, keys: Iterable[str]) -> None:
        """Read the traits of these servers, off the event loop."""
        wanted = [key for key in keys if key not in self._known]
        self._known |= await asyncio.to_thread(lambda: {key: self._read(key) for key in wanted})

    def traits(self, key: str) -> Traits:
        """The traits of a server; always the same object, which `learn` changes."""
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def learn(self, key: str, **changes: Any) -> bool:
        """Change the traits for this hub; `save` writes them. Returns whether anything is new."""
        known = self.traits(key)
        news = {name: value for name, value in changes.items() if getattr(known, name) != value}
        for name, value in news.items():
            setattr(known, name, value)
        return bool(news)

    async def save(self, key: str) -> None:
        """Store the traits of a server."""
        # One at a time: an older state must not overwrite a newer one.
        async with self._writing:
            # A copy: the traits may change while the thread writes.
            await asyncio.to_thread(self._write, key, self.traits(key).model_copy())

    def _read(self, key: str) -> Traits:
        try:
            return Traits.model_validate(self._documents.read(key) or {})
        except (OSError, ValidationError):
            return Traits()

    def _write(self, key: str, traits: Traits) -> None:
        try:
            content = _as_json(traits)
            if len(content) > _MAX_BYTES:
                content = _as_json(traits.model_copy(update={"offer": None}))
            self._documents.write(key, json.loads(content))
        except (OSError, ValueError) as error:
            log.info("the capabilities of a server could not be cached: %s", error)


def _as_json(traits: Traits) -> bytes:
    return traits.model_dump_json(by_alias=True, exclude_none=True).encode()
