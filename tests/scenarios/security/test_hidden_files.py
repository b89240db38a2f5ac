"""A file that a rule denies to read, and everything that once read it all the same, on the real CLI."""

import subprocess
from pathlib import Path

import pytest

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer, Question, Resolution
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.core.questions.broker import Broker
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import run
from tests.support.bubblewrap import missing

VALUE = "PASSWORD=correct-horse"
READERS = [
    "grep -rn PASSWORD .",
    "cat .e*",
    "cat sub/../.env",
    "head -5 /proc/self/cwd/.env",
    "find . -name .env -exec cat {} +",
]
OF_HISTORY = ["git show HEAD:.env", "git grep PASSWORD HEAD", "git log -p"]
DENY = (parse_rule("Read(**/.env)"),)

needs_bubblewrap = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture
def project(sandbox: Sandbox) -> Path:
    """A repository with the file in it and in its history."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    (sandbox.project / ".env").write_text(VALUE)
    (sandbox.project / "sub").mkdir()
    for words in (["init", "-q"], ["add", "-f", ".env"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], cwd=sandbox.project, check=True)
    return sandbox.project


class Refusing:
    """Denies every question."""

    name = "refusing"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def offer(self, question: Question) -> None:
        self._broker.answer(question.session_id, question.id, Answer(allow=False), self.name)

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        """There is nothing to take back."""


@needs_bubblewrap
async def test_in_a_sandbox_no_command_reads_it(start_service: StartService, project: Path) -> None:
    policy = Policy(Profile(isolation="sandbox", roots=(str(project),), deny=DENY, allow=(parse_rule("Bash"),)))
    service = await start_service(policy=policy)
    # A group of commands is not read strictly, so it is not denied by the names in it.
    commands = [tool("Bash", command=f"{{ {command}; }} >> seen 2>&1; true") for command in READERS]
    _, outcome = await run(service, script("look", *commands, "done"), SessionOptions(cwd=str(project)))
    assert (outcome.result, outcome.permission_denials) == ("done", ())
    assert VALUE not in (project / "seen").read_text()
    assert (project / ".env").read_text() == VALUE, "the file itself is untouched"


@needs_bubblewrap
async def test_no_command_uncovers_it_for_the_next_process(start_service: StartService, sandbox: Sandbox) -> None:
    root, project = sandbox.project, sandbox.project / "team" / "shop"
    (project / "conf" / "deep").mkdir(parents=True)
    hidden = [project / "conf" / "deep" / "key", project / ".env"]
    for file in hidden:
        file.write_text(VALUE)
    deny = (parse_rule("Read(conf/deep/key)"), *DENY)
    policy = Policy(Profile(isolation="sandbox", roots=(str(root),), deny=deny, allow=(parse_rule("Bash"),)))
    service = await start_service(policy=policy)
    attempts = ["mv conf other", "mv conf/deep other", "rm -rf conf/deep", "ln conf/deep/key other", "mv .env other"]
    attempts += [f"mv {project} {root}/other && mkdir {project}", f"mv {root}/team {root}/other && mkdir -p {project}"]
    commands = [tool("Bash", command=f"{{ {attempt}; }} >> {root}/tried 2>&1; true") for attempt in attempts]
    await run(service, script("move it", *commands, "done"), SessionOptions(cwd=str(project)))
    reading = tool("Bash", command=f"{{ grep -rs PASSWORD {root} ; }} >> {root}/seen 2>&1; true")
    _, outcome = await run(service, script("look", reading, "done"), SessionOptions(cwd=str(project)))
    assert outcome.result == "done"
    assert (root / "tried").read_text().count("busy") >= len(attempts) - 1
    assert VALUE not in (root / "seen").read_text()
    assert {file.read_text() for file in hidden} == {VALUE}


async def test_outside_of_a_sandbox_commands_that_may_read_it_are_asked(
    start_service: StartService, project: Path
) -> None:
    service = await start_service(policy=Policy(Profile(deny=DENY, allow=(parse_rule("Bash"),))))
    assert isinstance(service, Service)
    service.broker.add_channel(Refusing(service.broker))
    # Claude Code has the rule too, and denies some of them itself.
    prompt = script("look", *(tool("Bash", command=command) for command in (*READERS, *OF_HISTORY)), "done")
    _, outcome = await run(service, prompt, SessionOptions(cwd=str(project)))
    denied = [denial["tool_input"]["command"] for denial in outcome.permission_denials]
    assert denied == [*READERS, *OF_HISTORY]
