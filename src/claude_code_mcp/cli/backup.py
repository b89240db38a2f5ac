"""`backup` and `restore`: the state of a server as one file, whether it runs or not.

A backup is consistent even while servers run: SQLite itself copies the database in one transaction, and each other file
is copied as far as it was written at that moment. Files that can be recreated (the transcript index, sockets, locks)
are omitted, and so are the user's own conversations, which belong to Claude Code. Conversations of callers with a
separate directory are included.

`restore` checks the whole backup before it changes anything, and moves the existing state aside. If it fails or is
killed, the next program that uses the state restores the earlier one (`core/state/database.py`).
"""

import argparse
import contextlib
import glob
import os
import stat
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..client.conventions import (
    add_config_file,
    add_json,
    print_json,
    print_outcome,
)
from ..core.config import load_settings
from ..core.errors import InvalidArgument
from ..core.model.text import count_of, one_line, visible
from ..core.private_files import FILE, open_private, private_directory
from ..core.state.database import FILE_NAME, Database
from ..core.state.interrupted_restore import exchanging, undo_interrupted_restore
from ..core.state.server_life import ServerLife
from ..core.state.state_directory import PRINCIPALS

ASIDE = ".before-"
"""Separates the state directory's name from the time of the restore, in the name of an earlier state."""
_MADE_ANEW = frozenset({"index", "locks", "servers", "run", "import.lock", "mcp/programs", "mcp/results"})
"""Entries that are not backed up, by path below the state directory."""
_MAX_FILE_BYTES = 2 << 30
"""Bytes of one file. Sessions write below the directories of callers, and can create sparse files of any size."""
_MAX_DEPTH, _MAX_PATH, _MAX_NAME = 64, 2048, 256
"""Directory levels, and bytes of a path below the state directory and of a name. Sessions can nest directories without
limit: such a file could be read step by step, but could not be restored, and the whole restore would fail."""
_MAX_BYTES, _MAX_FILES = 16 << 30, 200_000
"""Bytes and files of one caller. Bytes are counted as they are read: a thousand huge sparse files are created in a
moment, and would take days to read."""
_MAX_LEFT_OUT = 1000
"""Maximum omitted files that are listed by name; further ones are only counted."""
_MAX_SHOWN = 200
_CHUNK = 1 << 20
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "backup",
        help="back up the server's state to a file",
        description="Writes the state directory to one file, also while servers run: sessions and their limits, "
        "costs, questions, sign-ins, push receivers, the audit trail, and the conversations of callers "
        "who have a separate home directory. Your own conversations are in ~/.claude and are not "
        "included. The file contains secrets: protect it like a key.",
    )
    parser.add_argument("file", type=Path, help="the file to write; it must not exist")
    add_json(parser)
    add_config_file(parser)
    parser.set_defaults(run=_backup)
    parser = commands.add_parser(
        "restore",
        help="restore a backup",
        description="Checks the file, moves the state directory aside and restores the backup in its place. No "
        "server may use that directory.",
    )
    parser.add_argument("file", type=Path, help="a file written by `backup`")
    add_json(parser)
    add_config_file(parser)
    parser.set_defaults(run=_restore)


# -- backup -----------------------------------------------------------------------------------------------------------


def _backup(arguments: argparse.Namespace) -> int:
    state_dir = load_settings(file=arguments.config).state_dir
    undo_interrupted_restore(state_dir)
    if not (state_dir / FILE_NAME).is_file():
        raise InvalidArgument(f"There is no state in {state_dir}.")
    try:
        descriptor = open_private(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except OSError as error:
        raise InvalidArgument(f"{arguments.file} cannot be written: {error.strerror or error}.") from None
    try:
        with open(descriptor, "wb") as file:
            written, left_out = _write(state_dir, file)
            file.flush()
            # Before success is reported: the user may delete the original then.
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            arguments.file.unlink()
        raise
    for path, reason in left_out.named:
        # File names are chosen by sessions, and this is the operator's terminal.
        print(f"claude-code-mcp: left out: {one_line(visible(path), _MAX_SHOWN)}: {reason}", file=sys.stderr)
    if left_out.count > len(left_out.named):
        print(f"claude-code-mcp: left out: {left_out.count - len(left_out.named)} more files", file=sys.stderr)
    if arguments.json:
        paths = [path for path, _ in left_out.named]
        print_json({"file": str(arguments.file), "files": written, "leftOut": paths, "leftOutCount": left_out.count})
    else:
        print(f"Saved {count_of(written, 'file')} of {state_dir} in {arguments.file}. It contains secrets.")
    return 1 if left_out.count else 0


@dataclass
class _LeftOut:
    """The files that are not in the backup, with the reasons; the first ones by name."""

    named: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, path: str, reason: str) -> None:
        self.count += 1
        if len(self.named) < _MAX_LEFT_OUT:
            self.named.append((path, reason))


def _write(state_dir: Path, file: IO[bytes]) -> "tuple[int, _LeftOut]":
    """Write the backup; return the number of files, and the omitted ones."""
    written = 1
    left_out = _LeftOut()
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as archive:
        with tempfile.TemporaryDirectory(prefix="claude-code-mcp-") as scratch:
            copy = Path(scratch) / FILE_NAME
            Database(state_dir).copy_to(copy)
            with copy.open("rb") as source:
                _add(archive, FILE_NAME, source, copy.stat().st_size, time.time())
        for path, found in _files(state_dir):
            if isinstance(found, str):
                left_out.add(path, found)
                continue
            with found:
                try:
                    with tempfile.TemporaryFile() as copied:
                        size = _copy(found, copied)
                        _add(archive, path, copied, size, os.fstat(found.fileno()).st_mtime)
                    written += 1
                except OSError as error:
                    left_out.add(path, error.strerror or str(error))
    return written, left_out


def _files(state_dir: Path) -> Iterator[tuple[str, IO[bytes] | str]]:
    """The other files below the directory with their paths: each open, or the reason why it cannot be read. No links
    are followed anywhere in a path: sessions can write below the directories of callers."""
    problems: list[OSError] = []
    taken: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for directory, names, files, descriptor in _walk(state_dir, problems):
        place = os.path.relpath(directory, state_dir)
        below = "" if place == "." else f"{place}/"
        owner = "/".join(below.split("/")[:2]) if below.startswith(f"{PRINCIPALS}/") else ""
        names[:] = sorted(name for name in names if f"{below}{name}" not in _MADE_ANEW)
        if below.count("/") >= _MAX_DEPTH or len(os.fsencode(below)) + _MAX_NAME > _MAX_PATH:
            yield from ((f"{below}{name}", "it is nested too deeply") for name in names)
            names.clear()
        for name in sorted(files):
            path = f"{below}{name}"
            if path in _MADE_ANEW or path.startswith(FILE_NAME):
                continue
            place_of_file = name if descriptor is not None else os.path.join(directory, name)
            try:
                if not stat.S_ISREG(os.stat(place_of_file, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    continue  # a link or a socket, which nothing of ours is
                opened = os.open(place_of_file, _READ, dir_fd=descriptor)
            except OSError as error:
                yield path, error.strerror or str(error)
                continue
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                os.close(opened)
            elif found.st_size > _MAX_FILE_BYTES:
                os.close(opened)
                yield path, "it is larger than 2 GiB"
            elif owner and (taken[owner] + found.st_size > _MAX_BYTES or counted[owner] >= _MAX_FILES):
                os.close(opened)
                yield path, f"{owner} has more than {_MAX_BYTES >> 30} GiB, or {_MAX_FILES:,} files"
            else:
                taken[owner] += found.st_size
                counted[owner] += 1
                yield path, open(opened, "rb")  # noqa: SIM115 - closed by the caller
    for problem in problems:
        if not isinstance(problem, FileNotFoundError):  # a file removed in the meantime is not missing
            yield str(problem.filename), problem.strerror or str(problem)


def _walk(directory: Path, problems: list[OSError]) -> Iterator[tuple[str, list[str], list[str], int | None]]:
    """Like os.fwalk, but adds unreadable directories to `problems`; without descriptors on Windows, where directories
    have none."""
    if sys.platform != "win32":
        yield from os.fwalk(directory, onerror=problems.append)
    else:
        for place, names, files in os.walk(directory, onerror=problems.append):
            yield place, names, files, None


def _copy(source: IO[bytes], target: IO[bytes]) -> int:
    """Copy the current length only: a file that is being written to might never end."""
    left = size = os.fstat(source.fileno()).st_size
    while left > 0 and (part := source.read(min(left, _CHUNK))):
        target.write(part)
        left -= len(part)
    target.seek(0)
    return size - left


def _add(archive: tarfile.TarFile, path: str, source: IO[bytes], size: int, changed: float) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode, entry.mtime = size, FILE, changed
    archive.addfile(entry, source)


# -- restore ----------------------------------------------------------------------------------------------------------


def _restore(arguments: argparse.Namespace) -> int:
    state_dir = load_settings(file=arguments.config).state_dir
    undo_interrupted_restore(state_dir)
    refuse_while_served(state_dir)
    private_directory(state_dir.parent)
    # Beside it, and so on the same disk: to put it in place is one step then.
    with tempfile.TemporaryDirectory(prefix=f"{state_dir.name}.restoring-", dir=state_dir.parent) as scratch:
        made = private_directory(Path(scratch) / "state")
        files = _extract(arguments.file, made)
        database = Database(made)
        try:
            database.check()
        finally:
            database.close()
        # Again, at the last moment: reading the file may have taken minutes.
        refuse_while_served(state_dir)
        aside = _place_aside(state_dir) if state_dir.exists() else None
        with exchanging(state_dir, made, aside):
            if aside is not None:
                os.rename(state_dir, aside)
            try:
                os.rename(made, state_dir)
            except OSError:
                if aside is not None:
                    os.rename(aside, state_dir)
                raise
    return print_outcome(
        arguments,
        {"state": str(state_dir), "files": files, "before": str(aside) if aside is not None else None},
        f"Restored {count_of(files, 'file')} to {state_dir}."
        + (f" The previous state is in {aside}." if aside is not None else ""),
    )


def _place_aside(state_dir: Path) -> Path:
    """An unused path next to the state directory."""
    name = f"{state_dir.name}{ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (state_dir.with_name(name if not number else f"{name}-{number}") for number in count())
    return next(path for path in numbered if not path.exists())


def states_aside(state_dir: Path) -> list[Path]:
    """The earlier states that restores have moved aside."""
    return sorted(state_dir.parent.glob(f"{glob.escape(state_dir.name)}{ASIDE}*"))


def refuse_while_served(state_dir: Path) -> None:
    """Raise InvalidArgument while a server uses this state directory."""
    life = ServerLife(state_dir)
    for path in (state_dir / "servers").glob("*.alive"):
        if life.lives(path.stem):
            raise InvalidArgument(
                f"A server is using {state_dir}. Stop it first: `claude-code-mcp shared stop`, the server for HTTP, "
                "and clients with a separate server."
            )


def _extract(file: Path, target: Path) -> int:
    """Extract a backup to a directory; return the number of files. InvalidArgument if it is not one of our backups, or
    is truncated."""
    files = 0
    try:
        with tarfile.open(file, "r:gz") as archive:
            for entry in archive:
                # Only what `backup` writes: everything else could lead out of the directory.
                parts = Path(entry.name).parts
                is_file = entry.type == tarfile.REGTYPE and not entry.issparse()  # its holes would fill the disk
                if not is_file or not parts or ".." in parts or Path(entry.name).is_absolute():
                    raise InvalidArgument(f"{file} is not a backup of claude-code-mcp: it contains {entry.name!r}.")
                source = archive.extractfile(entry)
                assert source is not None
                private_directory((target / entry.name).parent)
                with (
                    source,
                    open(open_private(target / entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as made,
                ):
                    while part := source.read(_CHUNK):
                        made.write(part)
                os.utime(target / entry.name, (entry.mtime, entry.mtime))
                files += 1
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}.") from None
    if not (target / FILE_NAME).is_file():
        raise InvalidArgument(f"{file} is not a backup of claude-code-mcp {__version__}: it contains no state.")
    return files
