"""One server for all tests of the console: the real CLI with the scripted model, over real HTTP, for several people."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support.program import HttpServer, http_server
from tests.support.waiting import until

from .console_client import Browser

PEOPLE = ("alice", "bob", "carol", "dave")
PROXY = "127.0.0.9"
"""An address of this machine from which a proxy may speak for others."""


@dataclass
class Console:
    """A server with a token for each person."""

    sandbox: Sandbox
    environment: dict[str, str]
    tokens: dict[str, str]
    server: HttpServer

    @property
    def base(self) -> str:
        return self.server.base

    @property
    def project(self) -> Path:
        return self.sandbox.project

    @property
    def state(self) -> Path:
        return Path(self.environment["CLAUDE_CODE_MCP_STATE_DIR"])

    def browser(self, person: str | None = None) -> Browser:
        """A browser, in which this person has signed in."""
        browser = Browser(self.base)
        if person is not None:
            assert browser.sign_in(token=self.tokens[person]).status == 200
        return browser

    def audited(self, *entries: str) -> str:
        """The audit trail, once all of these are in it: a thread of the server writes it."""
        trail = self.state / "audit.jsonl"
        until(lambda: all(entry in trail.read_text() for entry in entries), f"{entries} are not in the trail")
        return trail.read_text()

    def ticket(self, person: str) -> str:
        answered = Browser(self.base).post("/api/tickets", Authorization=f"Bearer {self.tokens[person]}")
        assert answered.status == 200, answered.body
        return str(answered.json["url"]).partition("#ticket=")[2]


def write_tokens(file: Path, tokens: dict[str, str]) -> None:
    file.touch(0o600)
    file.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))


@contextmanager
def running_console(
    root: Path, model_url: str, tokens: dict[str, str] | None = None, address: str = "127.0.0.1:0", **settings: str
) -> Iterator[Console]:
    sandbox = Sandbox(root, model_url)
    tokens = tokens or {name: secrets.token_urlsafe(32) for name in PEOPLE}
    tokens_file = root / "tokens"
    write_tokens(tokens_file, tokens)
    environment = sandbox.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_PROFILE": "local",
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
            "CLAUDE_CODE_MCP_TOKENS_FILE": str(tokens_file),
            "CLAUDE_CODE_MCP_PUSH_PRIVATE": "alice",
            **settings,
        }
    )
    with http_server(environment, sandbox.project, address) as server:
        yield Console(sandbox, environment, tokens, server)


@pytest.fixture(scope="package")
def console(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Console]:
    root = tmp_path_factory.mktemp("console")
    hub_file = root / "mcp.json"
    hub_file.write_text(json.dumps({"mcpServers": {"notes": {"command": "notes-server", "disabled": True}}}))
    with running_console(
        root, model.url, CLAUDE_CODE_MCP_HUB_FILE=str(hub_file), CLAUDE_CODE_MCP_TRUSTED_PROXIES=PROXY
    ) as running:
        yield running


@pytest.fixture
def alice(console: Console) -> Browser:
    return console.browser("alice")


@pytest.fixture
def bob(console: Console) -> Browser:
    return console.browser("bob")
