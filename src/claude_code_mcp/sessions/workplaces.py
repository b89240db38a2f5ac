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
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from ..claude.user_config import config_directory
from ..config import Settings, client_settings
from ..model.origin import ClientOrigin
from ..processes.environment import for_nested_servers, significant
from ..redaction import Redactor
from .dependencies import SessionDeps, Stores
from .launcher import Launcher, default_directory
from .mcp_bridge import McpServerHost

HostOf = Callable[[ClientOrigin], AbstractAsyncContextManager[McpServerHost | None]]
"""The MCP servers that the sessions of a client share with those of clients that have the same ones."""


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
        host_of: HostOf | None = None,
    ) -> None:
        """`own` is for callers without an environment of their own, who get that of this process. `redactor` learns
        the secrets of every client, for as long as a session or a connection uses them. Without `host_of`, all sessions
        share the MCP servers of this process."""
        self._own = own
        self._redactor = redactor
        self._own_addresses = own_addresses
        self._host_of = host_of
        self._stores = {_real(own.launcher.config_dir): own.stores}
        self._known: WeakValueDictionary[tuple[str, str], SessionDeps] = WeakValueDictionary()

    @property
    def all_stores(self) -> list[Stores]:
        return list(self._stores.values())

    def of(self, origin: ClientOrigin | None) -> SessionDeps:
        """What the sessions of this client use; None is a caller without an environment of its own."""
        if origin is None:
            return self._own
        place = environment_key(origin.environment), origin.directory
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._make(origin)
        return known

    def _make(self, origin: ClientOrigin) -> SessionDeps:
        settings = client_settings(self._own.settings, origin.environment, self._own.launcher.environment)
        launcher = make_launcher(settings, origin.environment, self._own_addresses)
        directory = default_directory(settings, origin.directory)
        made = replace(
            self._own,
            settings=settings,
            launcher=launcher,
            stores=self._stores_below(launcher.config_dir),
            gate=self._own.gate.for_client(directory, origin.environment),
            hosted=self._own.hosted if self._host_of is None else partial(self._host_of, origin),
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
