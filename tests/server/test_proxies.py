"""The real server behind the proxies whose configuration the project ships: streams, forms and large requests pass."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import RUN
from tests.support.ports import free_port
from tests.support.program import http_server
from tests.support.waiting import until

from .connection import LONG, Connection

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
LONG_TEXT = "Please read this. " * 100_000
"""More than a proxy takes that nobody has told otherwise."""
TOKEN = "ann-5f0c9d2e7b41a86c3d90-and-more"


def caddy(directory: Path, port: int, server: int) -> list[str]:
    text = (PROXIES / "Caddyfile").read_text()
    text = text.replace("claude.example.org {", f"http://127.0.0.1:{port} {{").replace(
        "127.0.0.1:8765", f"127.0.0.1:{server}"
    )
    (directory / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    return ["caddy", "run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]


def nginx(directory: Path, port: int, server: int) -> list[str]:
    lines = (PROXIES / "nginx.conf").read_text().replace("127.0.0.1:8765", f"127.0.0.1:{server}").splitlines()
    text = "\n".join(line for line in lines if "ssl_certificate" not in line)
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    around = (
        f"daemon off;\npid {directory}/pid;\nerror_log {directory}/errors;\nevents {{}}\nhttp {{\naccess_log off;\n"
    )
    (directory / "nginx.conf").write_text(f"{around}{text}\n}}\n")
    return ["nginx", "-p", str(directory), "-c", str(directory / "nginx.conf")]


@contextmanager
def proxied(command: list[str], port: int, directory: Path) -> Iterator[str]:
    program = shutil.which(command[0], path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"there is no {command[0]} here")
    environment = {
        **os.environ,
        "HOME": str(directory),
        "XDG_DATA_HOME": str(directory),
        "XDG_CONFIG_HOME": str(directory),
    }
    with subprocess.Popen([program, *command[1:]], env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            until(lambda: _answers(address), "the proxy does not answer")
            yield address
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health", timeout=10).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize("make", [pytest.param(caddy, marks=pytest.mark.soak), nginx])
def test_a_client_works_through_a_proxy_as_without_one(tmp_path: Path, model: ScriptedModelThread, make: Any) -> None:
    port, place = free_port(), Sandbox(tmp_path / "place", model.url)
    environment = place.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"),
            "CLAUDE_CODE_MCP_TOKEN": TOKEN,
            "CLAUDE_CODE_MCP_WEB_URL": f"http://127.0.0.1:{port}",
            "CLAUDE_CODE_MCP_TRUSTED_PROXIES": "127.0.0.1",
        }
    )
    with http_server(environment, place.project) as server:
        directory = tmp_path / "proxy"
        directory.mkdir()
        command = make(directory, port, int(server.base.rpartition(":")[2]))
        with proxied(command, port, directory) as address, _connected(f"{address}/mcp") as client:
            # The form comes on the stream of the call, which would never end if the proxy kept it back.
            prompt = script(LONG_TEXT, tool("Bash", command="touch made"), "done")
            waiting = client.start("claude_create_session", prompt=prompt, waitSeconds=40)
            client.dialog().accept(decision="Allow once")
            assert waiting.result(LONG).data["result"] == "done"
            assert (place.project / "made").exists()


def _connected(url: str) -> Connection:
    @asynccontextmanager
    async def open_client(ask: Any) -> Any:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy", elicitation_callback=ask) as client,
        ):
            yield client

    return Connection(open_client, can_be_asked=True)
