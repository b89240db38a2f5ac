"""People sign in at a real OpenID provider with real clients, in both eras, and have sessions of their own."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import RUN
from tests.support import npm
from tests.support.ports import free_port
from tests.support.program import HttpServer, http_server

HERE = Path(__file__).parent
PACKAGES = npm.BUILD / "authorization-server"
POLICY = """
[profiles.people]
isolation = "none"

[profiles.leads]
base = "people"
roots = ["{leads}"]

[groups]
leads = "leads"
"""
CALLBACK = "http://127.0.0.1:9/callback"


@dataclass
class SignInServer:
    """The OpenID provider."""

    process: "subprocess.Popen[str]"
    url: str

    def sign_in_as(self, person: str, *groups: str) -> None:
        """Whoever comes from now on is this person, who is in these groups."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{' '.join((person, *groups))}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"now {person}\n"


@contextmanager
def signing_in(resource: str) -> Iterator[SignInServer]:
    port = free_port()
    callback = resource.replace("/mcp", "/sign-in/callback")
    with running_provider(
        ["node", str(HERE / "provider.mjs"), str(PACKAGES), str(port), resource, callback], port
    ) as provider:
        yield provider


@contextmanager
def running_provider(command: list[str], port: int) -> Iterator[SignInServer]:
    environment = {**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"}  # it is on loopback
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield SignInServer(process, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


@dataclass
class Served:
    server: HttpServer
    provider: SignInServer
    place: Sandbox


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Served]:
    try:
        npm.install(HERE / "package.json", PACKAGES)
    except npm.Unavailable as reason:
        pytest.skip(str(reason))
    root, port = tmp_path_factory.mktemp("oauth"), free_port()
    place = Sandbox(root, model.url)
    (root / "leads").mkdir()
    (root / "policy.toml").write_text(POLICY.format(leads=root / "leads"))
    with signing_in(f"http://127.0.0.1:{port}/mcp") as provider:
        environment = place.environment(
            **{
                RUN: os.environ[RUN],
                "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
                "CLAUDE_CODE_MCP_OAUTH_ISSUER": provider.url,
                "CLAUDE_CODE_MCP_OAUTH_SCOPES": "claude",
                "CLAUDE_CODE_MCP_OAUTH_CLIENT_ID": "console",
                "CLAUDE_CODE_MCP_OAUTH_CLIENT_SECRET": "a secret of the console",
                "CLAUDE_CODE_MCP_POLICY": str(root / "policy.toml"),
                "CLAUDE_CODE_MCP_PROFILE": "people",
            }
        )
        with http_server(environment, place.project, f"127.0.0.1:{port}") as server:
            yield Served(server, provider, place)


@dataclass
class Memory(TokenStorage):
    """What a client keeps."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    asked: list[str] = field(default_factory=list)

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def browse(address: str, until: str = CALLBACK) -> str:
    """What a browser does that is led to the provider: the address that it is sent to in the end."""
    async with httpx2.AsyncClient(timeout=60) as browser:
        for _ in range(12):
            answer = await browser.get(address)
            assert answer.status_code in (302, 303), answer.text
            address = str(answer.url.join(answer.headers["location"]))
            if address.startswith(until):
                return address
    raise AssertionError(address)


@asynccontextmanager
async def signed_in(
    served: Served, person: str, mode: str, groups: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Client, Memory]]:
    """A client that knows nothing but the address of the server."""
    memory, came_back = Memory(), asyncio.Queue[str]()

    async def open_browser(address: str) -> None:
        memory.asked.append(address)
        await asyncio.to_thread(served.provider.sign_in_as, person, *groups)
        came_back.put_nowait(await browse(address))

    async def callback() -> AuthorizationCodeResult:
        given = parse_qs(urlsplit(await came_back.get()).query)
        return AuthorizationCodeResult(code=given["code"][0], state=given["state"][0], iss=given.get("iss", [None])[0])

    auth = OAuthClientProvider(
        served.server.url,
        OAuthClientMetadata.model_validate({"redirect_uris": [CALLBACK], "client_name": "A client"}),
        memory,
        open_browser,
        callback,
    )
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60) as http,
        Client(streamable_http_client(served.server.url, http_client=http), mode=mode) as client,
    ):
        yield client, memory


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize("mode", ["legacy", pytest.param("2026-07-28", marks=pytest.mark.soak)])
async def test_a_client_signs_in_automatically_and_its_person_has_sessions_of_their_own(
    served: Served, mode: str
) -> None:
    async with signed_in(served, "ann", mode) as (ann, memory), signed_in(served, "bob", mode) as (bob, _):
        made = await call(ann, "claude_code", prompt=script("Hi.", "Hello Ann."))
        assert made["result"] == "Hello Ann."
        mine = await call(ann, "claude_list_sessions")
        assert made["sessionId"] in {row["sessionId"] for row in mine["sessions"]}
        theirs = await call(bob, "claude_list_sessions")
        assert made["sessionId"] not in {row["sessionId"] for row in theirs["sessions"]}
        assert (await call(bob, "claude_get_status", sessionId=made["sessionId"]))["error"][
            "code"
        ] == "SESSION_NOT_FOUND"
    asked = parse_qs(urlsplit(memory.asked[0]).query)
    assert asked["resource"] == [served.server.url]
    assert asked["scope"][0].split()[0] == "claude"
    assert asked["code_challenge_method"] == ["S256"]


@pytest.mark.soak  # which groups have which: tests/core/policy
async def test_a_group_has_the_profile_that_the_policy_gives_it(served: Served) -> None:
    leads, prompt = served.place.root / "leads", script("Hi.", "Hello.")
    async with (
        signed_in(served, "dora", "legacy") as (dora, _),
        signed_in(served, "eve", "legacy", ("leads",)) as (eve, _),
    ):
        refused = await call(dora, "claude_code", prompt=prompt, cwd=str(leads))
        assert refused["error"]["code"] == "PERMISSION_DENIED"
        assert (await call(eve, "claude_code", prompt=prompt, cwd=str(leads)))["result"] == "Hello."
    # With the next token she is in no group any more.
    async with signed_in(served, "eve", "legacy") as (eve, _):
        refused = await call(eve, "claude_code", prompt=prompt, cwd=str(leads))
        assert refused["error"]["code"] == "PERMISSION_DENIED"


@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.soak), "modern"])
def test_a_client_of_the_typescript_sdk_signs_in_automatically(served: Served, era: str) -> None:
    served.provider.sign_in_as("cleo")
    command = ["node", str(HERE / "client.mjs"), str(PACKAGES), served.server.url, era, CALLBACK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == []


async def test_who_is_refused_is_told_where_to_sign_in(served: Served) -> None:
    async with httpx2.AsyncClient(timeout=60) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await http.post(served.server.url, json={}, headers=headers)
            assert refused.status_code == 401
            named = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
        metadata = (await http.get(named)).json()
    assert metadata["resource"] == served.server.url
    assert metadata["authorization_servers"] == [served.provider.url]
    assert metadata["scopes_supported"] == ["claude"]


# -- the console ------------------------------------------------------------------------------------------------------


async def signed_in_at(served: Served, link: str) -> httpx2.Response:
    """What the page does with a link that it was opened by."""
    ticket = link.partition("#ticket=")[2]
    async with httpx2.AsyncClient(timeout=60) as page:
        return await page.post(f"{served.server.base}/api/sign-in", json={"ticket": ticket})


async def test_people_sign_in_to_the_console_with_the_same_account(served: Served) -> None:
    async with httpx2.AsyncClient(timeout=60) as http:
        refused = await http.get(f"{served.server.base}/api/me")
        assert refused.json()["signIn"]["provider"] is True
    served.provider.sign_in_as("flo")
    link = await browse(f"{served.server.base}/sign-in", f"{served.server.base}/#ticket=")
    answer = await signed_in_at(served, link)
    assert answer.json()["principal"] == "flo"
    headers = {"x-csrf-token": answer.json()["csrf"]}
    async with httpx2.AsyncClient(timeout=60, cookies=answer.cookies, headers=headers) as page:
        assert (await page.get(f"{served.server.base}/api/me")).json()["principal"] == "flo"
    assert (await signed_in_at(served, link)).status_code == 401, "a ticket counts once"


def has_failed(answer: httpx2.Response) -> bool:
    """Whether the browser is led to the page, which says that the sign-in has failed."""
    return answer.status_code == 303 and answer.headers["location"].endswith("/#sign-in-failed")


async def test_a_sign_in_counts_once_and_in_the_browser_that_has_begun_it(served: Served) -> None:
    base = served.server.base
    async with httpx2.AsyncClient(timeout=60) as other, httpx2.AsyncClient(timeout=60) as browser:
        begun = await browser.get(f"{base}/sign-in")
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [f"{base}/sign-in/callback"]
        back = await browse(begun.headers["location"], f"{base}/sign-in/callback")
        for wrong in (
            back.replace("state=", "state=x"),
            f"{base}/sign-in/callback",
            f"{base}/sign-in/callback?state=&code=x",
        ):
            assert has_failed(await browser.get(wrong))
        # Somebody who was sent this address has not begun it.
        assert has_failed(await other.get(back))
        # And with that it is used up, also for the one who has.
        assert has_failed(await browser.get(back))


async def test_an_answer_that_names_another_issuer_counts_for_nothing(served: Served) -> None:
    base = served.server.base
    async with httpx2.AsyncClient(timeout=60) as browser:
        begun = await browser.get(f"{base}/sign-in")
        back = await browse(begun.headers["location"], f"{base}/sign-in/callback")
        parts = urlsplit(back)
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        assert given["iss"] == served.provider.url
        wrong = str(httpx2.URL(f"{base}/sign-in/callback", params={**given, "iss": "https://evil.example.org"}))
        assert has_failed(await browser.get(wrong))
