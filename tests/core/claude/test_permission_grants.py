"""Permission updates of a session, as a new process of it is given them."""

from pathlib import Path
from typing import Any

from claude_code_mcp.core.claude.command_line import ConversationStart, build_command, granted_rules, with_grants
from claude_code_mcp.core.model.options import SessionOptions
from tests.support.tables import every_row


def rules(*rules: dict[str, Any], behavior: str = "allow") -> dict[str, Any]:
    return {"type": "addRules", "rules": list(rules), "behavior": behavior, "destination": "session"}


def test_rules_are_written_as_settings_files_have_them() -> None:
    grants = [
        rules({"toolName": "Bash", "ruleContent": "touch 'a (b)\\c'"}, {"toolName": "WebSearch"}),
        rules({"toolName": "WebSearch"}),
        rules({"toolName": "Write", "ruleContent": "/etc/**"}, behavior="deny"),
    ]
    assert granted_rules(grants) == {
        "allow": ["Bash(touch 'a \\(b\\)\\\\c')", "WebSearch"],
        "deny": ["Write(/etc/**)"],
    }


def test_the_last_mode_counts_and_directories_are_added_once() -> None:
    grants: list[dict[str, Any]] = [
        {"type": "setMode", "mode": "plan"},
        {"type": "setMode", "mode": "acceptEdits"},
        {"type": "addDirectories", "directories": ["/b", "/a"]},
    ]
    options = with_grants(SessionOptions(permission_mode="default", additional_directories=("/a",)), grants)
    assert (options.permission_mode, options.additional_directories) == ("acceptEdits", ("/a", "/b"))


@every_row(
    "grant",
    [
        {},
        {"type": "addRules"},
        {"type": "addRules", "rules": "Bash"},
        {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "always"},
        {"type": "addRules", "rules": ["Bash", {"ruleContent": "x"}, {"toolName": 5}]},
        {"type": "setMode"},
        {"type": "setMode", "mode": None},
        {"type": "addDirectories", "directories": [5, None]},
        {"type": "removeRules", "rules": [{"toolName": "Bash"}], "behavior": "deny"},
    ],
)
def test_unknown_grants_have_no_effect(grant: dict[str, Any]) -> None:
    assert granted_rules([grant]) == {}
    assert with_grants(SessionOptions(), [grant]) == SessionOptions()


def test_rules_go_into_a_private_settings_file_next_to_a_sandbox() -> None:
    options = SessionOptions(sandbox={"enabled": True})
    command = build_command(options, ConversationStart("x"), Path("/scratch"), rules={"allow": ["Bash(a, b)"]})
    assert "--settings=/scratch/settings.json" in command.arguments
    [settings] = command.files.values()
    assert '"permissions": {"allow": ["Bash(a, b)"]}' in settings
    assert '"failIfUnavailable": true' in settings
    assert not build_command(SessionOptions(), ConversationStart("x"), Path("/scratch"), rules={}).files
