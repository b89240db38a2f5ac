"""Sessions in a sandbox, on the real CLI: what they reach, whose credentials they have, and how they end."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.sandbox.settings import SandboxSettings
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.claude.conftest import gone
from tests.core.sessions.support import end_of, parked, question, run, say
from tests.support.bubblewrap import missing
from tests.support.repositories import git, repository

KEY = "sk-ant-real-key-of-the-operator-0123456789"
TWO = ("alice", "bob")
OF_SESSIONS = ("projects", "file-history", "tasks")
"""Where sessions write in the directory of the user."""

needs_bubblewrap = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def policy(sandbox: Sandbox, **entries: Any) -> Policy:
    return Policy(Profile(**{"isolation": "sandbox", "roots": (str(sandbox.project),), **entries}))


async def seen(service: Service, sandbox: Sandbox, command: str, owner: str = "alice") -> str:
    """What a command says in a session of its own."""
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    prompt = script("look", tool("Bash", command=f"{{ {command}; }} > seen 2>&1; true"), "done")
    assert (await end_of(await service.create(prompt, options, caller=Caller(owner)))).result == "done"
    return (sandbox.project / "seen").read_text()


# -- whether there is one -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("principals", [(), ("alice",)], ids=["none", "one"])
async def test_a_single_caller_is_served_without_a_sandbox_where_there_can_be_none(
    start_service: StartService, sandbox: Sandbox, principals: tuple[str, ...]
) -> None:
    service = await start_service(
        extra={"PATH": "/nowhere"}, policy=policy(sandbox, isolation="auto"), principals=principals
    )
    assert (await service.stored.entries(caller=Caller("alice"))) == []


@pytest.mark.parametrize(
    ("isolation", "principals"), [("auto", TWO), ("sandbox", TWO), ("sandbox", ("alice",)), ("sandbox", ())]
)
async def test_the_start_is_refused_where_there_must_be_a_sandbox_and_cannot(
    start_service: StartService, sandbox: Sandbox, isolation: str, principals: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await start_service(
            extra={"PATH": "/nowhere"}, policy=policy(sandbox, isolation=isolation), principals=principals
        )
    assert "bubblewrap (bwrap) is not installed" in refusal.value.message
    assert 'isolation = "none"' in refusal.value.message


async def test_several_callers_are_served_without_a_sandbox_if_the_operator_says_so(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(extra={"PATH": "/nowhere"}, policy=policy(sandbox, isolation="none"), principals=TWO)
    assert (await service.stored.entries(caller=Caller("bob"))) == []


# -- the network and the key ----------------------------------------------------------------------------------------


@needs_bubblewrap
async def test_without_network_a_session_reaches_the_model_and_nothing_else_and_never_sees_the_key(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start_service(extra={"ANTHROPIC_API_KEY": KEY}, policy=policy(sandbox, network="model"))
    port = model.url.rpartition(":")[2]
    command = f"env; cat /proc/*/environ; bash -c 'exec 5<>/dev/tcp/127.0.0.1/{port}' && echo reached || echo no way"
    said = await seen(service, sandbox, command)
    assert "no way" in said
    assert KEY not in said
    assert model.requests[-1].headers["x-api-key"] == KEY


@needs_bubblewrap
@pytest.mark.parametrize("isolation", ["none", "auto"])
def test_a_network_that_nothing_enforces_is_no_valid_policy(isolation: str) -> None:
    with pytest.raises(ValueError, match="needs isolation"):
        Profile(isolation=isolation, network="model")  # type: ignore[arg-type]


# -- what can be given ----------------------------------------------------------------------------------------------


@needs_bubblewrap
async def test_a_caller_that_names_its_directories_cannot_name_what_is_the_operators(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=policy(sandbox, roots=None), principals=TWO)
    theirs = sandbox.root / "state" / "principals" / "of-another" / "claude"
    for protected in (theirs, sandbox.home / ".ssh" / "keys", sandbox.home / ".claude" / "projects"):
        protected.mkdir(parents=True)
    for protected in (theirs, sandbox.home / ".ssh" / "keys", sandbox.home / ".claude", sandbox.home, sandbox.root):
        (sandbox.project / "link").unlink(missing_ok=True)
        (sandbox.project / "link").symlink_to(protected)
        project, link = str(sandbox.project), str(sandbox.project / "link")
        for requested in ({"cwd": link}, {"cwd": project, "additional_directories": (str(protected),)}):
            with pytest.raises(PermissionDenied):
                await service.create(script("go", "never"), SessionOptions(**requested), caller=Caller("alice"))


# -- credentials ----------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_each_principal_has_the_credentials_that_the_operator_gave_it(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread, tmp_path: Path
) -> None:
    directory = tmp_path / "credentials"
    directory.mkdir(mode=0o700)
    (directory / "alice.env").touch(mode=0o600)
    (directory / "alice.env").write_text("# of Alice\nANTHROPIC_API_KEY=sk-alice-0123456789\n")
    service = await start_service(
        policy=policy(sandbox, isolation="none"),
        principals=TWO,
        sections=[SandboxSettings(principal_credentials=directory)],
    )
    assert "ANTHROPIC_API_KEY=sk-alice-0123456789" in await seen(service, sandbox, "env", "alice")
    assert model.requests[-1].headers["x-api-key"] == "sk-alice-0123456789"
    options = SessionOptions(cwd=str(sandbox.project))
    outcome = await end_of(await service.create(script("go", "never"), options, caller=Caller("bob")))
    assert not outcome.ok
    assert "sk-scripted" not in outcome.detail + outcome.result


async def test_credentials_that_others_can_read_stop_the_start(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "bob.env").write_text("ANTHROPIC_API_KEY=x\n")
    (tmp_path / "bob.env").chmod(0o644)
    settings = SandboxSettings(principal_credentials=tmp_path)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        await start_service(policy=policy(sandbox, isolation="none"), principals=TWO, sections=[settings])


@pytest.mark.soak
async def test_a_login_is_copied_to_each_principal_and_not_over_a_newer_one(
    start_service: StartService, sandbox: Sandbox
) -> None:
    login = sandbox.home / ".claude" / ".credentials.json"
    login.parent.mkdir(exist_ok=True)
    login.write_text('{"first": 1}')
    service = await start_service(
        policy=policy(sandbox, isolation="none"),
        principals=TWO,
        sections=[SandboxSettings(principal_credentials="login")],
    )
    await seen(service, sandbox, "true", "alice")
    (copy,) = sandbox.root.glob("state/principals/alice-*/claude/.credentials.json")
    assert copy.read_text() == '{"first": 1}'
    assert copy.stat().st_mode & 0o777 == 0o600
    copy.write_text('{"renewed": 1}')
    os.utime(login, (1, 1))
    await seen(service, sandbox, "true", "alice")
    assert copy.read_text() == '{"renewed": 1}'


# -- with the directory of the user ---------------------------------------------------------------------------------


@needs_bubblewrap
async def test_a_single_caller_has_the_users_conversations_and_settings_but_cannot_change_the_settings(
    start_service: StartService, sandbox: Sandbox
) -> None:
    claude = sandbox.home / ".claude"
    (claude / "agents").mkdir(parents=True)
    (claude / "settings.json").write_text('{"env": {"FROM_THE_USER": "1"}}')
    (claude / "history.jsonl").write_text("typed by hand\n")
    (sandbox.home / ".claude.json").write_text('{"mcpServers": {"private": {"command": "x"}}}')
    service = await start_service(policy=policy(sandbox), principals=("alice",))
    command = (
        f"echo $FROM_THE_USER; cat {claude}/history.jsonl {sandbox.home}/.claude.json; ls {claude}; "
        f"echo '{{}}' > {claude}/settings.json; touch {claude}/agents/evil.md {claude}/hooks.js"
    )
    said = await seen(service, sandbox, command)
    assert said.splitlines()[0] == "1"
    assert "typed by hand" not in said
    assert "private" not in said
    assert (claude / "settings.json").read_text() == '{"env": {"FROM_THE_USER": "1"}}'
    assert {path.name for path in claude.iterdir()} == {*("agents", "history.jsonl", "settings.json"), *OF_SESSIONS}
    assert not list((claude / "agents").iterdir())
    (entry,) = await service.stored.entries(caller=Caller("alice"))
    assert list(claude.glob(f"projects/*/{entry.session_id}.jsonl"))


@needs_bubblewrap
async def test_a_session_in_a_sandbox_is_parked_resumed_and_stopped_while_it_asks(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=policy(sandbox))
    options = SessionOptions(cwd=str(sandbox.project))
    session, outcome = await run(service, script("go", "one"), options)
    assert outcome.result == "one"
    first = psutil.Process(session.pid).children(recursive=True)
    await parked(session)
    assert (await say(service, session, script("go", "two"))).result == "two"
    await service.send(session.id, script("go", tool("Bash", command="touch never"), "done"))
    await question(session)
    second = psutil.Process(session.pid).children(recursive=True)
    await service.cancel(session.id)
    await session.closed()
    assert first
    assert second
    for process in (*first, *second):
        await gone(process.pid)


@pytest.mark.soak
@needs_bubblewrap
async def test_commands_in_a_sandbox_ignore_no_signal_that_others_do_not(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=policy(sandbox))
    ignored = int((await seen(service, sandbox, "grep SigIgn /proc/self/status")).split()[-1], 16)
    assert not ignored & 1 << (signal.SIGTERM - 1)


@needs_bubblewrap
async def test_a_sandbox_is_never_given_the_whole_machine(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(policy=policy(sandbox, roots=None))
    with pytest.raises(PermissionDenied, match="the whole machine"):
        await service.create("go", SessionOptions(cwd="/"))
    options = SessionOptions(cwd=str(sandbox.project), debug_file=str(sandbox.root / "debug.log"))
    with pytest.raises(PermissionDenied, match="debug_file"):
        await service.create("go", options)


# -- worktrees ------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@needs_bubblewrap
@pytest.mark.parametrize("rooted", [True, False], ids=["within roots", "without roots"])
async def test_a_session_commits_in_its_worktree_and_git_of_the_server_is_in_the_sandbox_too(
    start_service: StartService, sandbox: Sandbox, rooted: bool
) -> None:
    repo = repository(sandbox.project)
    service = await start_service(policy=policy(sandbox, **({} if rooted else {"roots": None})))
    secret = sandbox.root / "outside"
    secret.write_text("of the operator")
    # What the session configures does not run in the server's git, not even in the sandbox.
    spy = f"cat {secret} > {repo}/.git/stolen; cat"
    command = (
        "git config user.name X; git config user.email x@y; echo 1 > new; git add new; git commit -q -m new; "
        f"git config filter.spy.clean '{spy}'; echo '* filter=spy' > .gitattributes; echo 2 > new"
    )
    options = SessionOptions(cwd=str(repo), allowed_tools=("Bash",), worktree=True)
    session, outcome = await run(service, script("Work", tool("Bash", command=command), "done"), options)
    assert outcome.result == "done"
    assert git(session.cwd, "log", "-1", "--format=%s") == "new"
    assert "+2" in await service.work.diff(session.id)
    with pytest.raises(InvalidArgument, match="filters"):
        await service.work.merge(session.id, "The rest")
    git(repo, "config", "--remove-section", "filter.spy")
    await service.work.merge(session.id, "The rest")
    assert (repo / "new").read_text() == "2\n"
    assert not (repo / ".git" / "stolen").exists()
    await service.work.discard(session.id, None)
    assert git(repo, "worktree", "list").count("\n") == 0
