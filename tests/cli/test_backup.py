"""A backup that is made while the state is in use, and what is put back from it."""

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.cli import backup, parser
from claude_code_mcp.core.errors import StateUnavailable
from claude_code_mcp.core.state.database import FILE_NAME, Database
from claude_code_mcp.core.state.interrupted_restore import exchanging
from claude_code_mcp.core.state.server_life import ServerLife
from claude_code_mcp.core.state.state_directory import database_in

ADD = "INSERT OR REPLACE INTO facts VALUES (?, ?)"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory with something in it, and its database in use."""
    state = tmp_path / "state"
    monkeypatch.setenv("CLAUDE_CODE_MCP_STATE_DIR", str(state))
    database_in(state).write(lambda db: db.execute(ADD, ("said", "before")))
    theirs = state / "principals" / "ann-1" / "claude"
    theirs.mkdir(parents=True)
    (theirs / "transcript.jsonl").write_text("what was said")
    (state / "audit.jsonl").write_text('{"act": "one"}\n')
    (state / "index").mkdir()
    (state / "index" / "made-anew").write_text("x")
    return state


def said(state: Path) -> Any:
    database = Database(state)
    try:
        return database.read(lambda db: db.execute("SELECT value FROM facts WHERE name = 'said'").fetchone())
    finally:
        database.close()


def run(*arguments: str | Path) -> int:
    return parser.run([str(argument) for argument in arguments])


def test_what_was_there_is_there_again_and_nothing_is_lost(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "backup.tar.gz"
    assert run("backup", file) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    database_in(state).write(lambda db: db.execute(ADD, ("said", "after")))
    (state / "audit.jsonl").write_text("")
    assert run("restore", file) == 0
    assert said(state) == ("before",)
    assert (state / "audit.jsonl").read_text() == '{"act": "one"}\n'
    assert (state / "principals" / "ann-1" / "claude" / "transcript.jsonl").read_text() == "what was said"
    assert not (state / "index").exists()
    (aside,) = tmp_path.glob("state.before-*")
    assert capsys.readouterr().out.endswith(f" to {state}. The previous state is in {aside}.\n")
    assert said(aside) == ("after",)
    assert not list(tmp_path.glob("state.restoring-*"))


def test_restored_files_are_as_old_as_they_were(state: Path, tmp_path: Path) -> None:
    transcript = state / "principals" / "ann-1" / "claude" / "transcript.jsonl"
    os.utime(transcript, (1_700_000_000.5, 1_700_000_000.5))
    assert run("backup", tmp_path / "backup.tar.gz") == 0
    assert run("restore", tmp_path / "backup.tar.gz") == 0
    assert transcript.stat().st_mtime == pytest.approx(1_700_000_000.5)


@pytest.mark.skipif(os.name == "nt", reason="links and pipes are those of POSIX")
def test_links_placed_by_a_session_are_not_followed(state: Path, tmp_path: Path) -> None:
    theirs, secret = state / "principals" / "ann-1", tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("a key of the operator")
    (theirs / "link").symlink_to(secret / "key")
    (theirs / "directory").symlink_to(secret)
    os.mkfifo(theirs / "pipe")
    with (theirs / "sparse").open("wb") as sparse:
        sparse.truncate(3 << 30)
    file = tmp_path / "backup.tar.gz"
    assert run("backup", file) == 1, "something was left out, and that is told"
    with tarfile.open(file) as archive:
        names = archive.getnames()
    assert [name for name in names if name.startswith("principals")] == ["principals/ann-1/claude/transcript.jsonl"]


def test_nothing_is_put_back_while_a_server_runs(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, server = tmp_path / "backup.tar.gz", ServerLife(state)
    server.begin()
    try:
        assert run("backup", file, "--json") == 0
        assert json.loads(capsys.readouterr().out)["leftOut"] == []
        assert run("restore", file) == 2
        assert f" {state}" in capsys.readouterr().err
    finally:
        server.end()
    assert run("restore", file) == 0


def archive_of(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for entry, data in entries:
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def linking() -> tarfile.TarInfo:
    entry = tarfile.TarInfo("link")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
    return entry


def sparse_archive() -> tuple[tarfile.TarInfo, bytes]:
    """A few bytes that are unpacked as a large file."""
    size = 64 << 20
    entry = tarfile.TarInfo("exports/zeros")
    facts = {"major": "1", "minor": "0", "name": "exports/zeros", "realsize": str(size)}
    entry.pax_headers = {f"GNU.sparse.{name}": value for name, value in facts.items()}
    return entry, f"1\n{size - 1}\n1\n".encode().ljust(512, b"\0") + b"x"


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        archive_of(),
        archive_of((tarfile.TarInfo("../outside"), b"x")),
        archive_of((tarfile.TarInfo("/outside"), b"x")),
        archive_of((linking(), b"")),
        archive_of(sparse_archive(), (tarfile.TarInfo(FILE_NAME), b"")),
        archive_of((tarfile.TarInfo(FILE_NAME), b"no database, and long enough to look like one" * 100)),
    ],
    ids=["no archive", "nothing", "a path out of it", "a path of its own", "a link", "a hole", "a damaged database"],
)
def test_a_file_that_is_no_backup_changes_nothing(state: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "backup.tar.gz"
    file.write_bytes(content)
    assert run("restore", file) != 0
    assert said(state) == ("before",)
    assert not (tmp_path / "outside").exists()
    assert not list(tmp_path.glob("state.*"))


def test_a_backup_that_is_cut_short_changes_nothing(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    assert run("backup", file) == 0
    file.write_bytes(file.read_bytes()[:-200])
    assert run("restore", file) == 2
    assert said(state) == ("before",)


def test_a_backup_overwrites_nothing(state: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar.gz"
    file.write_text("mine")
    assert run("backup", file) == 2
    assert file.read_text() == "mine"


# -- what a session leaves in its directory ---------------------------------------------------------------------------


def nested(place: Path, name: str, levels: int) -> None:
    """A file below so many directories of this name, which no path of the system may be long enough for."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        for _ in range(levels):
            os.mkdir(name, dir_fd=descriptor)
            inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    finally:
        os.close(descriptor)


@pytest.mark.skipif(os.name == "nt", reason="descriptors of directories are those of POSIX")
@pytest.mark.parametrize(("name", "levels"), [("d", 1500), ("d" * 250, 20)], ids=["deep", "long"])
def test_directories_without_end_spoil_no_backup(state: Path, tmp_path: Path, name: str, levels: int) -> None:
    nested(state / "principals" / "ann-1", name, levels)
    file = tmp_path / "backup.tar.gz"
    try:
        assert run("backup", file) == 1, "something was left out, and that is told"
        assert run("restore", file) == 0
        assert said(state) == ("before",)
        assert (state / "principals" / "ann-1" / "claude" / "transcript.jsonl").read_text() == "what was said"
    finally:
        # Python cannot remove them, and so neither can pytest.
        subprocess.run(["rm", "-rf", *tmp_path.glob("state*")], check=True)


@pytest.mark.skipif(os.name == "nt", reason="no such name can be had there")
def test_the_name_of_a_file_does_nothing_to_the_terminal(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (state / "principals" / "ann-1" / "\x1b]0;mine\x07\n\x1b[2Jall is well").open("wb") as sparse:
        sparse.truncate(3 << 30)
    assert run("backup", tmp_path / "backup.tar.gz") == 1
    printed_errors = capsys.readouterr().err
    assert "all is well" in printed_errors
    assert "\x1b" not in printed_errors
    assert len(printed_errors.splitlines()) == 1


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root can read everything")
def test_unreadable_directory_is_reported(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = state / "principals" / "ann-1" / "hidden"
    hidden.mkdir(mode=0)
    assert run("backup", tmp_path / "backup.tar.gz") == 1
    assert "hidden: Permission denied" in capsys.readouterr().err


def sparse_entry() -> bytes:
    """An archive with a file of a terabyte that takes no space in it."""
    entry = tarfile.TarInfo(FILE_NAME)
    entry.type = tarfile.GNUTYPE_SPARSE
    head = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    head[386:410] = b"%011o\x00%011o\x00" % (0, 0)
    head[483:495] = b"%011o\x00" % (1 << 33 - 1)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\x00 " % sum(head[:512])
    return gzip.compress(bytes(head) + bytes(1024))


def damaged(state_file: bytes) -> bytes:
    """The archive with another compressed stream from its middle on."""
    middle = len(state_file) // 2
    return state_file[:middle] + bytes(255 - byte for byte in state_file[middle:])


@pytest.mark.parametrize("wrong", ["sparse", "damaged", "a name with a zero"])
def test_invalid_backup_is_refused_with_a_message(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    file = tmp_path / "backup.tar.gz"
    if wrong == "damaged":
        (state / "noise").write_bytes(os.urandom(1 << 20))
        assert run("backup", file) == 0
        file.write_bytes(damaged(file.read_bytes()))
    elif wrong == "sparse":
        file.write_bytes(sparse_entry())
    else:
        entry = tarfile.TarInfo("x")
        entry.pax_headers = {"path": "a\0b"}
        file.write_bytes(archive_of((entry, b"x")))
    assert run("restore", file) == 2
    assert "backup.tar.gz" in capsys.readouterr().err
    assert said(state) == ("before",)
    assert not list(tmp_path.glob("state.*"))


KILLED_BETWEEN = """
import os, sys
from claude_code_mcp.cli import backup, parser
from claude_code_mcp.core.errors import StateUnavailable
rename, renamed = os.rename, []
def kill_after_the_first(*names):
    rename(*names)
    renamed.append(names)
    if len(renamed) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
os.rename = kill_after_the_first
parser.run(["restore", sys.argv[1]])
"""


@pytest.mark.parametrize(("renames", "found"), [(1, "after"), (2, "before")])
def test_a_restore_that_is_killed_leaves_one_state_or_the_other(
    state: Path, tmp_path: Path, renames: int, found: str
) -> None:
    file = tmp_path / "backup.tar.gz"
    assert run("backup", file) == 0
    database_in(state).write(lambda db: db.execute(ADD, ("said", "after")))
    killed = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, str(file), str(renames)], check=False)
    assert killed.returncode == -9
    assert state.exists() == (renames == 2)
    assert said(state) == (found,), "whoever uses it next finds it whole"
    assert not list(tmp_path.glob("state.restoring-*"))
    assert run("restore", file) == 0
    assert said(state) == ("before",)


def test_the_state_is_refused_while_it_is_being_restored(state: Path, tmp_path: Path) -> None:
    made, aside = tmp_path / "scratch" / "state", tmp_path / "aside"
    made.mkdir(parents=True)
    with exchanging(state, made, aside):
        os.rename(state, aside)
        with pytest.raises(StateUnavailable, match="being restored"):
            said(state)
        os.rename(aside, state)
    assert said(state) == ("before",)


def test_files_without_content_make_no_backup_endless(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, others = state / "principals" / "ann-1", state / "principals" / "bob-1"
    others.mkdir()
    (others / "own").write_text("what bob has")
    (theirs / "home").mkdir()
    for number in range(30):
        with (theirs / "home" / f"sparse-{number:02}").open("wb") as sparse:
            sparse.truncate(1 << 20)
    monkeypatch.setattr(backup, "_MAX_BYTES", 3 << 20)
    monkeypatch.setattr(backup, "_MAX_LEFT_OUT", 5)
    file = tmp_path / "backup.tar.gz"
    assert run("backup", file, "--json") == 1
    report = capsys.readouterr()
    assert json.loads(report.out)["leftOutCount"] == 28
    assert report.err.count("principals/ann-1/home/sparse-") == 5
    assert report.err.count("\n") == 5 + 1
    assert " 23 " in report.err
    with tarfile.open(file) as archive:
        names = archive.getnames()
    assert "principals/ann-1/claude/transcript.jsonl" in names
    assert "principals/bob-1/own" in names
