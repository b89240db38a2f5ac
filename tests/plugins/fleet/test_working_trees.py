"""Working trees, saved and restored by real git: equal in every byte, and never at the cost of something else."""

import os
import random
import stat
import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.core.git import Git
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.working_trees import TreeRefused, TreeStore
from tests.support.repositories import git, home, repository


def tools(tmp_path: Path) -> Git:
    return Git(home(tmp_path), ())


def contents(top: Path) -> dict[str, tuple[str, bytes]]:
    """Every file with its kind and bytes, without git's own directory."""
    found = {}
    for directory, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != ".git"]
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(directory, name)))]:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(path, top)] = "link", os.fsencode(os.readlink(path))
            else:
                kind = "program" if status.st_mode & 0o100 else "file"
                found[os.path.relpath(path, top)] = kind, Path(path).read_bytes()
    return found


def state(top: Path) -> dict[str, str]:
    """What git knows of a checkout: HEAD, branch, index and differences."""
    head = subprocess.run(["git", "rev-parse", "-q", "--verify", "HEAD"], cwd=top, capture_output=True, check=False)
    return {
        "head": head.stdout.decode().strip(),
        "branch": git(top, "symbolic-ref", "-q", "HEAD") if (top / ".git/HEAD").read_text()[:4] == "ref:" else "",
        "index": git(top, "ls-files", "--stage"),
        "status": git(top, "status", "--porcelain", "--untracked-files=all"),
    }


def untouchable(top: Path) -> dict[str, bytes]:
    """What a save must leave as it is."""
    kept = ["HEAD", "index", "config", "packed-refs"]
    files = [top / ".git" / name for name in kept] + sorted((top / ".git/refs").rglob("*"))
    files += sorted((top / ".git/logs").rglob("*"))
    return {str(path): path.read_bytes() for path in files if path.is_file()}


async def test_everything_uncommitted_comes_back_and_the_source_is_untouched(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    source = repository(tmp_path / "source")
    (source / "a.txt").write_text("changed and staged\n")
    git(source, "add", "a.txt")
    (source / "a.txt").write_text("changed again\n")
    git(source, "mv", "sub/b.txt", "sub/renamed.txt")
    (source / "new file ü\n.txt").write_text("untracked, with a line break in its name")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("nowhere")
    (source / "ignored.log").write_text("ignored")
    hook = source / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "post-checkout"):
        (hook.parent / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
        (hook.parent / name).chmod(0o755)
    before, files = untouchable(source), contents(source)
    store = TreeStore(fleet)
    ref = await store.save(tools(tmp_path), str(source / "sub"), "s1")
    assert untouchable(source) == before
    assert contents(source) == files
    assert not (tmp_path / "hook-ran").exists()
    target = tmp_path / "target"
    await store.restore(tools(tmp_path), ref, str(target))
    files.pop("ignored.log")
    assert contents(target) == files
    assert state(target) == state(source)
    assert git(target, "log", "--format=%s") == "first"


@pytest.mark.soak
async def test_a_second_save_stores_only_what_is_new(fleet: FleetConnection, tmp_path: Path) -> None:
    source, store = repository(tmp_path / "source", big=os.urandom(300_000).hex()), TreeStore(fleet)
    first = await store.save(tools(tmp_path), str(source), "s1")
    same = await store.save(tools(tmp_path), str(source), "s1", first)
    assert same.packs == first.packs
    (source / "a.txt").write_text("two\n")
    git(source, "commit", "-qam", "second")
    second = await store.save(tools(tmp_path), str(source), "s1", first)
    objects = await fleet.jetstream.object_store("fleet_trees")
    sizes = [(await objects.get_info(name)).size or 0 for name in second.packs]
    assert len(sizes) == 2
    assert sizes[1] < 5000 < sizes[0]
    await store.restore(tools(tmp_path), second, str(tmp_path / "target"))
    assert contents(tmp_path / "target") == contents(source)
    assert state(tmp_path / "target") == state(source)


@pytest.mark.soak
async def test_commits_of_a_remote_are_not_stored_and_are_asked_for(fleet: FleetConnection, tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin", big=os.urandom(300_000).hex())
    git(tmp_path, "clone", "-q", str(origin), "source")
    git(tmp_path, "clone", "-q", str(origin), "target")
    source, target, store = tmp_path / "source", tmp_path / "target", TreeStore(fleet)
    (source / "own.txt").write_text("own")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "not pushed")
    (source / "a.txt").write_text("not committed")
    ref = await store.save(tools(tmp_path), str(source), "s1")
    objects = await fleet.jetstream.object_store("fleet_trees")
    assert ((await objects.get_info(ref.packs[0])).size or 0) < 5000
    await store.restore(tools(tmp_path), ref, str(target))
    assert contents(target) == contents(source)
    assert state(target) == state(source)
    with pytest.raises(TreeRefused, match=": origin"):
        await store.restore(tools(tmp_path), ref, str(tmp_path / "empty"))
    # With the whole history it comes back anywhere.
    ref = await TreeStore(fleet, complete_below=64 << 20).save(tools(tmp_path), str(source), "s2")
    assert ref.needs == ()
    await store.restore(tools(tmp_path), ref, str(tmp_path / "anywhere"))
    assert contents(tmp_path / "anywhere") == contents(source)


@pytest.mark.parametrize("flaw", ["changed", "untracked", "ahead", "files", "merging"])
async def test_a_target_with_anything_of_its_own_is_refused_and_stays(
    fleet: FleetConnection, tmp_path: Path, flaw: str
) -> None:
    source, store = repository(tmp_path / "source"), TreeStore(fleet)
    (source / "a.txt").write_text("from the source\n")
    ref = await store.save(tools(tmp_path), str(source), "s1")
    target = tmp_path / "target"
    if flaw == "files":
        target.mkdir()
        (target / "precious.txt").write_text("mine")
    else:
        git(tmp_path, "clone", "-q", str(source), "target")
        if flaw == "changed":
            (target / "a.txt").write_text("mine")
        elif flaw == "untracked":
            (target / "precious.txt").write_text("mine")
        elif flaw == "merging":
            (target / ".git/MERGE_HEAD").write_text(git(target, "rev-parse", "HEAD") + "\n")
        else:
            (target / "mine.txt").write_text("mine")
            git(target, "add", "-A")
            git(target, "commit", "-qm", "mine")
    before = contents(target)
    with pytest.raises(TreeRefused, match=r"(?i)nothing was changed|finish it first"):
        await store.restore(tools(tmp_path), ref, str(target))
    assert contents(target) == before


async def test_trees_that_cannot_be_saved_exactly_are_refused(fleet: FleetConnection, tmp_path: Path) -> None:
    store, plain = TreeStore(fleet), tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(TreeRefused, match="checkout"):
        await store.save(tools(tmp_path), str(plain), "s1")
    source = repository(tmp_path / "source")
    git(source, "checkout", "-qb", "side")
    (source / "a.txt").write_text("side\n")
    git(source, "commit", "-qam", "side")
    git(source, "checkout", "-q", "main")
    (source / "a.txt").write_text("main\n")
    git(source, "commit", "-qam", "main")
    git(source, "merge", "-q", "side", fails=True)
    with pytest.raises(TreeRefused, match="MERGE_HEAD"):
        await store.save(tools(tmp_path), str(source), "s1")


async def test_ignored_files_travel_where_worktreeinclude_names_them(fleet: FleetConnection, tmp_path: Path) -> None:
    source, store = repository(tmp_path / "source"), TreeStore(fleet)
    (source / ".worktreeinclude").write_text("# local settings\nkeep.log\na.txt\n")
    (source / "keep.log").write_text("kept")
    (source / "other.log").write_text("not kept")
    ref = await store.save(tools(tmp_path), str(source), "s1")
    await store.restore(tools(tmp_path), ref, str(tmp_path / "target"))
    assert (tmp_path / "target/keep.log").read_text() == "kept"
    assert not (tmp_path / "target/other.log").exists()
    assert state(tmp_path / "target") == state(source)


async def test_submodules_keep_their_commit_and_repositories_inside_are_named(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    module, source, store = repository(tmp_path / "module"), repository(tmp_path / "source"), TreeStore(fleet)
    git(source, "submodule", "add", "-q", str(module), "module")
    git(source, "commit", "-qm", "with a module")
    repository(source / "nested")
    ref = await store.save(tools(tmp_path), str(source), "s1")
    assert ref.left_out == ("nested/",)
    await store.restore(tools(tmp_path), ref, str(tmp_path / "target"))
    assert git(tmp_path / "target", "ls-files", "--stage") == git(source, "ls-files", "--stage")
    assert not (tmp_path / "target/module/a.txt").exists()


def change_something(top: Path, dice: random.Random) -> None:
    """One random step of work in a checkout."""
    names = [name for name, (kind, _) in contents(top).items() if kind != "link"]
    name = dice.choice([*names, *(f"{dice.choice('abc')}/{dice.choice(['x', 'y z', 'ü', '-q'])}{n}" for n in range(3))])
    path = top / name
    match dice.randrange(7):
        case 0 | 1:
            if not path.parent.is_dir() and path.parent.exists():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(dice.randbytes(dice.randrange(200)))
        case 2 if path.is_file():
            path.unlink()
        case 3 if path.is_file():
            path.chmod(0o755 if dice.random() < 0.5 else 0o644)
        case 4 if not path.exists() and path.parent.is_dir():
            path.symlink_to(dice.choice(names))
        case 5:
            git(top, "add", "-A", "--", ".")
        case 6:
            git(top, "add", "-A", "--", ".")
            git(top, "commit", "-q", "--allow-empty", "-m", f"commit {dice.random()}")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
async def test_random_trees_are_equal_after_a_save_and_a_restore(
    fleet: FleetConnection, tmp_path: Path, seed: int
) -> None:
    dice, store = random.Random(seed), TreeStore(fleet)
    source, ref = repository(tmp_path / "source"), None
    for round_ in range(3):
        for _ in range(dice.randrange(1, 12)):
            change_something(source, dice)
        ref = await store.save(tools(tmp_path), str(source), "s1", ref)
        target = tmp_path / f"target-{round_}"
        await store.restore(tools(tmp_path), ref, str(target))
        expected = {name: value for name, value in contents(source).items() if not name.endswith(".log")}
        assert contents(target) == expected, f"seed {seed}, round {round_}"
        assert state(target) == state(source), f"seed {seed}, round {round_}"
