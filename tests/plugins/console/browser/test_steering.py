"""Steering an open session: mode and model, completion, tasks, copying, questions that nobody answered."""

import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import text, thinking, tool
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.support.system_packages import require
from tests.support.waiting import until

from .conftest import OpenBrowser
from .console import PATIENCE, PHONE, Caller, Person, Site, running
from .test_messages import message, send


def test_mode_model_commands_files_tasks_and_the_answer_are_at_hand(person: Person, site: Site) -> None:
    todos = [
        {"content": "Read the code", "status": "completed", "activeForm": "Reading"},
        {"content": "Write the fix", "status": "in_progress", "activeForm": "Writing"},
        {"content": "Run the tests", "status": "pending", "activeForm": "Running"},
    ]
    thought = thinking("Let me consider the greeting carefully", "Planned.", chunks=4, interval=0.3)
    directory = site.project(tool("TodoWrite", todos=todos), text("First **answer**."), thought)
    (directory / "greeting.py").write_text("print('hi')\n")
    require("git")
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    person.start("Work on the greeting", directory)
    person.says("First answer.")
    page, session = person.page, person.session_id
    expect(page).to_have_title(re.compile(r"(\(\d+\) )?Work on the greeting · Claude Code"))
    todo = page.locator(".todo")
    expect(todo.locator("summary")).to_have_text("1 of 3 done · Write the fix")
    todo.locator("summary").click()
    expect(todo.locator("li")).to_have_count(3)
    expect(page.locator(".about")).to_contain_text("context")
    person.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy answer").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "First **answer**."
    page.get_by_label("Permissions").select_option("plan")
    expect(page.locator(".about")).to_contain_text("plan")
    assert Caller(site).get(f"/api/sessions/{session}")["permissionMode"] == "plan"
    message(page).press_sequentially("/compa")
    option = page.get_by_role("option", name="/compact", exact=True)
    expect(option).to_be_visible()
    page.keyboard.press("Tab")
    expect(message(page)).to_have_value("/compact ")
    message(page).fill("")
    message(page).press_sequentially("Look at @greet")
    expect(page.get_by_role("option", name="@greeting.py")).to_be_visible()
    page.keyboard.press("Enter")
    expect(message(page)).to_have_value("Look at @greeting.py ")
    page.keyboard.press("Enter")
    expect(page.locator(".thought")).to_contain_text("consider")
    person.says("Planned.")
    page.get_by_role("button", name="Find in this conversation").click()
    page.get_by_role("searchbox", name="Find in this conversation").fill("FIRST")
    page.locator(".found-list button", has_text="First").click()
    expect(page.locator(".said.found")).to_contain_text("First answer.")
    page.get_by_role("button", name="Edit this message").last.click()
    expect(message(page)).to_have_value("Look at @greeting.py")
    message(page).fill("Look elsewhere")
    page.get_by_role("button", name="Send", exact=True).click()
    page.wait_for_url(lambda url: "/sessions/" in url and session not in url, timeout=PATIENCE)
    person.says("Planned.")
    expect(page.locator(".prompt")).to_have_text(["Work on the greeting", "Look elsewhere"])
    page.goto(f"{site.url}/#/sessions/{session}")
    expect(page.locator(".prompt").last).to_have_text("Look at @greeting.py")
    page.locator(".menu > summary").click()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.locator(".about")).to_contain_text("archived")
    page.get_by_role("button", name="Archived sessions").click()
    archived = page.locator(f'.sessions [data-key="{session}"]')
    expect(archived).to_be_visible()
    page.get_by_role("button", name="Back to all sessions").click()
    expect(archived).to_have_count(0)


UNANSWERED = re.compile(r"No answer within [\d.]+ seconds, so this was denied\.")
"""How long that was is measured: on a busy machine a little more than the limit."""


@pytest.fixture
def short_timeout(tmp_path_factory: pytest.TempPathFactory, site: Site, model: ScriptedModelThread) -> Iterator[Site]:
    """A server whose questions expire soon after the last page was closed."""
    sandbox = Sandbox(tmp_path_factory.mktemp("impatient"), model.url)
    with running(Site(sandbox, sandbox.environment(PERMISSION_TIMEOUT_MS="700"))) as started:
        yield started


def leave_until_over(person: Person) -> None:
    """Closes the page until the question has expired and the turn has ended, and opens it again."""
    page, there = person.page, person.page.url
    caller, path = Caller(person.site), f"/api/sessions/{person.session_id}"
    person.question()
    page.goto("about:blank")
    until(lambda: caller.get(path)["session"]["needs"] == "unanswered")
    page.goto(there)


@pytest.mark.soak  # tests/plugins/console/test_console_port.py
def test_unanswered_question_is_listed_and_can_be_asked_again(open_browser: OpenBrowser, short_timeout: Site) -> None:
    person = open_browser(short_timeout, **PHONE).sign_in()
    asks = tool("Bash", command="touch otter")
    person.start("Make an otter", short_timeout.project(asks, "Nobody was there.", asks, "Asked twice.", "Enough."))
    leave_until_over(person)
    person.says("Nobody was there.")
    page = person.page
    missed = page.locator(".question.unanswered")
    expect(missed).to_contain_text("Run: touch otter")
    expect(missed).to_contain_text(UNANSWERED)
    # Of the call it is said as of one that somebody has denied: while it happens, and as it is read again.
    call = page.locator(".tool", has_text="touch otter")
    expect(call.locator(".status")).to_have_text("denied")
    expect(call.locator(".tool-about")).to_contain_text(UNANSWERED)
    page.reload()
    expect(call.locator(".status")).to_have_text("denied")
    page.get_by_role("link", name="All sessions").click()
    needing = page.locator(".sessions section", has_text="Needs you").locator(".row", has_text="touch otter")
    expect(needing).to_contain_text("unanswered")
    needing.click()
    page.get_by_role("button", name="Ask again").click()
    leave_until_over(person)
    person.says("Asked twice.")
    # The same has ended in the same way, and is asked again as often as somebody likes.
    expect(page.get_by_role("button", name="Ask again")).to_be_enabled()
    expect(missed.get_by_text("No answer within")).to_be_in_viewport()
    expect(page.locator(".prompt").last).to_contain_text("I could not answer in time: Run: touch otter")
    send(page, "Never mind")
    person.says("Enough.")
    expect(missed).to_be_hidden()


@pytest.fixture
def subscribed(tmp_path_factory: pytest.TempPathFactory, site: Site, model: ScriptedModelThread) -> Iterator[Site]:
    """A server with a subscription, whose limits Claude Code reports."""
    sandbox = Sandbox(tmp_path_factory.mktemp("subscribed"), model.url)
    with running(Site(sandbox, sandbox.environment(**SUBSCRIPTION))) as started:
        yield started


@pytest.mark.soak
def test_at_a_usage_limit_one_press_waits_one_gives_up_and_one_continues(
    open_browser: OpenBrowser, subscribed: Site
) -> None:
    person = open_browser(subscribed, **PHONE).sign_in()
    person.start("Make an otter", subscribed.project(limited(time.time() + 3600, times=1, then="An otter.")))
    page = person.page
    notice = page.locator(".limit-notice")
    expect(notice).to_contain_text("The 5-hour limit is reached")
    expect(notice).to_contain_text("It resets at")
    expect(page.locator(".about")).to_contain_text("plan: 5-hour 100 %, weekly 40 %")
    notice.get_by_role("button", name="Wait and continue automatically").click()
    expect(notice).to_contain_text("The session continues at")
    expect(page.locator(".about .badge")).to_contain_text("continues at")
    page.reload()
    notice.get_by_role("button", name="Do not continue").click(timeout=PATIENCE)
    expect(notice).not_to_contain_text("The session continues at")
    notice.get_by_role("button", name="Continue now").click()
    person.says("An otter.")
    expect(notice).to_be_hidden()
    page.goto(f"{subscribed.url}/#/costs")
    expect(page.locator(".page")).to_contain_text("Plan: 5-hour 100 %, weekly 40 % used.")
