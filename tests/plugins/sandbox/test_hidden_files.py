"""Which files of a sandbox are covered because a rule denies to read them."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import ProcessFailed
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.plugins.sandbox import hidden_files
from claude_code_mcp.plugins.sandbox.bubblewrap import Mount
from claude_code_mcp.plugins.sandbox.hidden_files import covers


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in (".env", "sub/.env", "sub/other", "secrets/deep/key", "keys/a", "keys/deep/b", "real.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    (root / "linked").mkdir()
    (root / "linked" / ".env").symlink_to("../real.txt")
    (root / "loop").symlink_to(".")
    return root


def covered(
    tree: Path, *rules: str, cwd: str = "", given: tuple[str, ...] = ("",), writable: bool = True
) -> dict[str, str]:
    scratch = tree.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    places = [Mount.at(str(tree / place), writable=writable) for place in given]
    with contextlib.ExitStack() as opened:
        mounts = covers(list(map(parse_rule, rules)), str(tree / cwd), places, scratch, opened)
        found = {}
        for mount in mounts:
            if isinstance(mount.source, int):
                assert os.readlink(f"/proc/self/fd/{mount.source}") == mount.target
            assert mount.writable == isinstance(mount.source, int)
            source = "itself" if isinstance(mount.source, int) else Path(str(mount.source)).name
            found[str(Path(mount.target).relative_to(tree))] = source
        return found


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("Read(**/.env)", {".env": "empty", "sub/.env": "empty", "real.txt": "empty"}),
        ("Read(.env)", {".env": "empty"}),
        ("Read(secrets/**)", {"secrets": "nothing"}),
        ("Read(secrets)", {"secrets": "nothing"}),
        ("Read(keys/*)", {"keys/a": "empty", "keys": "itself"}),
        ("Read(**/KEY)", {"secrets/deep/key": "empty"}),
        ("Read(/etc/**)", {}),
        ("Edit(**/.env)", {}),
        ("Read", {}),
    ],
)
def test_files_and_directories_that_a_rule_fits_are_covered(tree: Path, rule: str, expected: dict[str, str]) -> None:
    assert covered(tree, rule) == expected


def test_an_absolute_rule_reaches_every_directory_that_is_given(tree: Path) -> None:
    assert covered(tree, f"Read({tree}/**/.env)", cwd="keys", given=("sub", "keys")) == {"sub/.env": "empty"}
    assert covered(tree, f"Read({tree}/sub/.env)", cwd="keys") == {"sub/.env": "empty", "sub": "itself"}


@pytest.mark.parametrize(
    ("rule", "pinned"),
    [
        ("Read(secrets/deep/key)", {"secrets", "secrets/deep"}),
        ("Read(secrets/**/key)", {"secrets", "secrets/deep"}),
        ("Read(**/deep/key)", {"secrets/deep"}),
        ("Read(*/deep/**)", {"secrets", "keys"}),
        ("Read(**/key)", set()),
        ("Read(**/k*)", set()),
    ],
)
def test_directories_that_a_rule_names_cannot_be_renamed(tree: Path, rule: str, pinned: set[str]) -> None:
    assert {name for name, source in covered(tree, rule).items() if source == "itself"} == pinned
    assert "itself" not in covered(tree, rule, writable=False).values()


def test_a_directory_that_is_replaced_by_a_link_is_not_given(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "elsewhere" / "deep").mkdir(parents=True)
    real = os.open

    def replaced(path: Any, *how: Any, **more: Any) -> int:
        if path == str(tree / "secrets" / "deep"):
            (tree / "secrets").rename(tree / "moved")
            (tree / "secrets").symlink_to("elsewhere")
            monkeypatch.undo()
        return real(path, *how, **more)

    monkeypatch.setattr(os, "open", replaced)
    with pytest.raises(ProcessFailed, match="was replaced"):
        covered(tree, "Read(secrets/deep/key)")


def test_a_rule_follows_a_link_on_the_way_to_a_file(tree: Path) -> None:
    (tree / "sub" / "link").symlink_to("../keys")
    assert covered(tree, "Read(sub/link/*)") == {"keys/a": "empty", "keys": "itself"}
    assert covered(tree, "Read(link/*)", cwd="sub", given=("sub", "keys")) == {"keys/a": "empty"}
    assert covered(tree, "Read(link/*)", cwd="sub") == {"keys/a": "empty", "keys": "itself"}


def test_a_rule_starts_at_the_directory_of_the_session(tree: Path) -> None:
    around = {"keys": "itself", "keys/deep": "itself"}
    assert covered(tree, "Read(deep/b)", cwd="keys") == {**around, "keys/deep/b": "empty"}
    assert covered(tree, f"Read({tree}/keys/deep/b)", cwd="keys") == {**around, "keys/deep/b": "empty"}


def test_the_directory_of_the_session_cannot_be_renamed_where_rules_begin_in_it(tree: Path) -> None:
    assert covered(tree, "Read(**/.env)", cwd="sub") == {"sub": "itself", "sub/.env": "empty"}
    assert covered(tree, "Read(**/key)", cwd="secrets/deep") == {
        "secrets": "itself",
        "secrets/deep": "itself",
        "secrets/deep/key": "empty",
    }
    assert covered(tree, f"Read({tree}/**/.env)", cwd="sub", given=("sub", "keys")) == {"sub/.env": "empty"}
    assert covered(tree, "Read(**/.env)", cwd="sub", given=("sub",)) == {"sub/.env": "empty"}


def test_a_tree_that_is_too_large_to_be_searched_is_not_given(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_files, "_MAX_ENTRIES", 3)
    with pytest.raises(ProcessFailed, match="more than 3 files"):
        covered(tree, "Read(**/.env)")


def test_a_link_to_a_missing_file_is_not_covered(tree: Path) -> None:
    (tree / "keys" / ".env").symlink_to("missing")
    assert covered(tree, "Read(**/.env)", cwd="keys") == {}


@pytest.mark.parametrize(("problem", "expected"), [(PermissionError(), {"sub": "nothing"}), (FileNotFoundError(), {})])
def test_a_directory_that_cannot_be_read_is_covered_as_a_whole(
    tree: Path, monkeypatch: pytest.MonkeyPatch, problem: OSError, expected: dict[str, str]
) -> None:
    refuse_to_list(tree / "sub", problem, monkeypatch)
    assert covered(tree, "Read(sub/.env)") == expected


def test_a_directory_that_cannot_be_read_is_not_moved_to_where_no_rule_is(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_list(tree / "keys" / "deep", PermissionError(), monkeypatch)
    assert covered(tree, "Read(**/b)", cwd="keys") == {"keys": "itself", "keys/deep": "nothing"}


def test_a_directory_that_the_disk_does_not_give_stops_the_start(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_list(tree / "sub", OSError(errno.EIO, "Input/output error"), monkeypatch)
    with pytest.raises(ProcessFailed, match="sub cannot be searched"):
        covered(tree, "Read(sub/.env)")


def refuse_to_list(directory: Path, problem: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root, as which tests may run, can list every directory."""
    real = os.scandir

    def scandir(path: str) -> Any:
        if path == str(directory):
            raise problem
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
