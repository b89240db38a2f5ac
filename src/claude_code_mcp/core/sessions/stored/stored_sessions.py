"""The sessions on disk, as one caller may see and change them.

`SessionLibrary` (`session_library.py`) has the files below one configuration directory and does not know callers. This
module finds the library of a caller's session, checks permissions (another caller's session does not exist), adds
sessions in memory to the lists, and audits every change, including refused ones.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InvalidArgument, PermissionDenied, ProcessFailed
from ...git import Git
from ...model.caller import LOCAL, LOCAL_CALLER, Caller
from ...model.events import AuditEvent, AuditKind
from ...model.image import Image
from ...model.session_id import is_session_id
from ...model.states import State
from ...model.text import clip_line
from ...state.session_marks import Mark
from ...state.session_records import Summary
from ...transcripts.conversation import Item
from ...transcripts.conversation_pages import Extent
from ...transcripts.cost_table import Costs, Grouping, Split, added_up
from ...transcripts.session_catalog import CatalogEntries, Entry, normalized
from ...transcripts.timeline import Timeline, WaitTime
from ...transcripts.transcript_export import Detail
from ...transcripts.transcript_summary import MAX_TITLE
from ..callers.client_environments import ClientEnvironments
from ..callers.session_access import Access, SessionAccess, SessionSharing
from ..file_changes import file_text
from ..observers import ObserverList
from ..registry import Sessions
from ..session import Session
from .session_library import ExportFormat, ReadPage, StoredConversation, TextHit, with_recorded_costs
from .session_row import SessionRow, session_row
from .session_stores import Stores

_MAX_FILES = 100_000
"""Maximum number of files of a repository that are listed."""


class StoredSessions:
    """Methods on one session raise SessionNotFound if it is not the caller's. The local user's lists have every session
    of the machine, those of others only their own and those shared with them."""

    def __init__(
        self,
        sessions: Sessions,
        environments: ClientEnvironments,
        observers: ObserverList,
        redact: Callable[[Any], Any],
        access: SessionAccess,
    ) -> None:
        self._access = access
        self._sessions = sessions
        self._environments = environments
        self._observers = observers
        self._redact = redact

    # -- lists ---------------------------------------------------------------------------------------------------

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
    ) -> CatalogEntries:
        """All of the caller's sessions on this machine, including those without a transcript: pinned ones first, then
        the newest, and at the end those that others share with them. `text` is searched for in titles and prompts or,
        with `whole`, in complete conversations. With `active`, only those in memory and those that continue
        automatically after a usage limit."""
        deps = self._environments.of(caller)
        if project is not None and deps.directory is not None:
            project = os.path.join(deps.directory, project)
        if project is not None and caller.principal != LOCAL:
            project = await deps.stores.threads.run(deps.enforcer.resolved, project, caller.principal)
        found = await self._own_entries(
            caller.principal,
            deps.stores,
            project,
            limit,
            text,
            offset=offset,
            whole=whole,
            archived=archived,
            active=active,
        )
        if project is not None or text is not None or archived or active or caller.principal == LOCAL:
            return found
        # Shared sessions that have a transcript only fill the remaining room: they do not displace the caller's own.
        await self._access.refresh()
        listed, found = {entry.session_id for entry in found}, [*found]
        for share in self._access.shared_with(caller.principal):
            if len(found) >= limit:
                break
            if share.session_id not in listed:
                stores = self._environments.of(Caller(share.owner)).stores
                entry = await stores.threads.run(stores.catalog.find, share.session_id)
                found += [entry] if entry is not None else []
        return found

    async def page(
        self, *, caller: Caller = LOCAL_CALLER, limit: int = 50, offset: int = 0, **wanted: Any
    ) -> tuple[list[SessionRow], int | None]:
        """A page of the list, and the offset of the next one if there is one; `wanted` are the filters of `entries`."""
        # One more than shown, to know whether there is another page.
        entries = await self.entries(caller=caller, limit=limit + 1, offset=offset, **wanted)
        return await self.rows(entries[:limit], caller), offset + limit if len(entries) > limit else None

    async def rows(self, entries: CatalogEntries, caller: Caller) -> list[SessionRow]:
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
    ) -> CatalogEntries:
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
            stores.catalog.list,
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

        def look() -> tuple[frozenset[str], CatalogEntries]:
            # In this order: a transcript that is written between the two steps is found by the search.
            return stores.catalog.with_transcript(in_memory_ids), search()

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
        found = await stores.threads.run(lambda: [session.deps.stores.catalog.find(session.id) for session in fresh])
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
        return await stores.threads.run(partial(stores.catalog.count, only=only, archived=archived))

    async def unread(self, *, caller: Caller = LOCAL_CALLER) -> str | None:
        """Why a list, or a report of costs, may be incomplete; None if everything could be read."""
        stores = self._environments.of(caller).stores
        return await stores.threads.run(stores.catalog.unread)

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

    # -- one conversation ----------------------------------------------------------------------------------------

    async def read(
        self,
        session_id: str,
        *,
        caller: Caller = LOCAL_CALLER,
        cursor: str = "1",
        size: int = 24_000,
        detail: Detail | None = None,
        agent: str | None = None,
    ) -> ReadPage:
        """A page of a session's or a subagent's conversation, wherever the session runs."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.read(own_id, cursor=cursor, size=size, detail=detail or Detail(), agent=agent)

    async def entry(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> Entry | None:
        """The list entry of a session; None if it has no transcript yet."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.threads.run(stores.catalog.find, own_id)

    async def page_before(
        self,
        session_id: str,
        before: str | None,
        extent: Extent,
        *,
        caller: Caller = LOCAL_CALLER,
        agent: str | None = None,
    ) -> StoredConversation:
        """The turns before a place in a session, or the last ones, as data, with long texts truncated."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.page_before(own_id, before, extent, agent=agent)

    async def item(
        self,
        session_id: str,
        turn: int,
        item_id: str,
        *,
        caller: Caller = LOCAL_CALLER,
        agent: str | None = None,
    ) -> Item:
        """One complete item of a turn."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.item(own_id, turn, item_id, agent=agent)

    async def find(self, session_id: str, text: str, most: int, *, caller: Caller = LOCAL_CALLER) -> list[TextHit]:
        """The matches of a text in a conversation, newest first."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.find(own_id, text, most)

    async def timeline(
        self, session_id: str, logged: Mapping[str, WaitTime], *, caller: Caller = LOCAL_CALLER
    ) -> Timeline:
        """When the last turns of a session ran and waited; `logged` are the waits in its event log."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.timeline(own_id, logged)

    async def prompt_image(self, session_id: str, turn: int, number: int, *, caller: Caller = LOCAL_CALLER) -> Image:
        """One of the images that went with the prompt of a turn, counted from 0."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.prompt_image(own_id, turn, number)

    async def follow(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> AsyncIterator[list[str]]:
        """New transcript lines from now on, whichever program runs the session, as readable lines, at most twice a
        second. Ends only when the session is no longer shared with the caller."""
        own_id, stores = await self._locate(session_id, caller)
        owner = self._access.acting(own_id, caller, Access.WATCH).principal
        async for lines in stores.library.follow(own_id):
            # Checked each time: no request ends when the share of a subscriber is withdrawn.
            if not self._access.may(own_id, owner, caller.principal, Access.WATCH):
                return
            yield self._redact(lines)

    # -- changes -------------------------------------------------------------------------------------------------

    async def rename(self, session_id: str, title: str, *, caller: Caller = LOCAL_CALLER) -> str:
        """Set the title of a session like Claude Code does, and return it; an empty one removes it."""
        async with self.audited_change(session_id, caller, "rename") as (own_id, stores):
            return await stores.library.rename(own_id, title)

    async def tag(self, session_id: str, tag: str, *, caller: Caller = LOCAL_CALLER) -> str:
        """Tag a session; an empty tag removes it."""
        async with self.audited_change(session_id, caller, "tag") as (own_id, stores):
            return await stores.library.tag(own_id, tag)

    async def mark(self, session_id: str, mark: Mark, on: bool, *, caller: Caller = LOCAL_CALLER) -> None:
        """Pin or archive a session, or undo that."""
        action = f"{mark} {'on' if on else 'off'}"
        async with self.audited_change(session_id, caller, action) as (own_id, stores):
            await stores.library.mark(own_id, mark, on)

    async def copy(self, session_id: str, *, caller: Caller = LOCAL_CALLER, title: str | None = None) -> str:
        """Fork a session without sending a message: copy the conversation so far under a new id, which is returned.
        RateLimited if the caller may not start another session now."""
        async with self.audited_change(session_id, caller, "fork") as (own_id, stores):
            self._environments.of(caller).enforcer.limits.new_sessions.take(caller.principal)
            # The copy uses the record on disk.
            await stores.recorder.saved(own_id)
            return await stores.library.copy(own_id, caller.principal, title)

    async def export(
        self,
        session_id: str,
        form: ExportFormat,
        *,
        caller: Caller = LOCAL_CALLER,
        detail: Detail | None = None,
    ) -> Path:
        """Write a conversation to a private file in the state directory and return its path."""
        async with self.audited_change(session_id, caller, f"export {form}") as (own_id, stores):
            return await stores.library.export(own_id, form, detail or Detail(full=True))

    async def keep_text(self, session_id: str, suffix: str, text: str, *, caller: Caller = LOCAL_CALLER) -> Path:
        """Write text that is too long to return to a private file next to the exports, and return its path."""
        own_id, stores = await self._locate(session_id, caller)
        return await stores.library.keep_text(own_id, suffix, text)

    async def delete(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> None:
        """Remove a session permanently. SessionBusy, with nothing removed, while it is running or open anywhere."""
        async with self.audited_change(session_id, caller, "delete") as (own_id, stores):
            await self._sessions.release(own_id)
            # Before the removal: a pending write would bring the record back.
            await stores.recorder.saved(own_id)
            replica = self._environments.of(caller).replica

            record = await stores.threads.run(stores.recorder.records.read, own_id)
            # The copy before the files: otherwise, if this machine died in between, the copy would bring the session
            # back elsewhere. Shielded: once started, it completes even if the caller leaves.
            before = None
            if replica is not None and (record is None or not record.options.stay_on_machine):
                before = partial(replica.remove, own_id, caller.principal if record is None else record.owner)
            await asyncio.shield(stores.library.remove(own_id, before))
            await self._access.take_back(own_id, caller.principal)

    # -- costs ---------------------------------------------------------------------------------------------------

    async def costs(
        self,
        by: Grouping = "day",
        *,
        caller: Caller = LOCAL_CALLER,
        since: str = "",
        project: str | None = None,
        most: int | None = None,
        split: Split | None = None,
    ) -> Costs:
        """The costs of the caller's sessions on this machine, from everything on disk, in at most `most` groups, each
        divided by `split`; `since` is a day."""
        deps = self._environments.of(caller)
        if project is not None and caller.principal != LOCAL:
            project = await deps.stores.threads.run(deps.enforcer.resolved, project, caller.principal)
        without = deps.replica.elsewhere() if deps.replica is not None else ()
        return await deps.stores.library.costs(
            by, principal=caller.principal, since=since, project=project, most=most, without=without, split=split
        )

    async def costs_of_all_callers(
        self, by: Grouping, *, caller: Caller, since: str = "", most: int | None = None, split: Split | None = None
    ) -> tuple[Costs, list[str]]:
        """The costs of the sessions of all callers that servers on this state directory have run, and why some may be
        missing. PermissionDenied for a caller who may not see them, and for grouping by session, which would reveal
        others' prompts."""
        own = self._environments.of(caller)
        own.enforcer.limits.check_all_costs(caller.principal)
        if by == "session":
            raise PermissionDenied("You may list only your own sessions.", field="by")
        reports, unread = [], []
        for owner in await own.stores.library.owners():
            deps = self._environments.of(Caller(owner))
            without = deps.replica.elsewhere() if deps.replica is not None else ()
            reports.append(
                await deps.stores.library.costs(
                    by, principal=owner, recorded=True, since=since, without=without, split=split
                )
            )
            unread.append(await deps.stores.threads.run(deps.stores.catalog.unread))
        return added_up(by, reports, most), [*dict.fromkeys(filter(None, unread))]

    # -- settings, files and other parts -------------------------------------------------------------------------

    async def reconfigure(self, session_id: str, change: Mapping[str, Any], *, caller: Caller = LOCAL_CALLER) -> None:
        """Continue with another `model` or `permission_mode`, which the policy must admit, now and when resumed."""
        action = ", ".join(f"{name} {value}" for name, value in change.items())
        async with self.audited_change(session_id, caller, action) as (own_id, _):
            session = await self._sessions.find(own_id, caller.principal, self._environments.of(caller))
            await session.reconfigure(change)

    async def files(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> Sequence[str]:
        """The files of a session's repository below its directory, as git lists them in the session's own sandbox;
        empty without a repository."""
        own_id, _ = await self._locate(session_id, caller)
        # Watching shows only the session's output; naming files in messages needs write access.
        caller = self._access.acting(own_id, caller, Access.ANSWER)
        session = await self._sessions.find(own_id, caller.principal, self._environments.of(caller))
        git = Git(session.deps.launcher.home, (session.cwd,))
        try:
            listed = await git.read("ls-files", "-z", "-c", "-o", "--exclude-standard", cwd=session.cwd)
        except (InvalidArgument, ProcessFailed):
            return ()
        return [path for path in listed.split("\0")[:_MAX_FILES] if path]

    async def file(self, session_id: str, path: str, *, caller: Caller = LOCAL_CALLER) -> tuple[str, str]:
        """A text file below a session's directory that its caller may read: its relative path and its text. A relative
        path starts at the directory. InvalidArgument, without details, for any other file."""
        # Watching shows only the session's output, not other files.
        own_id, stores = await self._locate(session_id, caller, own=True)
        session = await self._sessions.find(own_id, caller.principal, self._environments.of(caller))
        admission = session.deps.enforcer.admission(caller.principal)
        readable = partial(admission.readable, "path", cwd=session.cwd)
        return await stores.threads.run(file_text, path, session.cwd, readable)

    # -- access --------------------------------------------------------------------------------------------------

    async def share(self, session_id: str, grantee: str, access: Access, *, caller: Caller = LOCAL_CALLER) -> str:
        """Share a session with a person, or with a group named `group:NAME`; return its current id."""
        with self._observers.auditing_refusals(caller.principal, "share", session_id):
            own_id, _ = await self._locate(session_id, caller, own=True)
            await self._access.share(own_id, caller.principal, grantee, access)
            return own_id

    async def unshare(self, session_id: str, grantee: str | None = None, *, caller: Caller = LOCAL_CALLER) -> list[str]:
        """Stop sharing a session with a grantee, or with everyone; return the former grantees."""
        with self._observers.auditing_refusals(caller.principal, "unshare", session_id):
            own_id, _ = await self._locate(session_id, caller, own=True)
            return await self._access.take_back(own_id, caller.principal, grantee)

    async def sharing(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> SessionSharing:
        """The shares of a session, and its owner if that is not the caller; visible to all who may watch it."""
        own_id, _ = await self._locate(session_id, caller)
        return self._access.sharing(own_id, caller.principal)

    async def _locate(self, session_id: str, caller: Caller, *, own: bool = False) -> tuple[str, Stores]:
        """The current id and the store of a session; SessionNotFound unless it is the caller's or, unless `own`, shared
        with them."""
        known = self._sessions.known(session_id)
        current = known.id if known is not None else session_id
        if own:
            self._access.refuse_borrowed(current, caller.principal)
        else:
            caller = self._access.acting(current, caller, Access.WATCH)
        if known is not None:
            if known.owner != caller.principal:
                raise self._observers.foreign_session(session_id, caller.principal)
            return known.id, known.deps.stores
        if not is_session_id(session_id):
            raise InvalidArgument(f"{session_id!r} is not a session id.", field="session_id")
        stores = self._environments.of(caller).stores
        own_id = await asyncio.to_thread(stores.moved_ids.resolve, session_id)
        if not await asyncio.to_thread(stores.recorder.records.owned_by, caller.principal, own_id):
            raise self._observers.foreign_session(session_id, caller.principal)
        return own_id, stores

    @contextlib.asynccontextmanager
    async def audited_change(self, session_id: str, caller: Caller, action: str) -> AsyncIterator[tuple[str, Stores]]:
        """Context for a change to a session: audits the change or its refusal."""
        with self._observers.auditing_refusals(caller.principal, action, session_id):
            own_id, stores = await self._locate(session_id, caller, own=True)
            yield own_id, stores
        # Not reached if the change failed.
        self._observers.act(AuditEvent(AuditKind.SESSION_MANAGED, caller.principal, own_id, {"action": action}))


def _last_state(session_id: str, summary: Summary, stores: Stores) -> State:
    if summary.running and not summary.cancelled:
        # Recorded as running: true if another server holds its lease; otherwise that server has died.
        return State.RUNNING if stores.leases.may_be_held(session_id) else State.INTERRUPTED
    return summary.state


def _matches(session: Session, project: str | None, text: str | None, principal: str) -> bool:
    place = os.path.realpath if principal == LOCAL else normalized
    in_project = project is None or place(project) == place(session.shown_directory)
    return in_project and (
        not text or text.casefold() in f"{session.first_prompt} {session.shown_directory}".casefold()
    )


def _entry(session: Session) -> Entry:
    """A session that has no transcript yet."""
    prompt = clip_line(session.first_prompt, MAX_TITLE) if session.first_prompt else None
    return Entry(session.id, session.shown_directory, None, prompt, session.used_at, None, 0)
