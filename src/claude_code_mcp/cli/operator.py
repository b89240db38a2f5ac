"""`people`, `audit`, `backup` and `restore`: what an operator does in a server's state, whether it runs or not.

`people`: who is invited to a server with `--oauth`, and whose name is whose, of those who sign in elsewhere. A server
that runs hears of invitations and removals at once; that a name was released it takes into account when it is
restarted. `audit verify`: whether the lines of the audit trail are those that were written.

A backup is consistent while servers run: the database is copied by SQLite itself, in one transaction, and each other
file as far as it was written at that moment. What can be made anew (the index of transcripts, sockets, locks) is left
out, and so are the user's own conversations, which are Claude Code's and stay where they are; those of callers with a
directory of their own are in it.

`restore` checks what it has read before it changes anything, and moves what was there aside. If it fails, or is killed,
the state is the one from before: whoever uses it next puts that back (`core/state/database.py`).
"""

import argparse
import contextlib
import os
import stat
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..client.conventions import (
    ExitCode,
    NotFound,
    Unavailable,
    add_config_file,
    add_json,
    agreed,
    camel_names,
    positive,
    print_json,
    print_outcome,
    table,
)
from ..core.audit.trail import FILES_KEPT, verify
from ..core.config import Settings, load_settings
from ..core.errors import InvalidArgument
from ..core.model.caller import is_reserved
from ..core.model.text import count_of, iso, one_line, visible
from ..core.private_files import FILE, open_private, private_directory
from ..core.state.database import FILE_NAME, Database, exchanging, undo_interrupted_restore
from ..core.state.session_holders import ServerLife
from ..core.state.state_directory import PRINCIPALS, database_in
from ..plugins.team.known_people import (
    INVITE_SECONDS,
    InvitedPeople,
    ListedPerson,
    PersonName,
    PersonNames,
    Removal,
    announce_change,
)

_HOUR = 3600.0


def add_to(commands: Any) -> None:
    _add_people(commands)
    _add_audit(commands)
    _add_backup(commands)


def _add_people(commands: Any) -> None:
    parser = commands.add_parser(
        "people",
        help="manage the people who may sign in",
        description="Invites people to a server that runs with `serve --http HOST:PORT --oauth`, and removes them. "
        "A name belongs permanently to the first person who uses it, because sessions, files and costs "
        "are stored under it. If your identity provider assigns the name to another person, they are "
        "refused until you release it here.",
    )
    below = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    invite = below.add_parser("invite", help="invite a person: prints a link for creating a passkey, valid once")
    invite.add_argument("name", help="the person's name in the policy, costs and sessions")
    invite.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="a group of the policy; repeatable"
    )
    link = below.add_parser("link", help="print another link for a person, for a passkey on another device")
    link.add_argument("name")
    for made in (invite, link):
        made.add_argument(
            "--hours",
            type=positive,
            default=int(INVITE_SECONDS / _HOUR),
            help="hours for which the link is valid (default: 72)",
        )
    listed = below.add_parser("list", help="list invited people and the names in use")
    remove = below.add_parser("remove", help="remove a person: passkeys, tokens, sign-ins and streams end at once")
    remove.add_argument("name")
    remove.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    forget = below.add_parser(
        "forget",
        help="release a name",
        description="The next person who uses the name gets it, with its sessions and files. Shares by and with "
        "the name end. A running server applies this when it is restarted.",
    )
    forget.add_argument("name")
    runs = ((invite, _invite), (link, _link), (listed, _list), (remove, _remove), (forget, _forget))
    for parser, run in runs:
        add_json(parser)
        add_config_file(parser)
        parser.set_defaults(run=run)


def _opened(arguments: argparse.Namespace) -> tuple[Settings, InvitedPeople]:
    settings = load_settings(file=arguments.config)
    private_directory(settings.state_dir)
    return settings, InvitedPeople(database_in(settings.state_dir))


def _invite(arguments: argparse.Namespace) -> int:
    from ..server.transports.callers import load_tokens  # noqa: PLC0415 - loads the MCP SDK

    settings, people = _opened(arguments)
    address = _address(settings, people)
    taken = {"default", *load_tokens(settings, may_be_empty=True).values()}
    if arguments.name in taken or is_reserved(arguments.name):
        raise InvalidArgument(f"{arguments.name} is the name of a caller with a token. Choose another name.")
    secret = people.invite(arguments.name, arguments.group, arguments.hours * _HOUR)
    announce_change(settings.state_dir)
    return _print_link(arguments, address, secret)


def _link(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    address = _address(settings, people)
    return _print_link(arguments, address, people.new_link(arguments.name, arguments.hours * _HOUR))


def _address(settings: Settings, people: InvitedPeople) -> str:
    """Where people reach the server. InvalidArgument if nobody has said so yet; nothing is changed then."""
    address = settings.web_url or people.address()
    if address is None:
        raise InvalidArgument(
            "It is not known where people reach the server: start it with `claude-code-mcp serve --http HOST:PORT "
            "--oauth` (or `fleet up`) first, or set CLAUDE_CODE_MCP_WEB_URL."
        )
    return address.rstrip("/")


def _print_link(arguments: argparse.Namespace, address: str, secret: str) -> int:
    # Behind the #: browsers do not send that, so the secret is in no log on the way.
    url, expires_at = f"{address}/invite#{secret}", time.time() + arguments.hours * _HOUR
    if arguments.json:
        print_json({"name": arguments.name, "url": url, "expiresAt": iso(expires_at)})
    else:
        print(f"Send this link to {arguments.name}. It works once, for {arguments.hours} hours:\n\n  {url}\n")
        print(f"Their client connects to {address}/mcp")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    found = people.everybody()
    invited = {person.name for person in found}
    names = [name for name in PersonNames(database_in(settings.state_dir)).all() if name.name not in invited]
    if arguments.json:
        fields = [
            {
                "name": person.name,
                "groups": [*person.groups],
                "invitedAt": iso(person.invited_at),
                "passkeys": person.passkeys,
                "lastUsedAt": iso(person.used_at) if person.used_at is not None else None,
                "openLinks": person.invites,
            }
            for person in found
        ]
        owned = [{**camel_names(asdict(name)), "since": iso(name.since)} for name in names]
        print_json({"people": fields, "names": owned})
    elif not found and not names:
        print("No one is invited yet. `claude-code-mcp people invite NAME` prints a link.")
    else:
        _print_invited(found)
        _print_names(names, below=bool(found))
    return 0


def _print_invited(people: Sequence[ListedPerson]) -> None:
    if not people:
        return
    rows = [("NAME", "GROUPS", "PASSKEYS", "LAST SIGN-IN")]
    for person in people:
        waiting = "invited" if person.invites else "link expired"
        last = iso(person.used_at) if person.used_at is not None else waiting
        rows.append((person.name, visible(", ".join(person.groups)), str(person.passkeys), last))
    print("\n".join(table(rows)))


def _print_names(names: Sequence[PersonName], *, below: bool) -> None:
    """Those who have come by a provider or a proxy, and the names of invited people who were removed."""
    if not names:
        return
    rows = [("NAME", "SUBJECT", "ISSUER", "SINCE")]
    # What the provider says of people is shown on the operator's terminal.
    rows += [(visible(name.name), visible(name.subject), visible(name.issuer), iso(name.since)) for name in names]
    if below:
        print()
    print("\n".join(table(rows)))


def _remove(arguments: argparse.Namespace) -> int:
    settings, people = _opened(arguments)
    if not arguments.yes and not agreed(f"Remove {arguments.name}? Everything of theirs that runs ends at once."):
        return int(ExitCode.FAILED)
    removed = people.remove(arguments.name)
    if removed is None:
        raise NotFound(f"There is no person named {arguments.name}.")
    # After the removal was committed: a server that looks now must not find them.
    announce_change(settings.state_dir)
    _audit_ended_shares(settings, removed)
    fields = {"removed": arguments.name, "sharesEnded": len(removed.shares)}
    return print_outcome(arguments, fields, f"{arguments.name} is removed.{_shares_ended(removed)}")


def _forget(arguments: argparse.Namespace) -> int:
    settings, _ = _opened(arguments)
    forgotten = PersonNames(database_in(settings.state_dir)).forget(arguments.name)
    if forgotten is None:
        raise NotFound(f"The name {visible(arguments.name)} is not in use.")
    _audit_ended_shares(settings, forgotten)
    fields = {"name": arguments.name, "free": True, "sharesEnded": len(forgotten.shares)}
    return print_outcome(arguments, fields, f"The name {visible(arguments.name)} is free.{_shares_ended(forgotten)}")


def _shares_ended(removal: Removal) -> str:
    ended = len(removal.shares)
    return f" {count_of(ended, 'share')} of theirs, or with them, ended." if ended else ""


def _audit_ended_shares(settings: Settings, removal: Removal) -> None:
    """By this command, which has ended them: a server that runs only hears that there are fewer."""
    from ..app import open_audit  # noqa: PLC0415 - loads what a server is made of
    from ..plugins.team.shared_sessions import unshared_with_person  # noqa: PLC0415

    audit = open_audit(settings, settings.state_dir / "audit.jsonl") if removal.shares else None
    if audit is not None:
        for share in removal.shares:
            audit.act(unshared_with_person(share))
        audit.close()


# -- the audit trail ---------------------------------------------------------------------------------------------------


def _add_audit(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="check the audit trail",
        description="The audit trail of servers over HTTP is in the state directory; see observability.md.",
    )
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checking = kinds.add_parser(
        "verify",
        help="check whether lines were changed, removed or inserted",
        description="Verifies the hash chain of the file and of its rotated files, and prints the hash of the last "
        "line. Store that hash elsewhere and pass it later with --expect: then you know that nothing "
        "before it was replaced and that the end was not cut off.",
    )
    checking.add_argument("file", nargs="?", type=Path, help="audit file (default: from the settings)")
    checking.add_argument("--expect", metavar="CHAIN", help="hash of an earlier check that must still be in the chain")
    add_json(checking)
    add_config_file(checking)
    checking.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    path = arguments.file
    if path is None:
        settings = load_settings(file=arguments.config)
        if settings.audit_file == "off":
            raise InvalidArgument("The audit trail is switched off.")
        path = settings.audit_file or settings.state_dir / "audit.jsonl"
    # The oldest first: a line goes on from the one before it.
    numbered = sorted(
        (file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()),
        key=lambda file: -int(file.suffix[1:]),
    )
    # Nothing was dropped yet, and it is not one of the files that were put aside: the first line of all must be there.
    whole = not path.suffix[1:].isdigit() and not path.with_name(f"{path.name}.{FILES_KEPT}").exists()
    try:
        report = verify([*numbered, path], arguments.expect, whole=whole)
    except FileNotFoundError:
        raise NotFound(f"There is no audit trail at {path}.") from None
    except OSError as error:
        raise Unavailable(f"The audit trail {path} cannot be read: {error.strerror or error}.") from None
    missing = arguments.expect is not None and not report.found
    if arguments.json:
        print_json({**camel_names(asdict(report)), "intact": report.intact and not missing})
    else:
        for finding in report.broken:
            print(finding)
        print(f"{report.lines} lines follow each other, up to {report.last or 'none'}.")
        for count, what in ((report.earlier, "are from before there was a chain"), (report.cut_off, "were cut off")):
            if count:
                print(f"{count} lines {what}.")
        if report.begins_within:
            print("The file starts in the middle of the trail: its first line and earlier lines cannot be checked.")
        if missing:
            print(f"{arguments.expect} is not among them: lines were exchanged, or the end is gone.")
    return 0 if report.intact and not missing else 1


# -- backup and restore -----------------------------------------------------------------------------------------------


_MADE_ANEW = frozenset({"index", "locks", "servers", "run", "import.lock", "mcp/programs", "mcp/results"})
"""What is not kept, by its path below the state directory."""
_LARGEST = 2 << 30
"""Bytes of one file. Sessions write below the directories of callers, and a file of any size costs them nothing."""
_DEEPEST, _LONGEST_PATH, _LONGEST_NAME = 64, 2048, 256
"""Levels of directories, and bytes of a path below the state directory. Sessions can nest directories without end: such
a file could be read here, step by step, and could not be put back, and with it nothing else."""
_MOST_BYTES, _MOST_FILES = 16 << 30, 200_000
"""Bytes and files of one caller. Bytes as they are read, since a file with nothing in it can be of any size: a thousand
such files are made in a moment, and read for days."""
_MOST_LEFT_OUT = 1000
"""Files that are named of those that were left out; of more, how many."""
_LONGEST_SHOWN = 200
_CHUNK = 1 << 20
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def _add_backup(commands: Any) -> None:
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
            # Before anybody is told: whoever deletes the original now must have it here.
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            arguments.file.unlink()
        raise
    for path, reason in left_out.named:
        # Sessions choose names of files, and this is the operator's terminal.
        print(f"claude-code-mcp: left out: {one_line(visible(path), _LONGEST_SHOWN)}: {reason}", file=sys.stderr)
    if left_out.count > len(left_out.named):
        print(f"claude-code-mcp: left out: {left_out.count - len(left_out.named)} more files", file=sys.stderr)
    if arguments.json:
        paths = [path for path, _ in left_out.named]
        print_json({"file": str(arguments.file), "files": written, "leftOut": paths, "leftOutCount": left_out.count})
    else:
        print(f"{written} files of {state_dir} are in {arguments.file}. It holds secrets.")
    return 1 if left_out.count else 0


@dataclass
class _LeftOut:
    """The files that are not in the backup, and why; the first of them by name."""

    named: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0

    def add(self, path: str, reason: str) -> None:
        self.count += 1
        if len(self.named) < _MOST_LEFT_OUT:
            self.named.append((path, reason))


def _write(state_dir: Path, file: IO[bytes]) -> "tuple[int, _LeftOut]":
    """How many files were written, and which were not and why."""
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
    """The other files below the directory with their paths, each open, or why it cannot be read. Links are not
    followed, at no place of a path: sessions can write below the directories of callers."""
    problems: list[OSError] = []
    taken: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for directory, names, files, descriptor in _walk(state_dir, problems):
        place = os.path.relpath(directory, state_dir)
        below = "" if place == "." else f"{place}/"
        owner = "/".join(below.split("/")[:2]) if below.startswith(f"{PRINCIPALS}/") else ""
        names[:] = sorted(name for name in names if f"{below}{name}" not in _MADE_ANEW)
        if below.count("/") >= _DEEPEST or len(os.fsencode(below)) + _LONGEST_NAME > _LONGEST_PATH:
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
            elif found.st_size > _LARGEST:
                os.close(opened)
                yield path, "it is larger than 2 GiB"
            elif owner and (taken[owner] + found.st_size > _MOST_BYTES or counted[owner] >= _MOST_FILES):
                os.close(opened)
                yield path, f"{owner} has more than {_MOST_BYTES >> 30} GiB, or {_MOST_FILES:,} files"
            else:
                taken[owner] += found.st_size
                counted[owner] += 1
                yield path, open(opened, "rb")  # noqa: SIM115 - closed by whoever takes it
    for problem in problems:
        if not isinstance(problem, FileNotFoundError):  # one that was removed meanwhile is not missing
            yield str(problem.filename), problem.strerror or str(problem)


def _walk(directory: Path, problems: list[OSError]) -> Iterator[tuple[str, list[str], list[str], int | None]]:
    """As os.fwalk, with a note of every directory that cannot be read; without descriptors where the system has none of
    directories (Windows)."""
    if sys.platform != "win32":
        yield from os.fwalk(directory, onerror=problems.append)
    else:
        for place, names, files in os.walk(directory, onerror=problems.append):
            yield place, names, files, None


def _copy(source: IO[bytes], target: IO[bytes]) -> int:
    """Copies what is there at this moment: a file that is being written to would never end."""
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
        f"{files} files are in {state_dir}." + (f"The previous state is in {aside}." if aside is not None else ""),
    )


def _place_aside(state_dir: Path) -> Path:
    """A name beside the state directory that nothing has yet."""
    name = f"{state_dir.name}.before-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (state_dir.with_name(name if not number else f"{name}-{number}") for number in count())
    return next(path for path in numbered if not path.exists())


def refuse_while_served(state_dir: Path) -> None:
    """InvalidArgument while a server uses this state directory."""
    life = ServerLife(state_dir)
    for path in (state_dir / "servers").glob("*.alive"):
        if life.lives(path.stem):
            raise InvalidArgument(
                f"A server is using {state_dir}. Stop it first: `claude-code-mcp shared stop`, the server for HTTP, "
                "and clients with a separate server."
            )


def _extract(file: Path, target: Path) -> int:
    """Writes the files of a backup to a directory; returns how many. InvalidArgument if it is no backup of ours, or
    is cut short."""
    files = 0
    try:
        with tarfile.open(file, "r:gz") as archive:
            for entry in archive:
                # Only what `backup` writes: everything else could lead out of the directory.
                parts = Path(entry.name).parts
                is_file = entry.type == tarfile.REGTYPE and not entry.issparse()  # its holes would fill the disk
                if not is_file or not parts or ".." in parts or Path(entry.name).is_absolute():
                    raise InvalidArgument(f"{file} is not a backup of claude-code-mcp: it contains {entry.name}.")
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
