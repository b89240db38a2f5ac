"""A server for two callers under the strict profile, with everything on that may give something away."""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.server.connection import Connection
from tests.support.bubblewrap import missing
from tests.support.program import HttpServer, http_server
from tests.support.waiting import until

ALICE, MALLORY = "alice-token-5f0c9d2e7b41a86c3d90", "mallory-token-91e4d7c2a5b8f3061e"
METRICS = "metrics-token-7d3e0b9a4c6f8e21"

POLICY = """
[profiles.alice]
allow = ["Bash(git diff *)"]
deny = ["Bash(rm *)"]

[profiles.mallory]
limits = { sessions = 2, turns = 5, session_usd = 1.0, turn_seconds = 60.0 }

[principals]
alice = "alice"
mallory = "mallory"
"""


def without_isolation(policy: str) -> str:
    """The policy with every profile outside of a sandbox."""
    return re.sub(r"^(\[profiles\..+\])$", r'\1\nisolation = "none"', policy, flags=re.MULTILINE)


@dataclass
class Target:
    """The server under attack and what it leaves behind."""

    server: HttpServer
    place: Sandbox
    audit_file: Path
    environment: dict[str, str] = field(repr=False, default_factory=dict)

    def connected(self, token: str, mode: str = "legacy") -> Connection:
        @asynccontextmanager
        async def open_client(_: object) -> AsyncIterator[Client]:
            async with (
                httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
                Client(streamable_http_client(self.server.url, http_client=http), mode=mode) as client,
            ):
                yield client

        return Connection(open_client, can_be_asked=False)

    def audit(self, act: str, at_least: int = 0, **about: str) -> list[dict[str, Any]]:
        """The acts of a kind, and about something, in the trail. A thread of the server writes it, so they may be a
        moment late."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self._trail() if line["act"] == act and about.items() <= line.items()]

        until(lambda: len(found()) >= at_least, f"{act} is not {at_least} times in the audit trail")
        return found()

    def _trail(self) -> list[dict[str, Any]]:
        whole = self.audit_file.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def metrics(self, token: str | None = METRICS, **headers: str) -> httpx2.Response:
        shown = {"authorization": f"Bearer {token}"} if token else {}
        return httpx2.get(f"{self.server.base}/metrics", headers={**shown, **headers}, timeout=30)


@pytest.fixture(scope="module")
def extra_environment() -> dict[str, str]:
    """Variables that a module adds to those of its server."""
    return {}


@pytest.fixture(scope="module")
def policy_text() -> str:
    """What the server's policy file says; in a sandbox where there can be one."""
    return POLICY if missing() is None else without_isolation(POLICY)


@pytest.fixture(scope="module")
def real_process() -> bool:
    """Whether the server's process must show its own environment to those who look."""
    return False


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory,
    model: ScriptedModelThread,
    extra_environment: dict[str, str],
    policy_text: str,
    real_process: bool,
) -> Iterator[Target]:
    root = tmp_path_factory.mktemp("target")
    place = Sandbox(root, model.url)
    (root / "policy.toml").write_text(policy_text)
    tokens = root / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"alice {ALICE}\nmallory {MALLORY}\n")
    environment = place.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
            "CLAUDE_CODE_MCP_TOKENS_FILE": str(tokens),
            "CLAUDE_CODE_MCP_POLICY": str(root / "policy.toml"),
            "CLAUDE_CODE_MCP_METRICS_TOKEN": METRICS,
            "CLAUDE_CODE_MCP_AUDIT_PROMPTS": "1",
            "LOG_LEVEL": "debug",
            **extra_environment,
        }
    )
    with http_server(environment, place.project, real=real_process) as server:
        yield Target(server, place, root / "state" / "audit.jsonl", environment)


@pytest.fixture(scope="module")
def alice(target: Target) -> Iterator[Connection]:
    with target.connected(ALICE) as connection:
        yield connection


@pytest.fixture(scope="module")
def mallory(target: Target) -> Iterator[Connection]:
    with target.connected(MALLORY) as connection:
        yield connection
