"""Streams that stand open end when the token ends that they were opened with; calls that work do not."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.plugins.team import access_tokens, oauth_grants
from claude_code_mcp.plugins.team.access_tokens import AccessTokens
from claude_code_mcp.plugins.team.authorization import provider
from claude_code_mcp.plugins.team.authorization.provider import OwnAccessTokens
from claude_code_mcp.plugins.team.invited_people import InvitedPeople
from claude_code_mcp.plugins.team.oauth_grants import Consent, NewTokens, OAuthGrants
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.identity import Identity
from tests.plugins.team.callers import nobody_objects

from .callers import TokenCallers
from .issuer import Issuer, sign

RESOURCE = "https://claude.example.org/mcp"
LONG = 60


class Door:
    """The callers of a server, with requests that stay open until they are ended."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.watching = asyncio.create_task(self.callers.running.end_streams_with_tokens())

    async def open(self, method: str, token: str, *, stands: bool = False) -> "asyncio.Task[list[Any]]":
        """A request with this token that is being answered; its task ends with it and has what was sent."""
        opened, sent = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert await self.callers.by_token(token) is not None
            if stands:
                self.callers.running.stand()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            opened.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        async def request() -> list[Any]:
            scope = {"type": "http", "method": method, "path": "/mcp", "headers": [], "client": ("127.0.0.1", 1)}
            await self.callers.running.middleware(app)(scope, None, send)  # type: ignore[arg-type]
            return sent

        task = asyncio.create_task(request())
        await asyncio.wait_for(opened.wait(), LONG)
        return task


def door_of(issuer: Issuer, **more: str) -> Door:
    given = load_settings({"CLAUDE_CODE_MCP_OAUTH_ISSUER": issuer.url, **more})
    return Door(TokenCallers(given, AccessTokens(given, RESOURCE), nobody_objects))


async def test_a_stream_ends_with_its_token_and_a_call_does_not(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "LEEWAY", 0)
    door = door_of(issuer)
    short, long = (sign(issuer.claims(RESOURCE, exp=int(time.time()) + left)) for left in (3, 600))
    call, other = await door.open("POST", short), await door.open("GET", long)
    streams = [await door.open("GET", short), await door.open("POST", short, stands=True)]
    for stream in streams:
        sent = await asyncio.wait_for(stream, LONG)
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not call.done()
    assert not other.done()
    for task in (call, other, door.watching):
        task.cancel()


async def test_a_stream_ends_when_the_issuer_calls_its_token_revoked(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_INTROSPECTED_FOR", 0.2)
    issuer.active |= {name: {"active": True, **issuer.claims(RESOURCE)} for name in ("mine", "theirs")}
    door = door_of(
        issuer,
        CLAUDE_CODE_MCP_OAUTH_INTROSPECTION=f"{issuer.url}/introspect",
        CLAUDE_CODE_MCP_OAUTH_CLIENT_ID="us",
    )
    mine, theirs = await door.open("GET", "mine"), await door.open("GET", "theirs")
    usual, issuer.answers = issuer.answers, {}
    issuer.active["mine"] = {"active": False}
    await asyncio.wait_for(mine, LONG)
    issuer.answers = usual
    assert not theirs.done()
    for task in (theirs, door.watching):
        task.cancel()


async def test_a_stream_ends_with_a_token_of_this_very_server_and_with_its_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "LEEWAY", 0)
    database = database_in(tmp_path)
    people, grants = InvitedPeople(database), OAuthGrants(database)
    tokens = OwnAccessTokens(grants, "https://claude.example.org", RESOURCE)
    callers = TokenCallers(load_settings({"CLAUDE_CODE_MCP_OAUTH": "true"}), tokens, nobody_objects, invited={})
    subject = people.by_invite(people.invite("ann"))[0].subject  # type: ignore[index]

    def token_of(seconds: int) -> str:
        monkeypatch.setattr(oauth_grants, "ACCESS_SECONDS", seconds)
        code = grants.allow(Consent(subject, "client", ("claude-code",), RESOURCE, "http://localhost:1", True, "c"))
        made = grants.redeem(code or "")
        assert isinstance(made, NewTokens)
        return made.access

    door, short, long = Door(callers), token_of(3), token_of(600)
    call, other = await door.open("POST", short), await door.open("GET", long)
    sent = await asyncio.wait_for(await door.open("GET", short), LONG)
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not call.done()
    assert not other.done()
    assert people.remove("ann")
    for identity in callers.people.end("ann", subject):
        callers.end(identity, "removed", lambda _: None)
    await asyncio.wait_for(asyncio.gather(call, other), LONG)
    door.watching.cancel()


async def test_a_stream_ends_when_its_token_of_this_very_server_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "_LOOKED_AT", 0.05)
    database = database_in(tmp_path)
    people, grants = InvitedPeople(database), OAuthGrants(database)
    tokens = OwnAccessTokens(grants, "https://claude.example.org", RESOURCE)
    callers = TokenCallers(load_settings({"CLAUDE_CODE_MCP_OAUTH": "true"}), tokens, nobody_objects, invited={})
    subject = people.by_invite(people.invite("ann"))[0].subject  # type: ignore[index]
    code = grants.allow(Consent(subject, "client", ("claude-code",), RESOURCE, "http://localhost:1", True, "c"))
    made = grants.redeem(code or "")
    assert isinstance(made, NewTokens)
    door = Door(callers)
    stream = await door.open("GET", made.access)
    stored = grants.access_token(made.access)
    assert stored is not None
    grants.end(stored.granted.grant_id)
    await asyncio.wait_for(stream, LONG)
    door.watching.cancel()


async def test_streams_end_with_their_sign_in(issuer: Issuer) -> None:
    door = door_of(issuer)
    callers = door.callers
    assert isinstance(callers, TokenCallers)
    people = callers.people
    assert callers.way._tokens is not None
    grant = await callers.way._tokens.check(sign(issuer.claims(RESOURCE)))
    assert grant is not None
    identity = await people.admit_grant(grant, time.time() + 2)
    assert identity is not None
    ended: asyncio.Event = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        door.callers.claim(identity)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def send(_: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/api/events", "headers": [], "client": ("127.0.0.1", 1)}

    async def request() -> None:
        await door.callers.running.middleware(app)(scope, None, send)  # type: ignore[arg-type]

    task = asyncio.create_task(request())
    await asyncio.wait_for(ended.wait(), LONG)
    await asyncio.wait_for(task, LONG)
    assert not await door.callers.stands(Identity(identity.principal, identity.credential))
    door.watching.cancel()
