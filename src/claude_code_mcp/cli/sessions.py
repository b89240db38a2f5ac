"""`sessions`: lists, shows, follows and looks after the Claude Code sessions on this machine, by their files."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..client.connections import CallFailed, NoServer, NotRunning, Target, ask_shared
from ..client.live_sessions import LiveSessions, losses
from ..core.config import load_settings, without_settings
from ..core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy, SessionNotFound
from ..core.isolation import Home
from ..core.model.caller import LOCAL
from ..core.model.paths import config_directory
from ..core.model.text import clip_line, sharing_line, visible
from ..core.redaction import Redactor
from ..core.sessions.session_library import SessionLibrary
from ..core.state.session_marks import Mark
from ..core.state.state_directory import database_in
from ..core.transcripts.session_catalogue import Catalogue, Entry
from ..core.transcripts.transcript_export import Detail
from ..plugins.fleet.commands import delete_session
from ..plugins.worktrees.worktree_changes import WorktreeChanges
from .conventions import (
    ExitCode,
    Unavailable,
    add_json,
    agreed,
    camel_names,
    exit_code_of,
    failed,
    positive,
    print_json,
    print_outcome,
)
from .running_sessions import add_target, at_server, target_of

_FIRST_LINES = 20
_PAGE = 1 << 20
_MARKS = {
    "pin": (Mark.PINNED, True, "keep it at the top of the list"),
    "unpin": (Mark.PINNED, False, "let it go down the list again"),
    "archive": (Mark.ARCHIVED, True, "leave it out of the list"),
    "unarchive": (Mark.ARCHIVED, False, "put it back on the list"),
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser("sessions", help="list, read and look after Claude Code sessions on this machine")
    _add_listing(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", description="Without one: list.")
    _add_reading(actions)
    _add_care(actions)
    _add_sharing(actions)


def _add_listing(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("--project", metavar="DIR", help="only those of this directory")
    listing.add_argument("--text", metavar="TEXT", help="only those with this in title, prompts, directory or branch")
    listing.add_argument("--whole", action="store_true", help="look for the text in whole conversations")
    listing.add_argument("--archived", action="store_true", help="those that were archived")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most N (default 20)")
    listing.add_argument("--offset", type=positive, default=0, metavar="N", help="without the first N")
    add_json(listing)
    listing.set_defaults(run=_list)


def _add_reading(actions: Any) -> None:
    _add_listing(actions.add_parser("list", help="pinned ones first, then the newest"))
    show = _with_session(actions, "show", "print the conversation of one session", _show)
    show.add_argument("--lines", type=positive, default=200, metavar="N", help="the last N lines (default 200)")
    show.add_argument("--full", action="store_true", help="all of it, with inputs, results and diffs")
    show.add_argument("--thinking", action="store_true", help="with --full: what the model thought, too")
    show.add_argument("--agent", metavar="ID", help="with --full: what this subagent did")
    _with_session(actions, "follow", "print what is new in a session as it happens, until Ctrl-C", _follow)


def _add_care(actions: Any) -> None:
    rename = _with_session(actions, "rename", "give it a title, as Claude Code does", _change)
    rename.add_argument("title", help="the title; empty to take it away")
    tag = _with_session(actions, "tag", "give it a tag", _change)
    tag.add_argument("tag", help="the tag; empty to take it away")
    for action, (_, _, description) in _MARKS.items():
        _with_session(actions, action, description, _change)
    fork = _with_session(actions, "fork", "copy the conversation under a new id, and print that", _change)
    fork.add_argument("--title", help="the title of the copy")
    export = _with_session(actions, "export", "write the conversation to a file, without secrets", _change)
    export.add_argument("--format", choices=("markdown", "html"), default="markdown", help="default: markdown")
    export.add_argument("--output", type=Path, metavar="FILE", help="where to; unset, a file in the state directory")
    export.add_argument("--thinking", action="store_true", help="what the model thought, too")
    delete = _with_session(actions, "delete", "remove it for good; refused while it is open", _delete)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    _with_session(actions, "diff", "print what it has changed in its worktree", _diff)
    merge = _with_session(actions, "merge", "merge its worktree into the branch that it began on", _merge)
    merge.add_argument("--message", "-m", metavar="TEXT", help="commits what is uncommitted there, with this message")
    discard = _with_session(actions, "discard", "remove its worktree and its branch", _discard)
    discard.add_argument("--yes", action="store_true", help="do not ask, whatever is lost")
    move = _with_session(actions, "move", "have it go on at another machine of the fleet, with its tree", _move)
    move.add_argument("--to", required=True, metavar="MACHINE", help="name or id; `fleet status` lists them")
    move.add_argument("--wait", action="store_true", help="after the turn that is running; else it is refused then")
    move.add_argument("--without-tree", action="store_true", help="also if its files cannot be saved: they stay behind")
    add_target(move)


def _add_sharing(actions: Any) -> None:
    """By way of the server: it decides who may, ends what others have open, and writes the audit trail."""
    share = _with_session(actions, "share", "let somebody else watch it, or answer too", at_server(_share))
    share.add_argument("name", help="a person, or group:NAME")
    share.add_argument(
        "--access", choices=("watch", "answer"), default="watch", help="answer: write to it too (default: watch)"
    )
    unshare = _with_session(actions, "unshare", "take that back; what they have open of it ends", at_server(_unshare))
    unshare.add_argument("name", help="a person, or group:NAME")
    for parser in (share, unshare):
        add_target(parser)


def _with_session(actions: Any, name: str, description: str, run: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=description)
    parser.add_argument("session", help="its id, or the beginning of it")
    add_json(parser)
    parser.set_defaults(run=run, action=name)
    return parser


def library() -> SessionLibrary:
    """The sessions of this user."""
    redactor = Redactor()
    redactor.learn(without_settings(os.environ))
    return SessionLibrary(config_directory(os.environ), load_settings().state_dir, redactor.data)


def print_unread(sessions: SessionLibrary) -> None:
    """Prints to stderr if something on disk could not be read."""
    reason = sessions.catalogue.unread()
    if reason is not None:
        print(reason, file=sys.stderr)


def _full_id(catalogue: Catalogue, prefix: str) -> str:
    """The id of the one session whose id begins with `prefix`. Raises SessionNotFound if there is none, or several."""
    # A whole id first: a session that only the history knows is not among the ids below.
    if catalogue.find(prefix) is not None:
        return prefix
    matching = [session_id for session_id in catalogue.ids() if session_id.startswith(prefix.lower())]
    if len(matching) != 1:
        if matching:
            raise SessionNotFound(f"{prefix!r} is ambiguous ({len(matching)} matches): use a longer prefix.")
        raise SessionNotFound(
            f"No session has an id that begins with {prefix!r}; `claude-code-mcp sessions` lists them."
        )
    return matching[0]


# -- reading ------------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    sessions = library()
    entries = sessions.entries(
        project=arguments.project,
        text=arguments.text,
        whole=arguments.whole,
        archived=arguments.archived,
        limit=arguments.limit,
        offset=arguments.offset,
    )
    states: dict[str, str] = ask_shared(os.environ, "sessions") or {}
    if arguments.json:
        print_json([{**camel_names(asdict(entry)), "state": states.get(entry.session_id)} for entry in entries])
        print_unread(sessions)
        return 0
    for entry in entries:
        print(_row(entry, states.get(entry.session_id)))
    if not entries:
        print("No sessions.")
    print_unread(sessions)
    return 0


def _row(entry: Entry, state: str | None) -> str:
    """One line; `state` is known of what the shared server has in memory."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    branch = f" ({entry.branch})" if entry.branch else ""
    tag = f" [{entry.tag}]" if entry.tag else ""
    title = clip_line(entry.title or entry.first_prompt or "", 80)
    mention = f"\n    {entry.mention}" if entry.mention else ""
    pin, at_work = "* " if entry.pinned else "", f"[{state}] " if state else ""
    return visible(f"{entry.session_id}  {when}  {entry.project}{branch}{tag}  {pin}{at_work}{title}{mention}")


def _show(arguments: argparse.Namespace) -> int:
    sessions = library()
    session_id = _full_id(sessions.catalogue, arguments.session)
    if arguments.full or arguments.agent:
        asyncio.run(_print_all(sessions, session_id, arguments))
        return 0
    lines = sessions.catalogue.transcript_lines(session_id, arguments.lines)
    shared_with = _shared_with(session_id)
    if arguments.json:
        entry = sessions.catalogue.find(session_id)
        facts = camel_names(asdict(entry)) if entry else {"sessionId": session_id}
        print_json({**facts, **({"sharedWith": shared_with} if shared_with else {}), "lines": list(lines)})
        return 0
    if shared_with:
        print(visible(f"[shared with {sharing_line(shared_with)}]"))
    for line in lines:
        print(visible(line))
    return 0


async def _print_all(sessions: SessionLibrary, session_id: str, arguments: argparse.Namespace) -> None:
    detail = Detail(full=arguments.full, thinking=arguments.thinking)
    cursor: str | None = "1"
    pages = []
    while cursor is not None:
        page = await sessions.read(session_id, cursor=cursor, size=_PAGE, detail=detail, agent=arguments.agent)
        cursor = page.next_cursor
        if arguments.json:
            pages.append(camel_names(asdict(page)))
        else:
            print(visible(page.text))
    if arguments.json:
        print_json(pages)


def _follow(arguments: argparse.Namespace) -> int:
    asyncio.run(_print_growth(arguments))
    return 0


async def _print_growth(arguments: argparse.Namespace) -> None:
    """The last lines, and then every new one, without end; as JSON, an object for each."""
    sessions = library()
    session_id = _full_id(sessions.catalogue, arguments.session)

    def show(line: str) -> None:
        print(json.dumps({"line": line}, ensure_ascii=False) if arguments.json else visible(line), flush=True)

    # The size is read before the last lines are: a line that is written in between is shown twice rather than never.
    entry = sessions.catalogue.find(session_id)
    for line in sessions.catalogue.transcript_lines(session_id, _FIRST_LINES):
        show(line)
    async for lines in sessions.follow(session_id, offset=entry.size if entry is not None else 0):
        for line in lines:
            show(line)


# -- care ---------------------------------------------------------------------------------------------------------


def _change(arguments: argparse.Namespace) -> int:
    """Does one thing to the session and prints what comes of it, if anything; as JSON under the name of what it is."""
    sessions = library()
    session_id = _full_id(sessions.catalogue, arguments.session)
    work: Coroutine[Any, Any, object]
    match arguments.action:
        case "rename":
            field, value, work = "title", None, sessions.rename(session_id, arguments.title)
        case "tag":
            field, value, work = "tag", None, sessions.tag(session_id, arguments.tag)
        case "fork":
            field, value, work = "copyId", None, sessions.copy(session_id, LOCAL, arguments.title)
        case "export":
            target = arguments.output.absolute() if arguments.output is not None else None
            detail = Detail(full=True, thinking=arguments.thinking)
            field, value, work = "path", None, sessions.export(session_id, arguments.format, detail, target)
        case _:
            mark, value, _ = _MARKS[arguments.action]
            field, work = str(mark), sessions.mark(session_id, mark, value)
    result = asyncio.run(work)
    if arguments.json:
        shown = str(result) if isinstance(result, Path) else result
        print_json({"sessionId": session_id, field: value if result is None else shown})
    elif result is not None:
        print(result)
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    sessions = library()
    session_id = _full_id(sessions.catalogue, arguments.session)
    if not arguments.yes:
        entry = sessions.catalogue.find(session_id)
        title = clip_line((entry.title or entry.first_prompt or "") if entry is not None else "", 80)
        if not agreed(f"Delete {session_id} ({title}) for good?"):
            return failed("Nothing was deleted.", ExitCode.REFUSED)
    settings = load_settings()
    if (settings.state_dir / "fleet").is_dir():
        left = asyncio.run(delete_session(settings, sessions, session_id))
        if left:
            print(left, file=sys.stderr)
    else:
        asyncio.run(sessions.remove(session_id))
    if arguments.json:
        print_json({"sessionId": session_id, "deleted": True})
    return 0


# -- sharing ------------------------------------------------------------------------------------------------------


def _share(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    report = sessions.manage(session_id, "share", text=arguments.name, access=arguments.access)
    return print_outcome(arguments, report, visible(report["message"]))


def _unshare(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    # A name always: without one the tool would take the session back from everybody.
    report = sessions.manage(sessions.find(arguments.session), "unshare", text=arguments.name)
    return print_outcome(arguments, report, visible(report["message"]))


def _shared_with(session_id: str) -> list[dict[str, str]]:
    """With whom a session of this user is shared, by what is on disk; a remark on stderr if that cannot be read."""
    from ..plugins.team.shared_sessions import SharedSessions  # noqa: PLC0415

    access = SharedSessions(database_in(load_settings().state_dir), lambda _: ())
    try:
        asyncio.run(access.refresh())
    except OSError as error:
        print(f"With whom it is shared cannot be read: {error}", file=sys.stderr)
    return access.sharing(session_id, LOCAL).rows or []


# -- moving -------------------------------------------------------------------------------------------------------

_NO_FLEET = "There is no fleet that it could be moved in: `claude-code-mcp fleet up` makes one."


def _move(arguments: argparse.Namespace) -> int:
    """Asks the gateway, which the clients of a fleet share as those of one machine share its server."""
    try:
        client = target_of(arguments).join()
    except NoServer:
        if arguments.url:
            raise
        raise Unavailable(_NO_FLEET) from None
    with client:
        sessions = LiveSessions(client)
        if not sessions.is_in_fleet():
            raise Unavailable(_NO_FLEET)
        more = {"wait": arguments.wait, "confirm": arguments.without_tree}
        try:
            found = sessions.find(arguments.session)
            moved = sessions.manage(
                found, "move", machine=arguments.to, **{name: True for name, value in more.items() if value}
            )
        except CallFailed as error:
            return failed(str(error), exit_code_of(error.code))
        except NotRunning as error:
            raise Unavailable(f"{error}; the session is where it was, or goes on with its next message") from None
    return print_outcome(arguments, moved, visible(" ".join([moved["message"], *losses(moved)])))


# -- worktrees ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _changes(arguments: argparse.Namespace) -> Iterator[tuple[str, WorktreeChanges]]:
    sessions = library()
    session_id = _full_id(sessions.catalogue, arguments.session)
    with sessions.worktree_of(session_id) as worktree:
        yield session_id, WorktreeChanges(Home.of_user(os.environ), worktree)


_REFUSALS: dict[str, type[ClaudeCodeError]] = {error.code: error for error in (PermissionDenied, InvalidArgument)}


def _by_its_server(busy: SessionBusy, action: str, **more: Any) -> dict[str, Any]:
    """Has the shared server do it, which has the session open though it is at rest. Raises `busy` if none runs, or
    if it is not that one's."""
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
        if report.get("source") != "worktree":  # while it is at work nothing there is settled
            raise
        session_id, diff = report["sessionId"], report["message"]
        if report.get("path"):  # a long one, whole
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
            # With what the person has seen: if more would be lost by now, it is refused.
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
        if not agreed(f"{refusal.message} Discard it all the same?"):
            return failed("Nothing was discarded.", ExitCode.REFUSED)
        report = _by_its_server(busy, "discard", confirm=True)
    return print_outcome(arguments, report, visible(report["message"]))
