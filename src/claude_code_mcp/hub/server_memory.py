"""What is remembered of servers between runs, by the fingerprint of their configuration.

A server shows only in use that it cannot take a probe, that it asks for roots, or that it asks questions; and what it
offers is known only once it has started, which takes some servers long. All of that is kept, so that it is learned
once. A memory that cannot be read counts as empty; one that cannot be written is kept for the life of the hub.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import mcp_types as types
from pydantic import BaseModel, ValidationError

from ..state.documents import Documents

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
        """What is known of a server."""
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def learn(self, key: str, **changes: Any) -> bool:
        """Changes what is known, for this hub; `save` writes it. Tells whether anything is new."""
        known = self.traits(key)
        changed = self._known[key] = known.model_copy(update=changes)
        return changed != known

    async def save(self, key: str) -> None:
        """Keeps what is known of a server."""
        async with self._writing:
            await asyncio.to_thread(self._write, key, self.traits(key))

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
            log.info("what was learned of a server is not kept: %s", error)


def _as_json(traits: Traits) -> bytes:
    return traits.model_dump_json(by_alias=True, exclude_none=True).encode()
