"""Clients that write and read the wire themselves, so that a test sees every message in its order."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2

from claude_code_mcp.testing import Sandbox
from tests.support import warm_commands
from tests.support.warm_commands import WarmProcess

LEGACY, MODERN = "2025-11-25", "2026-07-28"
Json = dict[str, Any]

_INITIALIZE = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


def request(method: str, params: Json, number: int = 1) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def query(era: str, prompt: str, **options: Any) -> Json:
    """A call of `claude_code_query`."""
    params: Json = {"name": "claude_code_query", "arguments": {"prompt": prompt, "options": options}}
    return request("tools/call", params if era == LEGACY else {**params, "_meta": _ENVELOPE}, 2)


class Stdio:
    """The server as a child on two pipes, read only when a test says so."""

    def __init__(self, process: WarmProcess) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._in, self._out = process.stdin, process.stdout

    def greet(self, era: str) -> None:
        if era == LEGACY:
            self.send(request("initialize", _INITIALIZE))
            self.read()
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: Json) -> None:
        self._in.write(json.dumps(message).encode() + b"\n")
        self._in.flush()

    def read(self) -> Json:
        line = self._out.readline()
        assert line, "the server has closed its output"
        return dict(json.loads(line))

    def rest(self, message: Json) -> list[Json]:
        """Everything that is said up to the answer."""
        said = [self.read()]
        while said[-1].get("id") != message["id"]:
            said.append(self.read())
        return said

    async def call(self, message: Json) -> list[Json]:
        self.send(message)
        return await asyncio.to_thread(self.rest, message)


@contextmanager
def stdio_server(environment: dict[str, str], sandbox: Sandbox, era: str) -> Iterator[Stdio]:
    (their_input, our_input), (our_output, their_output) = os.pipe(), os.pipe()
    process = warm_commands.helper().start([], environment, sandbox.project, (their_input, their_output, 2))
    os.close(their_input)
    os.close(their_output)
    process.stdin, process.stdout = os.fdopen(our_input, "wb"), os.fdopen(our_output, "rb")
    with process.stdout:
        with process.stdin:  # whose end ends it
            wire = Stdio(process)
            wire.greet(era)
            yield wire
        process.stdout.read()
        process.wait()


class Http:
    """A client of `serve --http`."""

    def __init__(self, url: str, client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        self._url = url
        self._client = client
        self._headers = headers

    async def call(self, message: Json) -> list[Json]:
        return [item async for item in self.stream(message)]

    async def stream(self, message: Json) -> AsyncIterator[Json]:
        """Everything on the stream of this request."""
        modern = {"Mcp-Method": message["method"], "Mcp-Name": message["params"].get("name", "")}
        headers = {**self._headers, **(modern if "_meta" in message["params"] else {})}
        async with self._client.stream("POST", self._url, json=message, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield dict(json.loads(line.removeprefix("data: ")))


@asynccontextmanager
async def http_client(url: str, era: str) -> AsyncIterator[Http]:
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": era}
    async with httpx2.AsyncClient(timeout=120) as client:
        if era == LEGACY:
            greeted = await client.post(url, json=request("initialize", _INITIALIZE), headers=headers)
            headers["Mcp-Session-Id"] = greeted.headers["mcp-session-id"]
            await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
        yield Http(url, client, headers)
