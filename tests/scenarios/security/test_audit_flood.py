"""A caller who repeats acts neither empties the audit trail nor hides in it, at a real service."""

import json
from pathlib import Path

import pytest

from claude_code_mcp.core.audit.trail import Audit, RotatingJsonl
from claude_code_mcp.core.errors import ClaudeCodeError, PermissionDenied
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.core.sessions.support import run

ALICE, MALLORY = Caller("alice"), Caller("mallory")


async def test_caller_cannot_push_entries_out_of_the_audit_trail(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path
) -> None:
    trail = tmp_path / "audit.jsonl"
    audit = Audit(RotatingJsonl(trail, 200_000), Redactor([]))
    service = await start_service(policy=Policy(Profile(roots=(str(sandbox.project),))), observers=[audit])
    options = SessionOptions(cwd=str(sandbox.project))
    session, _ = await run(service, script("hello", "there"), options, caller=ALICE)
    own, _ = await run(service, script("hello", "there"), options, caller=MALLORY)
    for _ in range(4000):
        service.policy_for(MALLORY).set_bypass(False)
    for _ in range(300):
        with pytest.raises(ClaudeCodeError):
            await service.interrupt(session.id, caller=MALLORY)
    with pytest.raises(PermissionDenied):
        await service.create("go", SessionOptions(cwd="/etc/ssh"), caller=MALLORY)
    audit.close()
    lines = [json.loads(line) for line in trail.read_text().splitlines()]
    created = [line["session"] for line in lines if line["act"] == "session_created"]
    assert created == [session.id, own.id], "both are still in the file"
    refused = [line for line in lines if line["act"] == "refused"]
    assert ["/etc/ssh" in line["reason"] for line in refused if line.get("field") == "cwd"] == [True]
    assert sum(line.get("count", 1) for line in refused) == 301
    assert len(lines) < 100
