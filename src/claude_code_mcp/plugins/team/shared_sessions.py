"""Sessions that owners share with other people or groups."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence

from ...core.errors import InvalidArgument, LimitReached, StateUnavailable
from ...core.model.caller import is_reserved
from ...core.model.events import AuditEvent, AuditKind
from ...core.sessions.callers.session_access import Access, SessionAccess, Share
from ...core.state.database import Database
from ...core.transcripts.watched_files import FileFollower
from .shares import GROUP, Shares

log = logging.getLogger(__name__)

_MAX_NAME = 256
_MAX_LISTED = 200


class SharedSessions(SessionAccess):
    """The shares of one service. For a principal's own session in memory, shares are not read."""

    def __init__(self, database: Database, groups_of: Callable[[str], Collection[str]]) -> None:
        """`groups_of` returns a principal's current groups."""
        super().__init__()
        self._shares = Shares(database)
        self._groups_of = groups_of

    # -- reading --------------------------------------------------------------------------------------------------

    def share_of(self, session_id: str, principal: str) -> Share | None:
        return self._shares.found(session_id, self._names_of(principal))

    def shares_of(self, session_id: str) -> Sequence[Share]:
        return self._shares.of(session_id)

    def shared_with(self, principal: str) -> list[Share]:
        found = self._shares.with_any(self._names_of(principal))
        by_session = {share.session_id: share for share in reversed(found) if share.owner != principal}
        return [*reversed(by_session.values())][:_MAX_LISTED]

    def _names_of(self, principal: str) -> set[str]:
        return {principal, *(f"{GROUP}{group}" for group in self._groups_of(principal))}

    # -- changing -------------------------------------------------------------------------------------------------

    async def share(self, session_id: str, owner: str, grantee: str, access: Access) -> None:
        name = grantee.removeprefix(GROUP)
        if not name or len(name) > _MAX_NAME or not name.isprintable() or name != name.strip():
            raise InvalidArgument("with: must be the name of a person, or group:NAME.", field="with")
        if grantee == owner or (name == grantee and is_reserved(name)):
            raise InvalidArgument(f"with: a session cannot be shared with {grantee!r}.", field="with")
        if not await asyncio.to_thread(self._shares.give, session_id, grantee, access, owner):
            raise LimitReached("This session has reached the maximum number of shares.")
        details = {"with": grantee, "access": str(access)}
        self.audit(AuditEvent(AuditKind.SESSION_SHARED, owner, session_id, details))
        self.taken_back(session_id)  # changing access from answering to watching revokes permissions

    async def take_back(self, session_id: str, owner: str, grantee: str | None = None) -> list[str]:
        ended = await asyncio.to_thread(self._shares.take_back, session_id, grantee)
        for name in ended:
            self.audit(AuditEvent(AuditKind.SESSION_UNSHARED, owner, session_id, {"with": name}))
        if ended:
            self.taken_back(session_id)
        return ended

    async def end_shares_of(self, name: str) -> None:
        """Closes what the shares have open, even if their end cannot be written, which is logged."""
        open_now = self._shares.of_person(name)
        try:
            ended = await asyncio.to_thread(self._shares.end_of, name)
        except OSError as error:
            log.error("could not record that the shares of %s ended: %s", name, error)
            ended = []
        for share in ended:
            self.audit(unshared_with_person(share))
        for session_id in {share.session_id for share in (*open_now, *ended)}:
            self.taken_back(session_id)

    def change_groups(
        self, principal: str, groups: Collection[str], assign: Callable[[str, Collection[str]], None]
    ) -> None:
        """Closes what they have open of sessions shared with a group that they left."""
        left = {*self._groups_of(principal)}.difference(groups)
        assign(principal, groups)
        shares = self._shares.with_any({f"{GROUP}{name}" for name in left}) if left else []
        for session_id in {share.session_id for share in shares}:
            self.taken_back(session_id)

    def moved(self, old: str, new: str) -> None:
        """Blocks on the disk if the session is shared."""
        self._shares.moved(old, new)
        self.notify_moved(old, new)

    async def refresh(self) -> None:
        """Closes the open views of sessions that other servers no longer share."""
        for session_id in await asyncio.to_thread(self._shares.refresh):
            self.taken_back(session_id)

    async def follow(self) -> None:
        try:
            file = await asyncio.to_thread(self._shares.changes_file)
        except (OSError, StateUnavailable) as error:
            log.warning("shares made on other servers are noticed only when sessions are listed: %s", error)
            return
        async with FileFollower().follow(str(file)) as changes:
            while True:
                # Read once after the watch begins: earlier changes would be missed otherwise.
                with contextlib.suppress(OSError):
                    await self.refresh()
                await changes.changed()


def unshared_with_person(share: Share) -> AuditEvent:
    """The end of a share because the operator removed its owner or its recipient."""
    details = {"with": share.grantee, "owner": share.owner, "why": "removed"}
    return AuditEvent(AuditKind.SESSION_UNSHARED, "operator", share.session_id, details)
