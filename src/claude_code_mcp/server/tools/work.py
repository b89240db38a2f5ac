"""What a session has changed, as `claude_manage_session` offers it: its worktree, and the checkpoints of its files."""

from pathlib import Path

import mcp_types as types

from ...errors import InvalidArgument, PermissionDenied
from ...model.text import clip_line
from ...model.worktree import Worktree
from ...sessions.session import Session
from ...sessions.session_work import ChangedFiles
from .context import Call

_LONGEST_DIFF = 24_000
_MOST_FILES = 20


def worktree_report(session: Session) -> dict[str, str] | None:
    """Where the worktree of a session is, if it has one."""
    worktree = session.options.worktree
    if not isinstance(worktree, Worktree):
        return None
    facts = {"path": worktree.path, "branch": worktree.branch, "base": worktree.base[:12], "from": worktree.repository}
    return facts if Path(worktree.path).is_dir() else {**facts, "state": "removed"}


async def diff(call: Call, session_id: str) -> tuple[str, str | None]:
    """The changes in the worktree; those that are too long to be returned are in a file."""
    text = call.service.redaction.text(
        await call.service.work.diff(session_id, owner=call.principal, origin=call.origin)
    )
    if len(text) <= _LONGEST_DIFF:
        return text or "Nothing has changed.", None
    path = await call.service.stored.keep_text(session_id, ".diff", text, owner=call.principal, origin=call.origin)
    return f"{text[:_LONGEST_DIFF]}\n[cut here; the whole diff is in {path}]", str(path)


async def discard(call: Call, session_id: str, *, confirmed: bool) -> str | types.InputRequiredResult:
    """Removes the worktree. What is not merged or committed is lost only with the yes of a person, or of a caller that
    says to have it."""
    work = call.service.work
    if confirmed:
        return await work.discard(session_id, None, owner=call.principal, origin=call.origin)
    lost = await work.unsaved(session_id, owner=call.principal, origin=call.origin)
    if lost:
        question = f"Discard the worktree of session {session_id}? This would be lost: {lost}."
        asked = await _asked(call, question, "Discard it", f"it has {lost}")
        if asked is not None:
            return asked
    return await work.discard(session_id, lost, owner=call.principal, origin=call.origin)


async def changes(call: Call, session_id: str) -> str:
    """The messages that the files can be taken back to."""
    listed = await call.service.work.checkpoints(session_id, owner=call.principal, origin=call.origin)
    shown = [_line(changed, call) for changed in listed]
    return "Going back to a message would change, as files are now:\n" + "\n".join(shown)


def _line(changed: ChangedFiles, call: Call) -> str:
    checkpoint = changed.checkpoint
    prompt = clip_line(call.service.redaction.text(checkpoint.prompt), 80)
    return f"{checkpoint.message_id}  {checkpoint.at[:19]}  {changed}  {prompt!r}{_names(changed)}"


def _names(changed: ChangedFiles) -> str:
    more = len(changed.files) - _MOST_FILES
    names = [*changed.files[:_MOST_FILES], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n    {name}" for name in names)


async def rewind(
    call: Call, session_id: str, message_id: str | None, *, confirmed: bool
) -> str | types.InputRequiredResult:
    """Takes the files back to a message, with the yes of a person, or of a caller that says to have it."""
    if message_id is None:
        raise InvalidArgument("text: the id of the message to go back to, as changes lists it.", field="text")
    work, agreed = call.service.work, None
    if not confirmed:
        listed = await work.checkpoints(session_id, owner=call.principal, origin=call.origin)
        agreed = next((changed for changed in listed if changed.checkpoint.message_id == message_id), None)
        if agreed is None:
            raise InvalidArgument(f"There is no checkpoint at a message {message_id[:100]!r}.", field="text")
        question = f"Take the files of session {session_id} back to a message? This changes {agreed}:{_names(agreed)}"
        asked = await _asked(call, question, "Take them back", f"this changes {agreed}")
        if asked is not None:
            return asked
    changed = await work.rewind(session_id, message_id, agreed, owner=call.principal, origin=call.origin)
    return f"Taken back: {changed}. The conversation is as it was.{_names(changed)}"


async def _asked(call: Call, question: str, title: str, reason: str) -> types.InputRequiredResult | None:
    """Asks a person; returns the question where it goes back as the result of the call. PermissionDenied without a
    yes."""
    answer = await call.confirmed(question, title)
    if isinstance(answer, types.InputRequiredResult):
        return answer
    if answer is None:
        raise PermissionDenied(f"Nobody can be asked here, and {reason}: it takes confirm.", field="confirm")
    if not answer:
        raise PermissionDenied("The person at the client did not confirm it; nothing was changed.")
    return None
