"""Known secrets are fed into every entrance, and must come out of no exit."""

import pytest

from claude_code_mcp.testing.script import fail, script, text, tool
from tests.server.connection import Connection

from .conftest import ALICE, MALLORY, METRICS, Target

IN_ENVIRONMENT = "opaque-environment-value-31415"
IN_PROMPT = "sk-ant-api03-in-the-prompt-27182818"
IN_OUTPUT = "ghp_InTheOutputOfATool0123456789abcdef"
IN_PATH = "glpat-in-a-path-0123456789"
IN_ERROR = "AKIAIOSFODNN7EXAMPLE"
SECRETS = [IN_ENVIRONMENT, IN_PROMPT, IN_OUTPUT, IN_PATH, IN_ERROR, ALICE, MALLORY, METRICS]


@pytest.fixture(scope="module")
def extra_environment() -> dict[str, str]:
    return {"DEPLOY_TOKEN": IN_ENVIRONMENT}


def test_no_secret_comes_out_anywhere(target: Target, alice: Connection) -> None:
    commands = [f"git diff /dev/null {IN_PATH}", "printenv DEPLOY_TOKEN", f"echo 'Authorization: Bearer {ALICE}'"]
    work = script(
        f"use {IN_PROMPT}",
        *(tool("Bash", command=command) for command in commands),
        text(f"the key is {IN_OUTPUT}, the variable ${{tool_result}}"),
    )
    allowed = ["Bash(printenv *)", "Bash(echo *)"]
    said = [
        alice.create(work, allowedTools=allowed, waitSeconds=40).raw,
        alice.call("claude_code", prompt=work, allowedTools=allowed).raw,
        alice.call("claude_code_query", prompt=script(f"tell {IN_PROMPT}", f"it is {IN_OUTPUT}")).raw,
        alice.create("go", workingDirectory=f"/{IN_PATH}").raw,
        alice.create("go", model=f"{IN_ERROR}", waitSeconds=40).raw,
        alice.create(script(f"api {IN_PROMPT}", fail(400, message=IN_ERROR)), waitSeconds=40).raw,
        alice.call("claude_respond", sessionId="x", inputId=IN_OUTPUT, decision="allow").raw,
        alice.call("claude_code_session", action="list").raw,
        alice.call("claude_list_sessions").raw,
    ]
    asked = alice.create(script(f"ask {IN_PROMPT}", tool("Bash", command=f"mkdir {IN_OUTPUT}"), "x"), waitSeconds=40)
    said += [asked.raw, alice.respond(asked, "deny", reason=IN_ERROR).raw, alice.look(asked.session).raw]
    exits = {
        "results": "\n".join(message.model_dump_json() for message in said),
        "audit": target.audit_file.read_text(),
        "metrics": target.metrics().text,
        "log": target.server.log,
    }
    found = {(name, secret) for name, text_ in exits.items() for secret in SECRETS if secret in text_}
    assert found == set()
    assert "[redacted]" in exits["results"]
    assert "[redacted]" in exits["audit"]
