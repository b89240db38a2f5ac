"""Stores what a hub has learned about its servers.

Whether a server supports probing, requests roots or asks questions shows only in use, and its tools are known only
after it has started, which can take long. All of that is stored, so that it is learned only once. Unreadable memory
counts as empty; if it cannot be written, it lasts as long as the hub.
"""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import mcp_types as types
from pydantic import BaseModel, ValidationError

from ..core.state.documents import Documents

log = logging.getLogger(__name__)

_MAX_BYTES = 4 << 20
"""Maximum size of a stored offer."""


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
    """The server exits or stays silent when probed, and needs `initialize`."""
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
        new_facts = {name: value for name, value in changes.items() if getattr(known, name) != value}
        for name, value in new_facts.items():
            setattr(known, name, value)
        return bool(new_facts)

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
