"""The MCP App in a host that speaks its protocol: the live view and the approval inside a chat."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FrameLocator, expect

from claude_code_mcp.testing.script import ask_user, script, tool

from .console import DESKTOP, PATIENCE, TOKEN, Person, Site
from .test_hostile_text import ALL

HOST = (Path(__file__).parent / "host.html").read_text(encoding="utf-8")
PERMISSION = {"permissionMode": "default"}


@pytest.fixture(scope="module")
def chat(browser: Browser, site: Site) -> Iterator[Person]:
    person = Person(browser.new_context(**DESKTOP), site)
    yield person
    person.context.close()


@pytest.fixture
def host(chat: Person) -> Iterator[Person]:
    """A host that has shown no app yet."""
    yield opened(chat)
    faults, chat.faults = chat.faults, []
    assert faults == []


def opened(chat: Person) -> Person:
    """A page of the host anew."""
    chat.page.goto(f"{chat.site.url}/health")
    chat.page.set_content(HOST)
    chat.page.evaluate("token => connect(token)", TOKEN)
    return chat


def use(host: Person, name: str, theme: str = "light", **given: Any) -> tuple[FrameLocator, Any]:
    shown = host.page.evaluate("([name, given, theme]) => use(name, given, theme)", [name, given, theme])
    return host.page.frame_locator("#app"), shown


@pytest.mark.soak
def test_a_new_session_is_shown_live_and_approved_in_the_chat(host: Person, site: Site) -> None:
    """An edit, and an input that is too long for a report: it is read whole before anybody decides."""
    directory = site.project(name="chat")
    file = directory / "note.txt"
    file.write_text("old words\n")
    content = "".join(f"line {number} of a long file {'.' * 1000}\n" for number in range(300))
    steps = (
        tool("Read", file_path=str(file)),
        tool("Edit", file_path=str(file), old_string="old words", new_string="new words"),
        tool("Write", file_path=str(directory / "long.txt"), content=content),
        "The **note** is new.",
    )
    app, shown = use(
        host, "claude_create_session", prompt=script("Change it", *steps), workingDirectory=str(directory), **PERMISSION
    )
    assert shown["mimeType"] == "text/html;profile=mcp-app"
    assert shown["meta"]["ui/resourceUri"] == shown["meta"]["ui"]["resourceUri"]
    asked = app.locator(".question")
    expect(asked.locator("td.gone")).to_contain_text("old words")
    expect(asked.locator("td.new")).to_contain_text("new words")
    expect(asked.locator(".session-meaning")).to_contain_text("accepts all file edits")
    asked.get_by_role("button", name="Allow once").click()
    expect(app.locator(".diff .plus")).to_have_text("+300")
    allow, left = asked.get_by_role("button", name="Allow once"), asked.locator(".lines-left")
    expect(left).to_contain_text("more lines")
    while not allow.count():  # the frame is as long as the file: the host scrolls, and every line has to be passed
        left.evaluate_all("(all) => all.forEach((one) => one.click())")
        host.page.wait_for_timeout(300)
    allow.click()
    expect(app.locator("strong")).to_have_text("note")
    expect(app.locator(".badge")).to_contain_text("done")
    assert file.read_text() == "new words\n"
    assert (directory / "long.txt").read_text() == content
    expect(app.locator(".question")).to_have_count(0)
    heights = host.page.evaluate("told.filter(one => one.method === 'ui/notifications/size-changed').length")
    assert heights >= 1


def test_a_question_that_was_open_before_is_shown_in_full(host: Person, site: Site) -> None:
    """The result that opens the app has only the beginning of a long input."""
    directory = site.project(name="long")
    content = "".join(f"line {number} of a long file {'.' * 1000}\n" for number in range(700))
    prompt = script("Write it", tool("Write", file_path=str(directory / "long.txt"), content=content))
    call = "([name, given]) => rpc('tools/call', {name, arguments: given})"
    given = {"prompt": prompt, "workingDirectory": str(directory), **PERMISSION}
    session_id = host.page.evaluate(call, ["claude_create_session", given])["structuredContent"]["sessionId"]
    waiting = {"sessionId": session_id, "waitSeconds": 50}
    report = host.page.evaluate(call, ["claude_get_status", waiting])["structuredContent"]
    assert report["truncated"][0]["part"] == report["pendingInputs"][0]["inputId"]
    app, _ = use(host, "claude_get_status", sessionId=session_id)
    expect(app.locator(".diff .plus")).to_have_text("+700", timeout=PATIENCE)
    app.get_by_role("button", name="Deny", exact=True).click()


@pytest.mark.soak  # as a permission is: the test above
def test_a_question_is_answered_in_the_chat_no_script_runs_and_a_later_look_shows_what_was_said(
    host: Person, site: Site
) -> None:
    end = f"{ALL}\n\n[the end](https://example.com/end)"
    prompt = script("Ask", ask_user("Which color?", "red", "blue"), f"You chose ${{tool_result}}\n\n{end}")
    directory = str(site.project())
    app, _ = use(host, "claude_code", "dark", prompt=prompt, cwd=directory, **PERMISSION)
    expect(app.locator("html")).to_have_attribute("data-theme", "dark")
    app.get_by_role("radio", name="blue").check(timeout=PATIENCE)
    app.get_by_role("button", name="Send answer").click()
    expect(app.locator(".said")).to_contain_text("blue")
    link = app.get_by_role("link", name="the end")
    expect(link).to_be_visible()
    link.click()
    host.page.wait_for_function("told.some(one => one.method === 'ui/open-link')", timeout=PATIENCE)
    assert host.page.evaluate("told.find(one => one.method === 'ui/open-link').params.url") == "https://example.com/end"
    _unharmed(host)
    expect(app.locator(".badge")).to_contain_text("done")
    listed = host.page.evaluate(
        "given => rpc('tools/call', {name: 'claude_list_sessions', arguments: given})", {"projectDirectory": directory}
    )
    [session] = listed["structuredContent"]["sessions"]
    app, _ = use(opened(host), "claude_get_status", sessionId=session["sessionId"])
    expect(app.locator(".said")).to_contain_text("blue")
    _unharmed(host)


def _unharmed(host: Person) -> None:
    frame = host.page.frames[1]
    assert frame.evaluate("window.hit") is None
    assert frame.evaluate("document.body.querySelectorAll('script, img, iframe, form').length") == 0
