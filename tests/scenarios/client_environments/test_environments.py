"""Clients with different environments on one server: each session runs in that of its client, and nothing mixes."""

import json
import os
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.processes.environment import significant
from claude_code_mcp.core.sessions.callers.client_environments import environment_key
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import contents_below
from tests.core.sessions.support import end_of

from .conftest import MakePlace, Server, StartServer


def keys_of(model: ScriptedModelThread, session: str) -> list[str]:
    """The API key of every request of a session."""
    return [request.headers["x-api-key"] for request in model.requests if request.session_id == session]


def tool_output(model: ScriptedModelThread, session: str) -> str:
    """What the tools of a session said."""
    requests = [request for request in model.requests if request.session_id == session]
    return "\n".join(result.text for request in requests for result in request.tool_results)


TOKENS = {"ann": "correct-horse-battery", "bob": "staple-of-another-kind"}
SHOW = tool("Bash", command='echo "$PWD $HOME $WHO $CLAUDE_CODE_MCP_DEPTH $CLAUDE_CODE_MCP_TOKEN"; command -v greet')


@pytest.mark.soak
async def test_two_clients_have_their_own_key_home_path_and_directory(
    server: Server, make_place: MakePlace, model: ScriptedModelThread, tmp_path: Path
) -> None:
    """And the secrets of every client are in nothing that any client is told, or that is written to disk."""
    places, callers, sessions = {}, {}, {}
    for name, token in TOKENS.items():
        place = places[name] = make_place(name)
        programs = place.sandbox.root / "bin"
        programs.mkdir()
        greet = programs / "greet"
        greet.write_text("#!/bin/sh\n")
        greet.chmod(0o755)
        path = f"{programs}{os.pathsep}{place.environment['PATH']}"
        own = {"CLAUDE_CODE_MCP_TOKEN": "a secret of the front", "CLAUDE_CODE_MCP_DEPTH": "3"}
        secrets = {"MY_DEPLOY_TOKEN": token, "MY_OTHER_TOKEN": f"never-said-by-{name}"}
        callers[name] = await server.connect(place.client(name, PATH=path, WHO=f"I am {name}", **secrets, **own))
    for name, caller in callers.items():
        steps = (SHOW, tool("Bash", command="echo $MY_DEPLOY_TOKEN"), f"It is {' and '.join(TOKENS.values())}")
        sessions[name] = places[name], await caller.done(script("look", *steps), allowedTools=["Bash"])
    for name, (place, ended) in sessions.items():
        assert ended.data["result"] == "It is [redacted] and [redacted]"
        assert set(keys_of(model, ended.session)) == {f"sk-key-of-{name}"}
        seen = tool_output(model, ended.session)
        assert f"{place.sandbox.project} {place.sandbox.home} I am {name} 4 \n" in seen
        assert str(place.sandbox.root / "bin" / "greet") in seen
        assert TOKENS[name] in seen, "the session itself has it"
        assert list(place.sandbox.home.glob(f".claude/projects/*/{ended.session}.jsonl"))
        for caller in callers.values():
            looked = await caller.look(ended.session, outputLines=100)
            assert "It is " in looked.text
            assert not [token for token in TOKENS.values() if token in looked.text + json.dumps(looked.data)]
    written = contents_below(tmp_path / "state")
    assert {ended.session for _, ended in sessions.values()} <= {file.stem for file in written}
    environments = [caller.environment for caller in callers.values() if caller.environment is not None]
    keys = [environment_key(environment.variables) for environment in environments]
    needles = [needle.encode() for needle in ("never-said-by", "sk-key-of", *keys)]
    assert not [file for file, content in written.items() if any(needle in content for needle in needles)]
    assert not [environment for environment in environments if "sk-key-of" in repr(environment)]


@pytest.mark.soak
async def test_each_client_runs_the_claude_code_that_it_names(
    server: Server, make_place: MakePlace, environment: dict[str, str]
) -> None:
    place, real = make_place("ann"), find_executable(None, environment)
    own = place.sandbox.home / "my-claude"
    own.write_text(f'#!/bin/sh\ntouch "$HOME/ran"\nexec "{real}" "$@"\n')
    own.chmod(0o755)
    explicit = await server.connect(place.client(CLAUDE_CODE_PATH="~/my-claude"))
    assert (await explicit.done(script("go", "done"))).data["result"] == "done"
    assert (place.sandbox.home / "ran").exists()
    missing = await server.connect(make_place("bob").client(CLAUDE_CODE_PATH="/nowhere/claude"))
    assert (await missing.create("hello")).code == "CLI_NOT_FOUND"
    (place.sandbox.home / "ran").unlink()
    assert (await (await server.connect(place.client())).done(script("go", "done"))).data["result"] == "done"
    assert not (place.sandbox.home / "ran").exists()


@pytest.mark.soak
async def test_directories_are_those_of_the_client(server: Server, make_place: MakePlace, tmp_path: Path) -> None:
    place = make_place("ann")
    (place.sandbox.project / "below").mkdir()
    (place.sandbox.home / "usual").mkdir()
    caller = await server.connect(place.client())
    relative = await caller.done(script("go", "done"), workingDirectory="below")
    usual = await server.connect(place.client(CLAUDE_CODE_DEFAULT_CWD="~/usual"))
    named = await usual.done(script("go", "done"))
    listed = await caller.call("claude_list_sessions", projectDirectory="below")
    assert [row["sessionId"] for row in listed.data["sessions"]] == [relative.session]
    assert (await caller.look(named.session)).data["result"] == "done"
    where = {row["sessionId"]: row["projectDirectory"] for row in await rows(caller)}
    assert where[relative.session] == str(place.sandbox.project / "below")
    assert where[named.session] == str(place.sandbox.home / "usual")


async def rows(caller: object) -> list[dict[str, str]]:
    listed = await caller.call("claude_list_sessions")  # type: ignore[attr-defined]
    return list(listed.data["sessions"])


@pytest.mark.soak
async def test_a_client_finds_the_sessions_of_its_own_home_and_those_in_memory(
    start_server: StartServer, make_place: MakePlace
) -> None:
    ann, bob = make_place("ann"), make_place("bob")
    first = await start_server()
    made = await (await first.connect(ann.client())).done(script("go", "ann's"))
    seen = await rows(await first.connect(bob.client()))
    assert made.session in [row["sessionId"] for row in seen], "all clients are one user, who sees what runs"
    await first.service.__aexit__()
    second = await start_server()
    other, same = await second.connect(bob.client()), await second.connect(ann.client())
    assert made.session not in [row["sessionId"] for row in await rows(other)]
    assert (await other.send(made.session, "hello")).code == "SESSION_NOT_FOUND"
    assert made.session in [row["sessionId"] for row in await rows(same)]
    assert (await same.send(made.session, script("more", "again"), waitSeconds=40)).data["result"] == "again"


@pytest.mark.soak
async def test_a_message_of_another_client_continues_in_the_environment_of_that_client(
    server: Server, make_place: MakePlace, model: ScriptedModelThread
) -> None:
    place = make_place("ann")
    one = await server.connect(place.client("one"))
    two = await server.connect(place.client("two", ANTHROPIC_API_KEY="sk-key-of-two"))
    session = (await one.done(script("go", "first"))).session
    before = server.service.session(session).pid
    again = await server.connect(place.client("three", TERM_PROGRAM="another window", SHLVL="7"))
    assert (await again.send(session, script("go", "second"), waitSeconds=40)).data["result"] == "second"
    assert server.service.session(session).pid == before, "a window is no difference"
    assert (await two.send(session, script("go", "third"), waitSeconds=40)).data["result"] == "third"
    assert server.service.session(session).pid != before
    assert (await one.send(session, script("go", "fourth"), waitSeconds=40)).data["result"] == "fourth"
    keys = list(dict.fromkeys(enumerate_changes(keys_of(model, session))))
    assert [key for _, key in keys] == ["sk-key-of-ann", "sk-key-of-two", "sk-key-of-ann"]


def enumerate_changes(values: list[str]) -> list[tuple[int, str]]:
    """The values without those that are like the one before."""
    return [(at, value) for at, value in enumerate(values) if not at or values[at - 1] != value]


@pytest.mark.soak
async def test_a_message_joins_a_turn_busy_whatever_its_sender_is_like(
    server: Server, make_place: MakePlace, model: ScriptedModelThread
) -> None:
    place = make_place("ann")
    one = await server.connect(place.client("one"))
    two = await server.connect(place.client("two", ANTHROPIC_API_KEY="sk-key-of-two"))
    asking = await one.done(script("go", tool("Bash", command="touch asked"), "done"))
    assert asking.status == "waiting_for_input"
    pid = server.service.session(asking.session).pid
    await two.send(asking.session, "a word in between")
    assert server.service.session(asking.session).pid == pid
    await two.call(
        "claude_respond", sessionId=asking.session, inputId=asking.question["inputId"], decision="allow", waitSeconds=40
    )
    assert set(keys_of(model, asking.session)) == {"sk-key-of-ann"}


@pytest.mark.soak
async def test_session_keeps_its_home_for_every_sender(
    start_server: StartServer, make_place: MakePlace, model: ScriptedModelThread
) -> None:
    """A client of another home, and one that has no environment and gets that of the server for its own sessions."""
    ann, bob = make_place("ann"), make_place("bob")
    server = await start_server(default_cwd=str(ann.sandbox.project))
    here = await server.connect(None)
    own = (await here.create("hello")).session
    assert server.service.session(own).deps.launcher.environment["ANTHROPIC_API_KEY"] == "sk-key-of-the-server"
    made = (await (await server.connect(ann.client())).done(script("go", "first"))).session
    for sender in (await server.connect(bob.client()), here):
        server.service.session(made).park()
        assert (await sender.send(made, script("go", "second"), waitSeconds=40)).data["result"] == "second"
    assert set(keys_of(model, made)) == {"sk-key-of-ann"}
    assert not list(bob.sandbox.home.glob(f".claude/projects/*/{made}.jsonl"))


async def test_a_turn_is_judged_by_the_home_of_the_client_that_began_it(
    start_server: StartServer, make_place: MakePlace, sandbox: Sandbox
) -> None:
    """Both use one configuration directory, so that the session goes on in the environment of whoever sends to it."""
    ann, bob = make_place("ann"), make_place("bob")
    config = str(ann.sandbox.home / ".claude")
    denied = ("Write(~/private/**)", "Read(~/private/**)")
    server = await start_server(policy=Policy(Profile(allow=("Write(~/notes/**)",), deny=denied)))
    first = await server.connect(ann.client("ann", CLAUDE_CONFIG_DIR=config))
    second = await server.connect(bob.client("bob", CLAUDE_CONFIG_DIR=config))
    session = (await first.done(script("go", "first"))).session
    own = bob.sandbox.home / "notes" / "own.txt"
    message = script("write", tool("Write", file_path=str(own), content="x"), "written")
    assert (await second.send(session, message, waitSeconds=40)).data["result"] == "written"
    assert own.read_text() == "x"
    others = ann.sandbox.home / "notes" / "of-another.txt"
    message = script("write", tool("Write", file_path=str(others), content="x"), "written")
    assert (await second.send(session, message, waitSeconds=40)).status == "waiting_for_input"
    # So is an answer that changes the call, and a prompt by the home of whoever sends it.
    [question] = server.service.questions(session)
    changed = {"file_path": str(bob.sandbox.home / "private" / "x"), "content": "x"}
    with pytest.raises(PermissionDenied, match="private"):
        server.service.respond(session, question.id, Answer(allow=True, updated_input=changed))
    server.service.respond(session, question.id, Answer(allow=False))
    private = ann.sandbox.home / "private" / "x"
    private.parent.mkdir()
    private.touch()
    assert "private" in (await first.send(session, f"read @{private}")).refusal
    # A client without a home of its own goes on in that of the session: the server's says nothing then.
    of_server = sandbox.home / "private" / "x"
    of_server.parent.mkdir()
    of_server.touch()
    turn = await server.service.send(session, script(f"read @{of_server}", "read"))
    assert (await end_of(turn)).result == "read"


def test_window_variables_do_not_distinguish_environments() -> None:
    base = {"PATH": "/bin", "HOME": "/home/ann", "ANTHROPIC_API_KEY": "k"}
    window = {
        "TERM": "xterm",
        "SHLVL": "3",
        "VSCODE_PID": "1",
        "PWD": "/x",
        "CLAUDE_CODE_MCP_TOKEN": "t",
        "CLAUDECODE": "1",
    }
    assert environment_key(base) == environment_key({**base, **window})
    for name in (
        "ANTHROPIC_API_KEY",
        "HOME",
        "PATH",
        "GITHUB_TOKEN",
        "HTTPS_PROXY",
        "LANG",
        "CLAUDE_CONFIG_DIR",
        "ODD",
    ):
        assert environment_key(base) != environment_key({**base, name: "another"}), name
    assert significant(base) != significant({**base, "CLAUDE_CODE_MCP_DEPTH": "1"}), "nesting goes deeper from there"


async def test_a_person_switches_bypassing_on_for_their_own_client_only(
    start_server: StartServer, make_place: MakePlace
) -> None:
    server = await start_server(toolsets="code")
    one, two = [await server.connect(make_place(name).client(name)) for name in ("ann", "bob")]
    assert (await one.call("claude_code_configure", action="enable_bypass")).data["allowBypass"] is True
    assert (await one.call("claude_code_configure", action="get_config")).data["allowBypass"] is True
    assert (await two.call("claude_code_configure", action="get_config")).data["allowBypass"] is False
    assert (await two.call("claude_code", prompt="x", permissionMode="bypassPermissions")).code == "PERMISSION_DENIED"
