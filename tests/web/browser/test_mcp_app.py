"""The MCP App in a host that speaks its protocol: the live view and the approval inside a chat."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FrameLocator, expect

from claude_code_mcp.testing.script import ask_user, script, text, tool

from .conftest import OpenBrowser
from .console import PATIENCE, TOKEN, Person, Site
from .test_hostile_text import ALL

HOST = (Path(__file__).parent / "host.html").read_text(encoding="utf-8")
PERMISSION = {"permissionMode": "default"}


@pytest.fixture
def host(open_browser: OpenBrowser, site: Site) -> Person:
    person = open_browser()
    person.page.goto(f"{site.url}/health")
    person.page.set_content(HOST)
    person.page.evaluate("token => connect(token)", TOKEN)
    return person


def use(host: Person, name: str, theme: str = "light", **given: Any) -> tuple[FrameLocator, Any]:
    shown = host.page.evaluate("([name, given, theme]) => use(name, given, theme)", [name, given, theme])
    return host.page.frame_locator("#app"), shown


def test_a_new_session_is_shown_live_and_approved_in_the_chat(host: Person, site: Site) -> None:
    directory = site.project(name="chat")
    file = directory / "note.txt"
    file.write_text("old words\n")
    steps = (
        tool("Read", file_path=str(file)),
        tool("Edit", file_path=str(file), old_string="old words", new_string="new words"),
        "The **note** is new.",
    )
    app, shown = use(
        host, "claude_create_session", prompt=script("Change it", *steps), workingDirectory=str(directory), **PERMISSION
    )
    assert shown["mimeType"] == "text/html;profile=mcp-app"
    assert shown["meta"]["ui/resourceUri"] == shown["meta"]["ui"]["resourceUri"]
    asked = app.locator(".question")
    expect(asked.locator("td.gone")).to_contain_text("old words", timeout=PATIENCE)
    expect(asked.locator("td.new")).to_contain_text("new words")
    asked.get_by_role("button", name="Allow once").click()
    expect(app.locator("strong")).to_have_text("note", timeout=PATIENCE)
    expect(app.locator(".badge")).to_contain_text("done", timeout=PATIENCE)
    assert file.read_text() == "new words\n"
    expect(app.locator(".question")).to_have_count(0)
    heights = host.page.evaluate("told.filter(one => one.method === 'ui/notifications/size-changed').length")
    assert heights >= 1


def test_a_question_is_answered_in_the_chat_and_the_host_decides_on_light_and_dark(host: Person, site: Site) -> None:
    prompt = script("Ask", ask_user("Which colour?", "red", "blue"), "You chose ${tool_result}")
    directory = str(site.project())
    app, _ = use(host, "claude_code", "dark", prompt=prompt, cwd=directory, **PERMISSION)
    expect(app.locator("html")).to_have_attribute("data-theme", "dark", timeout=PATIENCE)
    app.get_by_role("radio", name="blue").check(timeout=PATIENCE)
    app.get_by_role("button", name="Send answer").click()
    expect(app.locator(".said")).to_contain_text("blue", timeout=PATIENCE)


def test_a_session_that_is_looked_at_again_is_shown_with_what_was_said(host: Person, site: Site) -> None:
    given = {"prompt": script("Hi", "Said before."), "workingDirectory": str(site.project()), "waitSeconds": 30}
    made = host.page.evaluate("given => rpc('tools/call', {name: 'claude_create_session', arguments: given})", given)
    session = made["structuredContent"]["sessionId"]
    app, _ = use(host, "claude_get_status", sessionId=session)
    expect(app.locator(".said")).to_contain_text("Said before.", timeout=PATIENCE)


def test_an_input_that_is_too_long_for_a_report_is_read_whole_before_anybody_decides(host: Person, site: Site) -> None:
    content = "".join(f"line {number} of a long file {'.' * 1000}\n" for number in range(300))
    directory = site.project()
    step = tool("Write", file_path=str(directory / "long.txt"), content=content)
    app, _ = use(
        host,
        "claude_create_session",
        prompt=script("Write", step, "Written."),
        workingDirectory=str(directory),
        **PERMISSION,
    )
    expect(app.locator(".diff .plus")).to_have_text("+300", timeout=PATIENCE)
    app.get_by_role("button", name="Allow once").click()
    expect(app.locator(".said")).to_contain_text("Written.", timeout=PATIENCE)
    assert (directory / "long.txt").read_text() == content


def test_no_script_runs_in_the_app_from_what_claude_wrote_and_links_go_through_the_host(
    host: Person, site: Site
) -> None:
    prompt = script("Say", text(f"{ALL}\n\n[the end](https://example.com/end)"))
    app, _ = use(host, "claude_create_session", prompt=prompt, workingDirectory=str(site.project()))
    link = app.get_by_role("link", name="the end")
    expect(link).to_be_visible(timeout=PATIENCE)
    link.click()
    host.page.wait_for_function("told.some(one => one.method === 'ui/open-link')", timeout=PATIENCE)
    assert host.page.evaluate("told.find(one => one.method === 'ui/open-link').params.url") == "https://example.com/end"
    frame = host.page.frames[1]
    assert frame.evaluate("window.hit") is None
    assert frame.evaluate("document.body.querySelectorAll('script, img, iframe, form').length") == 0
