"""The embedded authorization server with real clients: people are invited, make a passkey and allow their clients."""

import asyncio
import json
import threading

import httpx2
import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.team.authorization.origin import own_origin
from claude_code_mcp.server.transports.http import read_address
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, stall
from tests.plugins.console.console_client import Browser
from tests.server.connection import LONG
from tests.server.test_http import ACCEPT, HELLO
from tests.support import npm, warm_commands
from tests.support.waiting import until_true

from .embedded import BOB_TOKEN, Embedded, PlainClient, connected, embedded
from .test_sign_in import CALLBACK, HERE, PACKAGES, call


async def hello(served: Embedded, token: str) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as http:
        return await http.post(served.url, json=HELLO, headers={**ACCEPT, "authorization": f"Bearer {token}"})


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak  # tests/plugins/console/browser/test_passkeys.py
@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.soak), "2026-07-28"])
async def test_a_client_signs_in_automatically_and_its_person_has_sessions_of_their_own(
    served: Embedded, mode: str
) -> None:
    async with (
        await served.person(f"ann-{mode}") as ann_device,
        await served.person(f"ben-{mode}") as ben_device,
        connected(served, ann_device, mode) as (ann, memory),
        connected(served, ben_device, mode) as (ben, _),
    ):
        made = await call(ann, "claude_code", prompt=script("Hi.", "Hello Ann."))
        assert made["result"] == "Hello Ann."
        mine = await call(ann, "claude_list_sessions")
        assert made["sessionId"] in {row["sessionId"] for row in mine["sessions"]}
        refused = await call(ben, "claude_get_status", sessionId=made["sessionId"])
        assert refused["error"]["code"] == "SESSION_NOT_FOUND"
    assert memory.tokens is not None
    assert memory.tokens.scope == "claude-code"
    assert memory.tokens.expires_in == 600


@pytest.mark.soak  # that of Python does above
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_of_the_typescript_sdk_signs_in_automatically(served: Embedded, era: str) -> None:
    try:
        npm.install(HERE / "package.json", PACKAGES)
    except npm.Unavailable as reason:
        pytest.skip(str(reason))
    async with await served.person(f"cleo-{era}") as device:
        command = ["node", str(HERE / "client.mjs"), str(PACKAGES), served.url, era, CALLBACK, "ask"]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        asked = (await process.stdout.readline()).decode()
        assert asked.startswith("open "), asked
        process.stdin.write(f"{await device.allow(asked.removeprefix('open ').strip())}\n".encode())
        listed, _ = await process.communicate()
        assert json.loads(listed)["sessions"] == []
        assert process.returncode == 0


async def test_a_client_renews_its_token_and_a_restart_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread
) -> None:
    served = embedded(tmp_path_factory.mktemp("restarted"), model.url)
    with served.running():
        device = await served.person("ann")
        client = await PlainClient.registered(served)
        tokens, code = await client.tokens(device), await client.code(device)
        sent = await device.sign_in()
        ticket = sent.headers["location"].partition("#ticket=")[2]
        page = await device.http.post("/api/sign-in", json={"ticket": ticket})
        csrf = {"x-csrf-token": page.json()["csrf"]}
    with served.running():
        assert (await hello(served, tokens["access_token"])).status_code == 200
        assert (await client.redeem(code)).status_code == 200, "a code from before counts too"
        renewed = (await client.refresh(tokens["refresh_token"])).json()
        assert (await hello(served, renewed["access_token"])).status_code == 200
        assert renewed["refresh_token"] != tokens["refresh_token"]
        assert (await device.http.get("/api/me", headers=csrf)).json()["principal"] == "ann"
        flood = [await device.http.post("/register", json={}) for _ in range(61)]
        assert flood[-1].status_code == 429
        assert "retry-after" in flood[-1].headers
        secrets = [tokens["access_token"], tokens["refresh_token"], renewed["refresh_token"], code]
    stored = b"".join(path.read_bytes() for path in (served.root / "state").glob("state.sqlite3*"))
    assert not [secret for secret in secrets if secret.encode() in stored]
    await device.http.aclose()


async def test_file_tokens_keep_working_and_reserve_their_names(served: Embedded) -> None:
    assert (await hello(served, BOB_TOKEN)).status_code == 200
    arguments = ["people", "invite", "bob"]
    refused = warm_commands.helper().run(arguments, served.environment, served.place.project)
    assert refused.returncode == 2
    assert "is the name of a caller with a token" in refused.stderr


@pytest.mark.soak  # one of a token: test_sign_in.py
async def test_a_group_of_the_invitation_has_the_profile_that_the_policy_gives_it(served: Embedded) -> None:
    leads, prompt = str(served.root / "leads"), script("Hi.", "Hello.")
    async with (
        await served.person("dora") as dora_device,
        await served.person("eve", "--group", "leads") as eve_device,
        connected(served, dora_device, "legacy") as (dora, _),
        connected(served, eve_device, "legacy") as (eve, _),
    ):
        assert (await call(dora, "claude_code", prompt=prompt, cwd=leads))["error"]["code"] == "PERMISSION_DENIED"
        assert (await call(eve, "claude_code", prompt=prompt, cwd=leads))["result"] == "Hello."


async def test_a_client_gives_its_tokens_back(served: Embedded) -> None:
    async with await served.person("flo") as device, httpx2.AsyncClient(timeout=60) as http:
        client, other = await PlainClient.registered(served), await PlainClient.registered(served)
        tokens, kept = await client.tokens(device), await client.tokens(device)
        form = {"token": tokens["refresh_token"], "client_id": other.client_id}
        assert (await http.post(f"{served.origin}/revoke", data=form)).status_code == 200
        assert (await hello(served, tokens["access_token"])).status_code == 200, "it was not that client's to give back"
        form["client_id"] = client.client_id
        assert (await http.post(f"{served.origin}/revoke", data=form)).status_code == 200
        assert (await hello(served, tokens["access_token"])).status_code == 401
        assert (await client.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        assert (await hello(served, kept["access_token"])).status_code == 200, "another consent has not ended"
        unknown = {"token": "nothing", "client_id": client.client_id}
        assert (await http.post(f"{served.origin}/revoke", data=unknown)).status_code == 200


async def test_the_metadata_say_what_there_is(served: Embedded) -> None:
    async with httpx2.AsyncClient(timeout=60) as http:
        refused = await http.post(served.url, json={})
        named = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
        resource = (await http.get(named)).json()
        issuer = (await http.get(f"{served.origin}/.well-known/oauth-authorization-server")).json()
    assert resource["resource"] == served.url
    assert resource["authorization_servers"] == [served.origin] == [issuer["issuer"]]
    assert issuer["code_challenge_methods_supported"] == ["S256"]
    assert issuer["client_id_metadata_document_supported"] is True
    assert issuer["authorization_response_iss_parameter_supported"] is True
    assert issuer["token_endpoint_auth_methods_supported"] == ["none"]


# -- people -----------------------------------------------------------------------------------------------------------


async def test_each_of_several_passkeys_signs_in_to_the_console(served: Embedded) -> None:
    async with await served.person("gus") as first, served.device() as second:
        link = str(served.command("link", "gus")["url"])
        assert (await second.accept(link)).status_code == 200
        for device in (first, second):
            sent = await device.sign_in()
            assert sent.status_code == 303
            ticket = sent.headers["location"].partition("#ticket=")[2]
            answer = await device.http.post("/api/sign-in", json={"ticket": ticket})
            assert answer.json()["principal"] == "gus"
        listed = {row["name"]: row for row in served.command("list")["people"]}
        assert listed["gus"]["passkeys"] == 2
        assert listed["gus"]["openLinks"] == 0


async def test_a_person_who_is_removed_is_out_with_everything_that_runs(served: Embedded) -> None:
    async with await served.person("hal") as device, await served.person("ida") as other:
        client = await PlainClient.registered(served)
        tokens, kept = await client.tokens(device), await client.tokens(other)
        code = await client.code(device)
        ticket = (await device.sign_in()).headers["location"].partition("#ticket=")[2]
        page = await device.http.post("/api/sign-in", json={"ticket": ticket})
        csrf = {"x-csrf-token": page.json()["csrf"]}
        assert (await device.http.get("/api/me", headers=csrf)).status_code == 200
        headers = {"authorization": f"Bearer {tokens['access_token']}"}
        session = (await hello(served, tokens["access_token"])).headers["mcp-session-id"]
        ended = Reading(served, {**headers, "accept": "text/event-stream", "mcp-session-id": session})
        async with httpx2.AsyncClient(timeout=None) as http:
            prompt = {"name": "claude_code", "arguments": {"prompt": script("Wait.", stall())}}
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": prompt}
            sent = {**ACCEPT, **headers, "mcp-session-id": session}
            async with http.stream("POST", served.url, json=body, headers=sent) as running:
                assert running.status_code == 200
                served.command("remove", "hal", "--yes")
                try:
                    async for _ in running.aiter_raw():
                        pass
                except httpx2.HTTPError:
                    pass  # it was cut, which is an end too
        await ended.wait()
        assert (await hello(served, tokens["access_token"])).status_code == 401
        assert (await client.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        assert (await client.redeem(code)).json()["error"] == "invalid_grant"
        assert (await device.http.get("/api/me", headers=csrf)).status_code == 401
        assert (await device.sign_in()).status_code == 403
        assert (await hello(served, kept["access_token"])).status_code == 200
        # Somebody who has the name next is somebody else.
        async with await served.person("hal") as next_device:
            fresh = await client.tokens(next_device)
            assert (await hello(served, fresh["access_token"])).status_code == 200
            assert (await hello(served, tokens["access_token"])).status_code == 401
            assert (await device.sign_in()).status_code == 403
    await served.until_audited("caller_ended", who="hal", why="removed")


class Reading:
    """A stream that is being read until it ends."""

    def __init__(self, served: Embedded, headers: dict[str, str]) -> None:
        self._opened, self._ended = threading.Event(), threading.Event()

        def read() -> None:
            try:
                with httpx2.stream("GET", served.url, headers=headers, timeout=None) as response:
                    assert response.status_code == 200
                    self._opened.set()
                    for _ in response.iter_raw():
                        pass
            except httpx2.HTTPError:
                pass
            finally:
                self._ended.set()

        threading.Thread(target=read, daemon=True).start()
        assert self._opened.wait(LONG)
        assert not self._ended.is_set()

    async def wait(self) -> None:
        await until_true(self._ended.is_set, "the stream goes on")


# -- the start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bind", "web_url", "origin"),
    [
        ("127.0.0.1:8765", None, "http://localhost:8765"),
        ("0.0.0.0:8765", "https://claude.example.org/", "https://claude.example.org"),
        ("127.0.0.1:8765", "http://localhost:1234", "http://localhost:1234"),
        ("0.0.0.0:8765", None, None),
        ("127.0.0.1:8765", "http://claude.example.org", None),
        ("127.0.0.1:8765", "https://192.0.2.7", None),
        ("127.0.0.1:8765", "http://127.0.0.1:8765", None),
    ],
)
def test_passkeys_are_for_a_name_with_encryption(bind: str, web_url: str | None, origin: str | None) -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_WEB_URL": web_url} if web_url is not None else {})
    if origin is not None:
        assert own_origin(settings, read_address(bind)) == origin
    else:
        with pytest.raises(InvalidArgument):
            own_origin(settings, read_address(bind))


def test_a_provider_and_an_authorization_server_of_our_own_cannot_be_had_together(served: Embedded) -> None:
    environment = {**served.environment, "CLAUDE_CODE_MCP_OAUTH_ISSUER": "https://id.example.org"}
    arguments = ["serve", "--http", "127.0.0.1:0", "--oauth"]
    refused = warm_commands.helper().run(arguments, environment, served.place.project)
    assert refused.returncode == 2
    assert "--oauth" in refused.stderr


# -- people who come another way --------------------------------------------------------------------------------------


@pytest.mark.soak  # each alone: here and in tests/plugins/console
async def test_people_with_passkeys_of_a_proxy_and_with_a_token_are_at_one_server(
    tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread
) -> None:
    proxy = "127.0.0.9"
    by_proxy = {
        "CLAUDE_CODE_MCP_TRUSTED_PROXIES": proxy,
        "CLAUDE_CODE_MCP_PROXY_USER_HEADER": "X-Forwarded-User",
    }
    served = embedded(tmp_path_factory.mktemp("together"), model.url, **by_proxy)
    with served.running():
        async with await served.person("ann") as device, connected(served, device, "2026-07-28") as (ann, memory):
            assert (await hello(served, BOB_TOKEN)).status_code == 200
            erin = Browser(served.origin, headers={"X-Forwarded-User": "erin"}, address=proxy)
            assert (await asyncio.to_thread(erin.sign_in)).json["principal"] == "erin"
            called_ann = Browser(served.origin, headers={"X-Forwarded-User": "ann"}, address=proxy)
            assert (await asyncio.to_thread(called_ann.sign_in)).status == 401, "the name is that of who is invited"
            stranger = Browser(served.origin, headers={"X-Forwarded-User": "erin"})
            assert (await asyncio.to_thread(stranger.sign_in)).status == 401

            made = await call(ann, "claude_code", prompt=script("Hi.", "Hello."))
            path = f"/api/sessions/{made['sessionId']}"
            assert (await asyncio.to_thread(erin.get, path)).status == 404
            assert memory.tokens is not None
            token = memory.tokens.access_token
            owner = Browser(served.origin, headers={"Authorization": f"Bearer {token}"})
            shared = await asyncio.to_thread(owner.ask, "PUT", f"{path}/shares/erin", {"access": "watch"})
            assert shared.status == 200, shared.body
            assert (await asyncio.to_thread(erin.get, path)).status == 200

            assert (await hello(served, token)).status_code == 200
            served.command("remove", "ann", "--yes")
            assert (await hello(served, token)).status_code == 401
            await until_true(lambda: erin.get(path).status == 404, "what she has shared ends with her")
            assert (await asyncio.to_thread(called_ann.sign_in)).status == 401, "and the name stays hers"
