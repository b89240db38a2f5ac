"""Changes to the files of one session: its title, its tag, a copy of it, its removal.

A title and a tag are lines at the end of the transcript, as Claude Code writes them itself, so that its own list of
sessions shows them; a process that has the session open takes them over. Nothing else in a transcript is ever changed.
Who calls makes sure that nobody runs a session that is removed. No link that a session may have made is followed. All
functions block on the disk and raise OSError where it refuses.
"""

import contextlib
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from ..beneath import entries_at, make_directory_at, open_at, remove_at, replace_at
from ..errors import SessionNotFound
from ..model.session_ids import is_session_id
from ..model.text import clip_line
from ..private_files import TEMPORARY
from .transcript_lines import clean, lines_from, parse
from .transcripts import EXTENSION, ProjectFolders

LONGEST_TITLE = 200
_TITLE_FILE = "custom-title.json"
_NOT_COPIED = {"cost-state", "queue-operation", "custom-title", "tag", "continued-in"}
"""Lines that are about the session that is copied: what it cost, what waited in it, what it was called."""
_OTHER_PLACES = ("file-history", "session-env", "todos", "tasks")
"""Directories of the CLI that may have files or directories named after a session."""


class SessionFiles:
    """The files of the sessions below one configuration directory of the CLI."""

    def __init__(self, config_dir: str, projects: ProjectFolders) -> None:
        self._config_dir = os.path.realpath(config_dir)
        self._projects = projects

    def set_title(self, session_id: str, title: str) -> str:
        """Names a session and returns the name as it is shown: on one line, and not too long. An empty one takes the
        name away. Written as the CLI does, into the transcript and into a small file beside it."""
        path = self._transcript(session_id)
        title = clip_line(clean(title), LONGEST_TITLE)
        _append(path, {"type": "custom-title", "customTitle": title, "sessionId": session_id})
        beside = path.removesuffix(EXTENSION)
        # Something else in its place was made by a session, and may lead to what is not the session's.
        with contextlib.suppress(OSError):
            if title:
                make_directory_at(beside)
                content = json.dumps({"customTitle": title}, ensure_ascii=False).encode()
                _write(os.path.join(beside, _TITLE_FILE), [content])
            else:
                remove_at(os.path.join(beside, _TITLE_FILE))
        return title

    def set_tag(self, session_id: str, tag: str) -> str:
        """Tags a session; an empty tag takes it away."""
        tag = clip_line(clean(tag), LONGEST_TITLE)
        _append(self._transcript(session_id), {"type": "tag", "tag": tag, "sessionId": session_id})
        return tag

    def copy(self, session_id: str, new_id: str, title: str) -> None:
        """Another session with the same conversation so far. It is whole or it is not there."""
        source = self._transcript(session_id)
        target = os.path.join(os.path.dirname(source), new_id + EXTENSION)
        own_title = _line({"type": "custom-title", "customTitle": title, "sessionId": new_id})
        _write(target, itertools.chain(_copied_lines(source, new_id), [own_title]))

    def remove(self, session_id: str) -> None:
        """Removes all transcripts of a session, its subagents' too, and what the CLI keeps of it elsewhere."""
        if not is_session_id(session_id):
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        for folder in self._projects.all():
            remove_at(os.path.join(folder, session_id))
            remove_at(os.path.join(folder, session_id + EXTENSION))
        for place in (os.path.join(self._config_dir, name) for name in _OTHER_PLACES):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a link is none
                for entry in entries_at(place, lambda name: name.startswith(session_id)):
                    remove_at(os.path.join(place, entry.name))

    def _transcript(self, session_id: str) -> str:
        path = self._projects.locate(session_id)
        if path is None:
            raise SessionNotFound(f"Session {session_id} has no transcript.", session_id=session_id)
        return path


def _append(path: str, line: dict[str, str]) -> None:
    """In one write, behind a line break if the last line was never finished."""
    descriptor = open_at(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        os.lseek(descriptor, max(0, size - 1), os.SEEK_SET)
        unfinished = size > 0 and os.read(descriptor, 1) != b"\n"
        os.write(descriptor, (b"\n" if unfinished else b"") + _line(line))
    finally:
        os.close(descriptor)


def _line(line: dict[str, Any] | dict[str, str]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _copied_lines(source: str, new_id: str) -> Iterator[bytes]:
    for raw, _ in lines_from(source):
        line = parse(raw)
        if line is not None and line.get("type") not in _NOT_COPIED:
            yield _line(_copied(line, new_id)) if "sessionId" in line else raw + b"\n"


def _copied(line: dict[str, Any], new_id: str) -> dict[str, Any]:
    """Messages say where they come from, so that their costs are not counted again."""
    copied = {**line, "sessionId": new_id}
    if "uuid" in line:
        copied["forkedFrom"] = {"sessionId": line["sessionId"], "messageUuid": line["uuid"]}
    return copied


def _write(path: str, content: Iterable[bytes]) -> None:
    """Makes a file with this content, for us alone, or replaces one; it is whole or it is not there."""
    unfinished = f"{path}.{uuid.uuid4().hex}{TEMPORARY}"
    try:
        with open(open_at(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.writelines(content)
        replace_at(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_at(unfinished)
        raise
