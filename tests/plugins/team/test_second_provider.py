"""The same sign-ins at an authorization server of other makers, with another kind of keys, without resource indicators,
and with no scope that this server asks for."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import RUN
from tests.support import npm
from tests.support.ports import free_port
from tests.support.program import http_server

from .test_sign_in import CALLBACK, HERE, PACKAGES, POLICY, Served, call, running_provider, signed_in

pytestmark = pytest.mark.soak  # at one provider: test_sign_in.py


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    environment = tmp_path_factory.mktemp("authlib")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", "Authlib>=1.9,<2", "Flask>=3,<4"], check=True)
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def served(python: Path, tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Served]:
    root, port, provider_port = tmp_path_factory.mktemp("second"), free_port(), free_port()
    place = Sandbox(root, model.url)
    (root / "leads").mkdir()
    (root / "policy.toml").write_text(POLICY.format(leads=root / "leads"))
    resource = f"http://127.0.0.1:{port}/mcp"
    command = [str(python), str(HERE / "authlib_provider.py"), str(provider_port), resource]
    with running_provider(command, provider_port) as provider:
        environment = place.environment(
            **{
                RUN: os.environ[RUN],
                "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
                "CLAUDE_CODE_MCP_OAUTH_ISSUER": provider.url,
                "CLAUDE_CODE_MCP_POLICY": str(root / "policy.toml"),
                "CLAUDE_CODE_MCP_PROFILE": "people",
            }
        )
        with http_server(environment, place.project, f"127.0.0.1:{port}") as server:
            yield Served(server, provider, place)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_signs_in_automatically_and_has_what_its_groups_may(served: Served, mode: str) -> None:
    leads, prompt = served.place.root / "leads", script("Hi.", "Hello.")
    async with (
        signed_in(served, "ann", mode) as (ann, _),
        signed_in(served, "eve", mode, ("leads",)) as (eve, _),
    ):
        refused = await call(ann, "claude_code", prompt=prompt, cwd=str(leads))
        assert refused["error"]["code"] == "PERMISSION_DENIED"
        made = await call(eve, "claude_code", prompt=prompt, cwd=str(leads))
        assert made["result"] == "Hello."
        theirs = await call(ann, "claude_get_status", sessionId=made["sessionId"])
        assert theirs["error"]["code"] == "SESSION_NOT_FOUND"


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_client_of_the_typescript_sdk_signs_in_automatically(served: Served, era: str) -> None:
    try:
        npm.install(HERE / "package.json", PACKAGES)
    except npm.Unavailable as reason:
        pytest.skip(str(reason))
    served.provider.sign_in_as("cleo")
    command = ["node", str(HERE / "client.mjs"), str(PACKAGES), served.server.url, era, CALLBACK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sessions"] == []
