"""What all connections of a hub share: what its owner provides, and what is remembered of servers between runs.

A few local servers, which cost a process each, and more remote ones are connected to at the same time. Only the
beginning of an attempt is throttled, not the connection.

A server shows only in use that it cannot take a probe, that it asks for roots, or that it asks questions; and what it
offers is known only once it has started, which takes some servers long. All of that is kept, so that it is learned
once. A memory that cannot be read counts as empty; one that cannot be written is kept for the life of the hub.
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


# -- server memory ----------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_LARGEST = 4 << 20
"""Bytes; what a server offers beyond that is not kept."""


class Offer(BaseModel):
    """What a server said of itself and listed when it was last connected to."""

    capabilities: types.ServerCapabilities = types.ServerCapabilities()
    server_info: types.Implementation | None = None
    instructions: str | None = None
    tools: list[types.Tool] = []
    prompts: list[types.Prompt] = []


class Traits(BaseModel):
    """What is known of one server."""

    handshake_only: bool = False
    """It ends or stays mute when it is probed, and must be greeted with `initialize`."""
    asks_for_roots: bool = False
    asks_questions: bool = False
    offer: Offer | None = None


class ServerMemory:
    """The traits of servers by fingerprint. `load` reads them; what was not loaded is read when it is first needed."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._known: dict[str, Traits] = {}
        self._writing = asyncio.Lock()

    async def load(self, keys: Iterable[str]) -> None:
        """Reads what is known of these servers, off the event loop."""
        wanted = [key for key in keys if key not in self._known]
        self._known |= await asyncio.to_thread(lambda: {key: self._read(key) for key in wanted})

    def traits(self, key: str) -> Traits:
        """What is known of a server; always the same object, which `learn` changes."""
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def learn(self, key: str, **changes: Any) -> bool:
        """Changes what is known, for this hub; `save` writes it. Tells whether anything is new."""
        known = self.traits(key)
        news = {name: value for name, value in changes.items() if getattr(known, name) != value}
        for name, value in news.items():
            setattr(known, name, value)
        return bool(news)

    async def save(self, key: str) -> None:
        """Keeps what is known of a server."""
        # One at a time: an older state must not be written behind a newer one.
        async with self._writing:
            # A copy: more may be learned while the thread writes.
            await asyncio.to_thread(self._write, key, self.traits(key).model_copy())

    def _read(self, key: str) -> Traits:
        try:
            return Traits.model_validate(self._documents.read(key) or {})
        except (OSError, ValidationError):
            return Traits()

    def _write(self, key: str, traits: Traits) -> None:
        try:
            content = _as_json(traits)
            if len(content) > _LARGEST:
                content = _as_json(traits.model_copy(update={"offer": None}))
            self._documents.write(key, json.loads(content))
        except (OSError, ValueError) as error:
            log.info("the capabilities of a server could not be cached: %s", error)


def _as_json(traits: Traits) -> bytes:
    return traits.model_dump_json(by_alias=True, exclude_none=True).encode()
