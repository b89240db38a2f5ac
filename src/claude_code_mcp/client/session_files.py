"""The sessions on this machine, by their files, for commands."""

import argparse
import os
import sys
from typing import Any

from ..core.config import load_settings, without_settings
from ..core.errors import SessionNotFound
from ..core.model.paths import config_directory
from ..core.redaction import Redactor
from ..core.sessions.stored.session_library import SessionLibrary
from ..core.transcripts.session_catalog import Catalog
from .conventions import add_json


def add_session_command(actions: Any, name: str, description: str, run: Any) -> argparse.ArgumentParser:
    """Adds a command about one session below `sessions`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=description)
    parser.add_argument("session", help="session id, or the start of the id")
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
    reason = sessions.catalog.unread()
    if reason is not None:
        print(reason, file=sys.stderr)


def full_id(catalog: Catalog, prefix: str) -> str:
    """The id of the one session whose id begins with `prefix`. Raises SessionNotFound if there is none, or several."""
    # A whole id first: a session that only the history knows is not among the ids below.
    if catalog.find(prefix) is not None:
        return prefix
    matching = [session_id for session_id in catalog.ids() if session_id.startswith(prefix.lower())]
    if len(matching) != 1:
        if matching:
            raise SessionNotFound(f"{prefix!r} is ambiguous ({len(matching)} matches): use a longer prefix.")
        raise SessionNotFound(
            f"No session has an id that begins with {prefix!r}; `claude-code-mcp sessions` lists them."
        )
    return matching[0]
