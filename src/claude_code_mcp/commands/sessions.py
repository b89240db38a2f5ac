"""`sessions`: what Claude Code sessions there are on this machine, read from the shell."""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

from ..claude.user_config import config_directory
from ..errors import SessionNotFound
from ..model.text import clip_line
from ..store.catalogue import Catalogue, Entry

_POLL = 0.3


def add_to(commands: Any) -> None:
    parser = commands.add_parser("sessions", help="list, show or follow Claude Code sessions on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="newest first")
    listing.add_argument("--project", metavar="DIR", help="only those of this directory")
    listing.add_argument("--text", metavar="TEXT", help="only those with this in title, prompt, directory or branch")
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="at most N (default 20)")
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="print the conversation of one session")
    show.add_argument("session", help="its id, or the beginning of it")
    show.add_argument("--lines", type=int, default=200, metavar="N", help="the last N lines (default 200)")
    show.set_defaults(run=_show)
    follow = actions.add_parser("follow", help="print what is new in a session as it happens, until Ctrl-C")
    follow.add_argument("session", help="its id, or the beginning of it")
    follow.set_defaults(run=_follow)


def _catalogue() -> Catalogue:
    return Catalogue(config_directory(os.environ))


def _list(arguments: argparse.Namespace) -> int:
    entries = _catalogue().list(project=arguments.project, text=arguments.text, limit=arguments.limit)
    for entry in entries:
        print(_row(entry))
    if not entries:
        print("No sessions.")
    return 0


def _row(entry: Entry) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    branch = f" ({entry.branch})" if entry.branch else ""
    about = clip_line(entry.title or entry.first_prompt or "", 80)
    return f"{entry.session_id}  {when}  {entry.project}{branch}  {about}"


def _named(catalogue: Catalogue, given: str) -> str:
    """The full id of the one session that begins like this."""
    if catalogue.find(given) is not None:
        return given
    matching = [entry.session_id for entry in catalogue.list(limit=10_000) if entry.session_id.startswith(given)]
    if len(matching) != 1:
        problem = "No session begins" if not matching else f"{len(matching)} sessions begin"
        raise SessionNotFound(f"{problem} with {given!r}; `claude-code-mcp sessions list` shows them.")
    return matching[0]


def _show(arguments: argparse.Namespace) -> int:
    catalogue = _catalogue()
    for line in catalogue.transcript_lines(_named(catalogue, arguments.session), arguments.lines):
        print(line)
    return 0


def _follow(arguments: argparse.Namespace) -> int:
    catalogue = _catalogue()
    session_id = _named(catalogue, arguments.session)
    for line in _growing(catalogue, session_id):
        print(line, flush=True)
    return 0


def _growing(catalogue: Catalogue, session_id: str) -> Iterator[str]:
    """The last lines and then every new one. Another process writes the file, so all there is to do is look."""
    entry = catalogue.find(session_id)
    offset = entry.size if entry is not None else 0
    yield from catalogue.transcript_lines(session_id, 20)
    while True:
        lines, offset = catalogue.growth(session_id, offset)
        yield from lines
        time.sleep(_POLL)
