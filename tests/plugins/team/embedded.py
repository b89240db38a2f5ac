"""A server with `--oauth`, the people whom its operator invites, and clients that know nothing but its address."""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

from claude_code_mcp.testing import Sandbox
from tests.conftest import RUN
from tests.support import warm_commands
from tests.support.ports import client_address, free_port
from tests.support.program import HttpServer, http_server
from tests.support.waiting import HANG_SECONDS, until_true

from .passkey_device import Device
from .test_sign_in import CALLBACK, POLICY, Memory

BOB_TOKEN = "bob-5f0c9d2e7b41a86c3d90-and-more"


@dataclass
class Embedded:
    """A server of its own state, which can be started again."""

    root: Path
    place: Sandbox
    environment: dict[str, str]
    port: int
    server: HttpServer | None = None

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    @contextmanager
    def running(self) -> Iterator["Embedded"]:
        with http_server(self.environment, self.place.project, f"127.0.0.1:{self.port}") as self.server:
            yield self

    def command(self, *arguments: str) -> Any:
        """What `claude-code-mcp people … --json` answers."""
        done = warm_commands.helper().run(["people", *arguments, "--json"], self.environment, self.place.project)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def invite(self, name: str, *arguments: str) -> str:
        """The link for somebody who is invited."""
        return str(self.command("invite", name, *arguments)["url"])

    def device(self) -> Device:
        return Device(self.origin)

    async def person(self, name: str, *arguments: str) -> Device:
        """Somebody who was invited and has a passkey."""
        device = self.device()
        done = await device.accept(self.invite(name, *arguments))
        assert done.status_code == 200, done.text
        assert "Your passkey is ready" in done.text
        return device

    def audited(self) -> list[dict[str, Any]]:
        """What is in the trail by now: all of it only when the server has ended, for a thread of its own writes it."""
        lines = (self.root / "state" / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    async def until_audited(self, act: str, **about: str) -> None:
        wanted = {"act": act, **about}
        await until_true(
            lambda: any(wanted.items() <= entry.items() for entry in self.audited()), f"{wanted} is not in the trail"
        )


def embedded(root: Path, model_url: str, **more: str) -> Embedded:
    place = Sandbox(root, model_url)
    (root / "leads").mkdir()
    (root / "policy.toml").write_text(POLICY.format(leads=root / "leads"))
    tokens = root / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"bob {BOB_TOKEN}\n")
    environment = place.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
            "CLAUDE_CODE_MCP_OAUTH": "true",
            "CLAUDE_CODE_MCP_TOKENS_FILE": str(tokens),
            "CLAUDE_CODE_MCP_POLICY": str(root / "policy.toml"),
            "CLAUDE_CODE_MCP_PROFILE": "people",
            **more,
        }
    )
    return Embedded(root, place, environment, free_port())


@asynccontextmanager
async def connected(served: Embedded, device: Device, mode: str) -> AsyncIterator[tuple[Client, Memory]]:
    """A client of the Python SDK that signs in by itself; its person allows it on their device."""
    memory, came_back = Memory(), list[str]()

    async def open_browser(address: str) -> None:
        memory.asked.append(address)
        came_back.append(await device.allow(address))

    async def callback() -> AuthorizationCodeResult:
        sent = parse_qs(urlsplit(came_back.pop()).query)
        return AuthorizationCodeResult(code=sent["code"][0], state=sent["state"][0], iss=sent["iss"][0])

    metadata = OAuthClientMetadata.model_validate({"redirect_uris": [CALLBACK], "client_name": "A client"})
    auth = OAuthClientProvider(served.url, metadata, memory, open_browser, callback)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=HANG_SECONDS) as http,
        Client(streamable_http_client(served.url, http_client=http), mode=mode) as client,
    ):
        yield client, memory


@dataclass
class PlainClient:
    """A client by hand, so that each step of it can be wrong."""

    served: Embedded
    client_id: str
    redirect: str = CALLBACK
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    host: str = field(default_factory=client_address)
    """The address that its requests come from."""

    @staticmethod
    async def registered(served: Embedded, redirect: str = CALLBACK, name: str = "A client") -> "PlainClient":
        body = {"redirect_uris": [redirect], "client_name": name, "token_endpoint_auth_method": "none"}
        client = PlainClient(served, "", redirect)
        async with client.http() as http:
            answer = await http.post(f"{served.origin}/register", json=body)
        assert answer.status_code == 201, answer.text
        client.client_id = answer.json()["client_id"]
        return client

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=HANG_SECONDS, transport=httpx2.AsyncHTTPTransport(local_address=self.host))

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def address(self, **changed: str | None) -> str:
        """Where the person is sent; None takes a parameter out."""
        asked: dict[str, str | None] = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect,
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
            "state": "a-state",
            "resource": self.served.url,
            **changed,
        }
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return f"{self.served.origin}/authorize?{query}"

    async def code(self, device: Device) -> str:
        return parse_qs(urlsplit(await device.allow(self.address())).query)["code"][0]

    async def token(self, **fields: str | None) -> httpx2.Response:
        form = {"client_id": self.client_id, **{name: value for name, value in fields.items() if value is not None}}
        async with self.http() as http:
            return await http.post(f"{self.served.origin}/token", data=form)

    async def redeem(self, code: str, **changed: str | None) -> httpx2.Response:
        fields: dict[str, str | None] = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect,
            "code_verifier": self.verifier,
            "resource": self.served.url,
            **changed,
        }
        return await self.token(**fields)

    async def refresh(self, token: str, **changed: str) -> httpx2.Response:
        return await self.token(**{"grant_type": "refresh_token", "refresh_token": token, **changed})

    async def tokens(self, device: Device) -> dict[str, Any]:
        answer = await self.redeem(await self.code(device))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())
