"""The policy at work: real sessions, real tools, and nobody there to answer."""

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import LimitReached, PermissionDenied, SessionNotFound
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event, QuestionOpened, QuestionSettled
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer, Scope
from claude_code_mcp.core.policy.policy import OPEN_PROFILE, GroupBudget, Limits, Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.support.system_packages import require

from .support import ENDLESS, PATIENCE, end_of, events, options, question, run, say

BASH_RULES = Profile(
    allow=tuple(map(parse_rule, ["Bash(touch made)", "Bash(touch ran)", "Bash(echo *)"])),
    deny=tuple(map(parse_rule, ["Bash(rm *)", "Write"])),
)


class Acts:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.seen: list[AuditEvent] = []

    def act(self, act: AuditEvent) -> None:
        self.seen.append(act)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Not of interest here."""

    def kinds(self) -> list[AuditKind]:
        return [act.kind for act in self.seen]


async def start(start_service: StartService, profile: Profile, **more: Any) -> Service:
    service = await start_service(policy=Policy(profile), **more)
    assert isinstance(service, Service)
    return service


async def test_rules_answer_without_asking_and_bind_every_answer(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start(start_service, BASH_RULES)
    (sandbox.project / "kept").touch()
    prompt = script("work", tool("Bash", command="touch made && echo done"), "finished")
    session, outcome = await run(service, prompt, options(sandbox))
    assert (outcome.result, outcome.permission_denials) == ("finished", ())
    assert (sandbox.project / "made").exists()
    settled = events(session, QuestionSettled)
    assert [(one.resolution.by, one.resolution.answer and one.resolution.answer.allow) for one in settled] == [
        ("policy", True)
    ]
    assert len(events(session, QuestionOpened)) == 1
    asked = next(one for one in reversed(model.requests) if one.session_id == session.id and one.tools)
    assert "Write" not in asked.tools, "a denied tool is not there"
    assert "Bash" in asked.tools

    prompt = script("work", tool("Bash", command="echo a; rm -rf kept"), text("${tool_result}"))
    outcome = await say(service, session, prompt)
    assert (sandbox.project / "kept").exists()
    assert "Bash(rm *)" in outcome.result

    turn = await service.send(session.id, script("work", tool("Bash", command="mkdir directory"), "done"))
    question_id = await question(session)
    with pytest.raises(PermissionDenied):
        service.respond(session.id, question_id, Answer(allow=True, updated_input={"command": "rm kept"}))
    service.respond(session.id, question_id, Answer(allow=True))
    assert (await end_of(turn)).result == "done"
    assert (sandbox.project / "kept").exists(), "an answer cannot turn a call into a denied one"


@pytest.mark.soak  # in tests/core/policy; that denials hold: the test above and below
async def test_what_the_policy_denies_a_caller_cannot_allow_beforehand_nor_hide(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start(start_service, BASH_RULES)
    (sandbox.project / "kept").touch()
    session, _ = await run(service, script("hello", "there"), options(sandbox, allowed_tools=("Bash",)))
    for command in ("echo a; rm kept", "sh -c 'rm kept'", "env rm kept", "/bin/rm kept"):
        prompt = script("work", tool("Bash", command=command), text("${tool_result}"))
        assert "policy" in (await say(service, session, prompt)).result, command
        assert (sandbox.project / "kept").exists(), command
    could_hide_it = (
        "x=hidden; $(echo touch) $x",
        "echo 'touch hidden' | sh",
        "trap 'tou\\ch hidden' EXIT",
        "git -c alias.x='!t' x",
    )
    prompt = script("work", *(tool("Bash", command=command) for command in could_hide_it), "done")
    turn = await service.send(session.id, prompt)
    for _ in could_hide_it:
        service.respond(session.id, await question(session), Answer(allow=False))
    await end_of(turn)
    assert not (sandbox.project / "hidden").exists()
    turn = await service.send(session.id, script("work", tool("Bash", command="ls; make all"), "done"))
    asked = await question(session)
    assert "'make' may run other programs or write files" in str(session.questions[0].reason)
    service.respond(session.id, asked, Answer(allow=False))
    await end_of(turn)


async def test_denials_hold_where_permissions_are_bypassed(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start(start_service, BASH_RULES)
    (sandbox.project / "kept").touch()
    prompt = script("work", tool("Bash", command="touch ran; rm kept"), tool("Bash", command="touch ran"), "done")
    bypassing = options(sandbox, permission_mode="bypassPermissions", env={"IS_SANDBOX": "1"})  # as root, too
    await run(service, prompt, bypassing)
    assert (sandbox.project / "kept").exists()
    assert (sandbox.project / "ran").exists()


@pytest.mark.soak  # tests/scenarios/attacks/test_directories.py
async def test_git_takes_no_directory_for_a_repository_that_only_looks_like_one(
    start_service: StartService, sandbox: Sandbox
) -> None:
    """A session could write such a directory file by file, with a program among its settings."""
    _make_lookalike(sandbox.project)
    prompt = script("work", tool("Bash", command="cd lookalike"), tool("Bash", command="git status"), "done")
    allow = (parse_rule("Bash"), parse_rule("Bash(git status)"))
    limited = await start(start_service, Profile(allow=allow, deny=(parse_rule("Bash(rm *)"),)))
    _, outcome = await run(limited, prompt, options(sandbox))
    assert (outcome.result, outcome.permission_denials) == ("done", ())
    assert not (sandbox.project / "ran").exists()
    await run(await start(start_service, Profile(allow=allow[:1])), prompt, options(sandbox))
    assert (sandbox.project / "ran").exists()


def _make_lookalike(project: Path) -> None:
    require("git")
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for arguments in (
        ("init", "-q", "lookalike-origin"),
        ("-C", "lookalike-origin", *author, "commit", "-q", "--allow-empty", "-m", "first"),
        ("clone", "-q", "--bare", "lookalike-origin", "lookalike"),
        ("--git-dir=lookalike", "--work-tree=.", "read-tree", "HEAD"),
    ):
        subprocess.run(["git", *arguments], cwd=project, check=True, capture_output=True)
    settings = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n"
    (project / "lookalike" / "config").write_text(f"{settings}\tfsmonitor = touch {project}/ran; true\n")


async def test_only_the_tools_of_the_list_are_there(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start(start_service, Profile(tools=("Read",)))
    prompt = script("work", tool("Bash", command="touch made"), "seen")
    session, _ = await run(service, prompt, options(sandbox))
    asked = next(one for one in reversed(model.requests) if one.session_id == session.id and one.tools)
    assert set(asked.tools) & {"Read", "Bash", "Write", "Edit"} == {"Read"}
    assert not (sandbox.project / "made").exists()


@pytest.mark.soak  # a plan does not either: tests/scenarios/security/test_ceilings.py
async def test_allowing_for_the_session_does_not_lift_the_mode_above_its_ceiling(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start(start_service, Profile(mode_ceiling="default"))
    edits = [tool("Write", file_path=str(sandbox.project / name), content="x") for name in ("one", "two")]
    turn = await service.create(script("write", *edits, "done"), options(sandbox))
    session = turn.session
    first = await question(session)
    assert "setMode" not in {one.get("type") for one in session.questions[0].suggestions}
    service.respond(session.id, first, Answer(allow=True, scope=Scope.ONCE))
    second = await question(session)
    assert second != first
    service.respond(session.id, second, Answer(allow=False))
    await end_of(turn)
    assert not (sandbox.project / "two").exists()


async def test_roots_hold_against_links_and_variables_against_poison(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path
) -> None:
    acts = Acts()
    profile = Profile(roots=(str(sandbox.project),), env=("*",))
    service = await start(start_service, profile, observers=[acts])
    (sandbox.project / "escape").symlink_to("/")
    with pytest.raises(PermissionDenied) as caught:
        await service.create("go", SessionOptions(cwd=str(sandbox.project / "escape" / "tmp")))
    assert caught.value.data["field"] == "cwd"
    with pytest.raises(PermissionDenied) as caught:
        await service.create("go", options(sandbox, env={"LD_PRELOAD": "/tmp/evil.so"}))
    assert caught.value.data["field"] == "env"
    assert acts.kinds() == [AuditKind.REFUSED, AuditKind.REFUSED]
    assert service.sessions(principal=None) == []


async def test_a_session_on_disk_outside_the_roots_cannot_be_taken_up(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path
) -> None:
    free = await start(start_service, Profile())
    outside = tmp_path / "outside"
    outside.mkdir()
    session, _ = await run(free, script("hello", "there"), SessionOptions(cwd=str(outside)))
    bound = await start(start_service, Profile(roots=(str(sandbox.project),)))
    with pytest.raises(PermissionDenied):
        await bound.send(session.id, "go on")
    with pytest.raises(PermissionDenied):
        await bound.fork(session.id, "go on")


@pytest.mark.soak  # how they are counted: below
async def test_each_caller_has_a_limited_number_of_sessions_busy(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start(start_service, Profile(limits=Limits(sessions=1)))
    work = script("work", tool("Bash", command=ENDLESS))
    given = options(sandbox, allowed_tools=("Bash",))
    made = await asyncio.gather(
        *(service.create(work, given, caller=Caller("alice")) for _ in range(4)), return_exceptions=True
    )
    refused = [one for one in made if isinstance(one, LimitReached)]
    assert len(refused) == 3
    await service.create(work, given, caller=Caller("bob"))
    [first] = [one.session for one in made if isinstance(one, PendingTurn)]
    await service.interrupt(first.id, caller=Caller("alice"))
    await service.create(work, given, caller=Caller("alice"))


@pytest.mark.soak  # tests/scenarios/attacks/test_budgets.py, tests/core/state/test_spending.py
async def test_the_budget_of_a_day_outlives_the_server(start_service: StartService, sandbox: Sandbox) -> None:
    profile = Profile(limits=Limits(daily_usd=0.000001))
    service = await start(start_service, profile)
    turn = await service.create(script("work", "done"), options(sandbox), caller=Caller("alice"))
    session = turn.session
    await end_of(turn)
    assert session.costs.spent_usd > 0.000001
    with pytest.raises(LimitReached):
        await service.send(session.id, "more", caller=Caller("alice"))
    with pytest.raises(LimitReached):
        await service.create("more", options(sandbox), caller=Caller("alice"))
    turn = await service.create(script("work", "done"), options(sandbox), caller=Caller("bob"))
    await end_of(turn)
    again = await start(start_service, profile)
    with pytest.raises(LimitReached):
        await again.create("more", options(sandbox), caller=Caller("alice"))


async def test_limits_reach_the_process(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start(start_service, Profile(limits=Limits(turns=1, turn_seconds=600)))
    prompt = script("work", tool("Bash", command="echo 1"), "never said")
    session, outcome = await run(service, prompt, options(sandbox, allowed_tools=("Bash",)))
    assert outcome.code.value == "max_turns"
    assert session.options.turn_timeout == 600
    with pytest.raises(PermissionDenied):
        await service.send(session.id, "more", timeout=601)


async def test_bypassing_must_be_switched_on_and_can_be_switched_off(
    start_service: StartService, sandbox: Sandbox
) -> None:
    acts = Acts()
    service = await start(start_service, Profile(bypass="confirm"), observers=[acts], extra={"IS_SANDBOX": "1"})
    bypassing = options(sandbox, permission_mode="bypassPermissions")
    with pytest.raises(PermissionDenied):
        await service.create("go", bypassing)
    service.policy_for(Caller("local")).set_bypass(True)
    session, outcome = await run(service, script("work", tool("Bash", command="touch ran"), "done"), bypassing)
    assert outcome.result == "done"
    assert (sandbox.project / "ran").exists()
    with pytest.raises(PermissionDenied):
        await service.create("go", bypassing, caller=Caller("somebody else"))
    for _ in range(100):  # only the first changes anything
        service.policy_for(Caller("local")).set_bypass(False)
    with pytest.raises(PermissionDenied):
        await service.send(session.id, "more")
    assert [act.details["on"] for act in acts.seen if act.kind is AuditKind.BYPASS_SWITCHED] == [True, False]


async def test_where_it_is_never_allowed_bypassing_cannot_be_switched_on(start_service: StartService) -> None:
    service = await start(start_service, Profile(bypass="never"))
    assert not service.policy_for(Caller("local")).bypass_possible
    with pytest.raises(PermissionDenied):
        service.policy_for(Caller("local")).set_bypass(True)
    assert not service.policy_for(Caller("local")).bypass_on


@pytest.mark.soak  # tests/core/audit/test_audit.py; by a server: tests/scenarios/security/test_attacks.py
async def test_observers_get_actor_and_session_of_every_action(start_service: StartService, sandbox: Sandbox) -> None:
    acts = Acts()
    service = await start(start_service, Profile(), observers=[acts])
    turn = await service.create(script("one", "1"), options(sandbox), caller=Caller("alice"))
    session = turn.session
    await end_of(turn)
    await say(service, session, script("two", "2"), caller=Caller("alice"))
    turn = await service.fork(session.id, script("three", "3"), caller=Caller("alice"))
    fork = turn.session
    await end_of(turn)
    await service.interrupt(fork.id, caller=Caller("alice"))
    await service.cancel(fork.id, caller=Caller("alice"))
    with pytest.raises(SessionNotFound, match="There is no session"):
        await service.send(session.id, "mine?", caller=Caller("mallory"))
    assert [(act.kind, act.who, act.session_id) for act in acts.seen] == [
        (AuditKind.SESSION_CREATED, "alice", session.id),
        (AuditKind.MESSAGE_SENT, "alice", session.id),
        (AuditKind.SESSION_FORKED, "alice", fork.id),
        (AuditKind.INTERRUPTED, "alice", fork.id),
        (AuditKind.CANCELLED, "alice", fork.id),
        (AuditKind.REFUSED, "mallory", session.id),
    ]


async def test_a_call_that_is_cancelled_while_it_reserves_keeps_nothing_of_the_day(
    start_service: StartService, sandbox: Sandbox
) -> None:
    limited = OPEN_PROFILE.model_copy(update={"limits": Limits(daily_usd=10, sessions=1)})
    service = await start_service(policy=Policy(limited))
    reserving, go_on = asyncio.Event(), threading.Event()
    loop, reserve = asyncio.get_running_loop(), service._enforcer.limits.spending.reserve

    def busy_database(*arguments: Any) -> float:
        loop.call_soon_threadsafe(reserving.set)
        go_on.wait(PATIENCE)
        return float(reserve(*arguments))

    service._enforcer.limits.spending.reserve = busy_database
    call = asyncio.ensure_future(service.create(script("a", "x"), options(sandbox)))
    await reserving.wait()
    call.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    service._enforcer.limits.spending.reserve = reserve
    _, outcome = await run(service, script("b", "y"), options(sandbox))
    assert outcome.result == "y"


async def test_a_session_counts_until_the_last_of_its_messages_is_accepted(start_service: StartService) -> None:
    only_one = Limits(sessions=1)
    service = await start_service(policy=Policy(OPEN_PROFILE.model_copy(update={"limits": only_one})))
    first, second = (service._enforcer.limits.room("one", "local", only_one, ()) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(LimitReached), service._enforcer.limits.room("another", "local", only_one, ()):
        pass
    second.__exit__(None, None, None)
    with service._enforcer.limits.room("another", "local", only_one, ()):
        assert "another" in service._enforcer.limits._admitting["local"]


@pytest.mark.soak  # tests/scenarios/attacks/test_budgets.py
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        # Which amounts count for which budget: tests/core/state/test_spending.py.
        pytest.param(
            Policy(OPEN_PROFILE.model_copy(update={"limits": Limits(monthly_usd=5)})),
            "Your budget of $5 for this month",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            Policy(OPEN_PROFILE, budgets={"leads": GroupBudget(daily_usd=5)}),
            "of the group leads of $5 for today",
            marks=pytest.mark.soak,
        ),
        (
            Policy(OPEN_PROFILE, budgets={"leads": GroupBudget(monthly_usd=5)}),
            "of the group leads of $5 for this month",
        ),
    ],
    ids=["month", "day of a group", "month of a group"],
)
async def test_a_budget_that_is_spent_ends_what_comes_next_and_says_which(
    start_service: StartService, sandbox: Sandbox, policy: Policy, said: str
) -> None:
    for name in ("alice", "bob"):
        policy.assign(name, ["leads"])
    service = await start_service(policy=policy, principals=["alice", "bob", "carol"])
    spending, spender = service._enforcer.limits.spending, "bob" if policy.budgets else "alice"
    _, outcome = await run(service, script("a", "x"), options(sandbox), caller=Caller("alice"))
    assert outcome.result == "x"
    await asyncio.to_thread(spending.write, spending.note(spender, 5.0))
    with pytest.raises(LimitReached) as refused:
        await service.create(script("b", "y"), options(sandbox), caller=Caller("alice"))
    assert said in refused.value.message
    _, outcome = await run(service, script("c", "z"), options(sandbox), caller=Caller("carol"))
    assert outcome.result == "z", "who is not in the group goes on"
    found = {(budget.period, budget.group): spent for budget, spent in service.policy_for(Caller("alice")).budgets()}
    assert min(found.values()) >= 5.0
