"""`sessions`: lists, shows, follows and looks after the Claude Code sessions on this machine, by their files."""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..client.connections import ask_shared
from ..client.conventions import (
    ExitCode,
    add_json,
    agreed,
    camel_names,
    failed,
    positive,
    print_json,
)
from ..client.session_files import add_session_command, full_id, library, print_unread
from ..core.config import Settings, load_settings
from ..core.model.caller import LOCAL
from ..core.model.text import clip_line, sharing_line, visible
from ..core.policy.policy import Policy
from ..core.sessions.callers.session_access import SessionAccess
from ..core.sessions.stored.session_library import SessionLibrary
from ..core.state.session_marks import Mark
from ..core.transcripts.session_catalog import Entry
from ..core.transcripts.transcript_export import Detail
from ..installed_plugins import enabled_plugins

_FIRST_LINES = 20
_PAGE = 1 << 20
_MARKS = {
    "pin": (Mark.PINNED, True, "keep it at the top of the list"),
    "unpin": (Mark.PINNED, False, "stop keeping it at the top of the list"),
    "archive": (Mark.ARCHIVED, True, "hide it from the list"),
    "unarchive": (Mark.ARCHIVED, False, "show it in the list again"),
}


def add_to(commands: Any) -> None:
    parser = commands.add_parser("sessions", help="list, read and manage Claude Code sessions on this machine")
    _add_listing(parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", description="The default is list.")
    _add_reading(actions)
    _add_care(actions)


def _add_listing(listing: argparse.ArgumentParser) -> None:
    listing.add_argument("--project", metavar="DIR", help="only sessions in this directory")
    listing.add_argument(
        "--text", metavar="TEXT", help="only sessions with this text in the title, prompts, directory or branch"
    )
    listing.add_argument("--whole", action="store_true", help="search complete conversations")
    listing.add_argument("--archived", action="store_true", help="list archived sessions")
    listing.add_argument(
        "--limit", type=positive, default=20, metavar="N", help="print at most N sessions (default 20)"
    )
    listing.add_argument("--offset", type=positive, default=0, metavar="N", help="skip the first N sessions")
    add_json(listing)
    listing.set_defaults(run=_list)


def _add_reading(actions: Any) -> None:
    _add_listing(actions.add_parser("list", help="list sessions, pinned ones first, then the newest"))
    show = add_session_command(actions, "show", "print the conversation of one session", _show)
    show.add_argument("--lines", type=positive, default=200, metavar="N", help="the last N lines (default 200)")
    show.add_argument("--full", action="store_true", help="print everything, with inputs, results and diffs")
    show.add_argument("--thinking", action="store_true", help="with --full: include thinking")
    show.add_argument("--agent", metavar="ID", help="with --full: print this subagent's work")
    add_session_command(actions, "follow", "print new output of a session until Ctrl-C", _follow)


def _add_care(actions: Any) -> None:
    rename = add_session_command(actions, "rename", "change its title", _change)
    rename.add_argument("title", help="the title; empty to remove it")
    tag = add_session_command(actions, "tag", "set its tag", _change)
    tag.add_argument("tag", help="the tag; empty to remove it")
    for action, (_, _, description) in _MARKS.items():
        add_session_command(actions, action, description, _change)
    fork = add_session_command(actions, "fork", "copy the conversation under a new id, and print that", _change)
    fork.add_argument("--title", help="the title of the copy")
    export = add_session_command(actions, "export", "write the conversation to a file, without secrets", _change)
    export.add_argument("--format", choices=("markdown", "html"), default="markdown", help="default: markdown")
    export.add_argument(
        "--output", type=Path, metavar="FILE", help="the file to write (default: a file in the state directory)"
    )
    export.add_argument("--thinking", action="store_true", help="include thinking")
    delete = add_session_command(actions, "delete", "delete a session permanently; refused while it is open", _delete)
    delete.add_argument("--yes", action="store_true", help="do not ask for confirmation")


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
    """One line; `state` is known for sessions in the shared server's memory."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    branch = f" ({entry.branch})" if entry.branch else ""
    tag = f" [{entry.tag}]" if entry.tag else ""
    title = clip_line(entry.title or entry.first_prompt or "", 80)
    mention = f"\n    {entry.mention}" if entry.mention else ""
    pin, shown_state = "* " if entry.pinned else "", f"[{state}] " if state else ""
    return visible(f"{entry.session_id}  {when}  {entry.project}{branch}{tag}  {pin}{shown_state}{title}{mention}")


def _show(arguments: argparse.Namespace) -> int:
    sessions = library()
    session_id = full_id(sessions.catalog, arguments.session)
    if arguments.full or arguments.agent:
        asyncio.run(_print_all(sessions, session_id, arguments))
        return 0
    lines = sessions.catalog.transcript_lines(session_id, arguments.lines)
    shared_with = _shared_with(session_id)
    if arguments.json:
        entry = sessions.catalog.find(session_id)
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
    """Print the last lines, then every new one, endlessly; with `--json`, one object for each."""
    sessions = library()
    session_id = full_id(sessions.catalog, arguments.session)

    def show(line: str) -> None:
        print(json.dumps({"line": line}, ensure_ascii=False) if arguments.json else visible(line), flush=True)

    # The size is read before the last lines are: a line that is written in between is shown twice rather than never.
    entry = sessions.catalog.find(session_id)
    for line in sessions.catalog.transcript_lines(session_id, _FIRST_LINES):
        show(line)
    async for lines in sessions.follow(session_id, offset=entry.size if entry is not None else 0):
        for line in lines:
            show(line)


# -- care ---------------------------------------------------------------------------------------------------------


def _change(arguments: argparse.Namespace) -> int:
    """Change the session and print the result, if any; with `--json`, under its name."""
    sessions = library()
    session_id = full_id(sessions.catalog, arguments.session)
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
    session_id = full_id(sessions.catalog, arguments.session)
    if not arguments.yes:
        entry = sessions.catalog.find(session_id)
        title = clip_line((entry.title or entry.first_prompt or "") if entry is not None else "", 80)
        if not agreed(f"Permanently delete {session_id} ({title})?"):
            return failed("Nothing was deleted.", ExitCode.REFUSED)
    asyncio.run(_deleted(load_settings(), sessions, session_id))
    if arguments.json:
        print_json({"sessionId": session_id, "deleted": True})
    return 0


async def _deleted(settings: Settings, sessions: SessionLibrary, session_id: str) -> None:
    async with AsyncExitStack() as stack:
        for plugin in enabled_plugins(settings):
            await stack.enter_async_context(plugin.deleting(settings, sessions, session_id))
        await sessions.remove(session_id)


def _shared_with(session_id: str) -> list[dict[str, str]]:
    """The callers with whom a session of this user is shared, read from disk; a remark on stderr if that fails."""
    settings = load_settings()
    made = (plugin.access(settings, Policy()) for plugin in enabled_plugins(settings))
    access = next(filter(None, made), SessionAccess())
    try:
        asyncio.run(access.refresh())
    except OSError as error:
        print(f"Cannot read with whom it is shared: {error}", file=sys.stderr)
    return access.sharing(session_id, LOCAL).rows or []
