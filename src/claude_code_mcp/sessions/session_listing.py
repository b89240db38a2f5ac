"""Lists of sessions: those in memory together with those that are only on disk."""

import asyncio
import os
from collections.abc import Iterable

from ..model.states import State
from ..store.catalogue import Catalogue, CatalogueEntries, Entry
from ..store.session_records import LOCAL, Summary
from .dependencies import SessionDeps
from .registry import Sessions
from .session import Session


class SessionListing:
    """Reads the disk in threads. The local user sees every session of the machine, others only their own."""

    def __init__(self, sessions: Sessions, catalogue: Catalogue, deps: SessionDeps) -> None:
        self._sessions = sessions
        self._catalogue = catalogue
        self._deps = deps

    def in_memory(self, owner: str | None) -> list[Session]:
        """Most recently used first; of one owner, or of all."""
        return [session for session in self._sessions.all() if owner in (None, session.owner)]

    async def entries(self, owner: str, project: str | None, limit: int, text: str | None) -> CatalogueEntries:
        """Newest first; a session in memory that has no transcript yet is included."""
        only = None if owner == LOCAL else frozenset(await self._summaries(owner))
        listed = await asyncio.to_thread(self._catalogue.list, project=project, limit=limit, text=text, only=only)
        known = {entry.session_id for entry in listed}
        fresh = [
            session for session in self.in_memory(owner) if session.id not in known and _matches(session, project, text)
        ]
        found = await asyncio.to_thread(lambda: [self._catalogue.find(session.id) for session in fresh])
        unwritten = [_entry(session) for session, entry in zip(fresh, found, strict=True) if entry is None]
        return sorted([*unwritten, *listed], key=lambda entry: entry.last_used, reverse=True)[:limit]

    async def last_states(self, session_ids: Iterable[str], owner: str) -> dict[str, State]:
        """The states of sessions with a record that are only on disk."""
        summaries = await self._summaries(owner)
        wanted = {
            session_id: summaries[session_id]
            for session_id in session_ids
            if session_id in summaries and not self._sessions.known(session_id)
        }
        return await asyncio.to_thread(
            lambda: {session_id: self._last_state(session_id, summary) for session_id, summary in wanted.items()}
        )

    async def _summaries(self, owner: str) -> dict[str, Summary]:
        summaries = await asyncio.to_thread(self._deps.recorder.records.summaries)
        return {session_id: summary for session_id, summary in summaries.items() if owner in (LOCAL, summary.owner)}

    def _last_state(self, session_id: str, summary: Summary) -> State:
        if summary.running and not summary.cancelled:
            # Recorded as running: it still is where another server holds its lease, else that server has died.
            return State.RUNNING if self._deps.leases.held(session_id) else State.INTERRUPTED
        return summary.state


def _matches(session: Session, project: str | None, text: str | None) -> bool:
    in_project = project is None or os.path.realpath(project) == os.path.realpath(session.cwd)
    return in_project and (not text or text.casefold() in f"{session.first_prompt} {session.cwd}".casefold())


def _entry(session: Session) -> Entry:
    """A session that has no transcript yet."""
    return Entry(session.id, session.cwd, None, session.first_prompt, session.used_at, None, 0)
