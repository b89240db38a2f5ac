"""Renewing tokens: once for all processes, whoever is cancelled meanwhile, and with a look at what others stored."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import MCPError
from mcp.shared.auth import OAuthToken

from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.hub.auth.credentials import CredentialStorage, FileVault
from claude_code_mcp.hub.hub import Hub
from tests.conftest import RUN
from tests.support.ports import free_port
from tests.support.waiting import until_true

from .conftest import PATIENCE, StartHub, text_of
from .oauth import Authority, Person
from .remote import RemoteServer, http_server
from .test_oauth import Protected, protected  # noqa: F401 - a fixture

pytestmark = pytest.mark.programs

PROCESSES = 3
EXPIRIES = 20
REAL_LIFETIME = 3
"""Seconds that a token lasts in the long round, where nobody but the clock lets it expire."""
ROOT = Path(__file__).parent.parent.parent


def storage_of(protected: Protected, root: Path) -> CredentialStorage:  # noqa: F811
    return CredentialStorage(FileVault(root / "vault"), f"x {protected.url}")


@asynccontextmanager
async def processes(root: Path, url: str) -> AsyncIterator[list[Process]]:
    """Processes that share what is kept below `root`, each connected to the server."""
    environment = {"PATH": os.environ["PATH"], RUN: os.environ[RUN], "HOME": str(root), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.hub.refreshing", str(root), url]
    started = [
        await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment, cwd=ROOT)
        for _ in range(PROCESSES)
    ]
    try:
        assert await answers(started) == ["ready"] * PROCESSES
        yield started
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in started))


async def answers(started: list[Process]) -> list[str]:
    async def line(process: Process) -> str:
        assert process.stdout is not None
        return (await process.stdout.readline()).decode().strip()

    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*(line(process) for process in started))


async def call_in_all(started: list[Process]) -> list[str]:
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"call\n")
    return await answers(started)


@pytest.mark.soak
@pytest.mark.parametrize("expiries", [2, pytest.param(EXPIRIES, marks=pytest.mark.soak)])
async def test_three_processes_renew_a_rotating_token_and_none_is_locked_out(
    start_hub: StartHub, tmp_path: Path, expiries: int
) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        hub: Hub = await start_hub({"x": {"type": "http", "url": url}})
        await hub.authenticate("x", Person())
        hub.disable("x")
        async with processes(tmp_path, url) as started:
            authority.grants.clear()
            for _ in range(expiries):
                authority.expire()
                assert await call_in_all(started) == ["echo {}"] * PROCESSES
        assert authority.grants == ["refresh"] * expiries
        assert authority.reuses == 0


@pytest.mark.skipif("TOKEN_SOAK" not in os.environ, reason="takes a minute; `make soak` runs it")
async def test_the_same_where_the_clock_lets_the_tokens_expire(start_hub: StartHub, tmp_path: Path) -> None:
    port, authority = free_port(), Authority(lifetime=REAL_LIFETIME)
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        hub: Hub = await start_hub({"x": {"type": "http", "url": url}})
        await hub.authenticate("x", Person())
        hub.disable("x")
        async with processes(tmp_path, url) as started:
            while authority.grants.count("refresh") < EXPIRIES:
                assert await call_in_all(started) == ["echo {}"] * PROCESSES
        assert authority.reuses == 0


async def test_the_token_of_a_renewal_is_kept_although_its_caller_was_cancelled(
    protected: Protected,  # noqa: F811
) -> None:
    await protected.sign_in()
    protected.authority.expire()
    protected.authority.answering.clear()
    call = asyncio.create_task(protected.hub.call("x", "echo"))
    await until_true(lambda: "refresh" in protected.authority.grants)
    call.cancel()
    await asyncio.wait([call])
    protected.authority.answering.set()
    assert text_of(await protected.hub.call("x", "echo")) == "echo {}"
    assert protected.authority.grants == ["code", "refresh"]


async def test_needed_sign_in_ends_when_new_tokens_are_stored(
    protected: Protected,  # noqa: F811
    tmp_path: Path,
) -> None:
    await protected.sign_in()
    storage = storage_of(protected, tmp_path)
    good = await storage.get_tokens()
    await storage.set_tokens(OAuthToken(access_token="old", refresh_token="unknown", expires_in=-1))
    hub = await protected.another_hub()
    assert good is not None
    with pytest.raises(UpstreamUnavailable, match="sign-in has expired"):
        await hub.call("x", "echo")
    await storage.set_tokens(good)
    assert text_of(await hub.call("x", "echo")) == "echo {}"


async def test_forgotten_registration_is_repeated(protected: Protected) -> None:  # noqa: F811
    await protected.sign_in()
    protected.authority.clients.clear()
    protected.authority.forget_everybody()
    with pytest.raises(MCPError, match="no longer knows this client"):
        await protected.hub.call("x", "echo")
    assert await protected.sign_in() == "connected"
    assert len(protected.authority.clients) == 1
    assert len(protected.person.sent_to) == 2


async def test_a_person_is_not_sent_with_a_registration_that_was_forgotten(protected: Protected) -> None:  # noqa: F811
    await protected.sign_in()
    [old] = protected.authority.clients
    protected.authority.clients.clear()
    assert await protected.sign_in() == "connected"
    assert protected.person.query["client_id"] != old
    assert len(protected.person.sent_to) == 2
