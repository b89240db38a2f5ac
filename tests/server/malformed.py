"""Calls that must be refused: name, tool, arguments, code. SESSION and QUESTION stand for real, open ones."""

from typing import Any, NamedTuple

SESSION, QUESTION, OTHER = "$session", "$question", "$other"
NOWHERE = "00000000-0000-4000-8000-000000000000"
MEGABYTE = "x" * (1 << 20)
INVALID, MISSING = "INVALID_ARGUMENT", "SESSION_NOT_FOUND"


class Malformed(NamedTuple):
    """`says` is a part of the refusal, often the name of the field at fault."""

    name: str
    tool: str
    arguments: dict[str, Any]
    code: str = INVALID
    says: str = ""


def _create(name: str, says: str = "", code: str = INVALID, **arguments: Any) -> Malformed:
    return Malformed(f"create-{name}", "claude_create_session", {"prompt": "hi", **arguments}, code, says)


def _send(name: str, says: str = "", code: str = INVALID, **arguments: Any) -> Malformed:
    given = {"sessionId": SESSION, "message": "hi", **arguments}
    return Malformed(f"send-{name}", "claude_send_message", given, code, says)


def _status(name: str, says: str = "", code: str = INVALID, **arguments: Any) -> Malformed:
    return Malformed(f"status-{name}", "claude_get_status", {"sessionId": SESSION, **arguments}, code, says)


def _respond(name: str, says: str = "", code: str = INVALID, **arguments: Any) -> Malformed:
    given = {"sessionId": SESSION, "inputId": QUESTION, "decision": "allow", **arguments}
    return Malformed(f"respond-{name}", "claude_respond", given, code, says)


def _list(name: str, says: str = "", **arguments: Any) -> Malformed:
    return Malformed(f"list-{name}", "claude_list_sessions", arguments, INVALID, says)


def _interrupt(name: str, says: str = "", code: str = INVALID, **arguments: Any) -> Malformed:
    return Malformed(f"interrupt-{name}", "claude_interrupt", arguments, code, says)


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


TABLE = [
    Malformed("create-nothing", "claude_create_session", {}, INVALID, "prompt: required"),
    _create("prompt-null", "prompt", prompt=None),
    _create("prompt-number", "prompt", prompt=42),
    _create("prompt-list", "prompt", prompt=["hi"]),
    _create("prompt-empty", "prompt", prompt=""),
    _create("prompt-blank", "prompt", prompt=" \n\t "),
    _create("unknown-field", "flags: unknown field", flags="--help"),
    _create("wrong-case", "Prompt: unknown field", Prompt="hi"),
    _create("snake-case", "working_directory: unknown field", working_directory="/tmp"),
    _create("directory-missing", "is not a directory", workingDirectory="no/such/place"),
    _create("directory-tricks", "is not a directory", workingDirectory="no/../nor/./here/.."),
    _create("directory-file", "is not a directory", workingDirectory="a-file"),
    _create("directory-nul", "workingDirectory", workingDirectory="/tmp\0/x"),
    _create("directory-giant", "workingDirectory", workingDirectory=MEGABYTE),
    _create("directory-empty", "workingDirectory", workingDirectory=""),
    _create("directory-number", "workingDirectory", workingDirectory=7),
    _create("mode-unknown", "yolo", permissionMode="yolo"),
    _create("mode-case", "PLAN", permissionMode="PLAN"),
    _create("mode-flag", "", permissionMode="--dangerously-skip-permissions"),
    _create("mode-removed", "delegate", permissionMode="delegate"),
    _create("mode-list", "permissionMode", permissionMode=["plan"]),
    _create("model-empty", "model", model=""),
    _create("model-nul", "model", model="opus\0"),
    _create("model-giant", "model", model=MEGABYTE),
    _create("model-number", "model", model=4),
    _create("tools-text", "allowedTools", allowedTools="Bash"),
    _create("tools-numbers", "allowedTools.0", allowedTools=[1]),
    _create("tools-nul", "allowedTools.0", allowedTools=["Ba\0sh"]),
    _create("tools-giant", "disallowedTools.0", disallowedTools=[MEGABYTE]),
    _create("tools-many", "allowedTools", allowedTools=["Bash"] * 10_000),
    _create("turns-zero", "maxTurns", maxTurns=0),
    _create("turns-negative", "maxTurns", maxTurns=-1),
    _create("turns-fraction", "maxTurns", maxTurns=1.5),
    _create("turns-text", "maxTurns", maxTurns="3"),
    _create("turns-true", "maxTurns", maxTurns=True),
    _create("turns-giant", "maxTurns", maxTurns=10**30),
    _create("budget-zero", "maxBudgetUsd", maxBudgetUsd=0),
    _create("budget-text", "maxBudgetUsd", maxBudgetUsd="1"),
    _create("budget-negative", "maxBudgetUsd", maxBudgetUsd=-0.01),
    _create("skip-text", "dangerouslySkipPermissions", dangerouslySkipPermissions="true"),
    _create("wait-long", "waitSeconds", waitSeconds=56),
    _create("wait-negative", "waitSeconds", waitSeconds=-1),
    _create("wait-text", "waitSeconds", waitSeconds="10"),
    _create("wait-object", "waitSeconds", waitSeconds={"seconds": 3}),
    Malformed("send-nothing", "claude_send_message", {}, INVALID, "sessionId: required"),
    _send("unknown-session", NOWHERE, MISSING, sessionId=NOWHERE),
    _send("no-id", "sessionId", sessionId="the last one"),
    _send("path", "sessionId", sessionId="../../../etc/passwd"),
    _send("path-behind", "sessionId", sessionId=f"{NOWHERE}/../x"),
    _send("id-nul", "sessionId", sessionId=f"{NOWHERE}\0"),
    _send("id-giant", "sessionId", sessionId=MEGABYTE),
    _send("id-glob", "sessionId", sessionId="*" * 36),
    _send("message-empty", "message", message=""),
    _send("message-object", "message", message={"role": "user", "content": "hi"}),
    _send("session-id-twice", "session_id: unknown field", session_id=SESSION),
    _status("unknown-session", NOWHERE, MISSING, sessionId=NOWHERE),
    _status("empty-id", "sessionId", sessionId=""),
    _status("null-id", "sessionId", sessionId=None),
    _status("cursor-number", "cursor", cursor=12),
    _status("cursor-text", "cursor", cursor="12"),
    _status("cursor-negative", "cursor", cursor="abcdef01--1"),
    _status("cursor-giant", "cursor", cursor="abcdef01-" + "9" * 900),
    _status("lines-negative", "outputLines", outputLines=-5),
    _status("lines-many", "outputLines", outputLines=1001),
    _status("lines-true", "outputLines", outputLines=True),
    _status("wait-list", "waitSeconds", waitSeconds=[1]),
    _respond("unknown-session", NOWHERE, MISSING, sessionId=NOWHERE),
    _respond("unknown-question", "has no question", inputId="q-ffffffffffffffff"),
    _respond("foreign-question", "has no question", sessionId=OTHER),
    _respond("path-as-question", "has no question", inputId="../q"),
    _respond("giant-question", "inputId", inputId=MEGABYTE),
    _respond("empty-question", "inputId", inputId=""),
    _respond("decision-case", "decision", decision="Allow"),
    _respond("decision-true", "decision", decision=True),
    _respond("decision-yes", "decision", decision="yes"),
    _respond("deny-with-input", "denial", decision="deny", updatedInput={"command": "ls"}),
    _respond("deny-for-session", "scope", decision="deny", scope="session"),
    _respond("deny-with-answers", "denial", decision="deny", answers=["x"]),
    _respond("answers-to-permission", "nswers", answers=["x"]),
    _respond("answers-text", "answers", answers="red"),
    _respond("answers-numbers", "answers", answers=[1, 2]),
    _respond("answers-deep", "answers", answers=_nested(50)),
    _respond("input-list", "updatedInput", updatedInput=[{"command": "ls"}]),
    _respond("input-text", "updatedInput", updatedInput="ls"),
    _respond("scope-unknown", "scope", scope="forever"),
    _respond("reason-object", "reason", decision="deny", reason={"a": 1}),
    _interrupt("nothing", "sessionId: required"),
    _interrupt("unknown-session", NOWHERE, MISSING, sessionId=NOWHERE),
    _interrupt("path", "sessionId", sessionId="/proc/self"),
    _list("limit-zero", "limit", limit=0),
    _list("limit-many", "limit", limit=501),
    _list("limit-text", "limit", limit="all"),
    _list("text-empty", "text", text=""),
    _list("text-giant", "text", text=MEGABYTE),
    _list("directory-nul", "projectDirectory", projectDirectory="/tmp\0"),
    _list("directory-giant", "projectDirectory", projectDirectory=MEGABYTE),
    _list("directory-list", "projectDirectory", projectDirectory=["/tmp"]),
    _list("unknown", "project: unknown field", project="/tmp"),
]
