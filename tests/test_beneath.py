"""Files in directories that others write to, with every way of putting a link there."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_code_mcp.core import private_files

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links and descriptors of directories")
pytestmark = posix


@pytest.fixture(params=["by one call", "step by step"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel's own call where there is one, and without it."""
    if request.param == "step by step":
        monkeypatch.setattr(private_files, "_kernel", [None])
    elif sys.platform != "linux":
        pytest.skip("there is no such call")
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "folder").mkdir(parents=True)
    outside.mkdir()
    (root / "folder" / "file").write_text("mine")
    (outside / "file").write_text("theirs")
    (root / "linked").symlink_to(outside)
    (root / "inner").symlink_to("folder")
    (root / "folder" / "link").symlink_to(outside / "file")
    return root


def read(path: Path) -> str:
    with open(path, opener=private_files.open_at) as file:
        return file.read()


REFUSED = "symbolic link|Not a directory|No such file|File exists"
LINKED = ["linked/file", "inner/file", "folder/link"]


def test_existing_file_is_opened(root: Path) -> None:
    assert read(root / "folder" / "file") == "mine"
    assert private_files.stat_at(str(root / "folder" / "file")).st_size == 4


@pytest.mark.parametrize("name", LINKED)
@pytest.mark.parametrize("act", [read, lambda path: private_files.stat_at(str(path))], ids=["open", "stat"])
def test_no_link_is_followed_anywhere(root: Path, name: str, act: Callable[[Path], object]) -> None:
    """Not even one that leads to a file below the same directory."""
    with pytest.raises(OSError, match=REFUSED):
        act(root / name)


@pytest.mark.parametrize("name", ["linked", "inner"])
def test_a_link_is_not_listed_as_the_directory_that_it_leads_to(root: Path, name: str) -> None:
    with pytest.raises(OSError, match=REFUSED):
        private_files.entries_at(str(root / name))


def test_files_are_distinguished_from_link_targets(root: Path) -> None:
    (root / "dangling").symlink_to(root / "nothing")
    for there in ("folder", "folder/file", "folder/link", "linked", "dangling"):
        assert private_files.exists_at(str(root / there))
    for absent in ("nothing", "nothing/file", "folder/file/file", "linked/file", "linked/nothing", "inner/file"):
        assert not private_files.exists_at(str(root / absent))


def test_entries_are_what_they_are(root: Path) -> None:
    found = {entry.name: stat.S_IFMT(entry.status.st_mode) for entry in private_files.entries_at(str(root))}
    assert found == {"folder": stat.S_IFDIR, "linked": stat.S_IFLNK, "inner": stat.S_IFLNK}
    assert [entry.name for entry in private_files.entries_at(str(root), lambda name: name == "folder")] == ["folder"]


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    os.close(private_files.open_at(root / "pipe", os.O_RDONLY))


def test_a_file_is_made_where_no_link_is_on_the_way(root: Path) -> None:
    os.close(private_files.open_at(root / "folder" / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    assert stat.S_IMODE((root / "folder" / "new").stat().st_mode) & 0o077 == 0
    for name in ("linked/new", "inner/new", "folder/link"):
        with pytest.raises(OSError, match=REFUSED):
            private_files.open_at(root / name, os.O_WRONLY | os.O_CREAT)
    assert [path.name for path in (root.parent / "outside").iterdir()] == ["file"]
    assert (root.parent / "outside" / "file").read_text() == "theirs"


def test_a_link_is_removed_as_such_and_a_directory_with_all_that_is_in_it(root: Path) -> None:
    (root / "folder" / "deep").mkdir()
    (root / "folder" / "deep" / "out").symlink_to(root.parent / "outside")
    for name in ("linked", "folder", "nothing"):
        private_files.remove_at(str(root / name))
    assert [path.name for path in root.iterdir()] == ["inner"]
    assert (root.parent / "outside" / "file").read_text() == "theirs"
    with pytest.raises(OSError, match=REFUSED):
        private_files.remove_at(str(root / "inner" / "file"))


def test_nothing_behind_a_link_is_removed(root: Path) -> None:
    for name in ("linked/file", "inner/file"):
        with pytest.raises(OSError, match=REFUSED):
            private_files.remove_at(str(root / name))
    assert (root / "folder" / "file").exists()
    assert (root.parent / "outside" / "file").exists()


def test_a_file_is_replaced_and_a_link_with_it(root: Path) -> None:
    private_files.replace_at(str(root / "folder" / "file"), str(root / "folder" / "link"))
    assert (root / "folder" / "link").read_text() == "mine"
    assert not (root / "folder" / "link").is_symlink()
    assert (root.parent / "outside" / "file").read_text() == "theirs"


def test_a_directory_is_made_once_and_never_in_place_of_a_link(root: Path) -> None:
    for _ in range(2):
        private_files.make_directory_at(str(root / "new"))
    assert (root / "new").is_dir()
    for name in ("linked", "linked/new", "folder/file"):
        with pytest.raises(OSError, match=REFUSED):
            private_files.make_directory_at(str(root / name))


def test_invalid_paths_are_refused(root: Path) -> None:
    with pytest.raises((OSError, ValueError)):
        private_files.open_at(f"{root}/folder/fi\0le", os.O_RDONLY)


def open_below(root: Path) -> list[str]:
    """What this process has open there; other descriptors are other tests'."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [target for target in found if target.startswith(str(root))]


def test_no_descriptor_is_left_open(root: Path) -> None:
    for _ in range(20):
        for name in (*LINKED, "folder/none", "none/none"):
            for act in (
                read,
                lambda path: private_files.entries_at(str(path)),
                lambda path: private_files.remove_at(f"{path}/x"),
            ):
                with pytest.raises(OSError, match=REFUSED):
                    act(root / name)
    if sys.platform == "linux":
        with (root / "folder").joinpath("file").open() as known:
            assert open_below(root) == [known.name]
        assert open_below(root) == []
