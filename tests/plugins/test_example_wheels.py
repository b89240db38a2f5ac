"""The example plug-ins as their users have them: built as wheels, installed beside the server, found by it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.support.waiting import HANG_SECONDS

from .fake_slack import ANN, SETTINGS, FakeSlack, fake_slack

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"
ASKING = script("Try.", tool("Bash", command="echo $WRAPPED > new", description="d"), "done")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where both wheels are installed."""
    place = tmp_path_factory.mktemp("plugins")
    for source in EXAMPLES.iterdir():
        # From a copy: building leaves files beside the sources.
        shutil.copytree(source, place / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        _run("-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist"), directory=place / source.name)
    wheels = [str(wheel) for wheel in (place / "dist").glob("*.whl")]
    assert len(wheels) == 2
    _run("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(place / "site"), *wheels, directory=place)
    return place / "site"


def _run(*arguments: str, directory: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        check=True,
        capture_output=True,
        timeout=HANG_SECONDS,
    )


@pytest.fixture
async def slack() -> AsyncIterator[FakeSlack]:
    async with fake_slack() as fake:
        yield fake


@pytest.fixture
def configured(environment: dict[str, str], installed: Path, sandbox: Sandbox, slack: FakeSlack) -> dict[str, str]:
    """The environment of a server with both plug-ins."""
    wrapper = sandbox.root / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec env WRAPPED=yes "$@"\n')
    wrapper.chmod(0o755)
    return {
        **environment,
        **SETTINGS,
        "PYTHONPATH": str(installed),
        "CLAUDE_CODE_MCP_SLACK_API": f"{slack.address}/api",
        "CLAUDE_CODE_MCP_WRAPPER_COMMAND": str(wrapper),
        "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state"),
        "CLAUDE_CODE_MCP_PLUGINS_OFF": "sandbox",
        "XDG_CACHE_HOME": str(sandbox.root / "cache"),
    }


async def create(client: ClientSession, sandbox: Sandbox) -> str:
    made = await called(client, "claude_create_session", prompt=ASKING, workingDirectory=str(sandbox.project))
    return str(made["sessionId"])


async def called(client: ClientSession, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    structured: dict[str, Any] = result.structured_content
    return structured


def serving(environment: Mapping[str, str]) -> Any:
    command = ["-m", "claude_code_mcp", "serve"]
    return stdio_client(StdioServerParameters(command=sys.executable, args=command, env=dict(environment)))


async def doctor(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What `doctor` finds, by subject."""
    command = [sys.executable, "-m", "claude_code_mcp", "doctor", "--json"]
    ran = await asyncio.to_thread(subprocess.run, command, env=dict(environment), capture_output=True, check=False)
    return {finding["what"]: finding for finding in json.loads(ran.stdout)["findings"]}


async def test_a_button_answers_a_session_that_runs_through_another_command(
    configured: dict[str, str], slack: FakeSlack, sandbox: Sandbox
) -> None:
    async with serving(configured) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        session_id = await create(client, sandbox)
        asked = await slack.question()
        await slack.press(asked, "allow")
        ended = await called(client, "claude_get_status", sessionId=session_id, waitSeconds=50)
    assert ended["result"] == "done"
    assert (sandbox.project / "new").read_text() == "yes\n"
    assert f"Allowed by <@{ANN}>" in asked.notices


@pytest.mark.soak
async def test_doctor_shows_their_checks_and_a_wrong_token_but_none_of_a_plug_in_that_is_off(
    configured: dict[str, str], slack: FakeSlack
) -> None:
    assert "slack" not in await doctor({**configured, "CLAUDE_CODE_MCP_PLUGINS_OFF": "sandbox,slack"})
    assert slack.calls == 0, "a plug-in that is off does nothing"
    found = await doctor(configured)
    assert found["slack"]["ok"]
    assert found["wrapper"]["ok"]
    assert not any("SLACK" in finding["detail"] for finding in found.values()), "their settings are known"
    wrong = await doctor({**configured, "CLAUDE_CODE_MCP_SLACK_APP_TOKEN": "xapp-another"})
    assert not wrong["slack"]["ok"]
    assert "invalid_auth" in wrong["slack"]["detail"]
    assert "xapp-another" not in str(wrong)


@pytest.mark.soak  # test_plugin_points.py has a plug-in that is off
async def test_a_plug_in_that_is_off_does_nothing(
    configured: dict[str, str], slack: FakeSlack, sandbox: Sandbox
) -> None:
    environment = {**configured, "CLAUDE_CODE_MCP_PLUGINS_OFF": "sandbox,slack"}
    async with serving(environment) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        session_id = await create(client, sandbox)
        asking = await called(client, "claude_get_status", sessionId=session_id, waitSeconds=50)
        (question,) = asking["pendingInputs"]
        answer = {"sessionId": session_id, "inputId": question["inputId"], "decision": "allow", "waitSeconds": 50}
        assert (await called(client, "claude_respond", **answer))["result"] == "done"
    assert (sandbox.project / "new").read_text() == "yes\n", "the other one still works"
    assert slack.calls == 0
