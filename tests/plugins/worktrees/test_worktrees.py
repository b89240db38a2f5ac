"""Worktrees: made beside each other, merged or left as they were, and never gone with work that nobody gave up."""

import asyncio
import hashlib
import os
import re
import shutil
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.worktree import Unsaved, Worktree
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.plugins.worktrees.worktree_changes import WorktreeChanges
from claude_code_mcp.plugins.worktrees.worktrees import Worktrees
from tests.support.repositories import enforcer, git, home, repository

pytestmark = pytest.mark.programs

Made = tuple[Worktree, WorktreeChanges]
Make = Callable[..., Awaitable[Made]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("template"))


@pytest.fixture
def repo(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path.resolve() / "repo"))


@pytest.fixture
def made(tmp_path: Path, repo: Path) -> Make:
    async def make_one(cwd: Path | None = None, policy: Policy | None = None) -> Made:
        applied = enforcer(tmp_path, policy)
        worktree, _ = await Worktrees().make(home(tmp_path), applied, LOCAL, str(cwd or repo), str(uuid.uuid4()))
        return worktree, WorktreeChanges(home(tmp_path), worktree)

    return make_one


def write(directory: str | Path, **files: str) -> None:
    for name, content in files.items():
        Path(directory, name).write_text(content)


def content(directory: str | Path, name: str) -> str:
    return Path(directory, name).read_text()


def exists(directory: str | Path, name: str = "") -> bool:
    return Path(directory, name).exists()


def commit(directory: str | Path, **files: str) -> None:
    write(directory, **files)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "work")


# -- making -------------------------------------------------------------------------------------------------------


async def test_it_begins_at_the_last_commit_and_git_does_not_see_it_in_the_main_checkout(
    repo: Path, made: Make
) -> None:
    write(repo, **{"a.txt": "dirty\n"})
    worktree, _ = await made()
    assert content(worktree.path, "a.txt") == "one\n"
    assert Path(worktree.path).parent == repo / ".claude" / "worktrees"
    assert git(worktree.path, "branch", "--show-current") == worktree.branch
    assert (worktree.into, worktree.repository) == ("main", str(repo))
    assert git(repo, "status", "--porcelain") == "M a.txt"
    git(repo, "add", "-A")
    assert ".claude" not in git(repo, "ls-files")


async def test_many_at_once_do_not_collide(repo: Path, made: Make) -> None:
    results = await asyncio.gather(*(made() for _ in range(4)))
    assert len({worktree.path for worktree, _ in results}) == 4
    assert git(repo, "worktree", "list").count("\n") == 4
    assert git(repo, "status", "--porcelain") == ""


async def test_a_worktree_that_another_git_is_creating_is_waited_for(repo: Path, made: Make) -> None:
    other = repo / ".git" / "worktrees" / "other"
    other.mkdir(parents=True)
    (other / "gitdir").write_text(f"{repo}-other/.git\n")
    (other / "HEAD").write_text("0" * 40 + "\n")
    (other / "commondir").touch()
    asyncio.get_running_loop().call_later(0.1, (other / "commondir").write_text, "../..\n")
    worktree, _ = await made()
    assert git(worktree.path, "branch", "--show-current").strip() == worktree.branch


async def test_a_directory_of_the_repository_is_the_same_directory_in_the_worktree(tmp_path: Path, repo: Path) -> None:
    asked = (home(tmp_path), enforcer(tmp_path), LOCAL, str(repo / "sub"), str(uuid.uuid4()))
    worktree, cwd = await Worktrees().make(*asked)
    assert cwd == os.path.join(worktree.path, "sub")
    (repo / "new").mkdir()
    with pytest.raises(InvalidArgument, match="commit"):
        await Worktrees().make(*asked[:3], str(repo / "new"), str(uuid.uuid4()))
    assert git(repo, "worktree", "list").count("\n") == 1
    assert git(repo, "branch", "--list", "worktree-*").count("\n") == 0


async def test_without_a_repository_or_a_commit_there_is_none(tmp_path: Path, made: Make) -> None:
    with pytest.raises(InvalidArgument, match="checkout"):
        await made(tmp_path)
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    with pytest.raises(InvalidArgument, match="commit"):
        await made(tmp_path / "empty")
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    with pytest.raises(InvalidArgument, match="checkout"):
        await made(tmp_path / "bare.git")


async def test_the_policy_must_let_the_caller_change_the_whole_repository(repo: Path, made: Make) -> None:
    inside = Policy(default=Profile(roots=(str(repo / "sub"),)))
    with pytest.raises(PermissionDenied, match="change"):
        await made(repo / "sub", inside)
    reader = Policy(default=Profile(tools=("Read",)))
    with pytest.raises(PermissionDenied, match="repository"):
        await made(repo, reader)
    assert not (repo / ".claude").exists()
    await made(repo, Policy(default=Profile(roots=(str(repo),))))


async def test_a_link_that_the_repository_brings_leads_nowhere(tmp_path: Path, repo: Path, made: Make) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repo / ".claude").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="link"):
        await made()
    assert os.listdir(tmp_path / "elsewhere") == []


async def test_no_hook_runs_and_no_variable_of_git_counts(
    tmp_path: Path, repo: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = repo / ".git" / "hooks"
    for name in (
        "post-checkout",
        "pre-commit",
        "commit-msg",
        "post-merge",
        "pre-merge-commit",
        "reference-transaction",
    ):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    git(repo, "config", "core.fsmonitor", f"touch {tmp_path}/ran-monitor")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "no.git"))
    worktree, changes = await made()
    write(worktree.path, new="1\n")
    await changes.merge("All of it")
    assert (repo / "new").exists()
    assert [name for name in os.listdir(tmp_path) if name.startswith("ran-")] == []


async def test_what_the_configuration_would_fetch_a_missing_commit_with_does_not_run(
    tmp_path: Path, repo: Path, made: Make
) -> None:
    """The repository is looked at outside of the sandbox, in which a session may have written its configuration."""
    fetching = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "protocol.file.allow": "always",
        "remote.origin.url": str(repo),
        "remote.origin.promisor": "true",
        "remote.origin.uploadPack": f"touch {tmp_path}/ran; git-upload-pack",
    }
    for name, value in fetching.items():
        git(repo, "config", name, value)
    (repo / ".git" / "refs" / "heads" / "main").write_text(f"{'1' * 40}\n")
    with pytest.raises(InvalidArgument, match="commit"):
        await made()
    assert not (tmp_path / "ran").exists()
    git(repo, "rev-parse", "--verify", "HEAD^{commit}", fails=True)
    assert (tmp_path / "ran").exists(), "any other git runs it"


async def test_one_asked_for_inside_of_another_lies_beside_it(repo: Path, made: Make) -> None:
    first, first_changes = await made()
    commit(first.path, c="c\n")
    second, second_changes = await made(Path(first.path))
    assert Path(second.path).parent == Path(first.path).parent
    assert (second.into, second.base) == (first.branch, git(first.path, "rev-parse", "HEAD"))
    commit(second.path, d="d\n")
    await second_changes.merge(None)
    assert exists(first.path, "d")
    assert not (repo / "d").exists()
    assert (await first_changes.unsaved()).commits == 0  # the other branch has them


async def test_one_that_was_never_used_is_taken_back_and_one_with_something_in_it_is_not(
    tmp_path: Path, repo: Path, made: Make
) -> None:
    unused, _ = await made()
    used, _ = await made()
    write(used.path, new="work\n")
    for worktree in (unused, used):
        await Worktrees().take_back(home(tmp_path), worktree)
    assert not exists(unused.path)
    assert content(used.path, "new") == "work\n"
    assert git(repo, "branch", "--list", "worktree-*") == f"+ {used.branch}"


# -- looking ------------------------------------------------------------------------------------------------------


async def test_the_diff_has_commits_changes_and_new_files_and_leaves_the_index_alone(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, committed="1\n")
    write(worktree.path, untracked="2\n", **{"a.txt": "two\n", "x.log": "ignored\n"})
    commit(repo, elsewhere="not the session's\n")
    shown = await changes.diff()
    for line in ("+++ b/committed", "+++ b/untracked", "-one", "+two"):
        assert line in shown
    assert "x.log" not in shown
    assert "elsewhere" not in shown
    assert git(worktree.path, "status", "--porcelain") == "M a.txt\n?? untracked"


async def test_the_diff_is_what_git_itself_would_commit(made: Make, repo: Path) -> None:
    for name in ("folder", "linked", "deleted"):
        (repo / name).mkdir()
        commit(repo, **{f"{name}/file": f"{name}\n"})
    (repo / "module").mkdir()
    module = repository(repo / "module")
    commit(repo, plain="a file\n", run="a script\n")
    worktree, changes = await made()
    top = Path(worktree.path)
    shutil.copytree(module, top / "module", dirs_exist_ok=True)
    commit(top / "module", later="a commit that the submodule is at now\n")
    shutil.rmtree(top / "folder")
    (top / "folder").write_text("a file in place of a directory\n")
    shutil.rmtree(top / "linked")
    (top / "linked").symlink_to("sub")
    shutil.rmtree(top / "deleted")
    (top / "plain").unlink()
    (top / "plain").mkdir()
    write(top, **{"plain/inner": "1\n", "with\nnew line": "2\n", os.fsdecode(b"no utf-8 \xff"): "3\n", ":(top)": "4\n"})
    (top / "run").chmod(0o755)
    shown = await changes.diff()
    git(top, "add", "--all")
    git(top, "commit", "-q", "-m", "all of it")
    assert await changes.diff() == shown
    for line in ("Subproject commit", "new mode 100755", "new file mode 120000", "+4", "deleted/file", "plain/inner"):
        assert line in shown


async def test_a_merge_with_a_message_takes_the_commit_that_a_submodule_is_at(made: Make, repo: Path) -> None:
    (repo / "module").mkdir()
    module = repository(repo / "module")
    commit(repo)
    worktree, changes = await made()
    inside = Path(worktree.path, "module")
    shutil.copytree(module, inside, dirs_exist_ok=True)
    commit(inside, later="1\n")
    await changes.merge("The submodule as well")
    assert git(repo, "rev-parse", "HEAD:module") == git(inside, "rev-parse", "HEAD")
    assert git(worktree.path, "status", "--porcelain") == ""


# -- merging ------------------------------------------------------------------------------------------------------


async def test_a_merge_brings_commits_and_with_a_message_everything_else(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, one="1\n")
    assert "main" in await changes.merge(None)
    write(worktree.path, two="2\n", **{"a.txt": "two\n"})
    with pytest.raises(InvalidArgument, match=r": a\.txt, two"):
        await changes.merge(None)
    await changes.merge("The second half")
    assert (repo / "two").read_text() == "2\n"
    assert git(repo, "log", "-1", "--format=%s") == "The second half"
    assert git(worktree.path, "status", "--porcelain") == ""
    assert "already contains" in await changes.merge(None)
    assert not await changes.unsaved()


async def test_a_commit_takes_everything_and_moves_nothing_else(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    write(worktree.path, new="n\n", skipped_log="s\n", **{"a.txt": "two\n", "x.log": "ignored\n"})
    plan = await changes.plan()
    assert (plan.uncommitted, plan.commits, plan.refusal) == (("a.txt", "new", "skipped_log"), 0, "")
    with pytest.raises(InvalidArgument, match="message"):
        await changes.commit(None, plan.digest)
    before = git(repo, "rev-parse", "main")
    made_commit = await changes.commit("The work", plan.digest)
    assert git(worktree.path, "rev-parse", "HEAD") == made_commit
    assert git(worktree.path, "log", "-1", "--format=%s") == "The work"
    assert git(worktree.path, "status", "--porcelain") == ""
    assert git(repo, "rev-parse", "main") == before
    assert content(worktree.path, "x.log") == "ignored\n"
    assert (await changes.plan()).commits == 1
    # With nothing to commit, the last one is the answer, also without a message.
    assert await changes.commit(None) == made_commit


def _another_file(repo: Path, worktree: Worktree) -> None:
    write(worktree.path, another="a\n")


def _another_content(repo: Path, worktree: Worktree) -> None:
    write(worktree.path, new="other\n")


def _another_commit(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, committed="c\n")


def _another_target(repo: Path, worktree: Worktree) -> None:
    commit(repo, beside="b\n")


async def test_only_what_was_agreed_to_is_committed_and_merged(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    write(worktree.path, new="n\n")
    plan = await changes.plan()
    _another_content(repo, worktree)
    await nothing_is_merged(repo, changes, plan.digest)
    with pytest.raises(PermissionDenied, match="commit"):
        await changes.commit("All of it", plan.digest)
    plan = await changes.plan()
    _another_target(repo, worktree)  # a commit does not depend on it
    await nothing_is_merged(repo, changes, plan.digest)
    await changes.merge("All of it", (await changes.plan()).digest)
    assert content(repo, "new") == "other\n"


@pytest.mark.soak
@pytest.mark.parametrize("change", [_another_file, _another_commit])
async def test_changes_after_the_review_are_not_committed_or_merged(
    made: Make, repo: Path, change: Callable[[Path, Worktree], None]
) -> None:
    worktree, changes = await made()
    write(worktree.path, new="n\n")
    plan = await changes.plan()
    change(repo, worktree)
    await nothing_is_merged(repo, changes, plan.digest)
    with pytest.raises(PermissionDenied, match="commit"):
        await changes.commit("All of it", plan.digest)


async def nothing_is_merged(repo: Path, changes: WorktreeChanges, digest: str) -> None:
    """Nor is anything moved by a merge that was agreed to by this digest."""
    tips = git(repo, "for-each-ref")
    with pytest.raises(PermissionDenied, match="merge"):
        await changes.merge("All of it", digest)
    assert git(repo, "for-each-ref") == tips
    assert not exists(repo, "new")


async def test_a_plan_says_why_there_can_be_no_merge_and_changes_nothing(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    _conflicting_uncommitted(repo, worktree)
    tips, files = git(repo, "for-each-ref"), git(worktree.path, "status", "--porcelain")
    plan = await changes.plan()
    assert re.search(r"\bmain\b.*\ba\.txt\b", plan.refusal)
    assert (git(repo, "for-each-ref"), git(worktree.path, "status", "--porcelain")) == (tips, files)
    with pytest.raises(InvalidArgument, match="main"):
        await changes.merge("All the same", plan.digest)
    assert (git(repo, "for-each-ref"), git(worktree.path, "status", "--porcelain")) == (tips, files)


async def test_branches_that_have_diverged_are_merged_next_to_a_dirty_tree(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, one="1\n")
    commit(repo, other="o\n")
    write(repo, **{"a.txt": "dirty\n", "untracked": "u\n"})
    await changes.merge(None)
    assert git(repo, "log", "-1", "--format=%P").count(" ") == 1
    assert git(repo, "status", "--porcelain") == "M a.txt\n?? untracked"
    assert (repo / "one").exists()


def _conflicting(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, **{"a.txt": "theirs\n"})
    commit(repo, **{"a.txt": "ours\n"})


def _dirty(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, **{"a.txt": "theirs\n"})
    write(repo, **{"a.txt": "dirty\n"})


def _in_the_way_untracked(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, new="theirs\n")
    write(repo, new="mine\n")


def _in_the_way_ignored(repo: Path, worktree: Worktree) -> None:
    write(worktree.path, **{"x.log": "theirs\n"})
    git(worktree.path, "add", "-f", "x.log")
    git(worktree.path, "commit", "-q", "-m", "log")
    write(repo, **{"x.log": "mine\n"})


def _other_branch(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, new="1\n")
    git(repo, "checkout", "-q", "-b", "other")


def _detached(repo: Path, worktree: Worktree) -> None:
    commit(worktree.path, new="1\n")
    git(repo, "checkout", "-q", "--detach")


def _merging(repo: Path, worktree: Worktree) -> None:
    _conflicting(repo, worktree)
    git(repo, "merge", "-q", worktree.branch, fails=True)


def _worktree_elsewhere(repo: Path, worktree: Worktree) -> None:
    git(worktree.path, "checkout", "-q", "-b", "mine")
    commit(worktree.path, new="1\n")


def _conflicting_uncommitted(repo: Path, worktree: Worktree) -> None:
    write(worktree.path, **{"a.txt": "theirs\n"})
    commit(repo, **{"a.txt": "ours\n"})


def _nested_repository(repo: Path, worktree: Worktree) -> None:
    repository(Path(worktree.path, "nested"))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        # Planned before it is merged: above.
        pytest.param(_conflicting, r"conflicts with main in a\.txt", marks=pytest.mark.soak),
        pytest.param(_conflicting_uncommitted, r"conflicts with main in a\.txt", marks=pytest.mark.soak),
        (_dirty, r"would be overwritten[\s\S]*a\.txt"),
        # Git itself refuses that, as it does what is dirty.
        pytest.param(_in_the_way_untracked, r"untracked[\s\S]*new", marks=pytest.mark.soak),
        (_in_the_way_ignored, r"overwritten[\s\S]*x\.log"),
        (_other_branch, "has other checked out"),
        pytest.param(_detached, "a detached HEAD", marks=pytest.mark.soak),  # as the one before
        (_merging, "."),
        (_worktree_elsewhere, "mine checked out instead of its branch"),
        (_nested_repository, "nested/ is a separate repository"),
    ],
    ids=lambda value: getattr(value, "__name__", "")[1:] or None,
)
async def test_impossible_merge_changes_nothing(
    made: Make, repo: Path, prepare: Callable[[Path, Worktree], None], reason: str
) -> None:
    worktree, changes = await made()
    prepare(repo, worktree)

    def everything() -> list[str]:
        seen = [git(place, "status", "--porcelain=v2", "--branch", "--ignored") for place in (repo, worktree.path)]
        files = [path for path in repo.rglob("*") if ".git" not in path.parts and path.is_file()]
        return [*seen, git(repo, "for-each-ref"), *(f"{path} {path.read_text()}" for path in sorted(files))]

    before = everything()
    with pytest.raises(InvalidArgument, match=reason):
        await changes.merge("A message")
    assert everything() == before


# -- discarding ---------------------------------------------------------------------------------------------------


async def test_merged_worktree_is_discarded_with_its_branch(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, new="1\n")
    await changes.merge(None)
    await changes.discard(Unsaved())
    assert not exists(worktree.path)
    assert git(repo, "branch", "--list", "worktree-*") == ""
    assert git(repo, "worktree", "list").count("\n") == 0


def _untracked(worktree: Worktree) -> None:
    write(worktree.path, new="1\n")


def _ignored(worktree: Worktree) -> None:
    write(worktree.path, **{"x.log": "1\n"})


def _committed(worktree: Worktree) -> None:
    commit(worktree.path, new="1\n")


def _committed_on_no_branch(worktree: Worktree) -> None:
    git(worktree.path, "checkout", "-q", "--detach")
    commit(worktree.path, newer="1\n")


def _hidden_from_git(worktree: Worktree) -> None:
    git(worktree.path, "update-index", "--assume-unchanged", "a.txt")
    write(worktree.path, **{"a.txt": "two\n"})


def _submodule(worktree: Worktree) -> None:
    other = repository(Path(worktree.repository).parent / "other")
    git(worktree.path, "submodule", "--quiet", "add", str(other), "module")
    git(worktree.path, "commit", "-q", "-m", "module")
    git(worktree.repository, "branch", "saved", worktree.branch)


async def test_work_is_lost_only_if_just_that_was_agreed_to(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    assert not await changes.unsaved()
    _submodule(worktree)  # with its commit in another branch, so that it is the submodule that would be lost
    _hidden_from_git(worktree)
    _ignored(worktree)
    _committed(worktree)
    _committed_on_no_branch(worktree)
    write(worktree.path, untracked="1\n")
    lost = Unsaved(uncommitted=2, ignored=1, commits=2, repositories=1)
    assert await changes.unsaved() == lost
    for name in ("uncommitted", "ignored", "commits", "repositories"):
        with pytest.raises(PermissionDenied, match="discard"):
            await changes.discard(replace(lost, **{name: 0}))
    write(worktree.path, later="written after it was asked\n")
    with pytest.raises(PermissionDenied, match="discard"):
        await changes.discard(lost)
    assert exists(worktree.path, "later")
    assert worktree.branch in git(repo, "branch", "--list", "worktree-*")
    os.unlink(os.path.join(worktree.path, "later"))
    await changes.discard(lost)
    assert not exists(worktree.path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("prepare", "lost"),
    [
        (_untracked, Unsaved(uncommitted=1)),
        (_ignored, Unsaved(ignored=1)),
        (_committed, Unsaved(commits=1)),
        (_committed_on_no_branch, Unsaved(commits=1)),
        (_hidden_from_git, Unsaved(uncommitted=1)),
        (_submodule, Unsaved(repositories=1)),
    ],
    ids=lambda value: getattr(value, "__name__", "")[1:] or None,
)
async def test_each_kind_of_work_alone_is_not_lost_unasked(
    made: Make, prepare: Callable[[Worktree], None], lost: Unsaved
) -> None:
    worktree, changes = await made()
    prepare(worktree)
    assert await changes.unsaved() == lost
    with pytest.raises(PermissionDenied, match="discard"):
        await changes.discard(Unsaved())
    await changes.discard(lost)
    assert not exists(worktree.path)


async def test_a_locked_one_one_in_use_and_one_around_another_stay(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    git(repo, "worktree", "lock", "--reason", "on a stick", worktree.path)
    with pytest.raises(InvalidArgument, match=r"\(on a stick\)"):
        await changes.discard(None)
    git(repo, "worktree", "unlock", worktree.path)
    waits = ("-c", "print(flush=True); input()")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *waits, cwd=worktree.path, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    await process.stdout.readline()
    with pytest.raises(SessionBusy, match=f"Process {process.pid}"):
        await changes.discard(None)
    await process.communicate(b"\n")
    git(repo, "worktree", "add", "-q", "-b", "inner", os.path.join(worktree.path, "inner"))
    with pytest.raises(InvalidArgument, match="worktree"):
        await changes.discard(None)
    assert exists(worktree.path, "a.txt")


async def test_a_branch_that_is_checked_out_elsewhere_stays(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, new="1\n")
    git(worktree.path, "checkout", "-q", "--detach")
    git(repo, "checkout", "-q", worktree.branch)
    assert "stays" in await changes.discard(None)
    assert git(repo, "branch", "--show-current") == worktree.branch


async def test_one_that_was_removed_by_hand_can_still_be_discarded_but_not_its_commits(made: Make, repo: Path) -> None:
    worktree, changes = await made()
    commit(worktree.path, new="1\n")
    shutil.rmtree(worktree.path)
    with pytest.raises(PermissionDenied, match=r"\b1 commit\b"):
        await changes.discard(Unsaved())
    with pytest.raises(ClaudeCodeError, match="no longer exists"):
        await changes.merge(None)
    await changes.discard(Unsaved(commits=1))
    assert git(repo, "worktree", "list").count("\n") == 0


async def test_git_file_of_a_worktree_is_not_trusted(tmp_path: Path, made: Make) -> None:
    worktree, changes = await made()
    evil = repository(tmp_path / "evil")
    git(evil, "config", "core.fsmonitor", f"touch {tmp_path}/ran")
    git(evil, "config", "filter.x.clean", f"touch {tmp_path}/ran; cat")
    write(worktree.path, **{".git": f"gitdir: {evil}/.git\n", ".gitattributes": "* filter=x\n"})
    assert (await changes.unsaved()).uncommitted == 1
    await changes.diff()
    assert not (tmp_path / "ran").exists()


# -- what is elsewhere --------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with a file and a repository in it, which no answer may tell of."""
    outside = tmp_path.resolve() / "outside"
    outside.mkdir()
    for name in ("there", "module/.git"):
        (outside / name).parent.mkdir(exist_ok=True)
        (outside / name).write_text("a secret of the operator\n")
    return outside


@pytest.mark.parametrize("name", ["there", pytest.param("absent", marks=pytest.mark.soak)])
async def test_a_hidden_file_behind_a_link_is_not_looked_for(made: Make, outside: Path, name: str) -> None:
    worktree, changes = await made()
    os.mkdir(os.path.join(worktree.path, "folder"))
    commit(worktree.path, **{f"folder/{name}": ""})
    git(worktree.path, "update-index", "--assume-unchanged", f"folder/{name}")
    assert (await changes.unsaved()).uncommitted == 1
    shutil.rmtree(os.path.join(worktree.path, "folder"))
    os.symlink(outside, os.path.join(worktree.path, "folder"))
    assert (await changes.unsaved()).uncommitted == 1  # the link, and not the file


@pytest.mark.parametrize("name", ["module", pytest.param("absent", marks=pytest.mark.soak)])
async def test_a_repository_behind_a_link_is_not_looked_for(made: Make, outside: Path, name: str) -> None:
    worktree, changes = await made()
    tip = git(worktree.path, "rev-parse", "HEAD")
    git(worktree.path, "update-index", "--add", "--cacheinfo", f"160000,{tip},folder/{name}")
    os.symlink(outside, os.path.join(worktree.path, "folder"))
    assert (await changes.unsaved()).repositories == 0


def _rename_in_index(index: Path, old: bytes, new: bytes) -> None:
    content = index.read_bytes()[:-20].replace(old, new)
    index.write_bytes(content + hashlib.sha1(content, usedforsecurity=False).digest())


@pytest.mark.parametrize("name", ["there", pytest.param("gone!", marks=pytest.mark.soak)])
async def test_a_name_of_the_index_that_leads_out_is_not_looked_for(made: Make, tmp_path: Path, name: str) -> None:
    """Git writes no such name into an index, and reads it if somebody else did."""
    write(tmp_path, there="a secret of the operator\n")
    worktree, changes = await made()
    leading = f"../../../../{name}"
    assert exists(worktree.path, leading) == (name == "there")
    same_length = "x" * len(leading)
    commit(worktree.path, **{same_length: ""})
    git(worktree.path, "update-index", "--assume-unchanged", same_length)
    _rename_in_index(Path(worktree.git_dir, "index"), same_length.encode(), leading.encode())
    assert leading in git(worktree.path, "ls-files", "-v")
    states = git(worktree.path, "status", "--porcelain", "--untracked-files=all", "--no-renames").splitlines()
    assert (await changes.unsaved()).uncommitted == len(states)


@pytest.mark.parametrize("name", ["there", pytest.param("absent", marks=pytest.mark.soak)])
async def test_a_link_in_place_of_a_file_of_git_says_the_same_wherever_it_leads(
    made: Make, outside: Path, name: str
) -> None:
    worktree, changes = await made()
    write(worktree.path, new="1\n")
    os.symlink(outside / name, os.path.join(worktree.git_dir, "MERGE_HEAD"))
    with pytest.raises(InvalidArgument, match="merge"):
        await changes.merge("A message")


@pytest.mark.parametrize("name", ["module", pytest.param("absent", marks=pytest.mark.soak)])
async def test_no_session_works_behind_a_link_that_the_last_commit_has(
    made: Make, repo: Path, outside: Path, name: str
) -> None:
    (repo / "folder").symlink_to(outside)
    commit(repo)
    (repo / "folder").unlink()
    (repo / "folder" / name).mkdir(parents=True)
    with pytest.raises(InvalidArgument, match=f"the directory folder/{name} is not in the last commit"):
        await made(repo / "folder" / name)
    assert git(repo, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize("name", ["module", pytest.param("absent", marks=pytest.mark.soak)])
async def test_a_link_in_place_of_a_worktree_is_refused_wherever_it_leads(made: Make, outside: Path, name: str) -> None:
    worktree, changes = await made()
    shutil.rmtree(worktree.path)
    os.symlink(outside / name, worktree.path)
    for act in (changes.diff, changes.unsaved, lambda: changes.merge("A message"), lambda: changes.discard(None)):
        with pytest.raises(InvalidArgument, match="directory"):
            await act()
    assert exists(outside, "module/.git")
