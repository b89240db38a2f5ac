"""A caller with the only token: its sandboxed sessions share the Claude Code directory of the server's user, whose own
Claude Code runs without a sandbox. What they put there is read by nobody else."""

import json
import os
from pathlib import Path

import pytest

from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, parked
from tests.support.bubblewrap import missing

ATTACKS = json.loads(Path(__file__).with_name("claude_directory.json").read_text())
OTHER = "22222222-2222-4222-8222-222222222222"

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def policy(sandbox: Sandbox, isolation: str = "sandbox") -> Policy:
    return Policy(Profile(isolation=isolation, roots=(str(sandbox.project),)))  # type: ignore[arg-type]


def operators_directory(sandbox: Sandbox) -> Path:
    """The user's Claude Code directory, with what another session of the user has left there."""
    claude = sandbox.home / ".claude"
    for name in ("projects/-home-operator-shop/memory", f"file-history/{OTHER}", "plans", "agents"):
        (claude / name).mkdir(parents=True)
    for name, content in {
        "settings.json": "{}",
        "history.jsonl": "typed by hand\n",
        "plans/of-the-operator.md": "the plan\n",
        "projects/-home-operator-shop/memory/MEMORY.md": "what is remembered\n",
        f"projects/-home-operator-shop/{OTHER}.jsonl": '{"secret": "of another project"}\n',
        f"file-history/{OTHER}/0123456789abcdef@v1": "what it was\n",
    }.items():
        (claude / name).write_text(content)
    return claude


def contents(directory: Path) -> dict[str, str]:
    """Every file and link in a directory by its path; directories only if they are empty."""
    found = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = path.read_text(errors="replace")
    return found


async def test_nothing_of_the_users_directory_is_changed_but_the_sessions_own(
    start_service: StartService, sandbox: Sandbox
) -> None:
    claude = operators_directory(sandbox)
    before = contents(claude)
    service = await start_service(policy=policy(sandbox), principals=("alice",))
    attacks = "\n".join(f"({attack['command']}) 2>&1" for attack in ATTACKS)
    (sandbox.project / "attacks.sh").write_text(
        f"C={claude}\nFOLDER=$(ls $C/projects)\necho folders: $FOLDER\n"
        f"cat $C/projects/*/{OTHER}.jsonl $C/plans/*\n{attacks}\n"
    )
    prompt = script("go", tool("Bash", command="sh attacks.sh > seen 2>&1; true"), "done")
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    turn = await service.create(prompt, options, caller=Caller("alice"))
    assert (await end_of(turn)).result == "done"
    seen = (sandbox.project / "seen").read_text()
    (transcript,) = claude.glob(f"projects/*/{turn.session.id}.jsonl")
    own = transcript.parent.name
    assert f"folders: {own}\n" in seen
    assert "of another project" not in seen
    assert "the plan" not in seen
    after = contents(claude)
    assert {name: text for name, text in after.items() if name in before} == before
    new = {name for name in after if name not in before}
    assert not {
        name for name in new if "evil" in after[name] and not name.startswith(f"projects/{own}/{turn.session.id}")
    }
    allowed = (f"projects/{own}/{turn.session.id}", f"file-history/{turn.session.id}", f"tasks/{turn.session.id}")
    assert not {name for name in new if not name.startswith(allowed)}
    assert not list((claude / "projects" / own / "memory").iterdir())


@pytest.mark.soak
async def test_a_session_continues_in_and_out_of_a_sandbox(start_service: StartService, sandbox: Sandbox) -> None:
    """What it can take back is its own on both sides."""
    notes = sandbox.project / "notes"
    notes.write_text("zero")
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Write", "Read"), file_checkpointing=True)
    outside = await start_service(policy=policy(sandbox, "none"), principals=("alice",))
    inside = await start_service(policy=policy(sandbox), principals=("alice",))

    def writing(text: str) -> str:
        read, write = tool("Read", file_path=str(notes)), tool("Write", file_path=str(notes), content=text)
        return script(f"write {text}", read, write, f"wrote {text}")

    turn = await outside.create(writing("one"), options, caller=Caller("alice"))
    session_id = turn.session.id
    assert (await end_of(turn)).result == "wrote one"
    await parked(turn.session)
    turn = await inside.send(session_id, writing("two"), caller=Caller("alice"))
    assert (await end_of(turn)).result == "wrote two"
    await parked(turn.session)
    turn = await outside.send(session_id, writing("three"), caller=Caller("alice"))
    assert (await end_of(turn)).result == "wrote three"
    checkpoints = await outside.work.checkpoints(session_id, caller=Caller("alice"))
    (transcript,) = (sandbox.home / ".claude").glob(f"projects/*/{session_id}.jsonl")
    text = transcript.read_text()
    assert all(f"wrote {number}" in text for number in ("one", "two", "three"))
    assert len(checkpoints) == 3
    await parked(turn.session)
    fork = await inside.fork(session_id, script("fork", "forked"), caller=Caller("alice"))
    assert (await end_of(fork)).result == "forked"
    assert (transcript.parent / f"{fork.session.id}.jsonl").exists()


@pytest.mark.soak
@pytest.mark.parametrize("isolation", [pytest.param("none", marks=pytest.mark.soak), "sandbox"])
async def test_a_session_is_forked_into_another_directory(
    start_service: StartService, sandbox: Sandbox, isolation: str
) -> None:
    """The transcript of its origin lies in a folder that is not its own."""
    below = sandbox.project / "below"
    below.mkdir()
    service = await start_service(policy=policy(sandbox, isolation), principals=("alice",))
    turn = await service.create(script("go", "heron"), SessionOptions(cwd=str(sandbox.project)), caller=Caller("alice"))
    assert (await end_of(turn)).result == "heron"
    fork = await service.fork(
        turn.session.id, script("again", "forked"), caller=Caller("alice"), options=SessionOptions(cwd=str(below))
    )
    assert (await end_of(fork)).result == "forked"
    (transcript,) = (sandbox.home / ".claude").glob(f"projects/*/{fork.session.id}.jsonl")
    assert transcript.parent.name.endswith("-below")
    assert "heron" in transcript.read_text()
