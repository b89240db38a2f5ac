"""The routes for a session's changes, by file, and actions on them. Shows the diff of its worktree, or otherwise its
edits, within limits; omissions are reported."""

import hashlib
import re
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import InvalidArgument, PermissionDenied, SessionNotFound
from ...core.model.text import one_line
from ...core.service import Service
from ...core.transcripts.edited_files import MAX_LENGTH, EditedFiles, EditingTurn
from ...server.tools.arguments import Arguments, Name
from ...server.web_answers import answer, arguments_of, number_of, session_id_of, text_of
from .guard import WebUser

_HEAD = re.compile(r"^diff --git ", re.MULTILINE)
_NEW_NAME = re.compile(r"^\+\+\+ (?:b/)?(.+)$", re.MULTILINE)
_OLD_NAME = re.compile(r"^--- (?:a/)?(.+)$", re.MULTILINE)
_RENAMED = re.compile(r"^rename to (.+)$", re.MULTILINE)
_HUNKS = re.compile(r"^@@ ", re.MULTILINE)
_NOWHERE = "/dev/null"


class ChangedFile(NamedTuple):
    """A file and its changes, as hunks of unified diffs in order."""

    path: str
    diffs: list[str]
    note: str
    """Its other status: `new`, `deleted`, `renamed`, or why there are no lines."""
    digest: str
    """Identifies these changes: a page stores it to know whether the user has viewed them."""

    def row(self) -> dict[str, Any]:
        return self._asdict()


def files_of_diff(text: str) -> tuple[list[ChangedFile], bool]:
    """The files in the output of `git diff`, and whether some were omitted."""
    places = [*(found.start() for found in _HEAD.finditer(text)), len(text)]
    files: list[ChangedFile] = []
    room = MAX_LENGTH
    for start, end in pairwise(places):
        room -= end - start
        if room < 0:
            return files, True
        files.append(_changed_file(text[start:end]))
    return files, False


def _changed_file(part: str) -> ChangedFile:
    hunks = _HUNKS.search(part)
    head = part[: hunks.start()] if hunks else part
    old, new = (found[1].rstrip("\t") if (found := name.search(head)) else "" for name in (_OLD_NAME, _NEW_NAME))
    renamed = _RENAMED.search(head)
    if old == _NOWHERE:
        note = "new"
    elif new == _NOWHERE:
        note = "deleted"
    else:
        note = "renamed" if renamed else "" if hunks else "binary file, or only the file mode changed"
    named = renamed[1] if renamed else old if new in ("", _NOWHERE) else new
    # Without lines that name the file, only the header exists: `diff --git a/x b/x`.
    path = named or head.split("\n", 1)[0].rpartition(" b/")[2]
    return ChangedFile(path, [part[hunks.start() :].rstrip("\n")] if hunks else [], note, _digest(part.rstrip("\n")))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


# -- routes -----------------------------------------------------------------------------------------------------------

_MAX_NAMED = 30
_MAX_TURN = 1_000_000
_MAX_PROMPT = 80


def _turn_row(turn: EditingTurn) -> dict[str, Any]:
    return {"number": turn.number, "prompt": one_line(turn.prompt, _MAX_PROMPT), "isLast": turn.is_last}


class WorkArguments(Arguments):
    """An action on a worktree, and the digest of what the user reviewed."""

    action: Literal["commit", "merge", "discard", "pull_request"]
    agreed: Name | None = None
    message: str | None = None
    body: str = ""
    remote: str | None = None
    lost: str | None = None


class ChangeRoutes:
    """The handlers for a session's changes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def changes(self, request: Request, user: WebUser) -> Response:
        """The session's changes by file: of its worktree if it has one and is idle, otherwise as recorded by its calls.
        `since` limits them to changes recorded from a turn on, `turn` to changes of one turn; `turns` are the possible
        values of both."""
        session_id, service = session_id_of(request), self._service
        since = number_of(request, "since", None, 1, _MAX_TURN)
        turn = number_of(request, "turn", None, 1, _MAX_TURN)
        if since is not None and turn is not None:
            raise InvalidArgument("turn: cannot be combined with since.", field="turn")
        session = await service.find(session_id, caller=user.caller)
        changes: str | EditedFiles
        if turn is not None:
            changes = await service.work.edits(session, turn, turn, caller=user.caller)
        elif since is not None:
            changes = await service.work.edits(session, since, caller=user.caller)
        else:
            changes = await service.work.changes(session, caller=user.caller)
        files, cut = self._files(changes)
        if isinstance(changes, str):
            source = "worktree"
            try:
                turns = (await service.work.edits(session, caller=user.caller)).turns
            except SessionNotFound:  # it has no transcript
                turns = []
        else:
            source, turns = "conversation", changes.turns
        return answer(
            {
                "source": source,
                "directory": service.redaction.text(session.cwd),
                "files": [file.row() for file in files],
                "cut": cut,
                "turns": [_turn_row(turn) for turn in turns],
            }
        )

    async def amount(self, request: Request, user: WebUser) -> Response:
        """The number of files and lines that the session changed."""
        session = await self._service.find(session_id_of(request), caller=user.caller)
        files, cut = self._files(await self._service.work.changes(session, caller=user.caller))
        lines = [line[:1] for file in files for diff in file.diffs for line in diff.split("\n")]
        return answer({"files": len(files), "added": lines.count("+"), "removed": lines.count("-"), "cut": cut})

    def _files(self, changes: str | EditedFiles) -> tuple[list[ChangedFile], bool]:
        """The files of a diff or of recorded changes, and whether some were omitted."""
        if isinstance(changes, str):
            return files_of_diff(self._service.redaction.text(changes))
        return [ChangedFile(path, diffs, "", _digest(path, *diffs)) for path, diffs in changes.files], changes.cut

    async def file(self, request: Request, user: WebUser) -> Response:
        """A text file below a session's directory, if the session may read it."""
        path = text_of(request, "path", 4096)
        if path is None:
            raise InvalidArgument("path: required.", field="path")
        found, text = await self._service.stored.file(session_id_of(request), path, caller=user.caller)
        return answer(self._service.redaction.data({"path": found, "text": text}))

    async def plan(self, request: Request, user: WebUser) -> Response:
        """The possible actions on its worktree, and their input."""
        session_id, work = session_id_of(request), self._service.work
        plan, remote = await work.plan(session_id, caller=user.caller)
        lost = await work.unsaved(session_id, caller=user.caller)
        shown = {
            "branch": plan.branch,
            "into": plan.into,
            "repository": plan.repository,
            "uncommitted": len(plan.uncommitted),
            "files": [*plan.uncommitted[:_MAX_NAMED]],
            "commits": plan.commits,
            "refusal": plan.refusal,
            "remote": remote,
            "program": await work.request_program(session_id, caller=user.caller),
            "lost": str(lost),
        }
        return answer({**self._service.redaction.data(shown), "digest": plan.digest})

    async def work(self, request: Request, user: WebUser) -> Response:
        """Carries out a confirmed action on its worktree, identified by the reviewed state."""
        arguments = await arguments_of(request, WorkArguments)
        session_id, work, caller = session_id_of(request), self._service.work, user.caller
        if arguments.action == "discard":
            lost = await work.unsaved(session_id, caller=caller)
            if str(lost) != arguments.lost:
                raise PermissionDenied(
                    f"This would lose {lost}; nothing was discarded. Review the changes again.", field="lost"
                )
            return self._done(session_id, await work.discard(session_id, lost, caller=caller))
        if arguments.agreed is None:
            raise InvalidArgument("agreed: required.", field="agreed")
        message = (arguments.message or "").strip() or None
        match arguments.action:
            case "commit":
                commit = await work.commit(session_id, message, arguments.agreed, caller=caller)
                done = f"Everything is committed, at {commit[:12]}."
            case "merge":
                done = await work.merge(session_id, message, arguments.agreed, caller=caller)
            case _:
                if message is None or arguments.remote is None:
                    raise InvalidArgument("message: a pull request needs a title and a remote.", field="message")
                agreed = {"agreed": arguments.agreed, "remote": arguments.remote}
                done = await work.pull_request(session_id, message, arguments.body, caller=caller, **agreed)
        return self._done(session_id, done)

    def _done(self, session_id: str, message: str) -> Response:
        return answer({"sessionId": session_id, "message": self._service.redaction.text(message)})
