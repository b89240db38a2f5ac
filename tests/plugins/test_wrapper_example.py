"""The example plug-in that runs sessions through another command, in a server with the real CLI.

How it is installed and found: `test_example_wheels.py`.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from claude_code_mcp_wrapper.isolation import Wrapper
from claude_code_mcp_wrapper.plugin import WrapperPlugin

from claude_code_mcp import Answer, Policy, Profile, Service, installed_plugins, load_settings
from claude_code_mcp.app import running_service
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.git import run_in_home
from claude_code_mcp.core.isolation import Home
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool

Serve = Callable[..., Awaitable[Service]]
OFF = "sandbox"


@pytest.fixture
async def serve(sandbox: Sandbox, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    """Starts a server with the plug-in, as `serve` does."""
    point = EntryPoint("wrapper", "claude_code_mcp_wrapper.plugin:WrapperPlugin", installed_plugins.GROUP)
    monkeypatch.setattr(installed_plugins, "_entry_points", lambda: {"wrapper": point})
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with AsyncExitStack() as stack:

        async def start(command: str, policy: Policy | str = "local", off: str = OFF) -> Service:
            settings = load_settings(
                {"CLAUDE_CODE_MCP_WRAPPER_COMMAND": command} if command else {},
                state_dir=sandbox.root / "state",
                default_cwd=str(sandbox.project),
                plugins_off=off,
            )
            return (await stack.enter_async_context(running_service(settings, policy, None)))[0]

        yield start


@pytest.fixture
def wrapper(tmp_path: Path) -> Path:
    """A command that notes what it runs, and in which directory."""
    file = tmp_path / "my wrapper"
    file.write_text(f'#!/bin/sh\necho "$PWD $1" >> "{tmp_path}/ran"\nexec env WRAPPED=yes "$@"\n')
    file.chmod(0o755)
    return file


async def test_a_session_runs_through_the_command(serve: Serve, wrapper: Path, sandbox: Sandbox) -> None:
    service = await serve(f"nice -n 1 '{wrapper}'")
    turn = await service.create(script("Try.", tool("Bash", command="echo $WRAPPED > new", description="d"), "done"))
    await turn.session.wait(None)
    (question,) = turn.session.questions
    service.respond(turn.session.id, question.id, Answer(allow=True))
    assert (await turn.outcome()).result == "done"
    assert (sandbox.project / "new").read_text() == "yes\n"
    directory, program = (wrapper.parent / "ran").read_text().split()
    assert directory == str(sandbox.project)
    assert program.endswith("claude")


async def test_without_a_command_sessions_start_as_usual(serve: Serve) -> None:
    service = await serve("")
    assert (await (await service.create(script("Hello.", "done"))).outcome()).result == "done"


async def test_a_command_that_is_not_installed_stops_the_start(serve: Serve) -> None:
    with pytest.raises(InvalidArgument, match="no-such-command is not installed"):
        await serve("no-such-command --")


async def test_a_policy_with_a_sandbox_is_refused(serve: Serve) -> None:
    with pytest.raises(InvalidArgument, match="sandbox"):
        await serve("nice", Policy(Profile(isolation="sandbox")))


async def test_a_server_has_one_isolation(serve: Serve) -> None:
    with pytest.raises(InvalidArgument, match="sandbox and wrapper"):
        await serve("nice", off="")


async def test_git_does_not_run_in_an_enclosure_that_hides_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    """There it would have no protection from what a repository configures."""
    home = Home(str(tmp_path), environment, enclosure=Wrapper(["/no/such/wrapper"]))
    reply = await run_in_home(home, (), ["/bin/echo", "ran"], str(tmp_path), environment, b"", 30.0)
    assert (reply.output, reply.enclosed) == ("ran\n", False)


@pytest.mark.parametrize(
    ("command", "ok", "detail"),
    [
        ("", True, "not configured"),
        ("nice -n 1", True, "sessions run through nice -n 1"),
        ("/bin/false", False, "did not run a command"),
        ("no-such-command", False, "cannot be run"),
    ],
)
def test_doctor_runs_the_command(command: str, ok: bool, detail: str) -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_WRAPPER_COMMAND": command} if command else {})
    (finding,) = WrapperPlugin().checks(settings)
    assert finding.ok is ok
    assert detail in finding.detail
