"""`sessions`: lists, shows and follows the Claude Code sessions on this machine, from their transcripts on disk."""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ..claude.user_config import config_directory
from ..errors import SessionNotFound
from ..model.text import clip_line
from ..shared.client import ask_shared
from ..store.catalogue import Catalogue, Entry
from .flags import add_json, positive, print_json

_POLL_INTERVAL = 0.3
_FIRST_LINES = 20
_MOST_SESSIONS = 10_000


def add_to(commands: Any) -> None:
    parser = commands.add_parser("sessions", help="list, show or follow Claude Code sessions on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="newest first")
    listing.add_argument("--project", metavar="DIR", help="only those of this directory")
    listing.add_argument("--text", metavar="TEXT", help="only those with this in title, prompt, directory or branch")
    listing.add_argument("--limit", type=positive, default=20, metavar="N", help="at most N (default 20)")
    add_json(listing)
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="print the conversation of one session")
    show.add_argument("session", help="its id, or the beginning of it")
    show.add_argument("--lines", type=positive, default=200, metavar="N", help="the last N lines (default 200)")
    add_json(show)
    show.set_defaults(run=_show)
    follow = actions.add_parser("follow", help="print what is new in a session as it happens, until Ctrl-C")
    follow.add_argument("session", help="its id, or the beginning of it")
    follow.set_defaults(run=_follow)


def _catalogue() -> Catalogue:
    return Catalogue(config_directory(os.environ))


def _list(arguments: argparse.Namespace) -> int:
    entries = _catalogue().list(project=arguments.project, text=arguments.text, limit=arguments.limit)
    states: dict[str, str] = ask_shared(os.environ, "sessions") or {}
    if arguments.json:
        print_json([{**asdict(entry), "state": states.get(entry.session_id)} for entry in entries])
        return 0
    for entry in entries:
        print(_row(entry, states.get(entry.session_id)))
    if not entries:
        print("No sessions.")
    return 0


def _row(entry: Entry, state: str | None) -> str:
    """One line; `state` is known of what the shared server has in memory."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    branch = f" ({entry.branch})" if entry.branch else ""
    title = clip_line(entry.title or entry.first_prompt or "", 80)
    return f"{entry.session_id}  {when}  {entry.project}{branch}  {f'[{state}] ' if state else ''}{title}"


def _full_id(catalogue: Catalogue, prefix: str) -> str:
    """The id of the one session that begins with `prefix`. Raises SessionNotFound if there is none, or several."""
    if catalogue.find(prefix) is not None:
        return prefix
    ids = [entry.session_id for entry in catalogue.list(limit=_MOST_SESSIONS)]
    matching = [session_id for session_id in ids if session_id.startswith(prefix)]
    if len(matching) != 1:
        problem = "No session begins" if not matching else f"{len(matching)} sessions begin"
        raise SessionNotFound(f"{problem} with {prefix!r}; `claude-code-mcp sessions list` shows them.")
    return matching[0]


def _show(arguments: argparse.Namespace) -> int:
    catalogue = _catalogue()
    session_id = _full_id(catalogue, arguments.session)
    lines = catalogue.transcript_lines(session_id, arguments.lines)
    if arguments.json:
        entry = catalogue.find(session_id)
        print_json({**(asdict(entry) if entry else {"session_id": session_id}), "lines": list(lines)})
        return 0
    for line in lines:
        print(line)
    return 0


def _follow(arguments: argparse.Namespace) -> int:
    catalogue = _catalogue()
    session_id = _full_id(catalogue, arguments.session)
    for line in _followed_lines(catalogue, session_id):
        print(line, flush=True)
    return 0


def _followed_lines(catalogue: Catalogue, session_id: str) -> Iterator[str]:
    """The last lines, and then every new one, without end. Polls, because another process writes the transcript."""
    # The size is read before the last lines are: a line that is written in between is shown twice rather than never.
    entry = catalogue.find(session_id)
    offset = entry.size if entry is not None else 0
    yield from catalogue.transcript_lines(session_id, _FIRST_LINES)
    while True:
        lines, offset = catalogue.growth(session_id, offset)
        yield from lines
        time.sleep(_POLL_INTERVAL)
