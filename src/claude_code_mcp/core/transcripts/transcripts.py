"""Claude Code's own transcripts on disk: their location, and changes to the files of one session.

They are at `projects/<directory with all characters except letters and digits replaced by ->/<id>.jsonl` below the
CLI's configuration directory. They are only read, with two exceptions: completing a truncated last line, and adding a
conversation from another machine (`SessionFiles.put`). A transcript that cannot be read now (no free descriptor, a disk
error) raises TranscriptUnreadable, which is different from a session without a transcript. All functions block on the
disk: call them from a thread.

Sessions themselves write to these directories, so no link is followed below the root, see `ProjectFolders`.

A title and a tag are lines at the end of the transcript, in Claude Code's own format, so that its list of sessions
shows them; a process that has the session open adopts them. Nothing else in a transcript is ever changed. Before a
session is removed, the caller ensures that no process runs it. No link that a session may have created is followed. All
functions block on the disk and raise OSError if an operation fails.
"""

import contextlib
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import SessionNotFound, TranscriptUnreadable
from ..model.session_id import is_session_id
from ..model.text import clip_line
from ..model.usage import SYNTHETIC, Usage, read_number, read_usage
from ..private_files import TEMPORARY, entries_at, is_absence, make_directory_at, open_at, remove_at, replace_at
from .index import File, list_folders, stat_file
from .transcript_lines import (
    MAX_LINE,
    all_lines,
    clean,
    folder_of,
    in_folder,
    lines_from,
    new_folder_of,
    open_regular,
    parse,
)

_LAST_BYTES = 256 << 10
"""How much of the end of a transcript is read first, in addition to the wanted answer."""
_FIRST_LINES = 1000
"""One of these lines has a time: a transcript begins with a few lines of setup."""
_LAST_LINES = 16 << 10
"""More than a process usually writes after its last answer."""
_MAX_PATHS = 1024
_UNUSED = ".unused"
"""Suffix of a transcript without a message that another one replaced."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A transcript and its facts about the session."""

    session_id: str
    path: Path
    cwd: str | None = None
    """The session's directory."""
    usage: Usage = field(default_factory=Usage)
    """The usage that the CLI wrote at its last clean exit."""


EXTENSION = ".jsonl"


def is_transcript(name: str) -> bool:
    """Whether a file of this name is a session's transcript."""
    return name.endswith(EXTENSION) and is_session_id(name[: -len(EXTENSION)])


@dataclass(frozen=True, slots=True)
class ProjectFolders:
    """The directory with all project folders, below one configuration directory of the CLI."""

    path: str
    """Resolved as far as permitted: no link is followed from here on."""
    linked: bool = False
    """Whether its folders may themselves be links."""

    @classmethod
    def below(cls, config_dir: str, *, own: bool = False, linked: bool = False) -> "ProjectFolders":
        """The folders of a configuration directory, with links resolved only as far as no session could have created
        them.

        In a principal's separate directory (`own`), sessions can write everything except its name, so no link in it is
        followed. In the directory of the server's user, `projects` may be a link, which the user created: a sandbox
        shows it unchanged and cannot move it. A session can create the folders in `projects`. They may be links only if
        all sessions run as the user and without a sandbox (`linked`), because people create such links for projects
        that have moved, and such a session could read the target anyway.
        """
        if own:
            return cls(os.path.join(os.path.realpath(config_dir), "projects"))
        return cls(os.path.realpath(os.path.join(config_dir, "projects")), linked)

    def all(self) -> list[str]:
        """The paths of all folders."""
        with unreadable_refused():
            return list_folders(self.path, linked=self.linked)

    def folder(self, name: str) -> str:
        """The path of one folder, whether or not it exists."""
        path = os.path.join(self.path, name)
        return os.path.realpath(path) if self.linked else path

    def locate(self, session_id: str) -> str | None:
        """The path of a session's transcript; None if it has none. A session that was moved to another directory may
        have left one behind: the newest counts. Raises TranscriptUnreadable if a folder could not be read, because the
        newest may be in it."""
        if not is_session_id(session_id):
            return None
        found: list[File] = []
        with unreadable_refused(session_id):
            for path in (os.path.join(folder, session_id + EXTENSION) for folder in self.all()):
                try:
                    os.lstat(path)  # ten times as fast as `stat_file`; most folders do not contain the file
                    file = stat_file(path)
                except OSError as error:
                    if not is_absence(error):
                        raise
                    continue
                if file is not None:
                    found.append(file)
        return max(found, key=lambda file: (file.size > 0, file.mtime_ns)).path if found else None


@contextlib.contextmanager
def unreadable_refused(session_id: str | None = None) -> Iterator[None]:
    """Context in which an OSError becomes TranscriptUnreadable."""
    try:
        yield
    except OSError as error:
        what = f"The transcript of session {session_id}" if session_id else "The directory of transcripts"
        reason = error.strerror or str(error)
        raise TranscriptUnreadable(f"{what} cannot be read now: {reason}. Try again.", session_id=session_id) from error


class Transcripts:
    """The transcripts of one configuration directory of the CLI."""

    def __init__(self, projects: ProjectFolders) -> None:
        self.projects = projects
        self._likely_path = lru_cache(maxsize=_MAX_PATHS)(self._expected_path)

    @property
    def available(self) -> bool:
        """Whether the directory for transcripts exists."""
        return os.path.isdir(self.projects.path)

    def path_of(self, session_id: str, cwd: str | None = None) -> Path | None:
        """The path of a session's transcript; None if it has none. A known `cwd` avoids the search."""
        if cwd is not None and is_session_id(session_id):
            expected = self._expected_path(session_id, cwd)
            with unreadable_refused(session_id):
                # An error does not mean absence: a search elsewhere might return an older transcript instead.
                if stat_file(str(expected)) is not None:
                    return expected
        found = self.projects.locate(session_id)
        return Path(found) if found is not None else None

    def _expected_path(self, session_id: str, cwd: str) -> Path:
        """The path that Claude Code writes to: a process's directory has its links resolved."""
        return Path(self.projects.folder(folder_of(os.path.realpath(cwd)))) / (session_id + EXTENSION)

    def resumable(self, session_id: str, cwd: str | None = None) -> bool:
        """Whether the CLI can resume it: the transcript has a message. Reads no further than that."""
        path = self.path_of(session_id, cwd)
        return path is not None and _has_message(path)

    def api_ms(self, session_id: str) -> int:
        """The time spent in API calls, in milliseconds, from which a resumed process continues to count."""
        path = self.path_of(session_id)
        return 0 if path is None else int(read_number(_last_costs(path), "totalAPIDuration"))

    def read(self, session_id: str) -> Transcript | None:
        """The transcript of a session; None if none can be resumed."""
        path = self.path_of(session_id)
        if path is None or not _has_message(path):
            return None
        return Transcript(session_id, path, _cwd(path), _last_usage(path))

    def answers(self, session_id: str) -> int:
        """The number of model answers in the conversation, excluding subagents' answers, answers that the CLI produced
        itself and, in a fork, the answers of the original session. Reads the whole transcript."""
        path = self.path_of(session_id)
        lines = read_lines(path, b'"assistant"') if path is not None else ()
        return len({answer for line in lines if (answer := _answer_id(line)) is not None})

    def began_before(self, session_id: str, moment: float) -> bool:
        """Whether a conversation with this id began before a moment (Unix seconds): it was not written to since, or its
        first line with a time is older."""
        path = self.path_of(session_id)
        with unreadable_refused(session_id):
            file = stat_file(str(path)) if path is not None else None
        if path is None or file is None:
            return False
        return file.mtime_ns / 1e9 < moment or _first_time(path, moment) < moment

    def is_written(self, session_id: str, cwd: str, message_id: str, size: int) -> bool:
        """Whether the end of its transcript has a message that the process has just reported, of about this size. A
        small read of bytes just written, so it may be called on the event loop."""
        # Links may have changed since the last turn: then the message is not found, and `flaw_after` checks again.
        path = self._likely_path(session_id, cwd)
        line = _line_with(path, message_id, min(_LAST_BYTES, _LAST_LINES + 4 * size))
        return line is not None and line.endswith(b"\n") and parse(line) is not None

    def flaw_after(self, session_id: str, cwd: str, message_id: str, size: int) -> str | None:
        """Why a message that the process reported is not in its transcript or cannot be found there; None if it is, or
        may still arrive. Claude Code writes before it reports, and is silent if it cannot write. `size` is the
        approximate size of the message."""
        try:
            path = self.path_of(session_id, cwd)
        except TranscriptUnreadable as error:
            return error.message
        near = _LAST_BYTES + 4 * size
        line = None
        if path is not None:
            line = _line_with(path, message_id, near) or _line_with(path, message_id, MAX_LINE)
        if line is not None and line.endswith(b"\n"):
            return None if parse(line) is not None else "a line was cut off"
        return self.flaw(cwd, near)

    def flaw(self, cwd: str, size: int = _LAST_BYTES) -> str | None:
        """Why no transcript of this size can be written for a directory; None if it can."""
        folder = self.projects.folder(folder_of(cwd))
        trial = os.path.join(folder if os.path.isdir(folder) else self.projects.path, f".trial-{uuid.uuid4().hex}")
        try:
            with open(trial, "xb", opener=open_at) as file:
                file.write(bytes(size))
                file.flush()
                # A full disk may be reported only now: the written data may still be in memory only.
                os.fsync(file.fileno())
        except FileNotFoundError:
            return None  # Claude Code creates the directory
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with contextlib.suppress(OSError):
                remove_at(trial)
        return None

    def end_last_line(self, session_id: str) -> None:
        """Completes a line that a full disk or a crash cut off: Claude Code would append its next line to it, and both
        would be lost. Only for the holder of the session's lease. Raises OSError if it cannot be written."""
        path = self.path_of(session_id)
        if path is None:
            return
        with open(path, "r+b", opener=open_at) as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def set_aside(self, session_id: str) -> None:
        """Renames a transcript without a message, left by a process that was killed right after its start: Claude Code
        neither begins a conversation under an id with a transcript nor resumes one without a message. Only for the
        holder of the session's lease. Raises OSError."""
        path = self.path_of(session_id)
        if path is not None and not _has_message(path):
            replace_at(str(path), str(path.with_suffix(_UNUSED)))

    def usage_of(self, session_id: str) -> Usage:
        """The usage that the CLI wrote at its last clean exit; empty without one."""
        path = self.path_of(session_id)
        return Usage() if path is None else _last_usage(path)


def _line_with(path: Path, message_id: str, last_bytes: int) -> bytes | None:
    """A message's line, with the line break if it has one; None if the last bytes do not contain all of it."""
    own = f'"uuid":"{message_id}"'.encode()  # not `parentUuid`, which later lines have
    try:
        with open(path, "rb", opener=open_at) as file:
            begin = max(0, file.seek(0, os.SEEK_END) - last_bytes)
            file.seek(begin)
            content = file.read(last_bytes)
    except OSError:
        return None
    at = content.rfind(own)
    start = content.rfind(b"\n", 0, max(at, 0)) + 1
    if at < 0 or (begin and not start):
        return None
    end = content.find(b"\n", at)
    return content[start:] if end < 0 else content[start : end + 1]


def read_lines(path: Path, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """The objects in a transcript that contain these bytes; none if the file does not exist. Skips lines that are too
    long. Raises TranscriptUnreadable."""
    with unreadable_refused(path.stem):
        try:
            file = open_regular(str(path))
        except OSError as error:
            if is_absence(error):
                return
            raise
        with file:
            for line in all_lines(file):
                parsed = parse(line) if containing in line else None
                if parsed is not None:
                    yield parsed


def _has_message(path: Path) -> bool:
    return any(line.get("type") in ("user", "assistant") for line in read_lines(path))


def _first_time(path: Path, otherwise: float) -> float:
    """The time of the first line that has one; a new transcript may have none."""
    for line in itertools.islice(read_lines(path), _FIRST_LINES):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(str(line.get("timestamp"))).timestamp()
    return otherwise


def _cwd(path: Path) -> str | None:
    """The directory that the folder is named after: a fork begins with lines of its original."""
    first = None
    for line in read_lines(path, b'"cwd"'):
        cwd = line.get("cwd")
        if isinstance(cwd, str) and in_folder(cwd, path.parent.name):
            return cwd
        first = first or (cwd if isinstance(cwd, str) else None)
    return first


def _answer_id(line: Mapping[str, Any]) -> str | None:
    """The id of the answer that a line belongs to; None if the answer does not count."""
    message = line.get("message")
    if line.get("type") != "assistant" or line.get("isSidechain") or "forkedFrom" in line:
        return None
    if not isinstance(message, dict) or message.get("model") == SYNTHETIC:
        return None
    return str(message.get("id"))


def _last_usage(path: Path) -> Usage:
    return read_usage(_last_costs(path).get("modelUsage"))


def _last_costs(path: Path) -> dict[str, Any]:
    """The last cost line, however far from the end: after a crash many lines may follow it."""
    last: dict[str, Any] = {}
    for line in read_lines(path, b'"cost-state"'):
        last = line if line.get("type") == "cost-state" else last
    return last


# -- session care -----------------------------------------------------------------------------------------------------


MAX_TITLE = 200
_TITLE_FILE = "custom-title.json"
_NOT_COPIED = {"cost-state", "queue-operation", "custom-title", "tag", "continued-in"}
"""Lines specific to the copied session: its costs, its queue, its title."""
_AGENT_METADATA = "agent_metadata"
"""What Claude Code calls the content of `agent-….meta.json` when it reports it as an entry of the transcript."""
_OTHER_PLACES = ("file-history", "session-env", "todos", "tasks")
"""Directories of the CLI that may contain files or directories named after a session."""


class SessionFiles:
    """The files of the sessions of one configuration directory of the CLI."""

    def __init__(self, config_dir: str, projects: ProjectFolders) -> None:
        self._config_dir = os.path.realpath(config_dir)
        self._projects = projects

    def set_title(self, session_id: str, title: str) -> str:
        """Sets a session's title and returns it as displayed: on one line and not too long. An empty title removes it.
        Written like the CLI does, into the transcript and a small file next to it."""
        path = self._transcript(session_id)
        title = clip_line(clean(title), MAX_TITLE)
        _append(path, {"type": "custom-title", "customTitle": title, "sessionId": session_id})
        beside = path.removesuffix(EXTENSION)
        # A session may have put something else in its place, which may lead to files of others.
        with contextlib.suppress(OSError):
            if title:
                make_directory_at(beside)
                content = json.dumps({"customTitle": title}, ensure_ascii=False).encode()
                _write(os.path.join(beside, _TITLE_FILE), [content])
            else:
                remove_at(os.path.join(beside, _TITLE_FILE))
        return title

    def set_tag(self, session_id: str, tag: str) -> str:
        """Sets a session's tag; an empty tag removes it."""
        tag = clip_line(clean(tag), MAX_TITLE)
        _append(self._transcript(session_id), {"type": "tag", "tag": tag, "sessionId": session_id})
        return tag

    def copy(self, session_id: str, new_id: str, title: str) -> None:
        """Creates another session with the same conversation so far, completely or not at all."""
        source = self._transcript(session_id)
        target = os.path.join(os.path.dirname(source), new_id + EXTENSION)
        own_title = _line({"type": "custom-title", "customTitle": title, "sessionId": new_id})
        _write(target, itertools.chain(_copied_lines(source, new_id), [own_title]))

    def put(self, session_id: str, cwd: str, files: Mapping[str, Iterable[Mapping[str, Any]]]) -> str:
        """Writes a conversation that began elsewhere as if it had begun in this directory; returns its transcript's
        path. `files` are its entries: "" is the transcript, the others `subagents/…` next to it, whose entries of type
        `agent_metadata` go into a separate small file. Each file is written completely or not at all, the transcript
        last: without it the session does not exist."""
        if not is_session_id(session_id):
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        folder = self._folder_for(os.path.realpath(cwd))
        os.makedirs(self._projects.path, mode=0o700, exist_ok=True)
        make_directory_at(folder)
        transcript = os.path.join(folder, session_id)
        for path in sorted(files, reverse=True):
            place = os.path.join(transcript, path) if path else transcript
            if path:
                # One by one: a link among them raises OSError.
                inside = os.path.relpath(os.path.dirname(place), folder).split(os.sep)
                for part in itertools.accumulate(inside, os.path.join):
                    make_directory_at(os.path.join(folder, part))
            lines = [dict(entry) for entry in files[path]]
            described = [line for line in lines if line.get("type") == _AGENT_METADATA]
            if path and described:
                metadata = {name: value for name, value in described[-1].items() if name != "type"}
                _write(place + ".meta.json", [json.dumps(metadata, ensure_ascii=False).encode("utf-8", "replace")])
            _write(place + EXTENSION, (_line(line) for line in lines if line.get("type") != _AGENT_METADATA))
        return transcript + EXTENSION

    def _folder_for(self, directory: str) -> str:
        """The existing folder of Claude Code for the directory, if there is one: its name may end in another hash."""
        names = [os.path.basename(folder) for folder in self._projects.all()]
        known = [name for name in names if in_folder(directory, name)]
        exact = new_folder_of(directory)
        return self._projects.folder(exact if exact in known or len(known) != 1 else known[0])

    def remove(self, session_id: str) -> None:
        """Removes all transcripts of a session, including its subagents', and the CLI's other data about it."""
        if not is_session_id(session_id):
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        for folder in self._projects.all():
            # The transcript itself goes last: after a crash in between
            # the session is still listed and can be removed again.
            remove_at(os.path.join(folder, session_id))
            remove_at(os.path.join(folder, session_id + _UNUSED))
            remove_at(os.path.join(folder, session_id + EXTENSION))
        for place in (os.path.join(self._config_dir, name) for name in _OTHER_PLACES):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a link is not a directory
                for entry in entries_at(place, lambda name: name.startswith(session_id)):
                    remove_at(os.path.join(place, entry.name))

    def _transcript(self, session_id: str) -> str:
        path = self._projects.locate(session_id)
        if path is None:
            raise SessionNotFound(f"Session {session_id} has no transcript.", session_id=session_id)
        return path


def _append(path: str, line: dict[str, str]) -> None:
    """In one write, after a line break if the last line is unfinished."""
    descriptor = open_at(path, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(descriptor).st_size
        os.lseek(descriptor, max(0, size - 1), os.SEEK_SET)
        unfinished = size > 0 and os.read(descriptor, 1) != b"\n"
        # In one call and at the end (O_APPEND): a process that has the session open may write at the same time.
        os.write(descriptor, (b"\n" if unfinished else b"") + _line(line))
    finally:
        os.close(descriptor)


def _line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _copied_lines(source: str, new_id: str) -> Iterator[bytes]:
    for raw, _ in lines_from(source):
        line = parse(raw)
        if line is not None and line.get("type") not in _NOT_COPIED:
            if "sessionId" not in line:
                yield raw + b"\n"
                continue
            copied = {**line, "sessionId": new_id}
            if "uuid" in line:
                # Messages name their origin, so that their costs are not counted again.
                copied["forkedFrom"] = {"sessionId": line["sessionId"], "messageUuid": line["uuid"]}
            yield _line(copied)


def _write(path: str, content: Iterable[bytes]) -> None:
    """Creates or replaces a file, private to its owner, completely or not at all."""
    unfinished = f"{path}.{uuid.uuid4().hex}{TEMPORARY}"
    try:
        with open(open_at(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.writelines(content)
        # It gets its name only when complete: a process that lists sessions may read it at any moment.
        replace_at(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_at(unfinished)
        raise
