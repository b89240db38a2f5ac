"""Callers over HTTP who sign in to a server of the hub each for themselves: nobody uses the account of another."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from mcp.server.auth.provider import AccessToken

from claude_code_mcp.testing.script import script, tool
from tests.hub.oauth import Authority
from tests.hub.remote import RemoteServer, http_server
from tests.plugins.console.console_client import Browser
from tests.server.connection import Connection, Reply
from tests.support.bubblewrap import missing
from tests.support.local_http import in_thread
from tests.support.ports import free_port

from .conftest import ALICE, MALLORY, Target, without_isolation

POLICY = """
[profiles.both]
allow = ["mcp__tickets"]

[principals]
alice = "both"
mallory = "both"
carol = "both"
"""


@dataclass
class RecordingAuthority(Authority):
    """Remembers which tokens it was shown."""

    shown: list[str] = field(default_factory=list)

    async def load_access_token(self, token: str) -> AccessToken | None:
        self.shown.append(token)
        return await super().load_access_token(token)


@pytest.fixture(scope="module")
def tickets() -> Iterator[tuple[RecordingAuthority, str]]:
    """A server that requires a sign-in, in a thread of its own."""
    authority, port = RecordingAuthority(), free_port()
    with in_thread(http_server(RemoteServer(), port, **authority.options(port, "mcp"))) as url:
        yield authority, url


@pytest.fixture(scope="module")
def extra_environment(
    tmp_path_factory: pytest.TempPathFactory, tickets: tuple[RecordingAuthority, str]
) -> dict[str, str]:
    own = tmp_path_factory.mktemp("hub") / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {"tickets": {"type": "http", "url": tickets[1]}}}))
    return {
        "CLAUDE_CODE_MCP_HUB_FILE": str(own),
        "CLAUDE_CODE_MCP_TOOLSETS": "sessions,hub,hub-search",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }


@pytest.fixture(scope="module")
def policy_text() -> str:
    return POLICY if missing() is None else without_isolation(POLICY)


def admin(caller: Connection, action: str, **arguments: str) -> Reply:
    return caller.call("claude_mcp_servers", action=action, server="tickets", **arguments)


def state(caller: Connection) -> str:
    (one,) = admin(caller, "status").data["servers"]
    return str(one["state"])


def console_state(target: Target, token: str) -> str:
    browser = Browser(target.server.url.removesuffix("/mcp"))
    assert browser.sign_in(token=token).status == 200
    (one,) = browser.get("/api/mcp-servers").json["servers"]
    return str(one["state"])


def call(caller: Connection) -> Reply:
    return caller.call("claude_mcp_call", name="mcp__tickets__echo", arguments={})


def where_the_browser_ends(caller: Connection) -> str:
    """The person signs in with a browser on another machine, which cannot open the page that it is sent back to."""
    return httpx2.get(admin(caller, "authenticate").data["url"]).headers["location"]


def test_each_caller_signs_in_for_itself_uses_no_others_account_and_is_kept_apart(
    target: Target, alice: Connection, mallory: Connection, tickets: tuple[RecordingAuthority, str]
) -> None:
    authority, _ = tickets
    assert (state(alice), state(mallory)) == ("needs-auth", "needs-auth")
    ended = where_the_browser_ends(mallory)
    assert admin(alice, "authenticate", redirect=ended).code == "INVALID_ARGUMENT"
    assert admin(mallory, "authenticate", redirect=ended).data["servers"][0]["state"] == "connected"
    assert call(mallory).text == "echo {}"
    mallorys = {*authority.access}

    assert state(alice) == "needs-auth"
    assert call(alice).code == "UPSTREAM_UNAVAILABLE", "for her the server needs a sign-in"
    done = alice.create(script("go", tool("mcp__tickets__echo"), "done"), waitSeconds=40)
    assert done.status == "completed"

    admin(alice, "authenticate", redirect=where_the_browser_ends(alice))
    authority.shown.clear()
    assert call(alice).text == "echo {}"
    done = alice.create(script("go", tool("mcp__tickets__echo"), "done"), waitSeconds=40)
    assert done.status == "completed"
    assert authority.shown
    assert not {*authority.shown} & mallorys
    assert admin(mallory, "disable").code == "PERMISSION_DENIED", "to sign in is all that anybody may"
    target.audit("hub_steered", 1, who="alice")

    kept = Path(target.environment["CLAUDE_CODE_MCP_STATE_DIR"]) / "mcp" / "principals"
    assert {path.name for path in kept.iterdir()} == {"alice", "mallory"}
    for name in ("alice", "mallory"):
        [file] = (kept / name / "credentials").iterdir()
        assert file.stat().st_mode & 0o77 == 0

    # The console shows each their own servers too.
    assert (console_state(target, ALICE), console_state(target, MALLORY)) == ("connected", "connected")

    # Somebody who is added while the server runs is kept apart too.
    tokens = Path(target.environment["CLAUDE_CODE_MCP_TOKENS_FILE"])
    carols = "carol-0123456789-abcdefghijklmnop"
    tokens.write_text(f"{tokens.read_text()}carol {carols}\n")
    target.audit("callers_changed", 1)
    with target.connected(carols) as carol:
        assert (state(carol), console_state(target, carols)) == ("needs-auth", "needs-auth")
        admin(carol, "authenticate", redirect=where_the_browser_ends(carol))
        assert call(carol).text == "echo {}"
    assert {path.name for path in kept.iterdir()} == {"alice", "carol", "mallory"}
    assert state(alice) == "connected"
