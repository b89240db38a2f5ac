"""Operations of callers on stored sessions: checks permissions, then calls the library.

The service's side of `SessionLibrary` (`session_library.py`): finds a session's store, checks its owner (another
caller's session does not exist), and audits every change, including refused ones.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import InvalidArgument, PermissionDenied, ProcessFailed
from ...git import Git
from ...model.caller import LOCAL, LOCAL_CALLER, Caller
from ...model.events import AuditEvent, AuditKind
from ...model.image import Image
from ...model.session_id import is_session_id
from ...state.session_marks import Mark
from ...transcripts.conversation import Item
from ...transcripts.conversation_pages import Extent
from ...transcripts.cost_table import Costs, Grouping, Split, added_up
from ...transcripts.session_catalogue import Entry
from ...transcripts.timeline import Timeline, WaitTime
from ...transcripts.transcript_export import Detail
from ..callers.client_environments import ClientEnvironments
from ..callers.session_access import Access, SessionAccess, SessionSharing
from ..file_changes import file_text
from ..observers import ObserverList
from ..registry import Sessions
from .replica import SessionReplica
from .session_library import ExportFormat, ReadPage, StoredConversation, TextHit
from .session_stores import Stores

_MAX_FILES = 100_000
"""Maximum number of files of a repository that are listed."""


class StoredSessions:
    """All methods raise SessionNotFound for a session that is not the caller's."""

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
        return await stores.threads.run(stores.catalogue.find, own_id)

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
        async with self.audited_change(session_id, caller, f"{mark} {'on' if on else 'off'}") as (
            own_id,
            stores,
        ):
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

            async def remove_copy(replica: SessionReplica) -> None:
                await replica.remove(own_id, record.owner if record is not None else caller.principal)

            record = await stores.threads.run(stores.recorder.records.read, own_id)
            is_copied = record is None or not record.options.stay_on_machine
            # The copy before the files: otherwise, if this machine died in between, the copy would bring the session
            # back elsewhere. Shielded: once started, it completes even if the caller leaves.
            before = partial(remove_copy, replica) if replica is not None and is_copied else None
            await asyncio.shield(stores.library.remove(own_id, before))
            await self._access.take_back(own_id, caller.principal)

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

    async def everybodys_costs(
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
            unread.append(await deps.stores.threads.run(deps.stores.catalogue.unread))
        return added_up(by, reports, most), [*dict.fromkeys(filter(None, unread))]

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
