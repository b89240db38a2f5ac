"""What a sandboxed session can talk to, from inside of a real sandbox: the table of docs/security.md, row by row."""

import json
import os
import re
import shlex
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import RUN
from tests.server.connection import Connection
from tests.support.bubblewrap import missing
from tests.support.program import HttpServer, http_server

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TABLE = Path(__file__).parents[3].joinpath("docs", "security.md").read_text(encoding="utf-8")
NETWORKS = {"unset": "", "list": 'network = ["registry.example.invalid"]', "host": 'network = "host"'}
COLUMNS = {"unset": 1, "list": 2, "host": 3}

PROBE = r"""
import glob, http.client, json, os, socket
found = {}
server, other, abstract, shared, state = json.load(open("places.json"))

def connects(family, address):
    with socket.socket(family) as one:
        one.settimeout(5)
        try:
            one.connect(address)
        except OSError:
            return False
        return True

def status(path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server, timeout=5)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except OSError:
        return None

def model():
    where = os.environ.get("ANTHROPIC_UNIX_SOCKET")
    if where is None:
        return connects(socket.AF_INET, ("127.0.0.1", int(os.environ["ANTHROPIC_BASE_URL"].rsplit(":")[-1])))
    return connects(socket.AF_UNIX, where)

answers = {status("/mcp", "{}"), status("/api/sign-in", "{}"), status("/api/sessions", "{}")}
found["the model's API"] = model()
found["this server"] = answers != {None}
found["this server without a token"] = bool(answers - {None, 401})
found["other programs on loopback"] = connects(socket.AF_INET, ("127.0.0.1", other))
found["other machines"] = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]] != ["lo"]
found["abstract Unix sockets"] = connects(socket.AF_UNIX, "\0" + abstract)
found["Unix sockets in the file system"] = connects(socket.AF_UNIX, shared)
found["a socket in a root"] = connects(socket.AF_UNIX, "given.sock")
found["a socket in a directory to read"] = connects(socket.AF_UNIX, os.path.dirname(shared) + "/tools/given.sock")
found["the server's state, with its token"] = os.path.exists(state + "/http-token")
try:
    found["the host of a virtual machine (vsock)"] = bool(socket.socket(40))
except OSError:
    found["the host of a virtual machine (vsock)"] = False
found["other processes"] = any(b"--" + b"http" in open(one, "rb").read() for one in glob.glob("/proc/[0-9]*/cmdline"))
json.dump(found, open("found.json", "w"))
"""


def connected(server: HttpServer, token: str) -> Connection:
    @asynccontextmanager
    async def open_client(_: object) -> AsyncIterator[Client]:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
            Client(streamable_http_client(server.url, http_client=http)) as client,
        ):
            yield client

    return Connection(open_client, can_be_asked=False)


def documented(network: str) -> dict[str, str]:
    """What the table says of each destination with this network."""
    table = TABLE.partition("### What a sandboxed session can talk to")[2].partition("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[COLUMNS[network]] for row in rows[2:]}


@pytest.fixture
def running(
    tmp_path: Path, model: ScriptedModelThread, request: pytest.FixtureRequest
) -> Iterator[tuple[Sandbox, HttpServer, str]]:
    """A server that was given no token, whose sessions may run commands in a sandbox; and the token that it made."""
    place = Sandbox(tmp_path, model.url)
    policy = tmp_path / "policy.toml"
    (tmp_path / "tools").mkdir()
    profile = f'allow = ["Bash"]\nisolation = "sandbox"\nreadable = ["{tmp_path}/tools"]\n{request.param}\n'
    policy.write_text(f'default = "one"\n[profiles.one]\n{profile}')
    environment = place.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_POLICY": str(policy),
            "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"),
        }
    )
    with http_server(environment, place.project) as server:
        yield place, server, (tmp_path / "state" / "http-token").read_text().strip()


@pytest.mark.parametrize(
    ("running", "network"),
    [pytest.param(NETWORKS[name], name, marks=() if name == "list" else pytest.mark.soak) for name in NETWORKS],
    ids=[*NETWORKS],
    indirect=["running"],
)
def test_a_session_talks_to_what_the_table_says(
    running: tuple[Sandbox, HttpServer, str], network: str, tmp_path: Path
) -> None:
    place, server, token = running
    with ExitStack() as open_sockets:
        other = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract, shared, *given = (open_sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4))
        abstract.bind(f"\0{tmp_path.name}-{os.getpid()}")
        shared.bind(str(tmp_path / "shared.sock"))
        for one, directory in zip(given, (place.project, tmp_path / "tools"), strict=True):
            one.bind(str(directory / "given.sock"))
        for one in (abstract, shared, *given):
            one.listen()
        port = int(re.search(r":(\d+)/", server.url)[1])  # type: ignore[index]
        places = [port, other.getsockname()[1], abstract.getsockname()[1:].decode(), str(tmp_path / "shared.sock")]
        (place.project / "places.json").write_text(json.dumps([*places, str(tmp_path / "state")]))
        prompt = script("go", tool("Bash", command=f"python3 -c {shlex.quote(PROBE)}"), "done")
        with connected(server, token) as client:
            assert client.create(prompt, waitSeconds=50).status == "completed"
    found = json.loads((place.project / "found.json").read_text())
    assert not found.pop("this server without a token")
    assert found.pop("a socket in a root")
    assert found.pop("a socket in a directory to read")
    assert {row: cell.startswith("yes") for row, cell in documented(network).items()} == found


@pytest.mark.parametrize("running", [""], indirect=True)
def test_server_without_a_token_creates_and_requires_one(
    running: tuple[Sandbox, HttpServer, str], tmp_path: Path
) -> None:
    _, server, token = running
    assert (tmp_path / "state" / "http-token").stat().st_mode & 0o777 == 0o600
    assert f"Authorization: Bearer {token}" in server.log, "it is printed when it is made"
    sign_in = server.url.replace("/mcp", "/api/sign-in")
    assert httpx2.post(server.url, json={}, timeout=30).status_code == 401
    assert httpx2.post(sign_in, json={}, timeout=30).status_code == 401
    assert httpx2.post(sign_in, json={"token": token}, timeout=30).status_code == 200
