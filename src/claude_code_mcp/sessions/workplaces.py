"""Whose environment sessions run in, and everything that follows from it.

A server may have clients with different environments: other credentials, another HOME, another PATH. A session runs in
that of the client that began it, or that of the client whose message made it go on: as with a terminal that is newly
opened. What follows from an environment is found by it, so that clients share what belongs to equal ones and nothing
else: the Claude Code executable and the shared MCP servers by all that is significant in it, transcripts, records and
leases by the CLI's configuration directory.
"""

import hashlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Protocol
from weakref import WeakValueDictionary

from ..claude.user_config import config_directory
from ..config import Settings, client_settings
from ..model.origin import ClientOrigin
from ..processes.environment import for_nested_servers, significant
from ..redaction import Redactor
from .dependencies import SessionDeps, Stores
from .launcher import Launcher, default_directory
from .mcp_bridge import McpServerHost


class McpServerHosts(Protocol):
    """The MCP servers that sessions share, for each environment in which they differ."""

    async def host(self, origin: ClientOrigin) -> McpServerHost | None:
        """Those for the sessions of this client."""

    def connected(self, origin: ClientOrigin) -> AbstractAsyncContextManager[None]:
        """Within this context the client is there, and its servers stay connected."""


def environment_key(environment: Mapping[str, str]) -> str:
    """Equal for environments in which sessions are to behave the same. Never to be written to disk: it is made of
    secrets, and short ones could be guessed from it."""
    content = json.dumps(sorted(significant(environment).items()))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class Workplaces:
    """Finds the parts that the sessions of a client use, and makes them where there are none for its environment."""

    def __init__(
        self,
        own: SessionDeps,
        redactor: Redactor,
        own_addresses: list[str],
        hosts: McpServerHosts | None = None,
    ) -> None:
        """`own` is for callers without an environment of their own, who get that of this process. `redactor` learns
        the secrets of every client, for as long as a session or a connection uses them."""
        self._own = own
        self._redactor = redactor
        self._own_addresses = own_addresses
        self._hosts = hosts
        self._stores = {_real(own.launcher.config_dir): own.stores}
        self._known: WeakValueDictionary[tuple[str, str], SessionDeps] = WeakValueDictionary()

    @property
    def all_stores(self) -> list[Stores]:
        return list(self._stores.values())

    async def of(self, origin: ClientOrigin | None) -> SessionDeps:
        """What the sessions of this client use; None is a caller without an environment of its own."""
        if origin is None:
            return self._own
        place = environment_key(origin.environment), origin.directory
        known = self._known.get(place)
        if known is None:
            host = await self._hosts.host(origin) if self._hosts is not None else self._own.host
            # Another call of the same client may have been faster.
            known = self._known.get(place) or self._make(origin, host)
            self._known[place] = known
        return known

    @asynccontextmanager
    async def connected(self, origin: ClientOrigin | None) -> AsyncIterator[None]:
        """Within this context the client is there: its secrets are known, and its MCP servers stay connected."""
        hosted = self._hosts.connected(origin) if origin is not None and self._hosts is not None else nullcontext()
        async with hosted:
            kept = await self.of(origin)
            yield
            del kept

    def _make(self, origin: ClientOrigin, host: McpServerHost | None) -> SessionDeps:
        settings = client_settings(self._own.settings, origin.environment, self._own.launcher.environment)
        launcher = make_launcher(settings, origin.environment, self._own_addresses)
        directory = default_directory(settings, origin.directory)
        made = replace(
            self._own,
            settings=settings,
            launcher=launcher,
            stores=self._stores_below(launcher.config_dir),
            gate=self._own.gate.based_in(directory),
            host=host,
            directory=origin.directory,
        )
        self._redactor.learn(origin.environment, owner=made)
        return made

    def _stores_below(self, config_dir: str) -> Stores:
        """One set for each directory, whatever it is called: two would not know of each other's writes."""
        real = _real(config_dir)
        if real not in self._stores:
            self._stores[real] = Stores.below(config_dir, self._own.settings, self._own.start_task)
        return self._stores[real]


def make_launcher(settings: Settings, environment: Mapping[str, str], own_addresses: list[str]) -> Launcher:
    """Starts the processes of sessions in this environment."""
    return Launcher(
        environment,
        environment_key(environment),
        config_directory(environment),
        settings.claude_path,
        settings.start_timeout,
        for_nested_servers(environment, settings.max_depth, str(settings.state_dir)),
        own_addresses,
    )


def _real(directory: str) -> str:
    return os.path.realpath(directory)
