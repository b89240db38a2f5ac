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
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from ..config import Settings, client_settings
from ..model.origin import ClientOrigin
from ..processes.environment import for_nested_servers, significant
from ..redaction import Redactor
from ..store.transcripts import ProjectFolders
from .dependencies import SessionDeps, Stores
from .homes import Home, Homes
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .working_directory import default_directory

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
        homes: Homes,
        host_of: HostOf | None = None,
        hosts: Mapping[str, McpServerHost] | None = None,
    ) -> None:
        """`own` is for callers without an environment of their own, who get that of this process. `redactor` learns
        the secrets of every client, for as long as a session or a connection uses them. `homes` says which callers have
        a Claude Code directory or a sandbox of their own. Without `host_of`, all sessions share the MCP servers of this
        process; `hosts` are those of callers that share them with nobody."""
        self._own = own
        self._redactor = redactor
        self._own_addresses = own_addresses
        self._homes = homes
        self._host_of = host_of
        self._hosts = hosts or {}
        self._stores = {_real(own.launcher.config_dir): own.stores}
        self._known: WeakValueDictionary[tuple[str, str, str], SessionDeps] = WeakValueDictionary()

    @property
    def all_stores(self) -> list[Stores]:
        return list(self._stores.values())

    def of(self, origin: ClientOrigin | None, owner: str) -> SessionDeps:
        """What the sessions of this client use; None is a caller without an environment of its own. PermissionDenied
        if the owner's sessions must run in a sandbox and there can be none."""
        is_plain = self._homes.is_plain(owner) and owner not in self._hosts
        if origin is None and is_plain:
            return self._own
        environment = self._own.launcher.environment if origin is None else origin.environment
        directory = "" if origin is None else origin.directory
        place = environment_key(environment), directory, "" if is_plain else owner
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._make(origin, owner)
        return known

    def _make(self, origin: ClientOrigin | None, owner: str) -> SessionDeps:
        own, settings, hosted = self._own, self._own.settings, self._own.hosted
        environment, client = own.launcher.environment, None
        if owner in self._hosts:
            hosted = partial(nullcontext, self._hosts[owner])
        if origin is not None:
            environment, client = origin.environment, origin.directory
            settings = client_settings(settings, environment, own.launcher.environment)
            hosted = hosted if self._host_of is None else partial(self._host_of, origin)
        directory = default_directory(settings, client)
        launcher = make_launcher(settings, self._homes.of(owner, environment, directory), self._own_addresses)
        gate = own.gate if origin is None else own.gate.for_client(directory, origin.environment)
        made = replace(
            own,
            settings=settings,
            launcher=launcher,
            stores=self._stores_below(launcher.config_dir, own=launcher.home.own),
            gate=gate.guarding(launcher.config_dir, str(settings.state_dir)),
            hosted=hosted,
            directory=client,
        )
        self._redactor.learn(launcher.home.secrets, owner=made)
        return made

    def _stores_below(self, config_dir: str, *, own: bool) -> Stores:
        """One set for each directory, whatever it is called: two would not know of each other's writes."""
        real = _real(config_dir)
        if real not in self._stores:
            linked = self._own.stores.transcripts.projects.linked
            projects = ProjectFolders.below(config_dir, own=own, linked=linked)
            parts = self._own.settings, self._own.start_task, self._own.redact
            self._stores[real] = Stores.below(config_dir, *parts, projects)
        return self._stores[real]


def make_launcher(settings: Settings, home: Home, own_addresses: list[str]) -> Launcher:
    """Starts the processes of sessions that live in this home."""
    nested = for_nested_servers(home.environment, settings.max_depth, str(settings.state_dir))
    return Launcher(
        home,
        environment_key(home.environment),
        settings.claude_path,
        settings.start_timeout,
        # A server inside a sandbox could not see the state that all servers of one user share.
        nested if home.enclosure is None else {},
        own_addresses,
    )


def _real(directory: str) -> str:
    return os.path.realpath(directory)
