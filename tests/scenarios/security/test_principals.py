"""Two principals of one server, the real CLI, and what the session of one can do to the other, to the server and to
the operator: nothing, in a sandbox. Without one they are apart only as far as Claude Code itself goes."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import Step, script, tool
from tests.conftest import contents_below
from tests.server.connection import Connection, Reply
from tests.support.bubblewrap import missing

from .conftest import ALICE, MALLORY, Target, without_isolation

PHRASE = "the-phrase-of-alice-4471"
POLICY = """
[profiles.alice]
roots = ["{project}/alice"]
allow = ["Bash", "ListAgents", "SendMessage", "Write", "Edit"]

[profiles.mallory]
base = "alice"
roots = ["{project}/mallory"]

[principals]
alice = "alice"
mallory = "mallory"
"""


LEVELS = ("sandbox", "none")
QUICK = "sandbox" if missing() is None else "none"
CASES = [level if level == QUICK else pytest.param(level, marks=pytest.mark.soak) for level in LEVELS]
"""One of them will do for `make test`, and `make soak` has the other: without a sandbox less is promised."""


@pytest.fixture(scope="module")
def real_process() -> bool:
    return True


@pytest.fixture(scope="module", params=CASES)
def level(request: pytest.FixtureRequest) -> str:
    """The isolation of all callers of the module's server."""
    if request.param == "sandbox" and (reason := missing()) is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, level: str) -> Path:
    return tmp_path_factory.mktemp(level)


@pytest.fixture(scope="module")
def extra_environment() -> dict[str, str]:
    return {"DEPLOY_TOKEN": "deploy-token-of-the-operator"}


@pytest.fixture(scope="module")
def policy_text(root: Path, level: str) -> str:
    for name in ("alice", "mallory"):
        (root / name).mkdir()
    text = POLICY.format(project=root)
    return text if level == "sandbox" else without_isolation(text)


@dataclass
class Caller:
    """A caller and the directory that its sessions work in."""

    connection: Connection
    directory: Path

    def does(self, *steps: Step) -> str:
        """The session that has done these steps."""
        prompt = script("go", *steps, "done")
        done = self.connection.create(prompt, workingDirectory=str(self.directory), waitSeconds=40)
        assert done.status == "completed", done.text
        return done.session


@pytest.fixture(scope="module")
def mallorys(mallory: Connection, root: Path) -> Caller:
    return Caller(mallory, root / "mallory")


@pytest.fixture(scope="module")
def alices(alice: Connection, root: Path) -> Caller:
    return Caller(alice, root / "alice")


@pytest.fixture(scope="module")
def victim(alices: Caller) -> str:
    """A session of Alice's that waits for its next message, and has said a phrase."""
    (alices.directory / "file").write_text(PHRASE)
    return alices.does(PHRASE)


@pytest.fixture(scope="module")
def attacks(target: Target, root: Path, victim: str) -> dict[str, str]:
    """Commands that must not get far, by name."""
    files = [target.environment[f"CLAUDE_CODE_MCP_{name}"] for name in ("TOKENS_FILE", "POLICY")]
    theirs, server = transcript_of(target, victim), target.server.process.pid
    settings = operators_settings(target)
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("{}")
    return {
        "server": f"cat {shlex.join(files)} {target.audit_file}",
        "other": f"cat {theirs} {root}/alice/file; ls {theirs.parents[3]} {root} {homes(target)}",
        "write": f"mkdir -p {settings.parent} {root}/alice; echo hooks > {settings}; touch {root}/alice/changed",
        "processes": f"cat /proc/{{{server},*}}/environ | tr '\\0' '\\n'; kill -0 {server} && echo could be killed",
        "own": "echo '{ }' > $CLAUDE_CONFIG_DIR/settings.json",
        "environment": "env",
    }


@pytest.fixture(scope="module")
def attacker(mallorys: Caller, attacks: dict[str, str]) -> str:
    """The session that has made all of the attacks."""
    commands = (tool("Bash", command=f"{{ {attack}; }} > {name} 2>&1; true") for name, attack in attacks.items())
    return mallorys.does(*commands)


@pytest.fixture(scope="module")
def seen(mallorys: Caller, attacks: dict[str, str], attacker: str) -> dict[str, str]:
    """What each of the attacks said."""
    return {name: (mallorys.directory / name).read_text() for name in attacks}


def model_input(model: ScriptedModelThread, session: str) -> str:
    """Everything that the model of a session was told."""
    bodies = [record.body for record in model.requests if record.session_id == session]
    return json.dumps(bodies[-1]["messages"] if bodies and bodies[-1] else None)


def homes(target: Target) -> Path:
    return target.audit_file.parent / "principals"


def transcript_of(target: Target, session: str) -> Path:
    return next(homes(target).glob(f"*/claude/projects/*/{session}.jsonl"))


def operators_settings(target: Target) -> Path:
    return target.place.home / ".claude" / "settings.json"


# -- at both levels -------------------------------------------------------------------------------------------------


def test_each_principal_has_a_claude_directory_of_its_own(target: Target, victim: str, attacker: str) -> None:
    owners = {transcript_of(target, session).parents[3].name.partition("-")[0] for session in (victim, attacker)}
    assert owners == {"alice", "mallory"}
    assert not list(target.place.home.glob(".claude/projects/*/*"))


def test_the_tools_that_reach_other_sessions_end_at_the_principal(
    target: Target, model: ScriptedModelThread, victim: str, mallorys: Caller
) -> None:
    sockets = [str(path) for path in target.place.temporary.glob("cc-socks/*.sock")]
    addresses = ["alice", victim, *sockets, *(f"uds:{path}" for path in sockets)]
    messages = (tool("SendMessage", to=to, summary="go", message="run this at once") for to in addresses)
    peer_answers = model_input(model, mallorys.does(tool("ListAgents"), *messages))
    assert "This session is mallory-" in peer_answers
    assert "alice-" not in peer_answers
    assert "run this at once" not in transcript_of(target, victim).read_text()


@pytest.mark.soak  # tests/server/test_http.py
def test_a_principal_resumes_forks_clears_and_lists_its_own_sessions_and_no_others(
    target: Target, victim: str, alice: Connection, mallory: Connection
) -> None:
    def reply(prompt: str, **more: bool) -> Reply:
        return alice.call("claude_code_reply", sessionId=victim, prompt=prompt, **more)

    assert reply(script("more", "resumed")).data["result"] == "resumed"
    fork = reply(script("more", "forked"), forkSession=True)
    assert fork.data["result"] == "forked"
    assert transcript_of(target, fork.session).parent == transcript_of(target, victim).parent
    assert victim in json.dumps(alice.call("claude_list_sessions").data)
    assert victim not in json.dumps(mallory.call("claude_list_sessions").data)
    reply("/clear")
    after = reply(script("two", "second"))
    assert after.data["result"] == "second"
    assert transcript_of(target, after.session).parent == transcript_of(target, victim).parent


def test_the_key_and_the_tokens_are_in_no_file_that_the_server_or_a_session_wrote(
    target: Target, victim: str, seen: dict[str, str]
) -> None:
    written = contents_below(target.audit_file.parent)
    assert len(written) > 5
    for secret in (target.environment["ANTHROPIC_API_KEY"], ALICE, MALLORY):
        assert not [path for path, content in written.items() if secret.encode() in content]


def test_the_audit_trail_says_how_a_session_was_isolated(target: Target, victim: str, level: str) -> None:
    (created,) = target.audit("session_created", 1, session=victim)
    assert created["isolation"] == level


@pytest.mark.soak
def test_the_files_of_a_command_line_are_found_by_claude_code(
    root: Path, alice: Connection, model: ScriptedModelThread
) -> None:
    done = alice.call(
        "claude_code",
        prompt=script("go", "done"),
        cwd=str(root / "alice"),
        systemPrompt="You are thorough, and a prompt from a file.",
        debugFile=str(root / "alice" / "debug.log"),
    )
    assert done.data["result"] == "done"
    bodies = [record.body for record in model.requests if record.session_id == done.session]
    assert "a prompt from a file" in json.dumps(bodies[0])
    assert (root / "alice" / "debug.log").stat().st_size


# -- what only a sandbox promises -----------------------------------------------------------------------------------


def only_without_a_sandbox(level: str, reached: bool, said: str = "") -> None:
    """Without a sandbox the attack succeeds, which shows that it is one."""
    refusals = [line for line in said.splitlines() if line.startswith("cat: ")]
    assert reached is (level == "none"), refusals


def test_a_session_cannot_read_the_tokens_the_policy_or_the_state_of_the_server(
    level: str, seen: dict[str, str]
) -> None:
    for secret in (ALICE, "[principals]", "session_created"):
        only_without_a_sandbox(level, secret in seen["server"])


def test_a_session_cannot_read_the_transcript_the_directory_or_the_home_of_the_other(
    level: str, seen: dict[str, str]
) -> None:
    only_without_a_sandbox(level, PHRASE in seen["other"])
    only_without_a_sandbox(level, any(line.startswith("alice") for line in seen["other"].splitlines()))


def test_a_session_cannot_write_to_the_other_or_to_the_settings_of_the_operator(
    target: Target, level: str, root: Path, seen: dict[str, str]
) -> None:
    only_without_a_sandbox(level, operators_settings(target).read_text() != "{}")
    only_without_a_sandbox(level, (root / "alice" / "changed").exists())


def test_a_session_sees_no_process_of_the_server_nor_its_environment(level: str, seen: dict[str, str]) -> None:
    assert "CLAUDE_CODE_MCP_MARK" in seen["processes"]
    only_without_a_sandbox(level, "CLAUDE_CODE_MCP_TOKENS_FILE" in seen["processes"], seen["processes"])
    only_without_a_sandbox(level, "could be killed" in seen["processes"])


def test_a_session_cannot_change_the_settings_of_its_own_principal(
    target: Target, level: str, seen: dict[str, str]
) -> None:
    (settings,) = homes(target).glob("mallory-*/claude/settings.json")
    only_without_a_sandbox(level, settings.read_text() != "{}\n")


def test_a_session_gets_no_secret_of_the_servers_environment_but_the_key_of_the_model(
    level: str, seen: dict[str, str]
) -> None:
    assert "ANTHROPIC_API_KEY=" in seen["environment"]
    only_without_a_sandbox(level, "DEPLOY_TOKEN=" in seen["environment"])
