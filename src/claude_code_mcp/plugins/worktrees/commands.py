"""`sessions diff`, `merge` and `discard`: the worktree of a session, from the shell."""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...client.connections import CallFailed, NoServer, NotRunning, Target
from ...client.conventions import ExitCode, agreed, failed, print_json, print_outcome
from ...client.live_sessions import LiveSessions
from ...client.session_files import add_session_command, full_id, library
from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy
from ...core.isolation import Home
from ...core.model.text import visible
from .worktree_changes import WorktreeChanges


def add_diff(actions: Any) -> None:
    add_session_command(actions, "diff", "print the changes in a session's worktree", _diff)


def add_merge(actions: Any) -> None:
    merge = add_session_command(actions, "merge", "merge its worktree into the branch that it started from", _merge)
    merge.add_argument(
        "--message", "-m", metavar="TEXT", help="commit uncommitted changes in the worktree with this message"
    )


def add_discard(actions: Any) -> None:
    discard = add_session_command(actions, "discard", "remove its worktree and its branch", _discard)
    discard.add_argument("--yes", action="store_true", help="do not ask for confirmation, even if changes are lost")


@contextlib.contextmanager
def _changes(arguments: argparse.Namespace) -> Iterator[tuple[str, WorktreeChanges]]:
    sessions = library()
    session_id = full_id(sessions.catalog, arguments.session)
    with sessions.worktree_of(session_id) as worktree:
        yield session_id, WorktreeChanges(Home.of_user(os.environ), worktree)


_REFUSALS: dict[str, type[ClaudeCodeError]] = {error.code: error for error in (PermissionDenied, InvalidArgument)}


def _by_its_server(busy: SessionBusy, action: str, **more: Any) -> dict[str, Any]:
    """Asks the shared server to do it, because that server has the idle session open. Raises `busy` if no server runs,
    or if another process has the session."""
    session_id = str(busy.data.get("session_id"))
    try:
        client = Target().join()
    except NoServer:
        raise busy from None
    with client:
        try:
            return LiveSessions(client).manage(session_id, action, **more)
        except (CallFailed, NotRunning) as refusal:
            if isinstance(refusal, NotRunning) or refusal.code in ("SESSION_NOT_FOUND", busy.code):
                raise busy from None
            raise _REFUSALS.get(refusal.code, ClaudeCodeError)(str(refusal)) from None


def _diff(arguments: argparse.Namespace) -> int:
    """Prints the diff unchanged for a program, which may apply it, and without control characters on a terminal."""
    try:
        with _changes(arguments) as (session_id, changes):
            diff = asyncio.run(changes.diff())
    except SessionBusy as busy:
        report = _by_its_server(busy, "diff")
        if report.get("source") != "worktree":  # changes are not final while the session is busy
            raise
        session_id, diff = report["sessionId"], report["message"]
        if report.get("path"):  # a long diff is stored completely in a file
            diff = Path(report["path"]).read_text(encoding="utf-8", errors="surrogateescape")
        diff = diff if "diff --git " in diff else ""
    if arguments.json:
        print_json({"sessionId": session_id, "diff": diff})
    else:
        sys.stdout.write(visible(diff) if sys.stdout.isatty() else diff)
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    try:
        with _changes(arguments) as (session_id, changes):
            report = {"sessionId": session_id, "message": asyncio.run(changes.merge(arguments.message))}
    except SessionBusy as busy:
        report = _by_its_server(busy, "merge", **({"text": arguments.message} if arguments.message else {}))
    return print_outcome(arguments, report, visible(report["message"]))


def _discard(arguments: argparse.Namespace) -> int:
    try:
        with _changes(arguments) as (session_id, changes):
            lost = asyncio.run(changes.unsaved())
            if lost and not arguments.yes and not agreed(f"This would be lost: {lost}. Discard it?"):
                return failed("Nothing was discarded.", ExitCode.REFUSED)
            # With the state that the person reviewed: refused if more would be lost by now.
            done = asyncio.run(changes.discard(None if arguments.yes else lost))
            return print_outcome(arguments, {"sessionId": session_id, "message": done}, done)
    except SessionBusy as busy:
        return _discard_at_server(arguments, busy)


def _discard_at_server(arguments: argparse.Namespace, busy: SessionBusy) -> int:
    try:
        report = _by_its_server(busy, "discard", **({"confirm": True} if arguments.yes else {}))
    except PermissionDenied as refusal:
        if arguments.yes:
            raise
        if not agreed(f"{refusal.message} Discard it anyway?"):
            return failed("Nothing was discarded.", ExitCode.REFUSED)
        report = _by_its_server(busy, "discard", confirm=True)
    return print_outcome(arguments, report, visible(report["message"]))
