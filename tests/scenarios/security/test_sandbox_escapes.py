"""Ways out of a sandbox that were found open once, walked by the commands of a real session: files put where the server
or its user reads them, files uncovered by a rename outside, and secrets in the environment."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import REMOTE_PROFILE, Policy, Profile
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, written_to
from tests.support.bubblewrap import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ATTACKS = json.loads(Path(__file__).parents[1].joinpath("attacks", "environment.json").read_text())
SECRETS = {attack["name"]: attack["value"] for attack in ATTACKS if "network" not in attack} | {
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
    "LC_NAME": "of-the-operator",
}


PYTHON = shutil.which("python3", path="/usr/bin:/bin")
"""One that a sandbox sees."""
LOOK_INTO_MEMORY = """
import os
wanted = {"a secret": b"hun" + b"ter2", "what it may know": b"of-the-" + b"operator"}
for pid in filter(str.isdigit, os.listdir("/proc")):
    found, size = set(), 0
    try:
        maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    for line in maps.splitlines() if int(pid) != os.getpid() else ():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        while begin < end and "rw" in line:
            try:
                memory.seek(begin)
                piece = memory.read(min(end - begin, 1 << 24))
            except OSError:
                break
            size += len(piece)
            found |= {name for name, value in wanted.items() if value in piece}
            begin += len(piece) or end
    print("memory of", pid, size > 0, sorted(found))
"""


def remote(**entries: Any) -> Policy:
    """The profile of callers over HTTP, whose sessions may run what they like."""
    profile = {key: getattr(REMOTE_PROFILE, key) for key in Profile.model_fields}
    return Policy(Profile(**{**profile, "allow": ("Bash",), **entries}))


async def walk(service: Any, sandbox: Sandbox, command: str, cwd: Path | None = None) -> str:
    """What a command says in a session of a caller with a token."""
    directory = cwd or sandbox.project
    prompt = script("look", tool("Bash", command=f"{{ {command}; }} > seen 2>&1; true"), "done")
    turn = await service.create(prompt, SessionOptions(cwd=str(directory)), caller=Caller("alice"))
    assert (await end_of(turn)).result == "done"
    return (directory / "seen").read_text()


# -- files that the server or its user would read ------------------------------------------------------------------


async def test_a_server_that_is_started_in_a_home_does_not_begin(start_service: StartService, sandbox: Sandbox) -> None:
    """A session there would write ~/.config/claude-code-mcp/mcp.json, whose programs the hub starts outside."""
    for default in (sandbox.home, sandbox.root):
        with pytest.raises(InvalidArgument) as refusal:
            await start_service(policy=remote(), principals=("alice",), default_cwd=str(default))
        assert str(default) in refusal.value.message
        assert "CLAUDE_CODE_DEFAULT_CWD" in refusal.value.message
        assert "`roots`" in refusal.value.message


async def test_a_session_makes_no_file_next_to_what_it_was_given(start_service: StartService, sandbox: Sandbox) -> None:
    project = sandbox.home / "src" / "shop"
    project.mkdir(parents=True)
    before = {path for path in sandbox.home.rglob("*") if ".claude" not in path.parts}
    service = await start_service(policy=remote(), principals=("alice",), default_cwd=str(project))
    home = sandbox.home
    command = (
        f"mkdir -p {home}/.config/claude-code-mcp {home}/.ssh; echo '{{}}' > {home}/.config/claude-code-mcp/mcp.json; "
        f"echo key > {home}/.ssh/authorized_keys; echo evil >> {home}/.bashrc; touch {home}/src/beside; "
        f"mv {home}/src {home}/src2; mv {project} {project}2"
    )
    await walk(service, sandbox, command, project)
    assert {path for path in sandbox.home.rglob("*") if ".claude" not in path.parts} == {*before, project / "seen"}


# -- files that are replaced outside -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "principals", [("alice",), pytest.param(("alice", "bob"), marks=pytest.mark.soak)], ids=["one", "several"]
)
async def test_settings_that_are_replaced_outside_stay_what_they_are(
    start_service: StartService, sandbox: Sandbox, principals: tuple[str, ...]
) -> None:
    """Editors, `sed -i` and this server itself replace files; a cover on the old one went away with it."""
    service = await start_service(
        policy=remote(roots=(str(sandbox.project),)), principals=principals, default_cwd=str(sandbox.project)
    )
    user = sandbox.home / ".claude"
    user.mkdir(exist_ok=True)
    (user / "settings.json").write_text("{}")
    (sandbox.home / ".claude.json").write_text('{"of": "the operator"}')
    os.mkfifo(sandbox.project / "started")
    os.mkfifo(sandbox.project / "go")
    command = (
        "echo > started; read line < go; C=$CLAUDE_CONFIG_DIR; echo evil > $C/settings.json; rm -f $C/settings.json; "
        f"echo evil > $C/new.json; mv $C/settings.json $C/aside; cat $C/settings.json {sandbox.home}/.claude.json"
    )
    prompt = script("look", tool("Bash", command=f"{{ {command}; }} > seen 2>&1; true"), "done")
    turn = await service.create(prompt, SessionOptions(cwd=str(sandbox.project)), caller=Caller("alice"))
    await written_to(sandbox.project / "started", turn)
    directory = user if len(principals) == 1 else next(sandbox.root.glob("state/principals/alice-*/claude"))
    for file in (directory / "settings.json", sandbox.home / ".claude.json"):
        newer = file.with_name("newer")
        newer.write_text('{"newer": "of the operator"}')
        newer.replace(file)
    await asyncio.to_thread((sandbox.project / "go").write_text, "go\n")
    assert (await end_of(turn)).result == "done"
    assert (directory / "settings.json").read_text() == '{"newer": "of the operator"}'
    assert (sandbox.home / ".claude.json").read_text() == '{"newer": "of the operator"}'
    assert not [*directory.glob("new.json"), *directory.glob("aside")]
    assert "newer" not in (sandbox.project / "seen").read_text()


async def test_a_file_of_the_server_in_a_root_stops_the_start(start_service: StartService, sandbox: Sandbox) -> None:
    """It could be hidden only until somebody replaces it."""
    tokens = sandbox.project / "tokens"
    for exists in (False, True):
        if exists:
            tokens.write_text("alice token-of-alice-0123456789")
        with pytest.raises(InvalidArgument, match="the tokens"):
            await start_service(
                policy=remote(), principals=("alice",), default_cwd=str(sandbox.project), http_tokens_file=tokens
            )


# -- the environment -----------------------------------------------------------------------------------------------


async def test_session_environment_has_listed_variables_and_no_secrets(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(extra=SECRETS, policy=remote(roots=(str(sandbox.project),)), principals=("alice",))
    said = await walk(service, sandbox, "cat /proc/*/environ | tr '\\0' '\\n'")
    assert "hunter2" not in said
    assert "LC_NAME=of-the-operator" in said
    assert "ANTHROPIC_API_KEY=" in said


@pytest.mark.parametrize(
    "network", ["model", pytest.param(("api.github.com",), marks=pytest.mark.soak)], ids=["model", "list"]
)
async def test_where_the_server_carries_the_models_traffic_a_session_has_nothing_that_opens_the_model(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread, network: str | tuple[str, ...]
) -> None:
    """The server puts the key, the operator's headers and the password of the address in by itself."""
    user = sandbox.home / ".claude"
    user.mkdir(exist_ok=True)
    (user / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "hunter2-of-the-login"}}')
    of_model = {attack["name"]: attack for attack in ATTACKS if attack.get("network") == "model"}
    extra = {name: attack["value"] for name, attack in of_model.items()}
    extra["ANTHROPIC_BASE_URL"] = model.url.replace("//", f"//{of_model['ANTHROPIC_BASE_URL']['userinfo']}@")
    policy = remote(isolation="sandbox", roots=(str(sandbox.project),), network=network)
    service = await start_service(extra={**SECRETS, **extra}, policy=policy, principals=("alice",))
    (sandbox.project / "look.py").write_text(LOOK_INTO_MEMORY)
    look = f"env; cat /proc/*/environ /proc/*/cmdline {user}/.credentials.json; id; {PYTHON or ':'} look.py"
    said = await walk(service, sandbox, look)
    assert "uid=" in said
    assert "hunter2" not in said
    assert "a secret" not in said, "in the memory of no process"
    if PYTHON is not None:
        assert "True ['what it may know']" in said, "which commands can read"
    headers = model.requests[-1].headers
    for name, value in (attack["sent"] for attack in of_model.values()):
        assert headers[name] == value


@pytest.mark.soak  # what is listed is seen above
async def test_a_profile_lists_variables_by_name_that_its_sessions_get(
    start_service: StartService, sandbox: Sandbox
) -> None:
    listed = remote(roots=(str(sandbox.project),), environment=("GREETING", "MYSQL_PWD"))
    service = await start_service(extra=SECRETS, policy=listed, principals=("alice",))
    said = await walk(service, sandbox, "env")
    assert {line.partition("=")[0] for line in said.splitlines() if "hunter2" in line} == {"GREETING", "MYSQL_PWD"}
