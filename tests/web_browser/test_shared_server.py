"""The console of the shared server: browsers beside the clients that people have anyway."""

import json
from typing import Any

from playwright.sync_api import expect

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool

from ..greeting.client import Client, request
from ..shared.support import next_answer, opened, shared_place
from .conftest import OpenBrowser
from .console import PATIENCE, PHONE


def _call(client: Client, number: int, tool: str, **arguments: Any) -> Any:
    """The structured content of a tool's result; forms that the client is shown meanwhile are left alone."""
    client.send(request("tools/call", number, name=tool, arguments=arguments))
    return next_answer(client, number)["result"]["structuredContent"]


def test_of_two_browsers_and_a_client_on_stdio_the_first_answer_counts(
    open_browser: OpenBrowser, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    steps = (tool("Bash", command="touch one"), tool("Bash", command="touch two"), "Both are there.")
    given = {"prompt": script("Make two files", *steps), "workingDirectory": str(sandbox.project)}
    with shared_place(sandbox, environment) as shared, shared.client() as stdio:
        session = _call(opened(stdio), 1, "claude_create_session", **given)["sessionId"]
        desk, phone = open_browser(), open_browser(**PHONE)
        for person in (desk, phone):
            link = json.loads(shared.command("web", "--json").stdout)
            person.page.goto(link["url"])
            expect(person.page.locator(".row")).to_contain_text("touch one", timeout=PATIENCE)
            person.page.goto(f"{link['address']}#/sessions/{session}")
            person.question("touch one")
        phone.question("touch one").get_by_role("button", name="Allow once").click()
        told = desk.page.locator(".question", has_text="Answered by web").or_(
            desk.page.locator(".question", has_text="touch two")
        )
        expect(told.first).to_be_visible(timeout=PATIENCE)
        asked = [person.question("touch two") for person in (desk, phone)]
        (pending,) = _call(stdio, 2, "claude_get_status", sessionId=session)["pendingInputs"]
        _call(stdio, 3, "claude_respond", sessionId=session, inputId=pending["inputId"], decision="allow")
        for person, question in zip((desk, phone), asked, strict=True):
            person.says("Both are there.")
            expect(question.get_by_role("button")).to_have_count(0)
    assert {file.name for file in sandbox.project.iterdir()} >= {"one", "two"}
