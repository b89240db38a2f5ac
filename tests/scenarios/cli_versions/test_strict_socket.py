"""What Claude Code sends to the model passes the strict socket of a sandbox unchanged, on several versions of it."""

import base64
import time
from typing import Any

import pytest

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import Step, agent, script, structured, thinking, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, say
from tests.support.bubblewrap import missing
from tests.support.npm import Unavailable

from .versions import BUNDLED, chosen_versions, executable_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PDF = (
    b"%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
)
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}

OLDEST = "2.1.0"
BINARIES = [version for version in chosen_versions() if version != OLDEST]
"""A script for Node knows no such socket."""

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(
    scope="module",
    params=[pytest.param(version, marks=() if version == BUNDLED else pytest.mark.soak) for version in BINARIES],
)
def executable(request: pytest.FixtureRequest) -> str:
    try:
        return executable_of(str(request.param))
    except Unavailable as why:
        pytest.skip(f"Claude Code {request.param} cannot be had here: {why}")


@pytest.mark.soak
async def test_a_claude_code_that_cannot_use_the_socket_is_refused_at_once(
    start_service: StartService, sandbox: Sandbox
) -> None:
    try:
        script_for_node = executable_of(OLDEST)
    except Unavailable as why:
        pytest.skip(f"Claude Code {OLDEST} cannot be had here: {why}")
    service = await served(start_service, sandbox, script_for_node)
    outcome = await end_of(await service.create(script("go", "never"), options(sandbox)))
    assert not outcome.ok
    assert "native build" in outcome.detail + outcome.result


async def served(start_service: StartService, sandbox: Sandbox, executable: str, *server_tools: str) -> Service:
    profile = Profile(
        isolation="sandbox",
        network="model",
        roots=(str(sandbox.project),),
        server_tools=server_tools,  # type: ignore[arg-type]
    )
    service: Service = await start_service(policy=Policy(profile), claude_path=executable)
    return service


def options(sandbox: Sandbox, **more: Any) -> SessionOptions:
    tools = ("Bash", "Read", "Agent", "Task", "WebSearch")
    return SessionOptions(cwd=str(sandbox.project), allowed_tools=tools, **more)


async def test_conversation_is_forwarded(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread, executable: str
) -> None:
    started = time.monotonic()  # the tests of a worker share the model, which remembers a limited number of requests
    (sandbox.project / "a.png").write_bytes(PNG)
    (sandbox.project / "a.pdf").write_bytes(PDF)
    service = await served(start_service, sandbox, executable)
    steps: list[Step] = [
        thinking("hm", "so"),
        tool("Bash", command="echo seen"),
        tool("Read", file_path=str(sandbox.project / "a.png")),
        tool("Read", file_path=str(sandbox.project / "a.pdf")),
        agent("look", script("sub", tool("Bash", command="echo sub"), "looked")),
        "done",
    ]
    turn = await service.create(script("go", *steps[1:]), options(sandbox))
    outcome = await end_of(turn)
    assert (outcome.ok, outcome.result) == (True, "done")
    assert (await say(service, turn.session, script("think", steps[0]))).result == "so"
    assert (await say(service, turn.session, "/compact")).ok
    assert (await say(service, turn.session, script("again", "on"))).result == "on"
    assert (
        await end_of(
            await service.create(script("add", structured({"sum": 3})), options(sandbox, output_schema=SCHEMA))
        )
    ).ok
    assert not [request for request in model.requests if request.at >= started and request.status != 200]


@pytest.mark.parametrize("allowed", [(), ("web_search",)], ids=["refused", "allowed"])
async def test_the_web_is_searched_where_the_profile_allows_it(
    start_service: StartService,
    sandbox: Sandbox,
    model: ScriptedModelThread,
    executable: str,
    allowed: tuple[str, ...],
) -> None:
    service = await served(start_service, sandbox, executable, *allowed)
    search = script("go", tool("WebSearch", query="the weather"), "saw: ${tool_result}")
    started = time.monotonic()
    outcome = await end_of(await service.create(search, options(sandbox)))
    assert outcome.ok
    searched = [request for request in model.requests if request.at >= started and "web_search" in request.tools]
    assert bool(searched) == bool(allowed)
    assert ("server_tools" in outcome.result) != bool(allowed), "the refusal says what to do"
