"""The console of the shared server: browsers beside the clients that people have anyway."""

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from claude_code_mcp.core.transcripts.transcript_lines import folder_of
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import RUN
from tests.core.transcripts.catalog_disk import lines, user
from tests.startup.greeting.client import Client, request
from tests.startup.shared.support import SharedPlace, next_answer, opened, shared_place

from .conftest import OpenBrowser
from .console import PHONE, Person


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[SharedPlace]:
    """One shared server for these tests, with forty sessions of a terminal on its disk."""
    sandbox = Sandbox(tmp_path_factory.mktemp("shared"), model.url)
    folder = sandbox.home / ".claude" / "projects" / folder_of(str(sandbox.project))
    folder.mkdir(parents=True)
    for number in range(40):
        written = lines(user(f"Old heron {number}", cwd=str(sandbox.project)))
        (folder / f"{uuid.uuid4()}.jsonl").write_bytes(written)
    with shared_place(sandbox, sandbox.environment(**{RUN: os.environ[RUN]})) as place:
        yield place


def _visit(person: Person, shared: SharedPlace) -> str:
    """Signs in by a link of the command; the address of the console."""
    link = json.loads(shared.command("web", "--json").stdout)
    person.page.goto(link["url"])
    expect(person.page.locator(".bar")).to_be_attached()
    address: str = link["address"]
    return address


def _call(client: Client, number: int, tool: str, **arguments: Any) -> Any:
    """The structured content of a tool's result; forms that the client is shown meanwhile are left alone."""
    client.send(request("tools/call", number, name=tool, arguments=arguments))
    return next_answer(client, number)["result"]["structuredContent"]


@pytest.mark.soak  # tests/plugins/console/test_conversation.py
def test_first_answer_of_two_browsers_and_a_stdio_client_counts(open_browser: OpenBrowser, shared: SharedPlace) -> None:
    project = shared.sandbox.project
    steps = (tool("Bash", command="touch one"), tool("Bash", command="touch two"), "Both are there.")
    given = {"prompt": script("Make two files", *steps), "workingDirectory": str(project)}
    with shared.client() as stdio:
        session = _call(opened(stdio), 1, "claude_create_session", **given)["sessionId"]
        desk, phone = open_browser(), open_browser(**PHONE)
        for person in (desk, phone):
            address = _visit(person, shared)
            expect(person.page.locator(".row", has_text="touch one")).to_be_visible()
            person.page.goto(f"{address}#/sessions/{session}")
            person.question("touch one")
        phone.question("touch one").get_by_role("button", name="Allow once").click()
        asked = [person.question("touch two") for person in (desk, phone)]
        assert desk.page.locator(".question:not(.closed, .unanswered)").count() == 1
        (pending,) = _call(stdio, 2, "claude_get_status", sessionId=session)["pendingInputs"]
        _call(stdio, 3, "claude_respond", sessionId=session, inputId=pending["inputId"], decision="allow")
        for person, question in zip((desk, phone), asked, strict=True):
            person.says("Both are there.")
            expect(question.get_by_role("button")).to_have_count(0)
    assert {file.name for file in project.iterdir()} >= {"one", "two"}


def test_sessions_of_a_terminal_are_found_and_come_in_pages(open_browser: OpenBrowser, shared: SharedPlace) -> None:
    person = open_browser()
    _visit(person, shared)
    page = person.page
    rows = page.locator(".sessions .row:visible")
    expect(rows).to_have_count(30)
    page.get_by_role("searchbox", name="Search sessions").fill("old heron 7")
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox", name="Search sessions").fill("old heron")
    expect(rows).to_have_count(30)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(40)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
