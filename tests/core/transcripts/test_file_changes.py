"""The table of files is what a scan would find, at every moment, without a scan."""

import contextlib
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_code_mcp.core.transcripts import index
from claude_code_mcp.core.transcripts.index import File, FileTable, stat_file
from claude_code_mcp.core.transcripts.watched_files import DirectoryWatch


def wanted(name: str) -> bool:
    return name.endswith(".jsonl")


def scanned(root: Path) -> dict[str, File]:
    files = (stat_file(str(path)) for path in root.glob("*/*.jsonl"))
    return {file.path: file for file in files if file is not None}


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more")


def change(root: Path, chance: random.Random) -> None:
    """Something that programs do to files."""
    folder, name = root / chance.choice("abc"), f"{chance.choice('xyz')}.{chance.choice(['jsonl', 'jsonl', 'txt'])}"
    path = folder / name
    acts: list[Callable[[], object]] = [
        lambda: folder.mkdir(parents=True),
        lambda: path.write_text("new"),
        lambda: append(path),
        lambda: os.utime(path, (chance.randrange(10**9), chance.randrange(10**9))),
        path.unlink,
        lambda: path.rename(root / chance.choice("abc") / "x.jsonl"),
        lambda: folder.rename(root / chance.choice("abcd")),
        lambda: path.symlink_to(root / "a" / "y.jsonl"),
        path.mkdir,
    ]
    with contextlib.suppress(OSError):
        chance.choice(acts)()


@pytest.mark.parametrize("seed", range(6))
def test_the_table_is_what_a_scan_finds_after_every_change(tmp_path: Path, seed: int) -> None:
    chance, root = random.Random(seed), tmp_path / "root"
    table = FileTable(str(root), wanted, below=True)
    version, before = table.version, table.files()
    for _ in range(300):
        for _ in range(chance.randrange(1, 4)):
            change(root, chance)
        found = table.files()
        assert found == scanned(root)
        assert (table.version == version) == (found == before)
        version, before = table.version, found


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_after_the_first_look_no_directory_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text("x")
    table = FileTable(str(tmp_path), wanted)
    assert len(table.files()) == 3
    monkeypatch.setattr(index, "scanned", lambda path: pytest.fail(f"{path} was read"))
    (tmp_path / "4.jsonl").write_text("x")
    (tmp_path / "0.jsonl").unlink()
    assert {Path(path).name for path in table.files()} == {"1.jsonl", "2.jsonl", "4.jsonl"}


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_when_the_kernel_has_lost_count_everything_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FileTable(str(tmp_path), wanted)
    table.files()
    (tmp_path / "a.jsonl").write_text("x")
    monkeypatch.setattr(DirectoryWatch, "take", lambda watch: None)
    assert len(table.files()) == 1


def test_where_the_kernel_cannot_be_asked_every_look_is_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: DirectoryWatch) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(DirectoryWatch, "__init__", refuse)
    table = FileTable(str(tmp_path), wanted)
    assert table.files() == {}
    (tmp_path / "a.jsonl").write_text("x")
    assert len(table.files()) == 1


def test_a_directory_that_comes_later_and_comes_again_is_watched(tmp_path: Path) -> None:
    root = tmp_path / "later"
    table = FileTable(str(root), wanted)
    assert table.files() == {}
    for _ in range(2):
        root.mkdir()
        assert table.files() == {}
        (root / "a.jsonl").write_text("x")
        assert len(table.files()) == 1
        (root / "a.jsonl").unlink()
        root.rmdir()
        assert table.files() == {}
