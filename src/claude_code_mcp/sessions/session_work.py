"""What sessions have changed: in their worktrees, which are merged or discarded, and since a message, which their files
can be taken back to.

The policy is asked each time, whatever it said when the session began. While something is done no turn of the session
begins, in this server or another.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument, PermissionDenied
from ..model.origin import ClientOrigin
from ..model.worktree import Worktree
from ..state.session_records import LOCAL
from ..store.checkpoints import Checkpoint, read_checkpoints
from .registry import Sessions
from .session import Session
from .stored_sessions import StoredSessions
from .workplaces import Workplaces
from .worktree_changes import Unsaved, WorktreeChanges

_MOST_CHECKPOINTS = 50


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """What going back to a message would change, as the files are now."""

    checkpoint: Checkpoint
    files: Sequence[str]
    insertions: int
    deletions: int

    def __str__(self) -> str:
        return f"{len(self.files)} files (+{self.insertions} -{self.deletions})"


class SessionWork:
    """All methods raise SessionNotFound for a session that is not the owner's, SessionBusy while it is at work, and
    InvalidArgument for one that has no worktree, or no checkpoints."""

    def __init__(self, sessions: Sessions, workplaces: Workplaces, stored: StoredSessions) -> None:
        self._sessions = sessions
        self._workplaces = workplaces
        self._stored = stored

    # -- worktrees ------------------------------------------------------------------------------------------------

    async def diff(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> str:
        """Everything that the session has changed in its worktree, new files too."""
        async with self._worktree(session_id, owner, origin, "diff") as (_, changes):
            return await changes.diff()

    async def merge(
        self, session_id: str, message: str | None, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> str:
        """Merges its branch, as `WorktreeChanges.merge` says."""
        async with self._worktree(session_id, owner, origin, "merge") as (_, changes):
            return await changes.merge(message)

    async def unsaved(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> Unsaved:
        """What `discard` would lose as things are now."""
        async with self._worktree(session_id, owner, origin, "look at what is unsaved") as (_, changes):
            return await changes.unsaved()

    async def discard(
        self,
        session_id: str,
        agreed: Unsaved | None,
        *,
        owner: str = LOCAL,
        origin: ClientOrigin | None = None,
    ) -> str:
        """Removes its worktree and its branch, as `WorktreeChanges.discard` says. Its conversation stays."""
        async with self._worktree(session_id, owner, origin, "discard", alone=True) as (_, changes):
            return await changes.discard(agreed)

    @contextlib.asynccontextmanager
    async def _worktree(
        self, session_id: str, owner: str, origin: ClientOrigin | None, action: str, *, alone: bool = False
    ) -> AsyncIterator[tuple[Session, WorktreeChanges]]:
        """`alone` has the processes of all sessions that work there closed first."""
        async with self._found(session_id, owner, origin, action) as session:
            worktree = session.options.worktree
            if not isinstance(worktree, Worktree):
                raise InvalidArgument(f"Session {session.id} has no worktree of its own.", field="action")
            gate = session.deps.gate
            for path in (worktree.path, worktree.repository, worktree.common_dir):
                if not gate.may_work_in(path, owner) or not gate.may_change(path, owner):
                    raise PermissionDenied(f"worktree: you may not change {path}.", field="action")
            async with session.at_rest(without_process=alone):
                if alone:
                    await self._sessions.vacate(worktree.path, session)
                yield session, WorktreeChanges(session.deps.launcher.home, worktree)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    async def checkpoints(
        self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> list[ChangedFiles]:
        """The last messages, oldest first, each with what going back to it would change."""
        async with self._found(session_id, owner, origin, "changes") as session, session.asking_claude() as ask:
            listed = await self._listed(session)
            return [await _changed(ask, checkpoint) for checkpoint in listed]

    async def rewind(
        self,
        session_id: str,
        message_id: str,
        agreed: ChangedFiles | None,
        *,
        owner: str = LOCAL,
        origin: ClientOrigin | None = None,
    ) -> ChangedFiles:
        """Takes the files that the session has changed back to what they were before a message; its conversation stays.
        `agreed` is what that may change, None anything; PermissionDenied if it is something else."""
        async with self._found(session_id, owner, origin, "rewind") as session, session.asking_claude() as ask:
            if not session.deps.gate.may_change(session.cwd, owner):
                raise PermissionDenied(f"You may not change files in {session.cwd}.", field="action")
            checkpoint = _with_id(await self._listed(session), message_id)
            changed = await _changed(ask, checkpoint)
            if agreed is not None and changed != agreed:
                raise PermissionDenied(f"This would change {changed}, which nobody has agreed to; nothing was changed.")
            _checked(await ask("rewind_files", user_message_id=checkpoint.message_id))
            return changed

    async def _listed(self, session: Session) -> list[Checkpoint]:
        path = await asyncio.to_thread(session.deps.stores.transcripts.path_of, session.id)
        found = await asyncio.to_thread(read_checkpoints, path, _MOST_CHECKPOINTS) if path is not None else []
        if not found:
            raise InvalidArgument(
                f"Session {session.id} has no checkpoints: it was not started with file checkpointing.", field="action"
            )
        return found

    @contextlib.asynccontextmanager
    async def _found(
        self, session_id: str, owner: str, origin: ClientOrigin | None, action: str
    ) -> AsyncIterator[Session]:
        """The session, kept in memory meanwhile: whoever sends it a message gets the same one, and waits."""
        async with self._stored.caring(session_id, owner, origin, action) as (own_id, _):
            found = await self._sessions.find(own_id, owner, self._workplaces.of(origin, owner))
            self._sessions.admit(found)
            with self._sessions.keeping(found) as session:
                yield session


def _with_id(listed: Sequence[Checkpoint], message_id: str) -> Checkpoint:
    for checkpoint in listed:
        if checkpoint.message_id == message_id:
            return checkpoint
    raise InvalidArgument(f"There is no checkpoint at a message {message_id[:100]!r}.", field="text")


async def _changed(ask: Any, checkpoint: Checkpoint) -> ChangedFiles:
    reply = _checked(await ask("rewind_files", user_message_id=checkpoint.message_id, dry_run=True))
    files = reply.get("filesChanged")
    names = tuple(str(name) for name in files) if isinstance(files, list) else ()
    counts = (reply.get("insertions"), reply.get("deletions"))
    insertions, deletions = (count if isinstance(count, int) else 0 for count in counts)
    return ChangedFiles(checkpoint, names, insertions, deletions)


def _checked(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    if reply.get("canRewind") is not True:
        raise InvalidArgument(f"Claude Code cannot take the files back: {str(reply.get('error'))[:500]}", field="text")
    return reply
