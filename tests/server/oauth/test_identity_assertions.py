"""Enterprise-managed authorization: an assertion of the organisation's identity provider lets its person in, once, by
the client that it was given to, and nothing else does."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette

from claude_code_mcp.config import load_settings
from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.state.known_people import InvitedPeople
from claude_code_mcp.state.state_directory import database_in
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.web.authorization.authorization_server import AuthorizationServer
from tests.conftest import StartService

from .embedded import embedded
from .issuer import EC_KEY, OTHER_KEY, RSA_KEY, Issuer, issuing, published, sign
from .test_provider_sign_in import nobody_objects
from .test_sign_in import Memory, call

ORIGIN = "http://localhost:7"
RESOURCE = f"{ORIGIN}/mcp"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
CLIENT, SECRET = "the-chat-client", "5f0c9d2e7b41a86c3d90-and-more"
OTHER_CLIENT, OTHER_SECRET = "another-client", "another-0c9d2e7b41a86c3d90-and-more"
TYPE = "oauth-id-jag+jwt"


def clients_file(directory: Path) -> str:
    file = directory / "clients"
    file.touch(mode=0o600)
    file.write_text(f"{CLIENT} {SECRET}\n{OTHER_CLIENT} {OTHER_SECRET}\n")
    return str(file)


@pytest.fixture(scope="module")
def provider() -> Iterator[Issuer]:
    with issuing() as provider:
        yield provider


@dataclass
class Organisation:
    """The identity provider, and the server that takes its assertions."""

    provider: Issuer
    callers: Callers
    people: InvitedPeople
    http: httpx2.AsyncClient

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        made: dict[str, Any] = {
            "iss": self.provider.url,
            "aud": ORIGIN,
            "resource": RESOURCE,
            "client_id": CLIENT,
            "sub": "u-17",
        }
        made |= {"name": "ann", "groups": ["leads"], "jti": secrets.token_hex(8), "iat": now, "exp": now + 300}
        return {name: value for name, value in {**made, **changed}.items() if value is not None}

    def assertion(self, **changed: Any) -> str:
        return sign(self.claims(**changed), typ=TYPE)

    async def bring(self, assertion: str, form: dict[str, str] | None = None, **named: Any) -> httpx2.Response:
        client = {"client_id": CLIENT, "client_secret": SECRET} if form is None else form
        return await self.http.post("/token", data={"grant_type": GRANT, "assertion": assertion, **client}, **named)

    async def who(self, token: str) -> str | None:
        found = await self.callers.by_token(token)
        return None if found is None else found.principal


@pytest.fixture
async def organisation(
    provider: Issuer, tmp_path: Path, start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Organisation]:
    settings = {
        "CLAUDE_CODE_MCP_OAUTH": "true",
        "CLAUDE_CODE_MCP_OAUTH_IDENTITY_PROVIDER": provider.url,
        "CLAUDE_CODE_MCP_OAUTH_CLIENTS_FILE": clients_file(tmp_path),
        "CLAUDE_CODE_MCP_OAUTH_CLAIM": "name",
    }
    service = await start_service(**settings)
    # A service that was started for its user alone takes nobody else; one over HTTP is started for others.
    monkeypatch.setattr(service, "admit", nobody_objects)
    callers = Callers(load_settings(settings))
    server = AuthorizationServer(service, callers, ORIGIN, None)
    people = InvitedPeople(database_in(service.settings.state_dir))
    app = Starlette(routes=server.routes())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ORIGIN) as http:
        yield Organisation(provider, callers, people, http)


async def test_an_assertion_gives_its_person_an_access_token_and_no_refresh_token(organisation: Organisation) -> None:
    answer = await organisation.bring(organisation.assertion())
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    given = answer.json()
    assert (given["token_type"], given["scope"]) == ("Bearer", "claude-code")
    assert "refresh_token" not in given
    assert await organisation.who(given["access_token"]) == "ann"
    [ann] = await asyncio.to_thread(organisation.people.everybody)
    assert (ann.name, ann.groups, ann.passkeys) == ("ann", ("leads",), 0)


@pytest.mark.parametrize("audience", [f"{ORIGIN}/", [ORIGIN]], ids=["with a slash", "as a list"])
async def test_an_issuer_may_be_written_in_these_ways(organisation: Organisation, audience: Any) -> None:
    assert (await organisation.bring(organisation.assertion(aud=audience))).status_code == 200


async def test_a_client_proves_itself_in_the_header_too(organisation: Organisation) -> None:
    assert (await organisation.bring(organisation.assertion(), {}, auth=(CLIENT, SECRET))).status_code == 200
    named = {"client_id": CLIENT}
    assert (await organisation.bring(organisation.assertion(), named, auth=(CLIENT, SECRET))).status_code == 200


CLIENTS: dict[str, tuple[dict[str, str], tuple[str, str] | None]] = {
    "nobody": ({}, None),
    "without its secret": ({"client_id": CLIENT}, None),
    "with a wrong secret": ({"client_id": CLIENT, "client_secret": "guessed"}, None),
    "with the secret of another": ({"client_id": CLIENT, "client_secret": OTHER_SECRET}, None),
    "another in the form than in the header": ({"client_id": OTHER_CLIENT}, (CLIENT, SECRET)),
    "by two methods at once": ({"client_id": CLIENT, "client_secret": SECRET}, (CLIENT, SECRET)),
    "one that is not listed": ({"client_id": "somebody", "client_secret": SECRET}, None),
}


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_must_prove_that_it_is_one(organisation: Organisation, client: str) -> None:
    form, auth = CLIENTS[client]
    refused = await organisation.bring(organisation.assertion(), form, **({"auth": auth} if auth else {}))
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")


async def test_a_client_that_has_registered_itself_brings_no_assertion(organisation: Organisation) -> None:
    body = {"redirect_uris": ["http://127.0.0.1:9/callback"], "token_endpoint_auth_method": "none"}
    client_id = (await organisation.http.post("/register", json=body)).json()["client_id"]
    refused = await organisation.bring(organisation.assertion(client_id=client_id), {"client_id": client_id})
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")


Make = Callable[[Organisation], str]


def with_other_type(kind: str | None) -> Make:
    return lambda organisation: sign(organisation.claims(), **({"typ": kind} if kind is not None else {}))


ATTACKS: dict[str, Make] = {
    "another audience": lambda made: made.assertion(aud="https://evil.example.org"),
    "this server and another one": lambda made: made.assertion(aud=[ORIGIN, "https://evil.example.org"]),
    "the resource as audience": lambda made: made.assertion(aud=RESOURCE),
    "no audience": lambda made: made.assertion(aud=None),
    "another issuer": lambda made: made.assertion(iss="https://evil.example.org"),
    "this server as issuer": lambda made: made.assertion(iss=ORIGIN),
    "no issuer": lambda made: made.assertion(iss=None),
    "another client": lambda made: made.assertion(client_id=OTHER_CLIENT),
    "no client": lambda made: made.assertion(client_id=None),
    "another resource": lambda made: made.assertion(resource="https://other.example.org/mcp"),
    "this resource and another": lambda made: made.assertion(resource=[RESOURCE, "https://other.example.org/mcp"]),
    "no resource": lambda made: made.assertion(resource=None),
    "expired": lambda made: made.assertion(iat=int(time.time()) - 600, exp=int(time.time()) - 300),
    "no end": lambda made: made.assertion(exp=None),
    "no beginning": lambda made: made.assertion(iat=None),
    "of the future": lambda made: made.assertion(iat=int(time.time()) + 600, exp=int(time.time()) + 900),
    "for ever": lambda made: made.assertion(exp=float("inf")),
    "an end that is none": lambda made: made.assertion(exp=[1]),
    "for days": lambda made: made.assertion(exp=int(time.time()) + 86_400),
    "no id": lambda made: made.assertion(jti=None),
    "an empty id": lambda made: made.assertion(jti=""),
    "a long id": lambda made: made.assertion(jti="a" * 600),
    "no subject": lambda made: made.assertion(sub=None),
    "an empty subject": lambda made: made.assertion(sub=""),
    "no name": lambda made: made.assertion(name=None),
    "a name of two words": lambda made: made.assertion(name="two words"),
    "a name of this server's": lambda made: made.assertion(name="operator"),
    "other scopes": lambda made: made.assertion(scope="mail calendar"),
    "bound to a key": lambda made: made.assertion(cnf={"jkt": "k"}),
    "an id token": with_other_type("JWT"),
    "an access token": with_other_type("at+jwt"),
    "no type": with_other_type(None),
    "a key of somebody else": lambda made: sign(made.claims(), OTHER_KEY, typ=TYPE),
    "a key that is not published": lambda made: sign(made.claims(), OTHER_KEY, "other", typ=TYPE),
    "a shared secret": lambda made: sign(made.claims(), "a-secret" * 8, None, "HS256", typ=TYPE),
    "too long": lambda made: made.assertion(more="a" * (16 << 10)),
    "no token": lambda _: "a.b.c",
    "nothing": lambda _: "",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_else_counts(organisation: Organisation, attack: str) -> None:
    refused = await organisation.bring(ATTACKS[attack](organisation))
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
    assert await asyncio.to_thread(organisation.people.everybody) == []


async def test_an_assertion_counts_once_and_for_one_of_two_at_the_same_time(organisation: Organisation) -> None:
    assertion = organisation.assertion()
    answers = await asyncio.gather(organisation.bring(assertion), organisation.bring(assertion))
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    again = await organisation.bring(assertion)
    assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
    # Only that very one: the next of the same person counts.
    assert (await organisation.bring(organisation.assertion())).status_code == 200


async def test_a_name_is_not_given_to_somebody_else(organisation: Organisation) -> None:
    await asyncio.to_thread(organisation.people.invite, "bob")
    assert (await organisation.bring(organisation.assertion(name="bob"))).status_code == 400
    assert (await organisation.bring(organisation.assertion(name="ann", sub="u-17"))).status_code == 200
    assert (await organisation.bring(organisation.assertion(name="ann", sub="u-18"))).status_code == 400
    with pytest.raises(InvalidArgument, match="invited already"):
        await asyncio.to_thread(organisation.people.invite, "ann")


async def test_whoever_has_left_a_group_is_not_in_it_again_by_an_earlier_assertion(organisation: Organisation) -> None:
    earlier = organisation.assertion(groups=["leads"], iat=int(time.time()) - 60)
    assert (await organisation.bring(organisation.assertion(groups=[]))).status_code == 200
    assert (await organisation.bring(earlier)).status_code == 200
    [ann] = await asyncio.to_thread(organisation.people.everybody)
    assert ann.groups == ()


async def test_whoever_is_removed_is_out_until_the_provider_says_otherwise(organisation: Organisation) -> None:
    token = (await organisation.bring(organisation.assertion())).json()["access_token"]
    assert await organisation.who(token) == "ann"
    assert await asyncio.to_thread(organisation.people.remove, "ann")
    assert await organisation.who(token) is None


async def test_the_metadata_names_the_grant_and_how_clients_prove_themselves(organisation: Organisation) -> None:
    metadata = (await organisation.http.get("/.well-known/oauth-authorization-server")).json()
    assert GRANT in metadata["grant_types_supported"]
    assert metadata["authorization_grant_profiles_supported"] == ["urn:ietf:params:oauth:grant-profile:id-jag"]
    assert {"client_secret_basic", "client_secret_post"} <= {*metadata["token_endpoint_auth_methods_supported"]}


def test_it_is_refused_without_clients_and_where_this_server_is_no_authorization_server() -> None:
    for settings in (
        {"CLAUDE_CODE_MCP_OAUTH": "true"},
        {"CLAUDE_CODE_MCP_OAUTH_CLIENTS_FILE": "clients", "CLAUDE_CODE_MCP_OAUTH_ISSUER": "https://id.example.org"},
    ):
        named = {"CLAUDE_CODE_MCP_OAUTH_IDENTITY_PROVIDER": "https://id.example.org", **settings}
        with pytest.raises(InvalidArgument, match="needs --oauth"):
            Callers(load_settings(named))


async def test_a_client_of_the_sdk_signs_its_person_in_without_asking(
    provider: Issuer, tmp_path: Path, model: ScriptedModelThread
) -> None:
    served = embedded(
        tmp_path,
        model.url,
        CLAUDE_CODE_MCP_OAUTH_IDENTITY_PROVIDER=provider.url,
        CLAUDE_CODE_MCP_OAUTH_CLIENTS_FILE=clients_file(tmp_path),
    )
    provider.publish(published(RSA_KEY, "rsa", "RS256"), published(EC_KEY, "ec", "ES256"))

    async def assertion(audience: str, resource: str) -> str:
        now = int(time.time())
        claims = {"iss": provider.url, "aud": audience, "resource": resource, "client_id": CLIENT, "sub": "ann"}
        return sign({**claims, "jti": secrets.token_hex(8), "iat": now, "exp": now + 300}, typ=TYPE)

    with served.running():
        auth = IdentityAssertionOAuthProvider(served.url, Memory(), CLIENT, SECRET, served.origin, assertion)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=60) as http,
            Client(streamable_http_client(served.url, http_client=http), mode="2026-07-28") as client,
        ):
            assert (await call(client, "claude_list_sessions"))["sessions"] == []
        assert [row["name"] for row in served.command("list")["people"]] == ["ann"]
    allowed = [line for line in served.audited() if line["act"] == "client_allowed"]
    assert [(line["who"], line["client"], line["provider"]) for line in allowed] == [("ann", CLIENT, provider.url)]
    assert SECRET not in json.dumps(served.audited())
