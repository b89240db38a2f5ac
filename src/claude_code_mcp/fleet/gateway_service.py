"""What a gateway has in place of a service: the sessions, their policy and their audit trail are at the machines."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from ..config import Settings
from ..model.events import AuditEvent
from ..state.database import Database
from ..state.state_directory import database_in


class GatewayService:
    """What the HTTP transport needs of a service, where the service is at the machines."""

    def __init__(self, settings: Settings, assigned: Callable[[str, Collection[str]], None]) -> None:
        """`assigned` is called for a caller whose groups have changed."""
        self._settings = settings
        self._assigned = assigned
        self._tasks: set[asyncio.Task[Any]] = set()
        self._groups: dict[str, tuple[str, ...]] = {}
        self.audited: Callable[[AuditEvent], None] = lambda _: None
        """Takes what the gateway itself has to tell; sessions are audited at their machines."""
        self.learned: Callable[[Iterable[str]], None] = lambda _: None
        """Takes secrets that must not appear in the log."""

    def audit(self, event: AuditEvent) -> None:
        self.audited(event)

    def start_task(self, work: Coroutine[Any, Any, Any], *, endless: bool = False) -> "asyncio.Task[Any]":
        """Runs something in the background until it is done, or the gateway closes, also if it is `endless`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def state(self) -> Database:
        """Where the names of people are kept who sign in at a provider: in the gateway's own directory."""
        return database_in(self._settings.state_dir)

    async def admit(self, _: str, __: Collection[str]) -> str | None:
        """Whether somebody is served is decided by each machine."""
        return None

    async def why_restart_for(self, _: str) -> str | None:
        return None

    def add_secrets(self, secrets: Iterable[str]) -> None:
        self.learned(secrets)

    def assign(self, name: str, groups: Collection[str]) -> None:
        known, self._groups[name] = self._groups.get(name), tuple(groups)
        if known is not None and {*known} != {*groups}:
            self._assigned(name, groups)

    def groups_of(self, name: str) -> tuple[str, ...]:
        """The groups that the caller's newest token has named; machines are told with each connection."""
        return self._groups.get(name, ())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
