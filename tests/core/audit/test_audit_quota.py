"""Which acts have a line in the audit trail when there are many."""

import pytest

from claude_code_mcp.core.audit.quota import AuditQuotas
from claude_code_mcp.core.model.events import AuditEvent, AuditKind


def denied(session_id: str, rule: str, command: str) -> AuditEvent:
    return AuditEvent(AuditKind.CALL_DENIED, "alice", session_id, {"rule": rule, "description": command})


@pytest.mark.parametrize(
    ("session_id", "rule"),
    [("other", "Bash(git push *)"), ("noisy", "Bash(git tag *)")],
    ids=["another session", "another rule with the same first word"],
)
def test_many_denials_in_one_session_hide_no_other(session_id: str, rule: str) -> None:
    quotas = AuditQuotas(lambda: 0.0)
    for number in range(300):
        quotas.has_line(denied("noisy", "Bash(git push *)", f"git push {number}"))
    assert not quotas.has_line(denied("noisy", "Bash(git push *)", "git push 300"))
    assert quotas.has_line(denied(session_id, rule, "git push 301"))


def test_session_ids_that_a_caller_makes_up_are_no_groups() -> None:
    """Else many of them would use up the groups, and the next refusal for another reason would have no line."""
    quotas = AuditQuotas(lambda: 0.0)
    details = {"what": "use", "code": "session_not_found"}
    for number in range(300):
        quotas.has_line(AuditEvent(AuditKind.REFUSED, "alice", f"unknown-{number}", details))
    refused = {"what": "create", "code": "permission_denied", "field": "cwd"}
    assert quotas.has_line(AuditEvent(AuditKind.REFUSED, "alice", None, refused))
