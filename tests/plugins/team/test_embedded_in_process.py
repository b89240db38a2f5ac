"""The embedded authorization server in this process: a client that is known by its document, and a person who is
removed while a request of theirs is being let in."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from starlette.applications import Starlette

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.team.authenticators import EmbeddedAuthenticator, ProxyAuthenticator
from claude_code_mcp.plugins.team.authorization.clients import ClientDocuments, KnownClient
from claude_code_mcp.plugins.team.authorization.provider import grant_of
from claude_code_mcp.plugins.team.invited_people import InvitedPeople
from claude_code_mcp.plugins.team.oauth_grants import OAuthGrants
from claude_code_mcp.plugins.team.people import People
from claude_code_mcp.plugins.team.person_names import PersonNames
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.http import Address
from tests.conftest import StartService
from tests.plugins.team.callers import nobody_objects

from .passkey_device import Device
from .test_embedded_attacks import documents
from .test_sign_in import CALLBACK

ORIGIN = "http://localhost:7"
CHALLENGE, VERIFIER = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
"""Those of RFC 7636, appendix B."""


@dataclass
class Embedded:
    """An authorization server and the callers that it admits."""

    way: EmbeddedAuthenticator
    callers: Callers
    people: InvitedPeople
    app: Starlette


def served(service: Service) -> Embedded:
    settings = load_settings({"CLAUDE_CODE_MCP_OAUTH": "true"})
    way = EmbeddedAuthenticator(settings, ClientDocuments(ORIGIN, private=True))
    callers = Callers(settings, authenticators=[way])
    callers.serve(service, Address("127.0.0.1", 7))
    people = InvitedPeople(database_in(service.settings.state_dir))
    return Embedded(way, callers, people, Starlette(routes=callers.routes(None)))


async def test_a_client_is_known_by_the_document_at_its_id(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start_service()
    # A service that was started for its user alone takes nobody else; one over HTTP is started for others.
    monkeypatch.setattr(service, "admit", nobody_objects)
    embedded = served(service)
    callers, people, app = embedded.callers, embedded.people, embedded.app
    with documents() as (base, found, _):
        client_id = f"{base}/client.json"
        found["/client.json"] = {"client_id": client_id, "client_name": "By document", "redirect_uris": [CALLBACK]}
        async with Device(ORIGIN) as device:
            await device.http.aclose()
            device.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN)
            assert (await device.accept(f"{ORIGIN}/invite#{people.invite('ann')}")).status_code == 200
            asked = {"response_type": "code", "client_id": client_id, "redirect_uri": CALLBACK, "state": "s"}
            query = urlencode({**asked, "code_challenge": CHALLENGE, "code_challenge_method": "S256"})
            page = await device.consent_page(f"{ORIGIN}/authorize?{query}")
            assert "By document" in page.text
            assert client_id in page.text
            code = parse_qs(urlsplit(await device.allow(f"{ORIGIN}/authorize?{query}")).query)["code"][0]
            form = {"grant_type": "authorization_code", "client_id": client_id, "code": code}
            proof = {"redirect_uri": CALLBACK, "code_verifier": VERIFIER}
            tokens = (await device.http.post("/token", data={**form, **proof})).json()
        identity = await callers.by_token(tokens["access_token"])
        assert identity is not None
        assert identity.principal == "ann"


async def test_cleanup_after_a_removed_person_is_retried(start_service: StartService) -> None:
    service = await start_service()
    embedded, ended, works = served(service), list[str](), False
    people, server = embedded.people, embedded.way._server
    assert server is not None
    people.invite("ann")

    async def remove(name: str) -> None:
        if not works:
            raise OSError("the fleet does not answer")
        ended.append(name)

    embedded.callers.remove = remove
    people.remove("ann")
    with pytest.raises(OSError, match="does not answer"):
        await server._end_what_was_left()
    works = True
    for _ in range(2):
        await server._end_what_was_left()
    assert ended == ["ann"]


async def test_token_requests_per_address_are_limited_with_a_retry_time(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claude_code_mcp.plugins.team.authorization.authorization_server._MAX_EXCHANGES", 4)
    app = served(await start_service()).app
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN) as http:
        form = {"grant_type": "refresh_token", "client_id": "x", "refresh_token": "made-up"}
        answers = [await http.post(path, data=form) for path in ("/token", "/revoke", "/token", "/token", "/token")]
        assert [answer.status_code for answer in answers] == [401, 401, 401, 401, 429]
        assert 0 < int(answers[-1].headers["retry-after"]) <= 61
        assert (await http.get("/.well-known/oauth-authorization-server")).status_code == 200


async def test_client_registered_under_older_rules_registers_again(start_service: StartService) -> None:
    service = await start_service()
    app = served(service).app
    grants = OAuthGrants(database_in(service.settings.state_dir))
    for client_id, address in (("old", "some-program://callback"), ("good", "com.example.app:/callback")):
        client = KnownClient.model_validate({"client_id": client_id, "redirect_uris": [address]})
        grants.register(client_id, client.model_dump_json(exclude_none=True))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN) as http:
        for client_id, address, status in (
            ("old", "some-program://callback", 400),
            ("good", "com.example.app:/callback", 302),
        ):
            asked = {"response_type": "code", "client_id": client_id, "redirect_uri": address, "state": "s"}
            query = urlencode({**asked, "code_challenge": CHALLENGE, "code_challenge_method": "S256"})
            answer = await http.get(f"/authorize?{query}")
            assert answer.status_code == status, answer.text
            assert not answer.headers.get("location", "").startswith("some-program")


async def test_who_is_removed_while_they_are_being_let_in_is_not(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await start_service()
    asked, decided = asyncio.Event(), asyncio.Event()

    async def admit(_: str, __: Collection[str]) -> None:
        asked.set()
        await decided.wait()

    monkeypatch.setattr(service, "admit", admit)
    embedded = served(service)
    way, people = embedded.way, embedded.people
    secret = people.invite("ann")
    invited = people.by_invite(secret)
    assert invited is not None
    person = invited[0]
    admitting = asyncio.ensure_future(way.admit_grant(grant_of(person, 2e9), 2e9))
    await asked.wait()
    way.end_person("ann", person.subject)
    decided.set()
    assert await admitting is None
    assert await way.admit_grant(grant_of(person, 2e9), 2e9) is None


async def test_name_of_an_invited_person_cannot_be_taken(tmp_path: Path) -> None:
    named = {
        "CLAUDE_CODE_MCP_TRUSTED_PROXIES": "192.0.2.1",
        "CLAUDE_CODE_MCP_PROXY_USER_HEADER": "X-Forwarded-User",
    }
    people, names = InvitedPeople(database_in(tmp_path)), PersonNames(database_in(tmp_path))
    people.invite("ann")

    async def by_proxy(name: str) -> bool:
        """Whether a proxy can give somebody this name at a server that is started now."""
        way = ProxyAuthenticator(load_settings({**named, "CLAUDE_CODE_MCP_OAUTH": "true"}))
        way.people = People("proxy", nobody_objects, None, names, lambda _: False)
        return await way.by_name(name, (), 60) is not None

    assert not await by_proxy("ann")
    with pytest.raises(InvalidArgument, match="ann"):
        names.forget("ann")
    assert people.remove("ann")
    assert not await by_proxy("ann"), "the sessions of that name are still there"
    people.invite("ann")
    assert people.remove("ann")
    assert names.forget("ann")
    assert await by_proxy("ann")
    with pytest.raises(InvalidArgument, match="another person, who signed in through proxy"):
        people.invite("ann")
    assert names.forget("ann")
    people.invite("ann")
