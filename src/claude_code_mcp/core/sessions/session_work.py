"""Shows, merges and undoes the changes of sessions: worktrees, edited files and checkpoints.

Every operation checks the current policy. During an operation no turn of the session starts, on this server or another.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument, PermissionDenied
from ..model.caller import LOCAL_CALLER, Caller
from ..model.worktree import Unsaved, Worktree, WorktreePlan
from ..policy.rules import Decision
from ..transcripts.checkpoints import Checkpoint, read_checkpoints
from ..transcripts.conversation_pages import ConversationPage, Extent
from ..transcripts.edited_files import EditedFiles, edited_files
from .callers.client_environments import ClientEnvironments
from .registry import Sessions
from .session import Session
from .stored.stored_sessions import StoredSessions
from .verdicts import Occasion
from .workplaces import Workplace

_MAX_CHECKPOINTS = 50
_EDITS_PAGE = 400_000
_ENOUGH_OF_A_RESULT = 500
"""Characters of a tool result that are kept: enough to recognize it."""


@dataclass(frozen=True, slots=True)
class ChangedFiles:
    """What rewinding to a message would change, given the current files."""

    checkpoint: Checkpoint
    files: Sequence[str]
    insertions: int
    deletions: int

    def __str__(self) -> str:
        return f"{len(self.files)} files (+{self.insertions} -{self.deletions})"


class SessionWork:
    """All methods raise SessionNotFound for a session that is not the caller's, SessionBusy while it is busy, and
    InvalidArgument for one that has no worktree, or no checkpoints."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments, stored: StoredSessions) -> None:
        self._sessions = sessions
        self._environments = environments
        self._stored = stored

    # -- worktrees ------------------------------------------------------------------------------------------------

    async def diff(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> str:
        """All changes in the session's worktree, including new files."""
        async with self._worktree(session_id, caller, "diff") as (_, workplace):
            return await workplace.diff()

    async def changes(self, session: Session, *, caller: Caller = LOCAL_CALLER) -> str | EditedFiles:
        """All changes of a session: the git diff of its worktree if it has one and is idle, otherwise the changes
        recorded from its tool calls. The session must have been found for this caller."""
        if isinstance(session.options.worktree, Worktree) and not session.busy:
            return await self.diff(session.id, caller=caller)
        return await self.edits(session, caller=caller)

    async def edits(
        self, session: Session, since: int = 1, until: int | None = None, *, caller: Caller = LOCAL_CALLER
    ) -> EditedFiles:
        """The changes recorded from its tool calls, from turn `since` to turn `until`; None: to its end. The session
        must have been found for this caller."""

        async def read(before: str | None) -> ConversationPage:
            extent = Extent(_EDITS_PAGE, longest_result=_ENOUGH_OF_A_RESULT)
            return (await self._stored.page_before(session.id, before, extent, caller=caller)).page

        return await edited_files(read, since, until)

    async def plan(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> tuple[WorktreePlan, str | None]:
        """The contents of a commit, merge or pull request, and where the pull request would be opened, as
        `host/owner/name`; None if that is not possible from here."""
        async with self._worktree(session_id, caller, "look at what can be merged") as (_, workplace):
            target = await workplace.request_target()
            return await workplace.plan(), target

    async def request_program(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> str:
        """The program that opens a pull or merge request for its branch; see `Workplace.request_program`."""
        async with self._worktree(session_id, caller, "look at what can be merged") as (_, workplace):
            return await workplace.request_program()

    async def commit(
        self, session_id: str, message: str | None, agreed: str | None = None, *, caller: Caller = LOCAL_CALLER
    ) -> str:
        """Commit everything in its worktree; see `Workplace.commit`."""
        async with self._worktree(session_id, caller, "commit") as (_, workplace):
            return await workplace.commit(message, agreed)

    async def merge(
        self, session_id: str, message: str | None, agreed: str | None = None, *, caller: Caller = LOCAL_CALLER
    ) -> str:
        """Merge its branch; see `Workplace.merge`."""
        async with self._worktree(session_id, caller, "merge") as (_, workplace):
            return await workplace.merge(message, agreed)

    async def pull_request(
        self,
        session_id: str,
        title: str,
        body: str,
        *,
        agreed: str,
        remote: str,
        caller: Caller = LOCAL_CALLER,
    ) -> str:
        """Commit uncommitted changes with the title, push the branch and open a pull request; return its URL. `agreed`
        is the digest of a plan and `remote` its target: PermissionDenied, with nothing pushed, if either has
        changed."""
        async with self._worktree(session_id, caller, f"pull request at {remote}") as (_, workplace):
            return await workplace.open_request(title, body, agreed, remote)

    async def unsaved(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> Unsaved:
        """What `discard` would lose now."""
        async with self._worktree(session_id, caller, "view uncommitted changes") as (_, workplace):
            return await workplace.unsaved()

    async def discard(
        self,
        session_id: str,
        agreed: Unsaved | None,
        *,
        caller: Caller = LOCAL_CALLER,
    ) -> str:
        """Remove its worktree and its branch; see `Workplace.discard`. Its conversation stays."""
        async with self._worktree(session_id, caller, "discard", alone=True) as (_, workplace):
            return await workplace.discard(agreed)

    @contextlib.asynccontextmanager
    async def _worktree(
        self, session_id: str, caller: Caller, action: str, *, alone: bool = False
    ) -> AsyncIterator[tuple[Session, Workplace]]:
        """`alone` first closes the processes of all sessions that work there."""
        async with self._found(session_id, caller, action) as session:
            worktree = session.options.worktree
            if not isinstance(worktree, Worktree):
                raise InvalidArgument(f"Session {session.id} does not use a worktree.", field="action")
            enforcer = session.deps.enforcer
            for path in (worktree.path, worktree.repository, worktree.common_dir):
                if not enforcer.may_work_in(path, caller.principal) or not enforcer.may_change(path, caller.principal):
                    raise PermissionDenied(f"worktree: you may not change {path}.", field="action")
            # Held first: this session cannot start again while the others are being closed.
            async with session.at_rest(without_process=alone):
                if alone:
                    await self._sessions.vacate(worktree.path, session)
                yield session, session.deps.workplaces.of(session.deps.launcher.home, worktree)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    async def checkpoints(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> list[ChangedFiles]:
        """The last messages, oldest first, each with what rewinding to it would change."""
        async with self._found(session_id, caller, "changes") as session, session.asking_claude() as ask:
            listed = await self._listed(session)
            return [await _changed(ask, checkpoint) for checkpoint in listed]

    async def rewind(
        self,
        session_id: str,
        message_id: str,
        agreed: ChangedFiles | None,
        *,
        caller: Caller = LOCAL_CALLER,
    ) -> ChangedFiles:
        """Restore the files that the session changed to their state before a message; its conversation stays. `agreed`
        limits what may change, None allows anything; PermissionDenied if more would change, or a file that the session
        may not write: the session itself could have manipulated the list of changed files."""
        async with self._found(session_id, caller, "rewind") as session, session.asking_claude() as ask:
            if not session.deps.enforcer.may_change(session.cwd, caller.principal):
                raise PermissionDenied(f"You may not change files in {session.cwd}.", field="action")
            listed = await self._listed(session)
            checkpoint = next((each for each in listed if each.message_id == message_id), None)
            if checkpoint is None:
                raise InvalidArgument(f"There is no checkpoint at message {message_id[:100]!r}.", field="text")
            # Based on the current files, not on those when the user agreed.
            changed = await _changed(ask, checkpoint)
            for path in changed.files:
                verdict = session.verdicts.verdict(Occasion.RESTORE, "Edit", {"file_path": path})
                if verdict.decision is Decision.DENY:
                    raise PermissionDenied(f"The session may not change {path}; nothing was changed.")
            if agreed is not None and changed != agreed:
                raise PermissionDenied(
                    f"This would also change {changed}, which was not confirmed. Nothing was changed."
                )
            _checked(await ask("rewind_files", user_message_id=checkpoint.message_id))
            return changed

    async def _listed(self, session: Session) -> list[Checkpoint]:
        stores = session.deps.stores
        path = await stores.threads.run(stores.transcripts.path_of, session.id)
        found = await stores.threads.run(read_checkpoints, path, _MAX_CHECKPOINTS) if path is not None else []
        if not found:
            raise InvalidArgument(
                f"Session {session.id} has no checkpoints: it was not started with file checkpointing.", field="action"
            )
        return found

    @contextlib.asynccontextmanager
    async def _found(self, session_id: str, caller: Caller, action: str) -> AsyncIterator[Session]:
        """The session, kept in memory in the meantime: a caller that sends it a message gets the same object and
        waits."""
        async with self._stored.audited_change(session_id, caller, action) as (own_id, _):
            found = await self._sessions.find(own_id, caller.principal, self._environments.of(caller))
            self._sessions.admit(found, found.deps.enforcer.admission(found.owner))
            with self._sessions.keeping(found) as session:
                yield session


async def _changed(ask: Any, checkpoint: Checkpoint) -> ChangedFiles:
    reply = _checked(await ask("rewind_files", user_message_id=checkpoint.message_id, dry_run=True))
    files = reply.get("filesChanged")
    names = tuple(str(name) for name in files) if isinstance(files, list) else ()
    counts = (reply.get("insertions"), reply.get("deletions"))
    insertions, deletions = (count if isinstance(count, int) else 0 for count in counts)
    return ChangedFiles(checkpoint, names, insertions, deletions)


def _checked(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    if reply.get("canRewind") is not True:
        raise InvalidArgument(f"Claude Code cannot restore the files: {str(reply.get('error'))[:500]}", field="text")
    return reply
