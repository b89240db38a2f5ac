"""Sessions as they are kept on disk, of every owner and environment: read, follow, name, mark, copy, export, remove.

The service's side of `SessionLibrary`: finds the store that a session is kept in, checks whose it is (what is somebody
else's does not exist), and has every change audited, also one that is refused.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..model.events import AuditEvent, AuditKind
from ..model.origin import ClientOrigin
from ..model.session_ids import is_session_id
from ..state.session_marks import Mark
from ..state.session_records import LOCAL
from ..store.catalogue import Entry
from ..store.conversation import Item
from ..store.conversation_pages import Extent
from ..store.cost_report import Costs, Grouping
from ..store.transcript_text import Detail
from .dependencies import Stores
from .observation import ObserverList
from .registry import Sessions
from .session_library import ExportFormat, ReadPage, StoredConversation
from .workplaces import Workplaces


class StoredSessions:
    """All methods raise SessionNotFound for a session that is not the owner's."""

    def __init__(
        self, sessions: Sessions, workplaces: Workplaces, observers: ObserverList, redact: Callable[[Any], Any]
    ) -> None:
        self._sessions = sessions
        self._workplaces = workplaces
        self._observers = observers
        self._redact = redact

    async def read(
        self,
        session_id: str,
        *,
        owner: str = LOCAL,
        origin: ClientOrigin | None = None,
        cursor: str = "1",
        size: int = 24_000,
        detail: Detail | None = None,
        agent: str | None = None,
    ) -> ReadPage:
        """A page of what was said and done in a session, or by a subagent of it, wherever the session runs."""
        own_id, stores = await self._locate(session_id, owner, origin)
        return await stores.library.read(own_id, cursor=cursor, size=size, detail=detail or Detail(), agent=agent)

    async def entry(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> Entry | None:
        """What a list says of a session; None if it has no transcript yet."""
        own_id, stores = await self._locate(session_id, owner, origin)
        return await asyncio.to_thread(stores.catalogue.find, own_id)

    async def page_before(
        self,
        session_id: str,
        before: str | None,
        extent: Extent,
        *,
        owner: str = LOCAL,
        origin: ClientOrigin | None = None,
        agent: str | None = None,
    ) -> StoredConversation:
        """What was said and done before a place of a session, or last, as data, with long texts cut."""
        own_id, stores = await self._locate(session_id, owner, origin)
        return await stores.library.page_before(own_id, before, extent, agent=agent)

    async def item(
        self,
        session_id: str,
        turn: int,
        item_id: str,
        *,
        owner: str = LOCAL,
        origin: ClientOrigin | None = None,
        agent: str | None = None,
    ) -> Item:
        """One item of a turn with all of its texts."""
        own_id, stores = await self._locate(session_id, owner, origin)
        return await stores.library.item(own_id, turn, item_id, agent=agent)

    async def follow(
        self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> AsyncIterator[list[str]]:
        """What is written to a session's transcript from now on, whoever drives it, as readable lines, at most twice a
        second; without end."""
        own_id, stores = await self._locate(session_id, owner, origin)
        async for lines in stores.library.follow(own_id):
            yield self._redact(lines)

    async def rename(
        self, session_id: str, title: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> str:
        """Names a session as Claude Code does, and returns the name; an empty one takes it away."""
        async with self.caring(session_id, owner, origin, "rename") as (own_id, stores):
            return await stores.library.rename(own_id, title)

    async def tag(self, session_id: str, tag: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> str:
        """Tags a session; an empty tag takes it away."""
        async with self.caring(session_id, owner, origin, "tag") as (own_id, stores):
            return await stores.library.tag(own_id, tag)

    async def mark(
        self, session_id: str, mark: Mark, on: bool, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> None:
        """Pins or archives a session, or no longer."""
        async with self.caring(session_id, owner, origin, f"{mark} {'on' if on else 'off'}") as (own_id, stores):
            await stores.library.mark(own_id, mark, on)

    async def copy(
        self, session_id: str, *, owner: str = LOCAL, title: str | None = None, origin: ClientOrigin | None = None
    ) -> str:
        """A fork that is sent no message yet: the conversation so far, under an id of its own, which is returned."""
        async with self.caring(session_id, owner, origin, "fork") as (own_id, stores):
            await stores.recorder.saved(own_id)
            return await stores.library.copy(own_id, owner, title)

    async def export(
        self,
        session_id: str,
        form: ExportFormat,
        *,
        owner: str = LOCAL,
        detail: Detail | None = None,
        origin: ClientOrigin | None = None,
    ) -> Path:
        """Writes a conversation to a private file in the state directory and returns its path."""
        async with self.caring(session_id, owner, origin, f"export {form}") as (own_id, stores):
            return await stores.library.export(own_id, form, detail or Detail(full=True))

    async def keep_text(
        self, session_id: str, suffix: str, text: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> Path:
        """Writes what is too long to be returned to a private file beside the exports, and returns its path."""
        own_id, stores = await self._locate(session_id, owner, origin)
        return await stores.library.keep_text(own_id, suffix, text)

    async def delete(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> None:
        """Removes a session for good. SessionBusy, with nothing removed, while anybody runs it or has it open."""
        async with self.caring(session_id, owner, origin, "delete") as (own_id, stores):
            await self._sessions.release(own_id)
            await stores.recorder.saved(own_id)
            await stores.library.remove(own_id)

    async def unread(self, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> str | None:
        """Why a listing, or a report of costs, may lack something; None if everything could be read."""
        catalogue = self._workplaces.of(origin, owner).stores.catalogue
        return await asyncio.to_thread(catalogue.unread)

    async def costs(
        self,
        by: Grouping = "day",
        *,
        owner: str = LOCAL,
        since: str = "",
        project: str | None = None,
        most: int | None = None,
        origin: ClientOrigin | None = None,
    ) -> Costs:
        """What the owner's sessions on this machine have cost, over everything on disk, in at most so many groups;
        `since` is a day."""
        return await self._workplaces.of(origin, owner).stores.library.costs(
            by, owner=owner, since=since, project=project, most=most
        )

    async def reconfigure(
        self, session_id: str, change: Mapping[str, Any], *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> None:
        """Goes on with another `model` or `permission_mode`, which the policy must admit, now and when resumed."""
        action = ", ".join(f"{name} {value}" for name, value in change.items())
        async with self.caring(session_id, owner, origin, action) as (own_id, _):
            session = await self._sessions.find(own_id, owner, self._workplaces.of(origin, owner))
            await session.reconfigure(change)

    async def _locate(self, session_id: str, owner: str, origin: ClientOrigin | None) -> tuple[str, Stores]:
        """The id under which a session goes on, and where it is kept; SessionNotFound unless it is the owner's."""
        known = self._sessions.known(session_id)
        if known is not None:
            if known.owner != owner:
                raise self._observers.foreign_session(session_id, owner)
            return known.id, known.deps.stores
        if not is_session_id(session_id):
            raise InvalidArgument(f"{session_id!r} is not a session id.", field="session_id")
        stores = self._workplaces.of(origin, owner).stores
        own_id = await asyncio.to_thread(stores.moved_ids.resolve, session_id)
        if not await asyncio.to_thread(stores.recorder.records.owned_by, owner, own_id):
            raise self._observers.foreign_session(session_id, owner)
        return own_id, stores

    @contextlib.asynccontextmanager
    async def caring(
        self, session_id: str, owner: str, origin: ClientOrigin | None, action: str
    ) -> AsyncIterator[tuple[str, Stores]]:
        """Around a change to a session: audited if it is made, and if it is refused."""
        with self._observers.auditing_refusals(owner, action, session_id):
            own_id, stores = await self._locate(session_id, owner, origin)
            yield own_id, stores
        self._observers.act(AuditEvent(AuditKind.SESSION_MANAGED, owner, own_id, {"action": action}))
