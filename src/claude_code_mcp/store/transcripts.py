"""Claude Code's own transcripts on disk, the only store of conversations: where they lie and what costs they hold.

`projects/<directory with everything but letters and digits made ->/<id>.jsonl` below the CLI's configuration
directory. They are read and never written, but for the end of a line that was cut off. What cannot be read now (no
descriptor is free, the disk fails) raises TranscriptUnreadable: that is not a session without a transcript. All
functions block on the disk: call them from a thread.

Sessions write there themselves, so no link is followed below the root: see `ProjectFolders` for what that is.
"""

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..beneath import is_absence, open_at, remove_at
from ..errors import TranscriptUnreadable
from ..model.session_ids import is_session_id
from ..model.usage import SYNTHETIC, Usage, read_number, read_usage
from .file_changes import File, list_folders, look_at
from .transcript_lines import LONGEST_LINE, folder_of, in_folder, open_regular, parse

_LAST_BYTES = 256 << 10
"""How much of the end of a transcript is read first, beside the answer that is looked for."""
_FIRST_LINES = 1000
"""Among these is one with a time: a transcript begins with a few that say how the session is set up."""
_LAST_LINES = 16 << 10
"""More than a process writes behind its last answer, as a rule."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A transcript and what it says of its session."""

    session_id: str
    path: Path
    cwd: str | None = None
    """The directory it works in."""
    usage: Usage = field(default_factory=Usage)
    """As the CLI wrote it at its last clean exit."""


EXTENSION = ".jsonl"


def is_transcript(name: str) -> bool:
    """Whether a file of this name is the transcript of a session."""
    return name.endswith(EXTENSION) and is_session_id(name[: -len(EXTENSION)])


@dataclass(frozen=True, slots=True)
class ProjectFolders:
    """The directory with the folders of all projects, below one configuration directory of the CLI."""

    path: str
    """Resolved as far as it may be: no link is followed from here on."""
    linked: bool = False
    """Whether its folders themselves may be links."""

    @classmethod
    def below(cls, config_dir: str, *, own: bool = False, linked: bool = False) -> "ProjectFolders":
        """Where the operator's links end and a session's could begin.

        Of the directory of a principal alone (`own`) sessions can write everything but its own name, so nothing in it
        is followed. In that of the server's user, `projects` may be a link, which is the user's own: a sandbox shows
        it as it is and cannot move it. A folder in it is a session's to make; only where all sessions run as the user
        and without a sandbox (`linked`) may it be a link, as people make them for a project that has moved: there a
        session could read what it leads to by itself.
        """
        if own:
            return cls(os.path.join(os.path.realpath(config_dir), "projects"))
        return cls(os.path.realpath(os.path.join(config_dir, "projects")), linked)

    def all(self) -> list[str]:
        """The paths of all folders."""
        with unreadable_refused():
            return list_folders(self.path, linked=self.linked)

    def folder(self, name: str) -> str:
        """The path of one folder, whether or not there is one."""
        path = os.path.join(self.path, name)
        return os.path.realpath(path) if self.linked else path

    def locate(self, session_id: str) -> str | None:
        """Where the transcript of a session lies; None if there is none, TranscriptUnreadable if none was found and not
        every folder could be looked into. A session that was moved to another directory may have left one behind: the
        newest counts."""
        if not is_session_id(session_id):
            return None
        found: list[File] = []
        failure: OSError | None = None
        for path in (os.path.join(folder, session_id + EXTENSION) for folder in self.all()):
            try:
                os.lstat(path)  # ten times as fast as a look that follows no link, and there is none in most folders
                file = look_at(path)
            except OSError as error:
                failure = failure if is_absence(error) else error
                continue
            if file is not None:
                found.append(file)
        if found:
            return max(found, key=lambda file: (file.size > 0, file.mtime_ns)).path
        with unreadable_refused(session_id):
            if failure is not None:
                raise failure
        return None


@contextlib.contextmanager
def unreadable_refused(session_id: str | None = None) -> Iterator[None]:
    """Around what reads the transcript of a session, or lists all: an OSError becomes TranscriptUnreadable."""
    try:
        yield
    except OSError as error:
        what = f"The transcript of session {session_id}" if session_id else "The directory of transcripts"
        reason = error.strerror or str(error)
        raise TranscriptUnreadable(f"{what} cannot be read now: {reason}. Try again.", session_id=session_id) from error


class Transcripts:
    """The transcripts below one configuration directory of the CLI."""

    def __init__(self, projects: ProjectFolders) -> None:
        self.projects = projects

    @property
    def available(self) -> bool:
        """Whether the directory for transcripts exists."""
        return os.path.isdir(self.projects.path)

    def path_of(self, session_id: str, cwd: str | None = None) -> Path | None:
        """Where the transcript of a session lies; None if there is none. A known `cwd` saves the search."""
        if cwd is not None and is_session_id(session_id):
            expected = self._expected_path(session_id, cwd)
            with unreadable_refused(session_id):
                if look_at(str(expected)) is not None:
                    return expected
        found = self.projects.locate(session_id)
        return Path(found) if found is not None else None

    def _expected_path(self, session_id: str, cwd: str) -> Path:
        """Where Claude Code writes it: a process is where links lead to."""
        return Path(self.projects.folder(folder_of(os.path.realpath(cwd)))) / (session_id + EXTENSION)

    def resumable(self, session_id: str, cwd: str | None = None) -> bool:
        """Whether the CLI can resume it: a transcript with a message in it. Reads no further than that."""
        path = self.path_of(session_id, cwd)
        return path is not None and _has_message(path)

    def api_ms(self, session_id: str) -> int:
        """The time spent in API calls, in milliseconds, from which a resumed process counts on."""
        path = self.path_of(session_id)
        return 0 if path is None else int(read_number(_last_costs(path), "totalAPIDuration"))

    def read(self, session_id: str) -> Transcript | None:
        """The transcript of a session; None if there is none that can be resumed."""
        path = self.path_of(session_id)
        if path is None or not _has_message(path):
            return None
        return Transcript(session_id, path, _cwd(path), _last_usage(path))

    def answers(self, session_id: str) -> int:
        """How often the model has answered in the conversation itself. Answers to subagents, those that the CLI made up
        and, in a fork, those of the session that it comes from are left out. Reads the whole transcript."""
        path = self.path_of(session_id)
        lines = read_lines(path, b'"assistant"') if path is not None else ()
        return len({answer for line in lines if (answer := _answer_id(line)) is not None})

    def began_before(self, session_id: str, moment: float) -> bool:
        """Whether there is a conversation with this id that was begun before a moment (Unix seconds): it was not
        written to since, or its first line with a time is older."""
        path = self.path_of(session_id)
        with unreadable_refused(session_id):
            file = look_at(str(path)) if path is not None else None
        if path is None or file is None:
            return False
        return file.mtime_ns / 1e9 < moment or _first_time(path, moment) < moment

    def is_written(self, session_id: str, cwd: str, message_id: str, size: int) -> bool:
        """Whether one look at the end of its transcript shows a message that the process has just reported, and that is
        about so long.

        It is one small read of bytes that were just written: this one may be called on the event loop.
        """
        path = self._expected_path(session_id, cwd)
        line = _line_with(path, message_id, min(_LAST_BYTES, _LAST_LINES + 4 * size))
        return line is not None and line.endswith(b"\n") and parse(line) is not None

    def flaw_after(self, session_id: str, cwd: str, message_id: str, size: int) -> str | None:
        """Why a message that the process has reported is not in its transcript, or cannot be found there; None if it
        is, or may still come.

        Claude Code writes before it reports, and says nothing if it cannot. `size` is about how long the message is.
        """
        try:
            path = self.path_of(session_id, cwd)
        except TranscriptUnreadable as error:
            return error.message
        near = _LAST_BYTES + 4 * size
        line = None
        if path is not None:
            line = _line_with(path, message_id, near) or _line_with(path, message_id, LONGEST_LINE)
        if line is not None and line.endswith(b"\n"):
            return None if parse(line) is not None else "a line was cut off"
        return self.flaw(cwd, near)

    def flaw(self, cwd: str, size: int = _LAST_BYTES) -> str | None:
        """Why no transcript of this size can be written for a directory; None if one can."""
        folder = self.projects.folder(folder_of(cwd))
        trial = os.path.join(folder if os.path.isdir(folder) else self.projects.path, f".trial-{uuid.uuid4().hex}")
        try:
            with open(trial, "xb", opener=open_at) as file:
                file.write(bytes(size))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            return None  # Claude Code makes the directory
        except OSError as error:
            return error.strerror or str(error)
        finally:
            with contextlib.suppress(OSError):
                remove_at(trial)
        return None

    def end_last_line(self, session_id: str) -> None:
        """Ends a line that a full disk or a crash has cut off: Claude Code would append its next line to it, and both
        would be lost. Only for whoever holds the lease on the session. OSError if it cannot be written."""
        path = self.path_of(session_id)
        if path is None:
            return
        with open(path, "r+b", opener=open_at) as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")

    def usage_of(self, session_id: str) -> Usage:
        """The usage that the CLI wrote at its last clean exit; nothing if there was none."""
        path = self.path_of(session_id)
        return Usage() if path is None else _last_usage(path)


def _line_with(path: Path, message_id: str, last_bytes: int) -> bytes | None:
    """The line of a message, with the line break if it has one; None if the last bytes do not have all of it."""
    own = f'"uuid":"{message_id}"'.encode()  # not `parentUuid`, which lines behind it have
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
    """The objects in a transcript that contain these bytes; none if there is no such file. Ends early at a line that is
    too long to be one. TranscriptUnreadable if it cannot be read."""
    with unreadable_refused(path.stem):
        try:
            file = open_regular(str(path))
        except OSError as error:
            if is_absence(error):
                return
            raise
        with file:
            while (line := file.readline(LONGEST_LINE)) and len(line) < LONGEST_LINE:
                parsed = parse(line) if containing in line else None
                if parsed is not None:
                    yield parsed


def _has_message(path: Path) -> bool:
    return any(line.get("type") in ("user", "assistant") for line in read_lines(path))


def _first_time(path: Path, otherwise: float) -> float:
    """When the first line of a transcript was written that says so; one that has just been begun may have none."""
    for line in itertools.islice(read_lines(path), _FIRST_LINES):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(str(line.get("timestamp"))).timestamp()
    return otherwise


def _cwd(path: Path) -> str | None:
    """The directory that the folder is named after: a fork begins with lines of the session it comes from."""
    first = None
    for line in read_lines(path, b'"cwd"'):
        cwd = line.get("cwd")
        if isinstance(cwd, str) and in_folder(cwd, path.parent.name):
            return cwd
        first = first or (cwd if isinstance(cwd, str) else None)
    return first


def _answer_id(line: Mapping[str, Any]) -> str | None:
    """The id of the answer that a line is a part of; None if it is of none that counts."""
    message = line.get("message")
    if line.get("type") != "assistant" or line.get("isSidechain") or "forkedFrom" in line:
        return None
    if not isinstance(message, dict) or message.get("model") == SYNTHETIC:
        return None
    return str(message.get("id"))


def _last_usage(path: Path) -> Usage:
    return read_usage(_last_costs(path).get("modelUsage"))


def _last_costs(path: Path) -> dict[str, Any]:
    """The last of its lines about costs, however far back: after a crash much may lie behind it."""
    last: dict[str, Any] = {}
    for line in read_lines(path, b'"cost-state"'):
        last = line if line.get("type") == "cost-state" else last
    return last
