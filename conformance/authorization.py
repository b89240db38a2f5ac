"""The suite's scenarios on servers with authorization: our own authorization server, and a provider of the operator's.

- **Our own authorization server** (`serve --oauth`) is what the command `authorization` of the suite tests: its
  metadata, and a sign-in with a code. The suite prints where the person has to go and waits; here that person has been
  invited, and allows the client with a passkey.
- **A resource server with a provider** (`CLAUDE_CODE_MCP_OAUTH_ISSUER`) gets all scenarios of servers. The suite shows
  no token to a server that it tests and has no option for one, so it connects to a relay, which puts the access token
  of somebody who has signed in at the provider into the head of each request, one for each connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from claude_code_mcp.testing import Sandbox
from tests.plugins.team.embedded import Embedded, PlainClient, embedded
from tests.plugins.team.passkey_device import Device
from tests.plugins.team.test_sign_in import HERE as OAUTH
from tests.plugins.team.test_sign_in import PACKAGES, SignInServer, signed_in, signing_in
from tests.plugins.team.test_sign_in import Served as ProviderServed
from tests.scenarios.real_clients.serving import serve_http
from tests.support import npm
from tests.support.ports import free_port
from tests.support.program import HttpServer

from .suite import SERVER, WITH_TOKEN, Suite, Verdict

_HEAD_END = b"\r\n\r\n"
_MAX_HEAD = 64 << 10


# -- our own authorization server -------------------------------------------------------------------------------------


async def run_authorization_server(suite: Suite, served: Embedded, device: Device, era: str, output: Path) -> Verdict:
    """Every scenario of an era for authorization servers; the person of the device allows what the suite asks for."""
    port = free_port()
    client = await PlainClient.registered(served, f"http://127.0.0.1:{port}/callback")

    async def allow(address: str) -> None:
        back = await device.allow(address)
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as browser:
            (await browser.get(back)).raise_for_status()

    return await suite.run_authorization(served.origin, client.client_id, served.url, port, era, output, allow)


@asynccontextmanager
async def own_authorization_server(root: Path, model_url: str) -> AsyncIterator[tuple[Embedded, Device]]:
    """The product with `--oauth`, and somebody who has a passkey there."""
    with embedded(root, model_url).running() as served:
        async with await served.person("ann") as device:
            yield served, device


# -- a resource server with a provider --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Relay:
    """Passes requests on with an access token; one request for each connection, so that each has the token."""

    port: int
    token: str

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(_HEAD_END)
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        to_writer.write(self._with_token(head))
        # Whichever side ends first ends the other: that is how a client of 2026-07-28 cancels.
        ways = [asyncio.create_task(_copy(reader, to_writer)), asyncio.create_task(_copy(to_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_writer.close()
            writer.close()

    def _with_token(self, head: bytes) -> bytes:
        first, *lines = head.removesuffix(_HEAD_END).split(b"\r\n")
        kept = [line for line in lines if not line.lower().startswith((b"connection:", b"authorization:"))]
        added = [b"Authorization: Bearer " + self.token.encode(), b"Connection: close"]
        return b"\r\n".join([first, *kept, *added]) + _HEAD_END


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_MAX_HEAD):
            writer.write(data)
            await writer.drain()


@contextmanager
def resource_server(sandbox: Sandbox, environment: dict[str, str]) -> Iterator[tuple[str, SignInServer]]:
    """The server of the suite with a provider of the operator's, and that provider. Raises Unavailable."""
    npm.install(OAUTH / "package.json", PACKAGES)
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with signing_in(url) as provider:
        settings = {"CLAUDE_CODE_MCP_OAUTH_ISSUER": provider.url, "CLAUDE_CODE_MCP_OAUTH_SCOPES": "claude"}
        with serve_http(sandbox.root, {**environment, **settings}, program=SERVER, port=port):
            yield url, provider


async def run_with_access_token(
    suite: Suite, url: str, provider: SignInServer, sandbox: Sandbox, era: str, output: Path
) -> Verdict:
    """Every scenario of an era for servers, each request with the token of somebody who has signed in at the
    provider by a client that knew nothing but the address of the server."""
    server = HttpServer(provider, url)  # type: ignore[arg-type]  # only its address is used
    async with signed_in(ProviderServed(server, provider, sandbox), "ann", "legacy") as (_, memory):
        assert memory.tokens is not None
        token = memory.tokens.access_token
    port = urlsplit(url).port
    assert port is not None
    relay = await asyncio.start_server(_Relay(port, token), "127.0.0.1", 0, limit=_MAX_HEAD)
    async with relay:
        address = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}/mcp"
        return await asyncio.to_thread(suite.run_server, address, era, output, subject=WITH_TOKEN)
