"""A caller with a valid token, and one without, who try to get more than they were given."""

import base64
import http.client
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from claude_code_mcp.core.config import ALL_TOOLSETS, load_settings
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.testing.script import script, tool
from tests.server.connection import Connection, Reply

from .conftest import ALICE, MALLORY, METRICS, Target

DENIED = "PERMISSION_DENIED"


@pytest.fixture(scope="module")
def waiting(alice: Connection) -> Reply:
    """A session of Alice's that waits for her answer, which no test here gives."""
    return alice.create(script("work", tool("Bash", command="touch approved"), "done"), waitSeconds=40)


def another(session: str) -> str:
    """An id of no session."""
    return session[:-1] + ("0" if session[-1] != "0" else "1")


@pytest.mark.parametrize(
    "path",
    ["/", "/etc", "..", "../..", "link", "link/deeper", "{project}/../home", "{project}-evil", "{project}/./../"],
)
def test_no_path_leads_out_of_the_roots(target: Target, mallory: Connection, path: str) -> None:
    link = target.place.project / "link"
    if not link.exists():
        link.symlink_to("/")
    Path(f"{target.place.project}-evil").mkdir(exist_ok=True)
    path = path.format(project=target.place.project)
    about = {"who": "mallory", "code": DENIED, "field": "cwd"}
    before = len(target.audit("refused", 0, **about))
    assert mallory.create("go", workingDirectory=path).code == DENIED
    target.audit("refused", before + 1, **about)
    assert mallory.call("claude_code", prompt="go", cwd=path).code == DENIED
    assert mallory.call("claude_code", prompt="go", additionalDirectories=[path]).code == DENIED
    assert mallory.call("claude_code", prompt="go", debugFile=f"{path}/log").code == DENIED


@pytest.mark.parametrize(
    "options",
    [
        {"env": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"env": {"ANTHROPIC_BASE_URL": "http://evil.example"}},
        {"env": {"https_proxy": "http://evil.example"}},
        {"env": {"PATH": "/tmp"}},
        {"env": {"NODE_OPTIONS": "--require=/tmp/evil.js"}},
        {"env": {"CLAUDE_CONFIG_DIR": "/tmp"}},
        {"env": {"CLAUDE_CODE_SHELL_PREFIX": "evil"}},
        {"env": {"ANYTHING": "else"}},
        {"pathToClaudeCodeExecutable": "/bin/sh"},
        {"mcpServers": {"evil": {"command": "sh", "args": ["-c", "id"]}}},
        {"mcpServers": {"evil": {"type": "http", "url": "http://169.254.169.254/"}}},
        {"mcpServers": {"evil": {"type": "http", "url": "http://evil.example/", "headersHelper": "id"}}},
        {"sandbox": {"enabled": True, "ripgrep": {"command": "/tmp/evil"}}},
        {"agents": {"evil": {"description": "x", "prompt": "x", "permissionMode": "bypassPermissions"}}},
        {"agents": {"evil": {"description": "x", "prompt": "x", "hooks": {"Stop": []}}}},
        {"agents": {"evil": {"description": "x", "prompt": "x", "mcpServers": [{"e": {"command": "sh"}}]}}},
        {"permissionMode": "bypassPermissions"},
        {"permissionMode": "auto"},
        {"settingSources": ["local"]},
        {"maxTurns": 6},
        {"maxBudgetUsd": 1.01},
        {"timeout": 61_000},
    ],
    ids=lambda options: json.dumps(options)[:60],
)
def test_no_option_reaches_above_the_ceiling(target: Target, mallory: Connection, options: dict[str, Any]) -> None:
    assert mallory.call("claude_code", prompt="go", **options).code == DENIED


def test_permissions_cannot_be_bypassed_by_any_door(mallory: Connection) -> None:
    assert mallory.create("go", dangerouslySkipPermissions=True).code == DENIED
    assert mallory.create("go", permissionMode="bypassPermissions").code == DENIED
    assert mallory.call("claude_code_configure", action="enable_bypass").code == DENIED
    assert mallory.call("claude_code_configure", action="get_config").data["allowBypass"] is False


def test_foreign_session_and_question_cannot_be_changed(
    target: Target, alice: Connection, mallory: Connection, waiting: Reply
) -> None:
    own = mallory.create(script("work", tool("Bash", command="touch own"), "done"), waitSeconds=40)
    question = waiting.question["inputId"]
    answer = {"inputId": question, "decision": "allow"}
    assert mallory.call("claude_respond", sessionId=waiting.session, **answer).code == "SESSION_NOT_FOUND"
    assert mallory.call("claude_respond", sessionId=own.session, **answer).code == "INVALID_ARGUMENT"
    assert mallory.call("claude_code_reply", sessionId=waiting.session, prompt="x").code == "SESSION_NOT_FOUND"
    fork = mallory.call("claude_code_reply", sessionId=waiting.session, prompt="x", forkSession=True)
    assert fork.code == "SESSION_NOT_FOUND"
    assert mallory.call("claude_code_session", action="get", sessionId=waiting.session).raw.is_error
    assert waiting.session not in json.dumps(mallory.call("claude_code_session", action="list").data)
    assert alice.look(waiting.session).question["inputId"] == question
    assert not (target.place.project / "approved").exists()
    entries = target.audit("refused", 1, session=waiting.session)
    assert {line["who"] for line in entries} == {"mallory"}
    mallory.interrupt(own.session)


@pytest.fixture(scope="module")
def extra_environment() -> dict[str, str]:
    return {"CLAUDE_CODE_MCP_TOOLSETS": "sessions,code,query,care"}


WITH_A_SESSION: dict[str, list[dict[str, Any]]] = {
    "claude_send_message": [{"message": "x"}],
    "claude_get_status": [{}, {"waitSeconds": 1}],
    "claude_respond": [{"inputId": "x", "decision": "allow"}, {"inputId": "x", "decision": "deny", "waitSeconds": 1}],
    "claude_interrupt": [{}],
    "claude_code_reply": [{"prompt": "x"}, {"prompt": "x", "forkSession": True}],
    "claude_code_session": [{"action": "get"}, {"action": "cancel"}],
    "claude_read_session": [{}],
    "claude_manage_session": [
        {"action": "rename", "text": "x"},
        {"action": "pin"},
        {"action": "fork"},
        {"action": "export"},
        {"action": "diff"},
        {"action": "delete", "confirm": True},
    ],
}


def test_the_table_has_every_tool_that_takes_a_session() -> None:
    tools = tools_of(load_settings({}, toolsets=ALL_TOOLSETS)).values()
    assert {tool.name for tool in tools if "sessionId" in json.dumps(tool.listing().input_schema)} == set(
        WITH_A_SESSION
    )


@pytest.mark.parametrize("name", WITH_A_SESSION)
def test_tools_treat_foreign_sessions_like_missing_ones(
    alice: Connection, mallory: Connection, waiting: Reply, name: str
) -> None:
    ids = waiting.session, another(waiting.session)
    for arguments in WITH_A_SESSION[name]:
        said = [mallory.call(name, sessionId=item, **arguments) for item in ids]
        assert {message.code for message in said} == {"SESSION_NOT_FOUND"}
        entries = [one.raw.model_dump_json().replace(id_, "ID") for one, id_ in zip(said, ids, strict=True)]
        assert entries[0] == entries[1]
    assert alice.look(waiting.session).question == waiting.question, "it waits as before"


@pytest.mark.soak  # tests/core/sessions/test_policy_enforcer.py
def test_an_approved_call_cannot_be_swapped_for_a_denied_one(target: Target, alice: Connection) -> None:
    (target.place.project / "kept").touch()
    asked = alice.create(script("work", tool("Bash", command="mkdir made"), "done"), waitSeconds=40)
    swapped = alice.respond(asked, "allow", updatedInput={"command": "rm kept"})
    assert swapped.code == DENIED
    alice.respond(asked, "deny")
    assert (target.place.project / "kept").exists()


@pytest.mark.soak
def test_more_sessions_at_once_than_allowed_are_refused(mallory: Connection) -> None:
    prompt = script("work", tool("Bash", command="mkdir never"), "done")
    made = [mallory.create(prompt, waitSeconds=40) for _ in range(2)]
    assert mallory.create(prompt).code == "LIMIT_REACHED"
    for item in made:
        mallory.interrupt(item.session)
    assert mallory.create(script("fine", "again"), waitSeconds=40).code is None


@pytest.mark.parametrize("kind", ["empty", "json", "garbage", "altered"])
def test_forged_state_of_a_call_is_refused(target: Target, waiting: Reply, kind: str) -> None:
    """A call of the new protocol that claims to be the second round of one that never was."""
    session = waiting.session
    state = {
        "empty": "{}",
        "json": json.dumps({"session": session, "since": 0}),
        "garbage": "AAAA",
        "altered": base64.urlsafe_b64encode(json.dumps({"session": session}).encode()).decode(),
    }[kind]
    params = {
        "name": "claude_send_message",
        "arguments": {"sessionId": session, "message": "x"},
        "requestState": state,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "forger", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }
    headers = {
        "accept": "application/json, text/event-stream",
        "authorization": f"Bearer {MALLORY}",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "claude_send_message",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = httpx2.post(target.server.url, json=body, headers=headers, timeout=30)
    assert '"error"' in answer.text
    assert "isError" not in answer.text, "it must not have come as far as the tool"


HTTP_ATTACKS = json.loads(Path(__file__).parents[1].joinpath("attacks", "http.json").read_text())


@pytest.mark.parametrize("attack", HTTP_ATTACKS, ids=[attack["attack"] for attack in HTTP_ATTACKS])
def test_no_other_route_accepts_requests(target: Target, attack: dict[str, Any]) -> None:
    def filled(text: str) -> str:
        if re.fullmatch(r".\*\d+", text):
            return text[0] * int(text[2:])
        return text.replace("{alice:-1}", ALICE[:-1]).replace("{alice}", ALICE)

    token = attack.get("token", MALLORY)
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    headers |= {name: filled(value) for name, value in attack.get("headers", {}).items()}
    headers |= {} if token is None else {"authorization": f"Bearer {filled(token)}"}
    listing = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    connection = http.client.HTTPConnection(target.server.base.removeprefix("http://"), timeout=30)
    body = filled(attack.get("body", listing)).encode()
    connection.putrequest(
        attack.get("method", "POST"),
        filled(attack.get("path", "/mcp")),
        skip_host="host" in headers,
        skip_accept_encoding=True,
    )
    for name, value in {**headers, "content-length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    said = answer.read().decode(errors="replace")
    connection.close()
    assert answer.status in attack["status"], said
    assert "claude_" not in said, "it has heard of no tool"
    assert ALICE not in said


def test_guessed_tokens_get_nothing_and_are_written_down(target: Target) -> None:
    before = len(target.audit("auth_failed"))
    guesses = [ALICE[:-1], ALICE + "0", ALICE.upper(), "alice", "Bearer", "a" * 10_000]
    for guess in guesses:
        headers = {"authorization": f"Bearer {guess}"}
        assert httpx2.post(target.server.url, json={}, headers=headers, timeout=30).status_code in (400, 401, 431)
    assert target.metrics("guess").status_code == 401
    # Of more than twenty a minute, and other tests guess too, the rest is counted.
    target.audit("auth_failed", min(before + 4, 20))
    assert "guess" not in target.audit_file.read_text()


@pytest.mark.parametrize("token", [None, ALICE, MALLORY, METRICS + "x"])
def test_the_figures_are_for_their_own_token_only(target: Target, token: str | None) -> None:
    assert target.metrics(token).status_code == 401
    assert target.metrics().status_code == 200
    assert target.metrics(host="evil.example").status_code == 421


def test_the_token_for_figures_opens_nothing_else(target: Target) -> None:
    headers = {"authorization": f"Bearer {METRICS}"}
    assert httpx2.post(target.server.url, json={}, headers=headers, timeout=30).status_code == 401
