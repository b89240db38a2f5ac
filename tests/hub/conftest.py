"""A hub for each test, with a private place for what it keeps, and ways to configure it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import keyring
import keyring.backend
import keyring.errors
import pytest
from keyring.backends import fail

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.hub_deps import HubDeps
from tests.conftest import RUN
from tests.support import npm
from tests.support.hub_config import parse_servers
from tests.support.waiting import HANG_SECONDS, until_true

PATIENCE = HANG_SECONDS
PLACE = npm.BUILD / "servers"
StartHub = Callable[..., Any]


def local(*faults: str, **entry: Any) -> dict[str, Any]:
    """The configuration of a server that is a program."""
    return {"command": sys.executable, "args": ["-S", str(Path(__file__).parent / "a_server.py"), *faults], **entry}


@pytest.fixture
async def start_hub(tmp_path: Path) -> AsyncIterator[StartHub]:
    """Starts hubs: `servers` is what a configuration file would have under `mcpServers`."""
    async with AsyncExitStack() as stack:

        async def start(servers: dict[str, Any], settings: dict[str, Any] | None = None, **deps: Any) -> Hub:
            return await stack.enter_async_context(make_hub(tmp_path, servers, settings, **deps))

        yield start


def make_hub(root: Path, servers: dict[str, Any], settings: dict[str, Any] | None = None, **deps: Any) -> Hub:
    """A hub that keeps everything below `root`."""
    environment = {"PATH": os.environ["PATH"], RUN: os.environ[RUN], "HOME": str(root)}
    usual = {
        "database": Database(root / "state"),
        "vault": FileVault(root / "vault"),
        "claude_directory": root / ".claude",
    }
    configuration = parse_servers(servers, environment)
    return Hub(configuration, load_settings({}, **(settings or {})), HubDeps(environment, **{**usual, **deps}))


@pytest.fixture
def no_keyring() -> Iterator[None]:
    """The system has no keyring."""
    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    yield
    keyring.set_keyring(before)


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A keyring that works unless it is `locked`, for systems that have none."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.locked = False
        self.kept: dict[tuple[str, str], str] = {}

    def _check(self) -> None:
        if self.locked:
            raise keyring.errors.KeyringLocked("Failed to unlock the collection!")

    def get_password(self, service: str, username: str) -> str | None:
        self._check()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._check()
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._check()
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[MemoryKeyring]:
    """The system has a keyring that works."""
    before, working = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(working)
    yield working
    keyring.set_keyring(before)


@pytest.fixture(scope="session")
def packages() -> Path:
    """Where the servers from npm are."""
    try:
        npm.install(Path(__file__).parent / "package.json", PLACE)
    except npm.Unavailable as error:
        pytest.skip(f"foreign servers cannot run here: {error}")
    return PLACE / "node_modules" / "@modelcontextprotocol"


def text_of(result: Any) -> str:
    """The text of a tool's result."""
    return "".join(block.text for block in result.content if block.type == "text")


class Changes:
    """What changed about a server, in order; lets a test wait."""

    def __init__(self, hub: Hub, server: str) -> None:
        self._hub = hub
        self._server = server
        self.seen: list[str] = []
        self._news = asyncio.Event()
        hub.watch(server, self._take)

    def _take(self, what: str) -> None:
        self.seen.append(self.state if what == "state" else what)
        self._news.set()

    @property
    def state(self) -> str:
        return self._hub.status(self._server)[0].state

    async def until(self, state: str) -> None:
        """Waits until the server stands like this."""
        async with asyncio.timeout(PATIENCE):
            while self.state != state:
                self._news.clear()
                await self._news.wait()

    async def until_seen(self, what: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while what not in self.seen:
                self._news.clear()
                await self._news.wait()


async def disconnect(hub: Hub, *servers: str) -> None:
    """Has the hub close its connections to these servers, and waits until it has: a server that is stopped before has
    requests under way."""
    pools = [hub._find(server) for server in servers]
    for server in servers:
        hub.disable(server)
    await until_true(lambda: all(upstream.is_idle for pool in pools for upstream in pool.connections))


async def until_file(path: Path, content: str) -> None:
    """Waits until a file says this."""
    await until_true(lambda: _content(path) == content, f"{path} never said {content!r}")


def _content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None
