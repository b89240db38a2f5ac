"""Changes to the files of one session: its title, its tag, a copy of it, its removal.

A title and a tag are lines at the end of the transcript, as Claude Code writes them itself, so that its own list of
sessions shows them; a process that has the session open takes them over. Nothing else in a transcript is ever changed.
Who calls makes sure that nobody runs a session that is removed. All functions block on the disk and raise OSError
where it refuses.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import SessionNotFound
from ..model.session_ids import is_session_id
from ..model.text import clip_line
from ..private_files import TEMPORARY, open_private, private_directory, replace_file
from .file_changes import scandir
from .transcript_lines import clean, lines_from, parse
from .transcripts import EXTENSION, locate

LONGEST_TITLE = 200
_TITLE_FILE = "custom-title.json"
_NOT_COPIED = {"cost-state", "queue-operation", "custom-title", "tag", "continued-in"}
"""Lines that are about the session that is copied: what it cost, what waited in it, what it was called."""
_OTHER_PLACES = ("file-history", "session-env", "todos", "tasks")
"""Directories of the CLI that may have files or directories named after a session."""


class SessionFiles:
    """The files of the sessions below one configuration directory of the CLI."""

    def __init__(self, config_dir: str) -> None:
        self._config_dir = config_dir
        self._projects = os.path.join(config_dir, "projects")

    def set_title(self, session_id: str, title: str) -> str:
        """Names a session and returns the name as it is shown: on one line, and not too long. An empty one takes the
        name away. Written as the CLI does, into the transcript and into a small file beside it."""
        path = self._transcript(session_id)
        title = clip_line(clean(title), LONGEST_TITLE)
        _append(path, {"type": "custom-title", "customTitle": title, "sessionId": session_id})
        beside = Path(path).with_suffix("") / _TITLE_FILE
        if beside.parent.is_symlink():
            return title  # made by a session, and leads to what is not the session's
        if title:
            private_directory(beside.parent)
            replace_file(beside, json.dumps({"customTitle": title}, ensure_ascii=False).encode())
        else:
            beside.unlink(missing_ok=True)
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
        unfinished = f"{target}{TEMPORARY}"
        try:
            with open(open_private(Path(unfinished), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.writelines(_copied_lines(source, new_id))
                file.write(_line({"type": "custom-title", "customTitle": title, "sessionId": new_id}))
            os.replace(unfinished, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def remove(self, session_id: str) -> None:
        """Removes all transcripts of a session, its subagents' too, and what the CLI keeps of it elsewhere."""
        if not is_session_id(session_id):
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        for folder in scandir(self._projects):
            _remove(os.path.join(folder.path, session_id))
            _remove(os.path.join(folder.path, session_id + EXTENSION))
        for place in _OTHER_PLACES:
            for entry in scandir(os.path.join(self._config_dir, place)):
                if entry.name.startswith(session_id):
                    _remove(entry.path)

    def _transcript(self, session_id: str) -> str:
        path = locate(self._projects, session_id)
        if path is None:
            raise SessionNotFound(f"Session {session_id} has no transcript.", session_id=session_id)
        return path


def _append(path: str, line: dict[str, str]) -> None:
    """In one write, behind a line break if the last line was never finished."""
    flags = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
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


def _remove(path: str) -> None:
    """A file, a link as such, or a directory with all that is in it; harmless where there is nothing."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
