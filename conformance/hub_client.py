"""Our hub as the client that the suite tests: `python -m conformance.hub_client URL`, in each scenario a program.

The suite starts a server that misbehaves in a known way, names the scenario in the environment, and watches what
arrives. Here a hub has that one server: it is connected to, signed in to where it wants that, its tools are listed and
called, and a person accepts every form and every sign-in. The exit code is not 0 if any of it failed, as some scenarios
want it to.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
from mcp import MCPError

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.hub_deps import HubDeps
from claude_code_mcp.hub.transports.http_client import UNAUTHORIZED
from tests.support.hub_config import parse_servers

SERVER = "suite"
OUR_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The Client ID Metadata Document whose address the suite expects."""
_SIGN_INS = 2
"""How often the person signs in: at first, and once more where that was not for enough, or is good no longer."""
_VALUES: Mapping[str, Any] = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


async def _browse(address: str) -> None:
    """A person who agrees to everything: the browser follows the redirects back to our listener."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        await browser.get(address)


async def _accept(params: dict[str, Any]) -> dict[str, Any]:
    """A person who leaves every field as it is suggested, and confirms."""
    fields = params.get("requestedSchema", {}).get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    content |= {name: True for name, field in fields.items() if "default" not in field and field["type"] == "boolean"}
    return {"action": "accept", "content": content}


class Person:
    """Somebody who uses the server through the hub, and signs in when that is asked for."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._left = _SIGN_INS

    async def connect(self) -> None:
        """Raises UpstreamUnavailable where the server cannot be used even so."""
        [status] = await self._hub.connect()
        while status.state == "needs-auth" and self._left:
            status = await self._sign_in()
        if status.state != "connected":
            raise UpstreamUnavailable(f"The server is {status.state}: {status.reason}", state=status.state)

    async def _sign_in(self) -> Any:
        self._left -= 1
        return await self._hub.authenticate(SERVER, _browse)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> None:
        """What the server answers is its own affair, but a refusal for want of a sign-in is followed by one."""
        try:
            await self._hub.call(SERVER, tool, arguments, ask=_accept)
        except MCPError as error:
            if error.code != UNAUTHORIZED or not self._left:
                print(f"{tool}: {error}", file=sys.stderr)
                return
            await self._sign_in()
            await self.call(tool, arguments)


async def play(hub: Hub, scenario: str, context: Mapping[str, Any]) -> None:
    person = Person(hub)
    await person.connect()
    tools = {each.tool.name: each.tool for each in await hub.tools(SERVER)}
    if scenario == "json-schema-2020-12-preservation":
        await person.call("json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})
    elif "toolCalls" in context:
        for call in context["toolCalls"]:
            if call["name"] in tools:
                await person.call(call["name"], call.get("arguments"))
    else:
        for name, tool in tools.items():
            await person.call(name, _arguments(tool.input_schema))


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The least that a tool takes."""
    properties = schema.get("properties", {})
    return {name: _VALUES.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", ())}


def _entry(url: str, context: Mapping[str, Any]) -> dict[str, Any]:
    """The server as a configuration file has it; a client that is registered already is written there too."""
    oauth = {"clientId": context.get("client_id"), "clientSecret": context.get("client_secret")}
    known = {name: value for name, value in oauth.items() if value}
    return {"type": "http", "url": url, **({"oauth": known} if known else {})}


async def main(url: str) -> int:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        configuration = parse_servers({SERVER: _entry(url, context)}, {})
        assert not configuration.problems, configuration.problems
        deps = HubDeps(
            {"PATH": os.environ["PATH"]}, Database(root), FileVault(root / "vault"), root, client_document=OUR_DOCUMENT
        )
        async with Hub(configuration, load_settings({}), deps) as hub:
            try:
                await play(hub, os.environ["MCP_CONFORMANCE_SCENARIO"], context)
            except UpstreamUnavailable as error:
                print(error.message, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
