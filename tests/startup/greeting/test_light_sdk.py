"""The server is loaded without what its first call does not need, and nobody who imports the SDK notices."""

import json
import subprocess
import sys
from typing import Any

import pytest

NOT_NEEDED = (
    "mcp.client.session",
    "mcp.server.mcpserver",
    "claude_code_mcp.hub.hub",
    "claude_code_mcp.testing",
    "claude_code_mcp.cli.doctor",
    "claude_code_mcp.server.manifest",
    "filelock",
    "h11",
    "prometheus_client",
)
LOAD = "from claude_code_mcp.cli.main import _load; _load()\n"


NAMES = "[sorted(n for n in dir(m) if n[0] != '_') for m in (mcp, mcp.server)]"
LOOK = f"""
import json, sys, threading
said = {{"modules": sorted(sys.modules)}}
import mcp, mcp_types
said["built"] = mcp_types.CallToolResult.__pydantic_complete__
call = {{"method": "tools/call", "params": {{"name": "add", "arguments": {{"a": 1}}}}}}
said["request"] = repr(mcp_types.client_request_adapter.validate_python(call))
said["result"] = mcp_types.CallToolResult(content=[mcp_types.TextContent(text="2")]).model_dump(by_alias=True)
said["schema"] = mcp_types.Tool.model_json_schema()
try:
    mcp_types.Tool.model_validate({{"name": 1}})
except ValueError as error:
    said["refused"] = str(error)
try:
    from mcp import Nonsense
except ImportError as error:
    said["missing"] = str(error)[:20]
found, ready = [], threading.Barrier(4)
def look():
    ready.wait()
    found.append(mcp.Client.__name__)
threads = [threading.Thread(target=look) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import mcp.server
mcp.server.MCPServer
said |= {{"found": found, "names": {NAMES}}}
"""
SERVE = """
import claude_code_mcp.plugins.console.console, claude_code_mcp.server.transports.http
said["serving"] = sorted(sys.modules)
"""
PRINT = "print(json.dumps(said))\n"
OFF = ("opentelemetry.sdk", "opentelemetry.exporter", "webauthn", "cbor2", "OpenSSL")
"""What serves only somebody who has asked for it: telemetry, and people who sign in at this very server."""


def said_by(code: str) -> dict[str, Any]:
    """What an interpreter of its own prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def light() -> dict[str, Any]:
    """What is seen where the server has been loaded."""
    return said_by(LOAD + LOOK + PRINT)


@pytest.fixture(scope="module")
def usual() -> dict[str, Any]:
    """What is seen where the SDK has been imported as it is, and then where people are served over HTTP."""
    return said_by("import claude_code_mcp.serving\n" + LOOK + SERVE + PRINT)


def test_loading_the_server_imports_nothing_that_its_first_call_does_not_need(light: dict[str, Any]) -> None:
    assert "claude_code_mcp.server.server" in light["modules"]
    assert [name for name in NOT_NEEDED if name in light["modules"]] == []


def test_optional_modules_are_not_loaded(usual: dict[str, Any]) -> None:
    assert "claude_code_mcp.server.transports.http" in usual["serving"]
    assert [name for name in usual["serving"] if f"{name}.".startswith(tuple(f"{off}." for off in OFF))] == []
    assert [name for name in usual["serving"] if "team.authorization" in name] == []
    assert "prometheus_client" not in usual["modules"], "on stdio"


def test_the_packages_of_the_sdk_have_all_their_names_when_a_person_asks(
    light: dict[str, Any], usual: dict[str, Any]
) -> None:
    assert light["names"] == usual["names"]


def test_a_name_that_the_sdk_does_not_have_is_missing_as_usual(light: dict[str, Any], usual: dict[str, Any]) -> None:
    assert light["missing"] == usual["missing"] == "cannot import name '"


def test_threads_that_ask_for_a_name_at_the_same_time_all_get_it(light: dict[str, Any]) -> None:
    assert light["found"] == ["Client"] * 4


def test_messages_are_validated_as_usual_by_validators_that_are_built_when_they_are_needed(
    light: dict[str, Any], usual: dict[str, Any]
) -> None:
    assert (light["built"], usual["built"]) == (False, True)
    for seen in ("request", "result", "schema", "refused"):
        assert light[seen] == usual[seen]
