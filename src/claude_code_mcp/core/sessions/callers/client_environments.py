"""Clients of one server with different environments: credentials, HOME, PATH.

A session runs in the environment of the client that started it or whose message resumed it, like in a newly opened
terminal. Resources are keyed by environment, so that clients share them exactly when their environments are equal: the
Claude Code executable and the shared MCP servers are keyed by all significant variables; transcripts, records and
leases by the CLI's configuration directory.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from ...config import Settings, client_settings, without_settings
from ...isolation import Home, Isolation
from ...model.caller import LOCAL, Caller, ClientEnvironment
from ...processes.environment import for_nested_servers, significant
from ...redaction import Redactor
from ...state.spending import Spending
from ...transcripts.transcripts import ProjectFolders
from ...working_directory import default_directory
from ..live.launcher import Launcher
from ..live.mcp_bridge import SessionHub
from ..session_deps import SessionDeps
from ..stored.session_stores import Stores
from .expected_callers import ExpectedCallers

_RECORDS_INTERVAL = 600.0


def environment_key(environment: Mapping[str, str]) -> str:
    """A key that is equal for environments in which sessions behave the same. Never write it to disk: it is derived
    from secrets, and short ones could be guessed from it."""
    content = json.dumps(sorted(significant(environment).items()))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class ClientEnvironments:
    """Finds or creates the parts that a client's sessions use, by its environment."""

    def __init__(
        self,
        own: SessionDeps,
        redactor: Redactor,
        own_addresses: list[str],
        isolation: Isolation,
        callers: ExpectedCallers,
    ) -> None:
        """`own` is this process's environment, for callers without a separate one. `redactor` gets the secrets of every
        client for as long as a session or connection uses them. `isolation` creates the callers' homes, and `callers`
        says which have separate MCP servers."""
        self._own = own
        self._redactor = redactor
        self._own_addresses = own_addresses
        self._isolation = isolation
        self._hub_for = callers.hub_for
        # Not a copy, even if empty: callers may be added later.
        self._hubs = callers.hubs
        self._stores = {os.path.realpath(own.launcher.config_dir): own.stores}
        # Weak: the parts of an environment live as long as a session or connection uses them.
        self._known: WeakValueDictionary[tuple[str, str, object], SessionDeps] = WeakValueDictionary()

    @property
    def all_stores(self) -> Collection[Stores]:
        """A view, which grows with every new configuration directory."""
        return self._stores.values()

    async def clean_up_records_regularly(self, spending: Spending) -> None:
        """Delete the records of sessions and spending that are no longer needed. Never returns."""
        settings = self._own.settings

        def clean_up(all_stores: Sequence[Stores]) -> None:
            for stores in all_stores:
                stores.clean_up()
            with suppress(OSError):
                spending.clean_up()

        # Not at once: the start of a server has more urgent work.
        await asyncio.sleep(min(settings.cleanup_interval, settings.idle_park))
        while True:
            await asyncio.to_thread(clean_up, [*self.all_stores])
            await asyncio.sleep(_RECORDS_INTERVAL)

    def of(self, caller: Caller) -> SessionDeps:
        """The dependencies of a caller's sessions. PermissionDenied if they require a sandbox and none is available."""
        principal, client = caller.principal, caller.environment
        is_plain = principal not in self._hubs and self._isolation.is_plain(principal)
        if client is None and is_plain:
            return self._own
        variables = self._own.launcher.environment if client is None else client.variables
        directory = "" if client is None else client.directory
        # Includes the profile: if it changes, new sessions get the new directories and sandbox.
        own_parts = None if is_plain else (principal, self._isolation.profile_of(principal))
        place = environment_key(variables), directory, own_parts
        known = self._known.get(place)
        if known is None:
            known = self._known[place] = self._make(principal, client)
        return known

    def hub_for(self, client: ClientEnvironment) -> AbstractAsyncContextManager[SessionHub | None]:
        """The hub of a client's sessions, open within this context."""
        return self.of(Caller(LOCAL, client)).open_hub()

    @contextmanager
    def connected(self, client: ClientEnvironment | None) -> Iterator[None]:
        """Context in which a client is connected and its secrets are redacted everywhere; longer if sessions of its
        environment keep running. A client that disconnects keeps its sessions and questions."""
        # Only this frame holds them: the parts of an environment live as long as they are referenced.
        kept = self.of(Caller(LOCAL, client))
        yield
        del kept

    def _make(self, principal: str, client: ClientEnvironment | None) -> SessionDeps:
        own, settings, open_hub = self._own, self._own.settings, self._own.open_hub
        variables, enforcer = own.launcher.environment, own.enforcer
        if principal in self._hubs:
            open_hub = partial(nullcontext, self._hubs[principal])
        if client is not None:
            variables = client.variables
            settings = client_settings(settings, variables, own.launcher.environment)
            open_hub = open_hub if self._hub_for is None else partial(self._hub_for, client)
        directory = default_directory(settings, client.directory if client is not None else None)
        launcher = make_launcher(settings, self._isolation.of(principal, variables, directory), self._own_addresses)
        if client is not None:
            enforcer = enforcer.for_client(directory, variables)
        made = replace(
            own,
            settings=settings,
            launcher=launcher,
            stores=self._stores_below(launcher.config_dir, own=launcher.home.own),
            enforcer=enforcer.guarding(
                launcher.config_dir, str(settings.state_dir), enclosed=launcher.home.sandbox is not None
            ),
            open_hub=open_hub,
            directory=client.directory if client is not None else None,
        )
        self._redactor.learn(without_settings(launcher.home.secrets, settings.sections), owner=made)
        return made

    def _stores_below(self, config_dir: str, *, own: bool) -> Stores:
        """One set per directory, whatever path leads to it: two sets would not see each other's writes."""
        real = os.path.realpath(config_dir)
        if real not in self._stores:
            linked = self._own.stores.transcripts.projects.linked
            projects = ProjectFolders.below(config_dir, own=own, linked=linked)
            parts = self._own.settings, self._own.start_task, self._own.redact
            self._stores[real] = Stores.below(config_dir, *parts, projects, self._own.replica)
        return self._stores[real]


def make_launcher(settings: Settings, home: Home, own_addresses: list[str]) -> Launcher:
    """Create the launcher for the sessions in this home."""
    nested = for_nested_servers(home.environment, settings.max_depth, str(settings.state_dir))
    return Launcher(
        home,
        environment_key(home.environment),
        settings.claude_path,
        settings.start_timeout,
        # A server inside a sandbox could not access the state that all servers of one user share.
        nested if home.enclosure is None else {},
        own_addresses,
    )
