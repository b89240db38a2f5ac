"""Lists the sessions that a caller may see, in memory and on disk.

Files and records are read in threads.
"""

import asyncio
import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from ...model.caller import LOCAL, LOCAL_CALLER, Caller
from ...model.states import State
from ...model.text import clip_line
from ...state.session_records import Summary
from ...transcripts.session_catalogue import CatalogueEntries, Entry, normalised
from ...transcripts.transcript_summary import MAX_TITLE
from ..callers.client_environments import ClientEnvironments
from ..callers.session_access import Access, SessionAccess
from ..registry import Sessions
from ..session import Session
from .session_library import with_recorded_costs
from .session_row import SessionRow, session_row
from .session_stores import Stores


class SessionListing:
    """Lists sessions. The local user sees every session of the machine, others only their own and those shared with
    them. Reads the disk in threads."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments, access: SessionAccess) -> None:
        self._sessions = sessions
        self._environments = environments
        self._access = access

    def in_memory(self, *, principal: str | None = LOCAL) -> list[Session]:
        """The sessions in memory that have accepted a message, most recently used first; all of them, or those that one
        principal may watch."""
        return [
            session
            for session in self._sessions.all()
            if principal is None or self._access.may(session.id, session.owner, principal, Access.WATCH)
        ]

    async def entries(
        self,
        *,
        caller: Caller = LOCAL_CALLER,
        project: str | None = None,
        limit: int = 50,
        offset: int = 0,
        text: str | None = None,
        whole: bool = False,
        archived: bool = False,
        active: bool = False,
    ) -> CatalogueEntries:
        """All of the caller's sessions on this machine, including those without a transcript: pinned ones first, then
        the newest, and at the end those that others share with them. `text` is searched for in titles and prompts or,
        with `whole`, in complete conversations. With `active`, only those in memory and those that continue
        automatically after a usage limit."""
        deps = self._environments.of(caller)
        if project is not None and deps.directory is not None:
            project = os.path.join(deps.directory, project)
        if project is not None and caller.principal != LOCAL:
            project = await deps.stores.threads.run(deps.enforcer.resolved, project, caller.principal)
        look = partial(self._own_entries, caller.principal, deps.stores, project, limit, text)
        found = await look(offset=offset, whole=whole, archived=archived, active=active)
        if project is not None or text is not None or archived or active or caller.principal == LOCAL:
            return found
        # Shared sessions only fill the remaining room: they do not displace the caller's own.
        return await self._with_shared(found, limit, caller)

    async def page(
        self, *, caller: Caller = LOCAL_CALLER, limit: int = 50, offset: int = 0, **wanted: Any
    ) -> tuple[list[SessionRow], int | None]:
        """A page of the list, and the offset of the next one if there is one; `wanted` are the filters of `entries`."""
        # One more than shown, to know whether there is another page.
        entries = await self.entries(caller=caller, limit=limit + 1, offset=offset, **wanted)
        return await self.rows(entries[:limit], caller), offset + limit if len(entries) > limit else None

    async def rows(self, entries: CatalogueEntries, caller: Caller) -> list[SessionRow]:
        """The rows of these entries, with the state of sessions in memory and their owners."""
        in_memory = {session.id: session for session in self.in_memory(principal=caller.principal)}
        states = await self.last_states((entry.session_id for entry in entries), caller=caller)
        waiting = await self.continuing(caller=caller)
        return [
            session_row(
                entry,
                in_memory.get(entry.session_id),
                last_state=states.get(entry.session_id),
                continues_at=waiting.get(entry.session_id),
                sharing=self._access.sharing(entry.session_id, caller.principal),
            )
            for entry in entries
        ]

    async def _with_shared(self, listed: CatalogueEntries, limit: int, caller: Caller) -> CatalogueEntries:
        """The caller's sessions followed, as far as there is room, by shared sessions that have a transcript."""
        await self._access.refresh()
        known, found = {entry.session_id for entry in listed}, [*listed]
        for share in self._access.shared_with(caller.principal):
            if len(found) >= limit:
                break
            if share.session_id not in known:
                stores = self._environments.of(Caller(share.owner)).stores
                entry = await stores.threads.run(stores.catalogue.find, share.session_id)
                found += [entry] if entry is not None else []
        return found

    async def _own_entries(
        self,
        principal: str,
        stores: Stores,
        project: str | None,
        limit: int,
        text: str | None,
        *,
        offset: int,
        whole: bool,
        archived: bool,
        active: bool,
    ) -> CatalogueEntries:
        """The entries without shared sessions; a session in memory without a transcript is on the first page."""
        # Before reading memory: a session that another server has continued is listed as on disk.
        summaries = await self._summaries(principal, stores)
        self._sessions.forget_outdated(summaries)
        only = None if principal == LOCAL else frozenset(summaries)
        if active:
            in_memory = frozenset(session.id for session in self.in_memory(principal=principal))
            live = in_memory | (await self._continuing(principal, stores)).keys()
            only = live if only is None else only & live
        search = partial(
            stores.catalogue.list,
            project=project,
            limit=limit,
            offset=offset,
            text=text,
            whole=whole,
            only=only,
            archived=archived,
            by_name=principal != LOCAL,
        )
        # Taken here: the sessions in memory belong to the event loop, and `look` runs in a thread.
        in_memory_ids = [session.id for session in self.in_memory(principal=principal)]

        def look() -> tuple[frozenset[str], CatalogueEntries]:
            # In this order: a transcript that is written between the two steps is found by the search.
            return stores.catalogue.with_transcript(in_memory_ids), search()

        threads = stores.threads if text is None else stores.library.searches
        on_disk, listed = await threads.run(look)
        listed = with_recorded_costs(listed, summaries)
        if offset or archived:
            return listed
        known = {entry.session_id for entry in listed}
        fresh = [
            session
            for session in self.in_memory(principal=principal)
            if session.id not in known and _matches(session, project, text, principal)
        ]
        found = await stores.threads.run(lambda: [session.deps.stores.catalogue.find(session.id) for session in fresh])
        more = [
            entry or _entry(session)
            for session, entry in zip(fresh, found, strict=True)
            # Sessions here that had a transcript and are not listed were filtered out.
            if entry is None or session.id not in on_disk or session.deps.stores is not stores
        ]
        newest = sorted([*more, *listed], key=lambda entry: entry.last_used, reverse=True)
        return sorted(newest, key=lambda entry: not entry.pinned)[:limit]

    async def count(self, *, caller: Caller = LOCAL_CALLER, archived: bool = False) -> int:
        """How many sessions `entries` has on all pages; a few files without a conversation may be counted."""
        principal, stores = caller.principal, self._environments.of(caller).stores
        only = None if principal == LOCAL else frozenset(await self._summaries(principal, stores))
        return await stores.threads.run(partial(stores.catalogue.count, only=only, archived=archived))

    async def unread(self, *, caller: Caller = LOCAL_CALLER) -> str | None:
        """Why a list, or a report of costs, may be incomplete; None if everything could be read."""
        stores = self._environments.of(caller).stores
        return await stores.threads.run(stores.catalogue.unread)

    async def last_states(self, session_ids: Iterable[str], *, caller: Caller = LOCAL_CALLER) -> dict[str, State]:
        """The states of the caller's sessions that are only on disk."""
        principal, stores = caller.principal, self._environments.of(caller).stores
        summaries = await self._summaries(principal, stores)
        wanted = {
            session_id: summaries[session_id]
            for session_id in session_ids
            if session_id in summaries and not self._sessions.known(session_id)
        }
        return await asyncio.to_thread(
            lambda: {session_id: _last_state(session_id, summary, stores) for session_id, summary in wanted.items()}
        )

    async def continuing(self, *, caller: Caller = LOCAL_CALLER) -> dict[str, float]:
        """The caller's sessions that continue automatically after a usage limit, each with the time."""
        return await self._continuing(caller.principal, self._environments.of(caller).stores)

    async def _continuing(self, principal: str, stores: Stores) -> dict[str, float]:
        waiting = await asyncio.to_thread(stores.recorder.records.waiting)
        return {found.session_id: found.continues_at for found in waiting if principal in (LOCAL, found.owner)}

    async def _summaries(self, principal: str, stores: Stores) -> dict[str, Summary]:
        summaries = await asyncio.to_thread(stores.recorder.records.summaries)
        return {session_id: summary for session_id, summary in summaries.items() if principal in (LOCAL, summary.owner)}


def _last_state(session_id: str, summary: Summary, stores: Stores) -> State:
    if summary.running and not summary.cancelled:
        # Recorded as running: true if another server holds its lease; otherwise that server has died.
        return State.RUNNING if stores.leases.may_be_held(session_id) else State.INTERRUPTED
    return summary.state


def _matches(session: Session, project: str | None, text: str | None, principal: str) -> bool:
    place = os.path.realpath if principal == LOCAL else normalised
    in_project = project is None or place(project) == place(session.shown_directory)
    return in_project and (
        not text or text.casefold() in f"{session.first_prompt} {session.shown_directory}".casefold()
    )


def _entry(session: Session) -> Entry:
    """A session that has no transcript yet."""
    prompt = clip_line(session.first_prompt, MAX_TITLE) if session.first_prompt else None
    return Entry(session.id, session.shown_directory, None, prompt, session.used_at, None, 0)
