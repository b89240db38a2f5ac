"""Git that the server runs: no program of a repository runs in it, it takes its time and no more, and its words tell
nothing about files elsewhere."""

# ruff: noqa: ASYNC240 - the tests wait for the disk

import ctypes
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_code_mcp.core import git as git_module
from claude_code_mcp.core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied, ProcessFailed
from claude_code_mcp.core.git import Reply
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.model.worktree import Unsaved, Worktree
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.plugins.worktrees.worktree_changes import WorktreeChanges
from claude_code_mcp.plugins.worktrees.worktrees import Worktrees
from tests.support.repositories import enforcer, git, home, repository

pytestmark = pytest.mark.programs


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


async def made(tmp_path: Path, cwd: Path, policy: Policy | None = None) -> tuple[Worktree, WorktreeChanges]:
    worktree, _ = await Worktrees().make(home(tmp_path), enforcer(tmp_path, policy), LOCAL, str(cwd), str(uuid.uuid4()))
    return worktree, WorktreeChanges(home(tmp_path), worktree)


def ran(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("ran-*"))


def confined() -> bool:
    """Whether the kernel can be told which programs a process may execute (Landlock, in its second version)."""
    if sys.platform != "linux":
        return False
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) >= 2


def program(tmp_path: Path, name: str) -> str:
    """A command that leaves a trace, and would take for ever."""
    return f"touch {tmp_path}/ran-{name}; sleep 1000"


# -- programs of a repository ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["smudge", pytest.param("clean", marks=pytest.mark.soak), "process"])
async def test_a_filter_of_a_repository_does_not_run_and_nothing_waits_for_it(
    tmp_path: Path, repo: Path, key: str
) -> None:
    git(repo, "config", f"filter.evil.{key}", program(tmp_path, key))
    git(repo, "config", "filter.evil.required", "true")
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    with pytest.raises(InvalidArgument, match=r"\(evil\)"):
        await made(tmp_path, repo)
    assert ran(tmp_path) == []
    assert git(repo, "worktree", "list").count("\n") == 0


async def test_a_filter_that_no_file_goes_through_keeps_nothing_from_being_made(tmp_path: Path, repo: Path) -> None:
    git(repo, "config", "filter.evil.smudge", program(tmp_path, "smudge"))
    worktree, changes = await made(tmp_path, repo)
    Path(worktree.path, "new").write_text("1\n")
    await changes.merge("All of it")
    assert (repo / "new").read_text() == "1\n"
    assert ran(tmp_path) == []


async def test_a_filter_that_a_session_adds_later_is_not_run_for_looking_and_not_left_out_for_merging(
    tmp_path: Path, repo: Path
) -> None:
    worktree, changes = await made(tmp_path, repo)
    for key in ("clean", "smudge", "process"):
        git(repo, "config", f"filter.evil.{key}", program(tmp_path, key))
    Path(worktree.path, ".gitattributes").write_text("* filter=evil\n")
    Path(worktree.path, "a.txt").write_text("two\n")
    assert "+two" in await changes.diff()
    assert (await changes.unsaved()).uncommitted == 2
    with pytest.raises(InvalidArgument, match="filters"):
        await changes.merge("All of it")
    await changes.discard(Unsaved(uncommitted=2))
    assert ran(tmp_path) == []


async def test_filters_of_the_user_run_also_where_the_repository_has_its_own_of_that_name(
    tmp_path: Path, repo: Path
) -> None:
    (tmp_path / ".gitconfig").write_text('[filter "usual"]\n\tclean = tr a-z A-Z\n\tsmudge = tr A-Z a-z\n')
    (repo / ".git" / "info" / "attributes").write_text("b.txt filter=usual\n")
    worktree, changes = await made(tmp_path, repo)
    Path(worktree.path, "sub", "b.txt").write_text("quiet\n")
    assert "+QUIET" in await changes.diff()
    git(repo, "config", "filter.usual.clean", program(tmp_path, "clean"))
    assert "+QUIET" in await changes.diff()
    assert ran(tmp_path) == []


async def test_a_merge_driver_of_a_repository_makes_a_conflict_and_does_not_run(tmp_path: Path, repo: Path) -> None:
    worktree, changes = await made(tmp_path, repo)
    for place, text in ((Path(worktree.path), "here\n"), (repo, "there\n")):
        (place / "a.txt").write_text(text)
        git(place, "commit", "-q", "-a", "-m", "other")
    git(repo, "config", "merge.evil.driver", program(tmp_path, "driver"))
    (repo / ".git" / "info" / "attributes").write_text("* merge=evil\n")
    with pytest.raises(InvalidArgument, match=r"\bmain\b.*\ba\.txt"):
        await changes.merge(None)
    assert ran(tmp_path) == []


PROGRAMS = (
    "core.fsmonitor", "core.sshCommand", "core.askPass", "core.editor", "core.pager", "core.gitProxy",
    "diff.external", "diff.evil.textconv", "diff.evil.command", "credential.helper", "gpg.program",
    "merge.tool", "sequence.editor", "core.alternateRefsCommand",
)  # fmt: skip


async def test_no_other_program_of_a_configuration_runs(tmp_path: Path, repo: Path) -> None:
    for name in PROGRAMS:  # each leaves a note of its own
        path = program(tmp_path, name)
        git(repo, "config", name, f"!{path}" if "helper" in name else path)
    git(repo, "config", "merge.verifySignatures", "true")
    git(repo, "config", "commit.gpgSign", "true")
    (repo / ".git" / "info" / "attributes").write_text("* diff=evil\n")
    worktree, changes = await made(tmp_path, repo)
    Path(worktree.path, "a.txt").write_text("two\n")
    assert "+two" in await changes.diff()
    await changes.merge("All of it")
    await changes.discard(None)
    assert ran(tmp_path) == []


async def test_the_configuration_of_a_submodule_runs_nothing(tmp_path: Path, repo: Path) -> None:
    worktree, changes = await made(tmp_path, repo)
    git(worktree.path, "submodule", "--quiet", "add", str(repository(tmp_path / "other")), "module")
    module = Path(worktree.path, "module")
    for setting in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process"):
        git(module, "config", setting, program(tmp_path, "module"))
    (Path(git(module, "rev-parse", "--absolute-git-dir")) / "info" / "attributes").write_text("* filter=evil\n")
    (module / "a.txt").write_text("two\n")
    assert (await changes.unsaved()).repositories == 1
    await changes.diff()
    assert ran(tmp_path) == []


@pytest.mark.soak  # nor does a submodule: the test above
async def test_a_repository_inside_that_is_committed_as_a_link_runs_nothing(tmp_path: Path, repo: Path) -> None:
    worktree, changes = await made(tmp_path, repo)
    module = repository(Path(worktree.path, "module"))
    git(worktree.path, "add", "module")
    git(worktree.path, "commit", "-q", "-m", "a link to it")
    git(module, "config", "filter.evil.clean", program(tmp_path, "clean"))
    (module / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    (module / "a.txt").write_text("two\n")
    assert "+++ b/module" in await changes.diff()
    Path(worktree.path, "new").write_text("1\n")
    await changes.merge("All of it")
    await changes.discard(None)
    assert ran(tmp_path) == []


@pytest.mark.soak
async def test_a_diff_of_submodules_is_that_of_their_commits_whatever_is_configured(tmp_path: Path, repo: Path) -> None:
    module = repository(repo / "module")
    git(repo, "add", "module")
    git(repo, "commit", "-q", "-m", "a link to it")
    worktree, changes = await made(tmp_path, repo)
    (module / "a.txt").write_text("changed\n")
    git(module, "commit", "-q", "-a", "-m", "two")
    moved = git(module, "rev-parse", "HEAD")
    git(worktree.path, "update-index", "--cacheinfo", f"160000,{moved},module")
    git(worktree.path, "commit", "-q", "-m", "moved")
    git(repo, "config", "diff.submodule", "diff")
    git(repo, "config", "status.submoduleSummary", "true")
    git(module, "config", "diff.external", program(tmp_path, "external"))
    shutil.copytree(module, Path(worktree.path, "module"), dirs_exist_ok=True)
    assert f"+Subproject commit {moved}" in await changes.diff()
    assert ran(tmp_path) == []


FILTERS = ("clean", "smudge", "process")


def _for_the_worktree(tmp_path: Path, repo: Path, worktree: Worktree) -> None:
    git(repo, "config", "extensions.worktreeConfig", "true")
    for key in FILTERS:
        git(worktree.path, "config", "--worktree", f"filter.evil.{key}", program(tmp_path, key))


def _for_the_branch(tmp_path: Path, repo: Path, worktree: Worktree | None = None) -> None:
    for key in FILTERS:
        git(repo, "config", "--file", str(tmp_path / "included"), f"filter.evil.{key}", program(tmp_path, key))
    git(repo, "config", "includeIf.onbranch:worktree-mcp-*.path", str(tmp_path / "included"))


@pytest.mark.parametrize("configure", [_for_the_worktree, pytest.param(_for_the_branch, marks=pytest.mark.soak)])
async def test_a_filter_that_is_configured_for_a_worktree_alone_does_not_run(
    tmp_path: Path, repo: Path, configure: Callable[[Path, Path, Worktree], None]
) -> None:
    worktree, changes = await made(tmp_path, repo)
    configure(tmp_path, repo, worktree)
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    os.utime(os.path.join(worktree.path, "a.txt"), (1, 1))  # so that git looks at it again
    assert await changes.diff() == ""
    with pytest.raises(InvalidArgument, match="filters"):
        await changes.merge("All of it")
    await changes.discard(Unsaved())
    assert not Path(worktree.path).exists()
    assert ran(tmp_path) == []


async def test_a_filter_that_is_configured_for_branches_of_worktrees_does_not_run_and_leaves_none(
    tmp_path: Path, repo: Path
) -> None:
    _for_the_branch(tmp_path, repo)
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    with pytest.raises(InvalidArgument, match=r"\(evil\)"):
        await made(tmp_path, repo)
    assert ran(tmp_path) == []
    assert git(repo, "worktree", "list").count("\n") == 0
    assert git(repo, "branch", "--list", "worktree-*") == ""


@pytest.mark.skipif(not confined(), reason="the kernel cannot be told which programs may run")
async def test_a_filter_that_is_configured_after_the_look_cannot_be_executed(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of somebody else may change the configuration at any moment. So nothing is overridden here, as if every
    change came right after the look."""
    monkeypatch.setattr(git_module, "_without_programs", lambda _: [])
    worktree, changes = await made(tmp_path, repo)
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-directly\ncat\n")
    evil.chmod(0o755)
    for number, command in enumerate((str(evil), f"touch {tmp_path}/ran-shell; cat", "cat")):
        git(repo, "config", f"filter.evil{number}.clean", command)
        git(repo, "config", f"filter.evil{number}.smudge", command)
    git(repo, "config", "hook.evil.event", "post-index-change")
    git(repo, "config", "hook.evil.command", f"touch {tmp_path}/ran-hook")
    attributes = [f"{name} filter=evil{number}\n" for number, name in enumerate(("a.txt", "b.txt", "c.txt"))]
    (repo / ".git" / "info" / "attributes").write_text("".join(attributes))
    Path(worktree.path, "c.txt").write_text("c\n")
    Path(worktree.path, "a.txt").write_text("two\n")
    assert "+two" in await changes.diff()
    await changes.discard(None)
    assert ran(tmp_path) == []
    (repo / "a.txt").write_text("three\n")
    git(repo, "add", "a.txt")
    assert "ran-directly" in ran(tmp_path), "any other git runs it"


async def test_options_of_a_merge_that_a_branch_is_configured_with_do_not_count(tmp_path: Path, repo: Path) -> None:
    checker = tmp_path / "checker"
    checker.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-checker\n")
    checker.chmod(0o755)
    worktree, changes = await made(tmp_path, repo)
    git(worktree.path, "commit", "-q", "--allow-empty", "-m", "work")
    commit = tmp_path / "commit"
    unsigned = git(worktree.path, "cat-file", "commit", "HEAD")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n"
    commit.write_text(unsigned.replace("\n\n", f"\n{signature}", 1) + "\n")
    signed = git(worktree.path, "hash-object", "-t", "commit", "-w", str(commit))
    git(worktree.path, "reset", "-q", "--hard", signed)
    git(repo, "config", "gpg.program", str(checker))
    git(repo, "config", "branch.main.mergeOptions", "--verify-signatures --squash -s ours")
    await changes.merge(None)
    assert git(repo, "rev-parse", "main") == signed
    assert ran(tmp_path) == []


async def test_hooks_of_a_configuration_are_off_by_their_names_and_by_their_events(tmp_path: Path, repo: Path) -> None:
    """Git has them from 2.54 on, and turns off those of an event from 2.55 on."""
    (tmp_path / ".gitconfig").write_text('[hook "users"]\n\tevent = post-merge\n\tcommand = true\n')
    git(repo, "config", "hook.evil.event", "reference-transaction")
    git(repo, "config", "hook.evil.command", program(tmp_path, "hook"))
    git(repo, "config", "hook.evil.enabled", "true")
    runner = git_module.Git(home(tmp_path), (str(repo),))
    settings = (await runner.read("var", "-l", cwd=str(repo))).splitlines()
    for name in ("evil", "users", "reference-transaction", "post-index-change", "post-merge", "post-checkout"):
        given = [setting for setting in settings if setting.startswith(f"hook.{name}.enabled=")]
        assert given[-1:] == [f"hook.{name}.enabled=false"]
    _, changes = await made(tmp_path, repo)
    await changes.discard(None)
    assert ran(tmp_path) == []


async def test_a_partial_clone_fetches_nothing_by_its_own_configuration(tmp_path: Path, repo: Path) -> None:
    fetching = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "protocol.file.allow": "always",
        "remote.origin.url": str(repo),
        "remote.origin.promisor": "true",
        "remote.origin.uploadPack": f"touch {tmp_path}/ran-fetch; git-upload-pack",
    }
    for name, value in fetching.items():
        git(repo, "config", name, value)
    blob = git(repo, "rev-parse", "HEAD:a.txt")
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(InvalidArgument):
        await made(tmp_path, repo)
    assert ran(tmp_path) == []


async def test_a_configuration_with_very_many_programs_or_strange_names_is_refused(tmp_path: Path, repo: Path) -> None:
    with (repo / ".git" / "config").open("a") as file:
        file.writelines(f'[filter "f{number}"]\n\tclean = cat\n' for number in range(1000))
    with pytest.raises(InvalidArgument, match="programs"):
        await made(tmp_path, repo)


# -- time --------------------------------------------------------------------------------------------------------------


async def test_a_pipe_in_the_place_of_a_file_of_git_costs_no_more_than_the_time_of_a_run(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_module, "_SECONDS", 1.0)
    os.mkfifo(tmp_path / "pipe")
    git(repo, "config", "include.path", str(tmp_path / "pipe"))
    with pytest.raises(ProcessFailed, match=r"git\b.*\b1 s\b"):
        await made(tmp_path, repo)


# -- words -------------------------------------------------------------------------------------------------------------

Trick = Callable[[Path, Path], None]


def _git_file(repo: Path, outside: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(f"gitdir: {outside}\n")


def _git_link(repo: Path, outside: Path) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").symlink_to(outside)


def _common_directory(repo: Path, outside: Path) -> None:
    (repo / ".git" / "commondir").write_text(f"{outside}\n")


def _included(repo: Path, outside: Path) -> None:
    git(repo, "config", "include.path", str(outside))


def _work_tree(repo: Path, outside: Path) -> None:
    git(repo, "config", "core.worktree", str(outside))


def _head(repo: Path, outside: Path) -> None:
    (repo / ".git" / "HEAD").unlink()
    (repo / ".git" / "HEAD").symlink_to(outside)


def _branch(repo: Path, outside: Path) -> None:
    (repo / ".git" / "refs" / "heads" / "main").unlink()
    (repo / ".git" / "refs" / "heads" / "main").symlink_to(outside)


def _alternates(repo: Path, outside: Path) -> None:
    (repo / ".git" / "refs" / "heads" / "main").write_text("1" * 40 + "\n")
    (repo / ".git" / "objects" / "info" / "alternates").write_text(f"{outside}\n")


TRICKS = [_git_file, _git_link, _common_directory, _included, _work_tree, _head, _branch, _alternates]


def _missing(outside: Path) -> None:
    pass


def _file(outside: Path) -> None:
    outside.write_text("a secret of the operator\n")


def _directory(outside: Path) -> None:
    outside.mkdir()


def _repository(outside: Path) -> None:
    repository(outside)


def _bare(outside: Path) -> None:
    git(outside.parent, "init", "-q", "--bare", outside.name)


@pytest.mark.parametrize("trick", TRICKS)
async def test_no_answer_tells_what_there_is_outside_of_the_roots(tmp_path: Path, trick: Trick) -> None:
    answers = set()
    for number, make_outside in enumerate((_missing, _file, _directory, _repository, _bare)):
        place = tmp_path / f"{number}"
        repo = repository(place / "project")
        outside = place / "outside"
        make_outside(outside)
        trick(repo, outside)
        policy = Policy(default=Profile(roots=(str(repo),)))
        try:
            await made(place, repo, policy)
            answers.add("made")
        except ClaudeCodeError as error:
            answers.add(f"{error.code} {error.message}".replace(str(place), "PLACE"))
    assert len(answers) == 1, answers
    assert "PLACE/outside" not in answers.pop()


async def test_whoever_may_work_everywhere_is_told_more(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(InvalidArgument, match="checkout"):
        await made(tmp_path, tmp_path / "plain")
    inside = Policy(default=Profile(roots=(str(repo / "sub"),)))
    with pytest.raises(PermissionDenied, match="change"):
        await made(tmp_path, repo / "sub", inside)


def test_outside_of_a_sandbox_only_harmless_reasons_are_passed_on() -> None:
    errors = (
        "fatal: bad config line 1 in file /elsewhere/secret\nerror: Your local changes to the following files would be "
    )
    errors += "overwritten by merge:\n\ta.txt\nhint: something"
    assert Reply(1, "", errors).reason == (
        "error: Your local changes to the following files would be overwritten by merge:\n\ta.txt"
    )
    assert "/elsewhere/secret" in Reply(1, "", errors, enclosed=True).reason
    assert "/elsewhere" not in Reply(128, "", "fatal: bad config line 1 in file /elsewhere/secret").reason
