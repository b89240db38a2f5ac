"""What runs when a session comes to a machine or leaves it: the operator's hooks, and the set-up of its repository."""

from functools import partial
from pathlib import Path

import pytest

from claude_code_mcp.core.model.caller import LOCAL, LOCAL_CALLER
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.plugins.fleet.connection import FleetConnection
from claude_code_mcp.plugins.fleet.hooks import SETUP_FILE, Hooks, set_up
from claude_code_mcp.plugins.fleet.working_trees import TreeRef, TreeRefused, TreeStore
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.core.sessions.support import run
from tests.support.repositories import git, repository
from tests.support.waiting import until_true

from .machines import Ledger, machine
from .test_working_trees import contents, state, tools

SECRETS = {"ANTHROPIC_API_KEY": "sk-secret", "CLAUDE_CODE_MCP_TOKEN": "t-secret", "CLAUDE_CODE_OAUTH_TOKEN": "o-secret"}
REF = TreeRef(head=None, branch=None, index="a", files="b", digest="c", packs=())


def hooks(tmp_path: Path, **programs: str) -> Hooks:
    """Programs of a shell, `post_session` as `post-session`, in a directory of the operator's."""
    directory = tmp_path / "hooks"
    directory.mkdir(mode=0o700)
    for name, lines in programs.items():
        program = directory / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o700)
    return Hooks(directory, {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), **SECRETS})


async def test_a_checkout_hook_brings_the_history_that_the_fleet_does_not_store(
    fleet: FleetConnection, tmp_path: Path
) -> None:
    source = repository(tmp_path / "source")
    git(tmp_path, "clone", "-q", "--bare", str(source), "upstream.git")
    git(source, "remote", "add", "origin", f"file://name:password@{tmp_path}/upstream.git")
    git(source, "config", "remote.origin.url", f"file://name:password@{tmp_path}/upstream.git")
    git(source, "fetch", "-q", f"file://{tmp_path}/upstream.git", "+refs/heads/*:refs/remotes/origin/*")
    (source / "a.txt").write_text("not on the remote\n")
    git(source, "commit", "-qam", "second")
    (source / "a.txt").write_text("nor committed\n")
    store = TreeStore(fleet)
    ref = await store.save(tools(tmp_path), str(source), "s1")
    assert ref.remote_url == f"file://{tmp_path}/upstream.git", "a password stays where it is"
    assert ref.base == git(source, "rev-parse", "origin/main").strip()
    with pytest.raises(TreeRefused, match="commits"):
        await store.restore(tools(tmp_path), ref, str(tmp_path / "without"))
    lines = (
        'git clone -q -n "$CLAUDE_RUNNER_REPO_URL" "$CLAUDE_RUNNER_CHECKOUT_PATH" || exit 1\n'
        'git -C "$CLAUDE_RUNNER_CHECKOUT_PATH" checkout -q -B main "$CLAUDE_RUNNER_REPO_REF"'
    )
    checkout = partial(hooks(tmp_path, checkout=lines).checkout, "s1", ref)
    await store.restore(tools(tmp_path), ref, str(tmp_path / "there"), checkout)
    assert contents(tmp_path / "there") == contents(source)
    assert state(tmp_path / "there") == state(source)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("echo no such mirror >&2; exit 3", "exited with code 3: no such mirror"),
        ('touch "$CLAUDE_RUNNER_CHECKOUT_PATH/file"', "contains files but is not a checkout"),
    ],
)
async def test_a_checkout_that_fails_is_a_reason_not_to_take_the_session(
    fleet: FleetConnection, tmp_path: Path, lines: str, reason: str
) -> None:
    checkout = partial(hooks(tmp_path, checkout=lines).checkout, "s1", REF)
    with pytest.raises(TreeRefused, match=reason):
        await TreeStore(fleet).restore(tools(tmp_path), REF, str(tmp_path / "there"), checkout)


async def test_hooks_get_what_they_are_called_for_and_no_secret(tmp_path: Path) -> None:
    found = hooks(tmp_path, checkout="env > env-checkout", post_session="env > env-post; exit 1")
    directory = tmp_path / "workspace"
    directory.mkdir()
    assert await found.checkout("s1", REF.model_copy(update={"remote_url": "u", "base": "c"}), str(directory))
    await found.post_session("s1", "moved", str(directory))  # that it fails changes nothing
    for name, lines in {
        "env-checkout": ("REPO_URL=u", "REPO_REF=c", f"CHECKOUT_PATH={directory}"),
        "env-post": ("EXIT_REASON=moved", f"WORKSPACE_PATHS={directory}"),
    }.items():
        printed = (directory / name).read_text()
        assert {f"CLAUDE_RUNNER_{line}" for line in ("SESSION_ID=s1", *lines)} <= {*printed.splitlines()}
        assert "secret" not in printed


@pytest.mark.parametrize("changed", ["hooks", "hooks/checkout"])
async def test_a_hook_that_others_can_change_is_not_run(tmp_path: Path, changed: str) -> None:
    found = hooks(tmp_path, checkout="touch ran", post_session="touch ran")
    (tmp_path / changed).chmod(0o722)
    with pytest.raises(TreeRefused, match=r"other users can change"):
        await found.checkout("s1", REF, str(tmp_path))
    if changed == "hooks":
        await found.post_session("s1", "moved", str(tmp_path))
    assert not (tmp_path / "ran").exists()
    (tmp_path / "hooks" / "checkout").unlink()
    (tmp_path / "hooks").chmod(0o700)
    assert not await found.checkout("s1", REF, str(tmp_path)), "without a hook everything is as it was"


@pytest.mark.soak
async def test_a_move_runs_the_hooks_and_the_set_up_that_the_policy_allows(
    fleet: FleetConnection, tmp_path: Path, model: ScriptedModelThread
) -> None:
    source = repository(tmp_path / "source")
    (source / SETUP_FILE).write_text("touch installed.log\n")  # ignored, so that it does not travel
    policy = parse_policy('[profiles.mine]\nbase = "local"\nallow = ["Bash(touch installed.log)"]\n', "p", "mine")
    left = hooks(tmp_path, post_session=f"echo $CLAUDE_RUNNER_EXIT_REASON > {tmp_path}/left")
    ledger = Ledger()
    async with (
        machine("one", fleet, ledger, tmp_path, model.url, hooks=left) as one,
        machine("two", fleet, ledger, tmp_path, model.url, policy=policy) as two,
    ):
        session, outcome = await run(one.service, script("begin", "yes"), SessionOptions(cwd=str(source)))
        assert outcome.ok, outcome
        refused = await set_up(one.service, LOCAL_CALLER, str(source))
        assert "policy" in refused
        assert not (source / "installed.log").exists()
        await one.mover.give(session.id, LOCAL_CALLER)
        adopted = await two.mover.take(session.id, LOCAL, str(tmp_path / "there"))
        assert adopted.setup_failed == ""
        assert (tmp_path / "there" / "installed.log").exists()
        await until_true(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text() == "moved\n")
        (tmp_path / "there" / SETUP_FILE).write_text("touch installed.log; touch more")
        assert "policy" in await set_up(two.service, LOCAL_CALLER, str(tmp_path / "there"))
        (tmp_path / "there" / SETUP_FILE).unlink()
        (tmp_path / "there" / SETUP_FILE).symlink_to(source / SETUP_FILE)
        assert await set_up(two.service, LOCAL_CALLER, str(tmp_path / "there")) == "", "nothing behind a link is run"
