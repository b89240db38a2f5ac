"""Every tool call gets a verdict at once, and every denial is in the audit trail."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event
from claude_code_mcp.core.model.question import Answer, Scope
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.policy.rules import Decision, parse_rule
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import PATIENCE, end_of, options, question, run

DENIES = Profile(allow=(parse_rule("Bash"),), deny=tuple(map(parse_rule, ["Bash(rm *)", "Read(secret/**)"])))
WRAPPED = "/bin/timeout 9 " * 1000 + "sh evil.sh"
"""Deeper than a reader that calls itself for each wrapper can go."""
NO_PATH = "\ud800"
"""A text that JSON can carry and no file system can look up."""


class Denials:
    """An observer that keeps the denied calls."""

    def __init__(self) -> None:
        self.seen: list[AuditEvent] = []

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.CALL_DENIED:
            self.seen.append(act)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Not of interest here."""

    def __iter__(self) -> Iterator[tuple[object, object, object]]:
        return ((act.details["tool"], act.details["rule"], act.details["occasion"]) for act in self.seen)


@pytest.fixture
def denials() -> Denials:
    return Denials()


@pytest.fixture
async def service(start_service: StartService, denials: Denials) -> Service:
    service = await start_service(policy=Policy(DENIES), observers=[denials])
    assert isinstance(service, Service)
    return service


async def test_a_call_that_a_rule_denies_is_audited_with_the_rule(
    service: Service, denials: Denials, sandbox: Sandbox
) -> None:
    prompt = script("work", tool("Bash", command="echo a; rm -rf kept"), text("${tool_result}"))
    session, outcome = await run(service, prompt, options(sandbox))
    assert "Bash(rm *)" in outcome.result
    assert list(denials) == [("Bash", "Bash(rm *)", "hook")]
    (act,) = denials.seen
    assert (act.who, act.session_id) == (session.owner, session.id)
    assert "rm -rf kept" in str(act.details["description"])


async def test_a_command_behind_a_thousand_wrappers_is_answered_at_once(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("work", tool("Bash", command=WRAPPED), "done"), options(sandbox))
    async with asyncio.timeout(PATIENCE):
        service.respond(turn.session.id, await question(turn.session), Answer(allow=False))
    assert (await end_of(turn)).result == "done"


async def test_a_call_that_cannot_be_judged_is_denied_at_once_and_audited(
    service: Service, denials: Denials, sandbox: Sandbox
) -> None:
    session, _ = await run(service, script("hello", "there"), options(sandbox))
    reply = session.verdicts.reply_to_hook(
        {"input": {"tool_name": "Read", "tool_input": {"file_path": NO_PATH}}, "tool_use_id": "toolu_1"}
    )
    assert reply["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert "could not be checked" in reply["hookSpecificOutput"]["permissionDecisionReason"]
    reply = session.verdicts.reply_to_hook(
        {"input": {"tool_name": "Bash", "tool_input": {"command": "ls"}, "agent_id": "a", "cwd": NO_PATH}}
    )
    assert reply["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert list(denials) == [("Read", "error", "hook"), ("Bash", "error", "hook")]


async def asked(service: Service, sandbox: Sandbox) -> Session:
    """A session with an open question."""
    turn = await service.create(script("work", tool("Bash", command="make all"), "done"), options(sandbox))
    await question(turn.session)
    return turn.session


async def test_an_answer_cannot_allow_what_the_policy_denies_by_now(
    start_service: StartService, sandbox: Sandbox
) -> None:
    policy = Policy(Profile(allow=(parse_rule("Bash(ls)"),)), groups={"guests": DENIES, "readers": Profile(tools=())})
    denials = Denials()
    service = await start_service(policy=policy, observers=[denials])
    assert isinstance(service, Service)
    session = await asked(service, sandbox)
    (open_question,) = session.questions
    policy.assign(session.owner, ["readers"])
    with pytest.raises(PermissionDenied, match="this tool may not be used"):
        service.respond(session.id, open_question.id, Answer(allow=True))
    assert list(denials) == [("Bash", "tools", "answer")]
    policy.assign(session.owner, ["guests"])
    with pytest.raises(PermissionDenied, match=r"Bash\(rm \*\)"):
        service.respond(session.id, open_question.id, Answer(allow=True, updated_input={"command": "rm x"}))
    assert session.questions == [open_question], "it is still open"
    service.respond(session.id, open_question.id, Answer(allow=False))


async def test_an_answer_that_cannot_be_handed_on_is_a_denial(
    service: Service, denials: Denials, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = script("work", tool("Bash", command="make all"), text("${tool_result}"))
    turn = await service.create(prompt, options(sandbox))
    question_id = await question(turn.session)

    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(turn.session.readable_lines, "input_changed", fail)
    service.respond(turn.session.id, question_id, Answer(allow=True, updated_input={"command": "touch made"}))
    assert "could not be checked" in (await end_of(turn)).result
    assert not (sandbox.project / "made").exists()
    assert list(denials) == [("Bash", "error", "answer")]


async def test_an_answer_that_cannot_be_handed_on_allows_nothing_later(
    start_service: StartService, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start_service(policy=Policy(Profile()))
    assert isinstance(service, Service)
    written = str(sandbox.project / "a")
    turn = await service.create(
        script("work", tool("Write", file_path=written, content="b"), text("${tool_result}")), options(sandbox)
    )
    session, question_id = turn.session, await question(turn.session)

    def fail(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(session.readable_lines, "input_changed", fail)
    changed = {"file_path": written, "content": "c"}
    service.respond(session.id, question_id, Answer(allow=True, scope=Scope.SESSION, updated_input=changed))
    assert "could not be checked" in (await end_of(turn)).result
    assert session.grants == ()


async def test_a_call_without_a_session_is_audited_too(service: Service, denials: Denials, sandbox: Sandbox) -> None:
    answer = service.answer_by_rule("local", str(sandbox.project), "Bash", {"command": "rm x"})
    assert answer is not None
    assert not answer.allow
    assert list(denials) == [("Bash", "Bash(rm *)", "client")]


async def test_an_allowance_for_the_session_cannot_lift_a_ceiling_that_came_down(
    start_service: StartService, sandbox: Sandbox
) -> None:
    policy = Policy(Profile(), groups={"guests": Profile(mode_ceiling="default", bypass="never")})
    service = await start_service(policy=policy)
    assert isinstance(service, Service)
    prompt = script("work", tool("Write", file_path=str(sandbox.project / "a"), content="b"), "done")
    turn = await service.create(prompt, options(sandbox))
    session = turn.session
    question_id = await question(session)
    assert [suggestion["type"] for suggestion in session.questions[0].suggestions] == ["setMode"]
    policy.assign(session.owner, ["guests"])
    with pytest.raises(PermissionDenied, match="scope"):
        service.respond(session.id, question_id, Answer(allow=True, scope=Scope.SESSION))
    service.respond(session.id, question_id, Answer(allow=True))
    assert (await end_of(turn)).result == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    "path", ["/proc/self/cwd", "//proc/self/cwd", "/./proc/thread-self/cwd", "/dev/fd/../cwd", "link", "/proc/1/cwd"]
)
async def test_a_path_that_only_the_session_can_resolve_gets_around_no_denial(
    start_service: StartService, sandbox: Sandbox, path: str
) -> None:
    """`/proc/self/cwd` is the directory of whoever opens it."""
    (sandbox.project / "link").symlink_to("/proc/self/cwd")
    policy = Policy(Profile(allow=(parse_rule("Bash"),), deny=(parse_rule("Read(**/.env)"),)))
    service = await start_service(policy=policy)
    enforcer = service._enforcer
    for tool_name, call in (("Bash", {"command": f"cat {path}/.env"}), ("Read", {"file_path": f"{path}/.env"})):
        verdict = enforcer.judge("local", str(sandbox.project), tool_name, call)
        assert verdict.decision is Decision.DENY
        assert verdict.rule == "Read(**/.env)"
    assert enforcer.judge("local", str(sandbox.project), "Bash", {"command": "cat README"}).decision is Decision.ALLOW


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_a_command_reads_no_denied_file_by_the_directory_of_its_process(
    start_service: StartService, sandbox: Sandbox
) -> None:
    (sandbox.project / ".env").write_text("TOPSECRET")
    policy = Policy(Profile(allow=(parse_rule("Bash"),), deny=(parse_rule("Read(**/.env)"),)))
    service = await start_service(policy=policy)
    prompt = script("work", tool("Bash", command="cat //proc/self/cwd/.env"), text("${tool_result}"))
    _, outcome = await run(service, prompt, options(sandbox))
    assert "TOPSECRET" not in outcome.result
    assert "Read(**/.env)" in outcome.result
