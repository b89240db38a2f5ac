"""`claude_manage_session`: all management of a session."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import mcp_types as types
from pydantic import Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from ...core.errors import InvalidArgument, PermissionDenied
from ...core.model.caller import Caller
from ...core.model.text import clip_line, iso
from ...core.service import Service
from ...core.sessions.callers.session_access import Access
from ...core.sessions.session_work import ChangedFiles
from ...core.state.session_marks import Mark
from ...core.transcripts.edited_files import diff_of
from .arguments import Arguments, SessionId
from .call import Call
from .output import ErrorInfo, Shares, ToolOutput
from .session_report import worktree_report
from .tool import Reply, Tool

_MAX_DIFF = 24_000
_MAX_FILES = 20
_EDITS = "Changes made by its file tools, in order. Changes made by shell commands are not tracked.\n"
_LEFT_OUT = "\n[older or longer changes are omitted]"
Action = Literal[
    "rename",
    "tag",
    "pin",
    "unpin",
    "archive",
    "unarchive",
    "fork",
    "export",
    "delete",
    "model",
    "mode",
    "diff",
    "merge",
    "discard",
    "changes",
    "rewind",
    "share",
    "unshare",
    "shares",
    "on_limit",
    "continue",
]
MARKS: Mapping[str, tuple[Mark, bool]] = {
    "pin": (Mark.PINNED, True),
    "unpin": (Mark.PINNED, False),
    "archive": (Mark.ARCHIVED, True),
    "unarchive": (Mark.ARCHIVED, False),
}
"""The actions that mark a session, with the mark and its value."""


class ManageSession(Arguments):
    session_id: SessionId
    # Only a gateway offers moving a session and completes it: on its own this action does only the first half.
    action: Annotated[Action | Literal["move"], WithJsonSchema({"type": "string", "enum": [*get_args(Action)]})]
    text: str | None = Field(
        None,
        description="rename, fork: title; tag; model; mode; merge: commit message for uncommitted changes; rewind: "
        "message id of changes; share, unshare: a person's name, or group:NAME; on_limit: wait or end",
    )
    format: Literal["markdown", "html"] | None = Field(None, description="export: default markdown")
    access: Literal["watch", "answer"] | None = Field(
        None, description="share: default watch; answer: also send messages and answer"
    )
    confirm: bool | None = Field(
        None, description="delete, discard, rewind: the person has agreed; otherwise they are asked"
    )
    wait: SkipJsonSchema[bool | None] = None
    """move: after the running turn."""


class Managed(ToolOutput):
    session_id: str | None = None
    message: str | None = None
    path: str | None = None
    source: Literal["worktree", "conversation"] | None = None
    """diff: the source of the changes. Only those of a worktree can be merged or discarded."""
    owner: str | None = None
    shared_with: Shares | None = None
    """With whom the session is shared now; for the actions about that."""
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.message or ""


async def manage_session(call: Call, arguments: ManageSession) -> Reply:
    service, caller, session_id, text = call.service, call.caller, arguments.session_id, arguments.text
    match arguments.action:
        case "rename":
            title = await service.stored.rename(session_id, _needed(text), caller=caller)
            return Managed(
                session_id=session_id, message=f"The title is {title!r}." if title else "The session has no title."
            )
        case "tag":
            tag = await service.stored.tag(session_id, _needed(text), caller=caller)
            return Managed(session_id=session_id, message=f"The tag is {tag!r}." if tag else "The session has no tag.")
        case "fork":
            copy = await service.stored.copy(session_id, caller=caller, title=text)
            return Managed(session_id=copy, message=f"Session {copy} is a copy of the conversation.")
        case "export":
            path = await service.stored.export(session_id, arguments.format or "markdown", caller=caller)
            return Managed(session_id=session_id, message=f"Written to {path}.", path=str(path))
        case "delete":
            return await _delete(call, arguments)
        case "share" | "unshare" | "shares":
            return await _share(call, arguments)
        case "model" | "mode":
            value = _needed(text).strip() or None
            if arguments.action == "mode":
                call.check_mode(value)
            change = {"model" if arguments.action == "model" else "permission_mode": value}
            await service.stored.reconfigure(session_id, change, caller=caller)
            return Managed(session_id=session_id, message=f"The {arguments.action} is {value or 'the default'}.")
        case "on_limit" | "continue":
            return await steer_limit(service, caller, session_id, arguments.action, text)
        case "move":
            wait, without_tree = bool(arguments.wait), bool(arguments.confirm)
            session_id = await release_for_move(service, caller, session_id, wait=wait, without_tree=without_tree)
            return Managed(session_id=session_id, message="The session is free; no machine holds it.")
        case "diff":
            return await _diff(call, session_id)
        case "merge":
            merged = await service.work.merge(session_id, text, caller=caller)
            return Managed(session_id=session_id, message=merged)
        case "changes":
            return await _changes(call, session_id)
        case "rewind":
            return await _rewind(call, session_id, text, confirmed=bool(arguments.confirm))
        case "discard":
            return await _discard(call, session_id, confirmed=bool(arguments.confirm))
    mark, on = MARKS[arguments.action]
    await service.stored.mark(session_id, mark, on, caller=caller)
    return Managed(session_id=session_id, message=f"The session is {'' if on else 'no longer '}{mark}.")


async def steer_limit(service: Service, caller: Caller, session_id: str, action: str, text: str | None) -> Managed:
    """`on_limit` sets the behavior at a usage limit; `continue` immediately resends what a limit stopped."""
    steps: dict[str, Literal["wait", "end", "now"]] = {"wait": "wait", "end": "end"}
    step = "now" if action == "continue" else steps.get(_needed(text))
    if step is None:
        raise InvalidArgument("text: must be wait or end.", field="text")
    session = await service.steer_limit(session_id, step, caller=caller)
    if step == "now":
        message = "The session continues now."
    elif session.continues_at is not None:
        message = f"The session continues automatically at {iso(session.continues_at)}."
    else:
        follows = "continues automatically after the reset" if step == "wait" else "ends"
        message = f"At a usage limit the session {follows}."
    return Managed(session_id=session.id, message=message)


async def release_for_move(service: Service, caller: Caller, session_id: str, *, wait: bool, without_tree: bool) -> str:
    """The first half of a move, requested by a gateway, which then lets another machine take the session; returns its
    current id."""
    give = service.relocation.release_for_move
    if give is None:
        raise InvalidArgument("action: sessions can be moved only in a fleet.", field="action")
    async with service.stored.audited_change(session_id, caller, "move") as (found, _):
        session = await service.find(found, caller=caller)
        if wait:
            await session.wait(None, for_questions=False)
        await give(found, caller, without_tree=without_tree)
    return found


async def _share(call: Call, arguments: ManageSession) -> Reply:
    stored, session_id, caller = call.service.stored, arguments.session_id, call.caller
    done = ""
    if arguments.action == "share":
        access = Access(arguments.access or "watch")
        await stored.share(session_id, _needed(arguments.text), access, caller=caller)
        done = f"{arguments.text} may {access} it."
    elif arguments.action == "unshare":
        ended = await stored.unshare(session_id, arguments.text, caller=caller)
        done = f"No longer shared with {', '.join(ended)}." if ended else "The session was not shared with them."
    sharing = await stored.sharing(session_id, caller=caller)
    listed = "\n".join(f"{share.grantee}: {share.access}" for share in sharing.shares)
    message = done or listed or "The session is not shared."
    return Managed(session_id=session_id, message=message, owner=sharing.owner, shared_with=sharing.rows or [])


async def _diff(call: Call, session_id: str) -> Managed:
    """The changes in its worktree, or by its calls; a diff that is too long is saved to a file."""
    # Check the owner first: nothing is looked up for other callers.
    session = await call.service.find(session_id, caller=call.caller)
    changes = await call.service.work.changes(session, caller=call.caller)
    if isinstance(changes, str):
        source: Literal["worktree", "conversation"] = "worktree"
        text = changes or "No changes."
    else:
        source = "conversation"
        text = (
            f"{_EDITS}{diff_of(changes.files, session.cwd)}"
            if changes.files
            else "No file was changed by its file tools."
        )
        text += _LEFT_OUT if changes.cut else ""
    text = call.service.redaction.text(text)
    if len(text) <= _MAX_DIFF:
        return Managed(session_id=session_id, message=text, source=source)
    path = str(await call.service.stored.keep_text(session_id, ".diff", text, caller=call.caller))
    message = f"{text[:_MAX_DIFF]}\n[truncated; the complete diff is in {path}]"
    return Managed(session_id=session_id, message=message, path=path, source=source)


async def _discard(call: Call, session_id: str, *, confirmed: bool) -> Reply:
    """Remove the worktree. If unmerged or uncommitted work would be lost, a person must agree, or the caller must state
    that one has."""
    work = call.service.work
    lost = None if confirmed else await work.unsaved(session_id, caller=call.caller)
    if lost:
        question = f"Discard the worktree of session {session_id}? This would be lost: {lost}."
        asked = await _asked(call, question, "Discard it", f"it has {lost}")
        if asked is not None:
            return asked
    # With what the person saw: `discard` counts again, and refuses if it differs.
    return Managed(session_id=session_id, message=await work.discard(session_id, lost, caller=call.caller))


async def _changes(call: Call, session_id: str) -> Managed:
    """The messages that the files can be rewound to."""
    listed = await call.service.work.checkpoints(session_id, caller=call.caller)
    lines = []
    for changed in listed:
        checkpoint = changed.checkpoint
        prompt = clip_line(call.service.redaction.text(checkpoint.prompt), 80)
        lines.append(f"{checkpoint.message_id}  {checkpoint.at[:19]}  {changed}  {prompt!r}{_names(changed)}")
    return Managed(session_id=session_id, message="Rewinding to a message would change:\n" + "\n".join(lines))


def _names(changed: ChangedFiles) -> str:
    more = len(changed.files) - _MAX_FILES
    names = [*changed.files[:_MAX_FILES], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n    {name}" for name in names)


async def _rewind(call: Call, session_id: str, message_id: str | None, *, confirmed: bool) -> Reply:
    """Rewind the files to a message. A person must agree, or the caller must state that one has."""
    if message_id is None:
        raise InvalidArgument(
            "text: must be the id of a message to rewind to; the action `changes` lists them.", field="text"
        )
    work, agreed = call.service.work, None
    if not confirmed:
        listed = await work.checkpoints(session_id, caller=call.caller)
        agreed = next((changed for changed in listed if changed.checkpoint.message_id == message_id), None)
        if agreed is None:
            raise InvalidArgument(f"There is no checkpoint at message {message_id[:100]!r}.", field="text")
        question = (
            f"Restore the files of session {session_id} to an earlier message? This changes {agreed}:{_names(agreed)}"
        )
        asked = await _asked(call, question, "Restore them", f"this changes {agreed}")
        if asked is not None:
            return asked
    # With what the person saw: `rewind` checks again, and refuses if it differs.
    changed = await work.rewind(session_id, message_id, agreed, caller=call.caller)
    message = f"Restored: {changed}. The conversation is unchanged.{_names(changed)}"
    return Managed(session_id=session_id, message=message)


async def _asked(call: Call, question: str, title: str, reason: str) -> types.InputRequiredResult | None:
    """Ask a person. Returns the question if it is returned as the result of the call. Raises PermissionDenied unless
    the person agrees."""
    answer = await call.confirmed(question, title)
    if isinstance(answer, types.InputRequiredResult):
        return answer
    if answer is None:
        raise PermissionDenied(
            f"This client cannot show a confirmation dialog, and {reason}: pass confirm=true.", field="confirm"
        )
    if not answer:
        raise PermissionDenied("The user did not confirm; nothing was changed.")
    return None


def _needed(text: str | None) -> str:
    if text is None:
        raise InvalidArgument("text: required for this action.", field="text")
    return text


async def _delete(call: Call, arguments: ManageSession) -> Reply:
    """Delete a session. A person must agree, or the caller must state that one has; otherwise PermissionDenied."""
    if not arguments.confirm:
        page = await call.service.stored.read(arguments.session_id, caller=call.caller, size=1)
        question = f"Permanently delete {page.title[:200]!r} ({page.session_id})? It has {page.turns} turns."
        answer = await call.confirmed(question, "Delete it")
        if isinstance(answer, types.InputRequiredResult):
            return answer
        if answer is None:
            raise PermissionDenied(
                "This client cannot show a confirmation dialog: pass confirm=true to delete.", field="confirm"
            )
        if not answer:
            raise PermissionDenied("The user did not confirm; nothing was deleted.")
    # Before the deletion: afterward the location of its worktree is unknown.
    session = await call.service.find(arguments.session_id, caller=call.caller)
    left = worktree_report(session)
    await call.service.stored.delete(arguments.session_id, caller=call.caller)
    stays = f" Its worktree {left['path']} is kept, with the branch {left['branch']}." if left else ""
    return Managed(session_id=arguments.session_id, message=f"The session was deleted.{stays}")


MANAGE_SESSION: Tool[Any] = Tool(
    "claude_manage_session",
    "Manage a session",
    "Rename, tag, pin, archive, fork, export or delete a session, or switch its model or permission mode. "
    "fork copies the conversation under a new id; export writes a file and returns its path; delete is permanent and "
    "refused while the session is open. For a session in a worktree: diff, merge into the branch it started from, or "
    "discard it with its branch. With checkpoints: changes lists what rewinding to each message would change, rewind "
    "restores the files.",
    ManageSession,
    Managed,
    manage_session,
    types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False),
)
