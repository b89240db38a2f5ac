"""One fixture for the real server over stdio and HTTP in both eras of the protocol, with the real `mcp.Client`.

A module shares its servers and connections: the first turn of a session costs half a second. So would each start of a
server, which is forked from a process that has everything loaded; tests of how it starts and ends start the program.
Test modules replace `server_settings` to change the server's environment.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support import warm_commands
from tests.support.program import http_server

from .connection import Connection


@dataclass(frozen=True)
class Wire:
    """A transport and the era of the protocol that is spoken on it."""

    transport: str
    mode: str

    @property
    def modern(self) -> bool:
        return self.mode != "legacy"

    def __str__(self) -> str:
        return f"{self.transport}-{'2026' if self.modern else '2025'}"


WIRES = [Wire(transport, mode) for transport in ("stdio", "http") for mode in ("legacy", "2026-07-28")]

USUAL_WIRES = WIRES if os.environ.get("EVERY_WIRE") else [WIRES[0], WIRES[3]]
"""Both transports and both eras; every combination of them is for `make soak`."""


ONE_WIRE = {
    "test_answering": WIRES[0],
    "test_bad_input": WIRES[0],
    "test_concurrent_callers": WIRES[3],
    "test_dialogs": WIRES[3],
    "test_faults": WIRES[0],
    "test_list_sessions": WIRES[3],
    "test_long_inputs": WIRES[3],
    "test_person_answers": WIRES[3],
    "test_sessions": WIRES[0],
}
"""Modules about what lies behind the wires, which is the same on all of them: one wire will do."""

BOTH_ERAS = {"test_a_permission_is_allowed_once", "test_late_dialog_is_withdrawn_or_reported"}
"""Of such modules: that each era asks a person, and takes a question back, in its own way."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Other wires of such a module are for `make soak`, which asks for all of them by the variable."""
    if os.environ.get("EVERY_WIRE"):
        return
    for item in items:
        name, given = item.path.stem, getattr(item, "callspec", None)
        if name not in ONE_WIRE or given is None or getattr(item, "originalname", "") in BOTH_ERAS:
            continue
        if given.params.get("wire") not in (None, ONE_WIRE[name]):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="module", params=USUAL_WIRES, ids=str)
def wire(request: pytest.FixtureRequest) -> Wire:
    found = request.param
    assert isinstance(found, Wire)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Sandbox:
    """The HOME and project that a module's servers share."""
    return Sandbox(tmp_path_factory.mktemp("place"), model.url)


@pytest.fixture(scope="module")
def server_settings() -> dict[str, str]:
    """Variables for the module's servers."""
    return {}


@pytest.fixture(scope="module")
def server_environment(place: Sandbox, server_settings: dict[str, str]) -> dict[str, str]:
    # What remote callers may do by default is tested with the policy; here they work in any directory.
    return place.environment(**{RUN: os.environ[RUN], "CLAUDE_CODE_MCP_PROFILE": "local", **server_settings})


Connect = Callable[..., AbstractContextManager[Connection]]


@pytest.fixture(scope="module")
def connect(wire: Wire, place: Sandbox, server_environment: dict[str, str]) -> Iterator[Connect]:
    """Opens connections: on stdio each to a server of its own, on HTTP all to one."""
    with ExitStack() as stack:
        url = None
        if wire.transport == "http":
            url = stack.enter_context(http_server(server_environment, place.project)).url

        def connected(*, can_be_asked: bool = False) -> Connection:
            return Connection(
                lambda ask: open_client(wire, url, server_environment, place.project, ask), can_be_asked=can_be_asked
            )

        yield connected


def open_client(wire: Wire, url: str | None, environment: dict[str, str], cwd: Path, ask: Any) -> Client:
    """A client of the wire's kind that is not connected yet."""
    command = StdioServerParameters(command=warm_commands.program(), env=environment, cwd=str(cwd))
    token = environment.get("CLAUDE_CODE_MCP_TOKEN")
    server: Any = stdio_client(command)
    if url is not None:
        server = url if token is None else with_token(url, token)
    return Client(server, mode=wire.mode, elicitation_callback=ask)


@asynccontextmanager
async def with_token(url: str, token: str) -> AsyncIterator[Any]:
    """The connection of a client that sends a token with every request."""
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


@pytest.fixture(scope="module")
def client(connect: Connect) -> Iterator[Connection]:
    """A connected client that cannot show forms."""
    with connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def asked(connect: Connect) -> Iterator[Connection]:
    """A connected client that shows forms; the test plays the person before it."""
    with connect(can_be_asked=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def warm(client: Connection) -> str:
    """A session with a process that waits for its next message."""
    return client.create("hello", waitSeconds=30).session
