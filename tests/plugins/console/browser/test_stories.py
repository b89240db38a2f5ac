"""Whole stories in a real browser, on the real CLI: what a person does from a phone or a desk."""

import signal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, expect

from claude_code_mcp.testing.script import ask_user, parallel, plan, question, text, tool
from tests.support.repositories import repository

from .conftest import OpenBrowser
from .console import PATIENCE, PHONE, TOKEN, Caller, Person, Site, changes_of, read_on, write_script
from .test_messages import png

MARKDOWN = """## What I found

The login fails because **the token expires** before it is *refreshed*:

1. `refresh()` is called too late
2. nobody looks at `expires_at`
   - not even the tests

| file | lines |
| --- | --- |
| auth.py | 12 |

```python
def refresh(token):
    return token
```

See [the notes](https://example.com/notes) for more.
"""


def test_a_link_with_a_ticket_signs_in_once_and_leaves_no_trace_in_the_address(
    open_browser: OpenBrowser, site: Site
) -> None:
    link = site.ticket()
    person = open_browser()
    person.page.goto(link)
    expect(person.page.locator(".bar")).to_be_visible()
    assert "ticket" not in person.page.url
    person.page.reload()
    expect(person.page.locator(".bar")).to_be_visible()
    late = open_browser()
    late.page.goto(link)
    expect(late.page.get_by_role("alert")).to_contain_text("already used")
    expect(late.page.get_by_label("Or sign in with a token")).to_be_visible()


def test_wrong_token_is_reported_and_signing_out_ends_the_sign_in(open_browser: OpenBrowser) -> None:
    stranger = open_browser()
    stranger.page.goto(stranger.site.url)
    stranger.page.get_by_label("Or sign in with a token").fill(f"{TOKEN}x")
    stranger.page.get_by_role("button", name="Sign in").click()
    expect(stranger.page.get_by_role("alert")).to_be_visible()
    page = open_browser().sign_in().page
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_label("Or sign in with a token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Or sign in with a token")).to_be_visible()


def test_an_answer_is_shown_while_it_is_written_and_then_as_markdown_until_it_is_stopped(
    person: Person, site: Site
) -> None:
    endless = text("word " * 400, chunks=400, interval=0.1)
    directory = site.project(text(MARKDOWN, chunks=60, interval=0.03), endless, "Here again.")
    person.start("Why does the login fail?", directory)
    page = person.page
    expect(page.locator(".writing")).to_be_visible()
    person.says("See the notes for more.")
    said = page.locator(".said").last
    expect(said.locator("h4", has_text="What I found")).to_be_visible()
    expect(said.locator("strong")).to_have_text("the token expires")
    expect(said.locator("ol > li")).to_have_count(2)
    expect(said.locator("ol ul > li")).to_have_text("not even the tests")
    expect(said.locator("td").first).to_have_text("auth.py")
    expect(said.locator("pre code")).to_have_text("def refresh(token):\n    return token")
    link = said.get_by_role("link", name="the notes")
    assert link.get_attribute("href") == "https://example.com/notes"
    assert "noopener" in (link.get_attribute("rel") or "")
    expect(page.locator(".ending").last).to_contain_text("Done")
    assert page.locator(".said").count() == 1
    message = page.get_by_label("Message", exact=True)
    message.fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator(".writing")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".ending").last).to_contain_text("Interrupted")
    message.fill("And now?")
    page.keyboard.press("Enter")
    person.says("Here again.")
    expect(page.locator(".prompt").last).to_have_text("And now?")


@pytest.mark.soak
def test_an_edit_is_approved_on_a_phone_after_its_diff_was_seen(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    directory = site.project(name="app")
    file = directory / "greet.py"
    file.write_text('def greet(name):\n    return "Hello " + name\n')
    change = {"old_string": '    return "Hello " + name', "new_string": '    return f"Hello, {name}!"'}
    steps = (tool("Read", file_path=str(file)), tool("Edit", file_path=str(file), **change), "Greets properly now.")
    write_script(directory, *steps)
    person = open_browser(storage_state=signed_in, **PHONE).arrive()
    person.start("Make the greeting friendlier", directory)
    asked = person.question("Edit")
    expect(asked.locator("td.gone")).to_contain_text('return "Hello " + name')
    expect(asked.locator("td.new")).to_contain_text('return f"Hello, {name}!"')
    allow = asked.get_by_role("button", name="Allow once")
    expect(allow).to_be_in_viewport()
    desk = open_browser(storage_state=signed_in).arrive(f"/sessions/{person.session_id}")
    change_at_desk = desk.question("Edit").locator(".diff")
    expect(change_at_desk).to_have_attribute("data-layout", "side")
    desk.page.get_by_role("button", name="Inline").click()
    expect(change_at_desk).to_have_attribute("data-layout", "inline")
    width = person.page.evaluate("document.documentElement.scrollWidth")
    assert width == 360
    allow.click()
    person.says("Greets properly now.")
    assert "Hello, {name}!" in file.read_text()
    edit = person.page.locator("details.tool", has_text="Edit").last
    edit.locator("summary").click()
    expect(edit.locator("td.new")).to_contain_text("Hello, {name}!")


def test_a_task_with_a_picture_is_started_approved_steered_reviewed_and_merged_on_a_phone(
    open_browser: OpenBrowser, site: Site, signed_in: Any, tmp_path: Path
) -> None:
    may_end = tmp_path / "may-end"
    directory = site.project(
        tool("Read", file_path="${cwd}/hello.py"),
        tool("Edit", file_path="${cwd}/hello.py", old_string="'Hello ' + name", new_string="f'Hello, {name}!'"),
        text("The greeting is changed.", until=str(may_end)),
        tool("Write", file_path="${cwd}/test_hello.py", content="from hello import greet\n"),
        "A test is there too.",
        "The name is public, so I keep it.",
    )
    (directory / "hello.py").write_text("def greet(name):\n    return 'Hello ' + name\n")
    source = repository(directory)
    person = open_browser(storage_state=signed_in, **PHONE).arrive()
    page = person.page

    page.get_by_role("link", name="New", exact=True).tap()
    page.get_by_label("Task").tap()
    page.keyboard.type("Make it look like this")
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Attach images or files").tap()
    shot: FilePayload = {"name": "shot.png", "mimeType": "image/png", "buffer": png(200)}
    chosen.value.set_files([shot])
    expect(page.locator(".attachment img")).to_be_visible()
    page.get_by_label("Directory").fill(str(source))
    page.get_by_label("In a new worktree and branch").tap()
    page.get_by_role("button", name="Start").tap()
    expect(page.locator(".sent-pictures")).to_be_visible()

    asked = person.question("Edit")
    read_on(asked)
    asked.get_by_role("button", name="Allow once").tap()
    expect(page.locator("details.tool", has_text="Edit")).to_contain_text("done")
    page.get_by_label("Message", exact=True).tap()
    page.keyboard.type("And write a test")
    page.get_by_role("button", name="Send", exact=True).tap()
    expect(page.locator(".queued")).to_contain_text("And write a test")
    may_end.touch()
    asked = person.question("test_hello.py")
    read_on(asked)
    asked.get_by_role("button", name="Allow once").tap()
    person.says("A test is there too.")

    changes_of(person, 2)
    expect(page.locator(".touch-hint")).to_be_visible()
    page.get_by_label("Viewed test_hello.py").tap()
    expect(page.locator(".file-tree summary")).to_contain_text("1 of 2 viewed")
    page.get_by_role("button", name="Comment on line 1", exact=True).tap()
    page.keyboard.type("Rename it to salute?")
    page.get_by_role("button", name="Send 1 comment").tap()
    person.says("The name is public, so I keep it.")

    changes_of(person, 2)
    work = page.locator(".work")
    work.get_by_role("button", name="Merge into main").tap()
    page.keyboard.type("Greet with a comma")  # the message has the focus
    work.get_by_role("button", name="Merge", exact=True).tap()
    expect(work).to_contain_text(", now at")
    assert "Hello, {name}!" in (source / "hello.py").read_text()
    assert (source / "test_hello.py").read_text() == "from hello import greet\n"
    expect(work.get_by_role("button", name="Merge into main")).to_be_disabled()


@pytest.mark.soak  # tests/plugins/tui/test_stories.py
def test_a_command_is_denied_with_a_reason_that_claude_reads_and_another_is_allowed_for_the_session(
    person: Person, site: Site
) -> None:
    answered = parallel("As you wish: ${tool_result}", tool("Bash", command="touch one.txt"))
    denied = tool("Bash", command="rm -rf build && make all")
    directory = site.project(denied, answered, tool("Bash", command="touch two.txt"), "Both are there.")
    person.start("Clean up", directory)
    asked = person.question("rm -rf build && make all")
    asked.get_by_role("button", name="Deny with a reason").click()
    reason = asked.get_by_label("Why not?")
    expect(reason).to_be_focused()
    reason.fill("not before the release")
    asked.get_by_role("button", name="Deny and say why").click()
    person.says("not before the release")
    person.question("touch one.txt").get_by_role("button", name="Allow for this session").click()
    second = person.page.locator(".question:not(.closed, .unanswered)", has_text="touch two.txt")
    done = person.page.locator(".said:not(.writing)", has_text="Both are there.")
    expect(second.or_(done)).to_be_visible()
    if second.is_visible():  # the rule that Claude Code offers decides what counts as the like
        second.get_by_role("button", name="Allow once").click()
    person.says("Both are there.")
    assert (directory / "two.txt").exists()


@pytest.mark.soak
def test_a_plan_gets_feedback_and_the_next_one_is_approved(person: Person, site: Site) -> None:
    first, second = "# Plan A\n\n1. Rewrite everything", "# Plan B\n\n1. Fix one line\n2. Run the tests"
    directory = site.project(plan(first), plan(second), "The plan is under way.")
    person.start("Plan the fix", directory, mode="plan")
    asked = person.question("Rewrite everything")
    expect(asked.locator(".plan h3")).to_have_text("Plan A")
    asked.get_by_role("button", name="Give feedback").click()
    asked.get_by_label("What should be different?").fill("smaller, please")
    asked.get_by_role("button", name="Send feedback").click()
    better = person.question("Fix one line")
    expect(better.locator(".plan li")).to_have_count(2)
    better.get_by_role("button", name="Approve the plan").click()
    person.says("The plan is under way.")


@pytest.mark.soak  # forms of servers do too: test_forms.py
def test_questions_take_one_answer_several_or_free_text(person: Person, site: Site) -> None:
    asked = ask_user(
        question("Which database?", ("SQLite", "a file"), ("Postgres", "a server"), header="Database"),
        question("Which checks?", "lint", "types", "tests", header="Checks", multiple=True),
        question("Which name?", "shop", "store", header="Name"),
    )
    directory = site.project(asked, "I heard: ${tool_result}")
    person.start("Set it up", directory)
    form = person.question("Which database?")
    form.get_by_role("button", name="Send answers").click()
    expect(form.get_by_role("alert")).to_have_text("Please answer every question.")
    form.get_by_role("radio", name="Postgres").check()
    form.get_by_role("checkbox", name="lint").check()
    form.get_by_role("checkbox", name="tests").check()
    form.get_by_label("Another answer").nth(2).fill("bazaar")
    form.get_by_role("button", name="Send answers").click()
    person.says("bazaar")
    last_message = person.page.locator(".said").last
    expect(last_message).to_contain_text("Postgres")
    expect(last_message).to_contain_text("lint, tests")


@pytest.mark.soak
def test_fork_is_independent(person: Person, site: Site) -> None:
    person.start("Say something", site.project("First.", "Second."))
    person.says("First.")
    origin = person.session_id
    page = person.page
    expect(page.locator(".ending")).to_contain_text("Done")
    page.locator(".menu > summary").click()
    page.get_by_role("button", name="Fork").click()
    page.wait_for_url(lambda url: "/sessions/" in url and origin not in url, timeout=PATIENCE)
    person.says("First.")
    page.get_by_label("Message", exact=True).fill("Go on")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("Second.")
    page.goto(f"{site.url}/#/sessions/{origin}")
    person.says("First.")
    assert page.locator(".said", has_text="Second.").count() == 0


@pytest.mark.soak  # tests/plugins/console/test_conversation.py
def test_the_list_puts_those_first_that_need_a_person_and_finds_the_rest(person: Person, site: Site) -> None:
    person.start("A quiet zebra", site.project("Quiet."))
    person.says("Quiet.")
    person.start("A question about otters", site.project(tool("Bash", command="touch otter"), "done"))
    person.question("touch otter")
    page = person.page
    page.goto(f"{site.url}/#/")
    needing = page.locator(".sessions section", has_text="Needs you")
    expect(needing.locator(".row", has_text="otters")).to_contain_text("touch otter")
    page.get_by_role("searchbox", name="Search sessions").fill("zebra")
    rows = page.locator(".sessions .row:visible")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("A quiet zebra")
    page.get_by_role("searchbox", name="Search sessions").fill("")
    needing.locator(".row", has_text="otters").click()
    person.question("touch otter")
    (waiting,) = Caller(site).get(f"/api/sessions/{person.session_id}")["questions"]
    page.goto(f"{site.url}/#/sessions/{person.session_id}/questions/{waiting['questionId']}")  # the link of a push
    expect(person.question("touch otter").locator("h2")).to_be_focused()
    person.question("touch otter").get_by_role("button", name="Deny", exact=True).click()
    person.says("done")


@pytest.mark.soak
def test_after_a_restart_of_the_server_the_page_continues_automatically(person: Person, site: Site) -> None:
    person.start("Remember this", site.project("Remembered.", "Still here."))
    person.says("Remembered.")
    page = person.page
    site.stop(signal.SIGKILL)
    expect(page.locator(".line")).to_contain_text("Offline")
    site.start()
    expect(page.locator(".line")).to_have_text("")
    page.get_by_label("Message", exact=True).fill("Are you there?")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("Still here.")
    assert page.locator(".said", has_text="Remembered.").count() == 1


@pytest.mark.soak  # tests/plugins/console/test_conversation.py
def test_events_missed_offline_appear_once_after_reconnecting(person: Person, site: Site) -> None:
    person.start("Count", site.project("One.", "Two.", "Three."))
    person.says("One.")
    page, caller = person.page, Caller(site)
    person.context.set_offline(True)
    expect(page.locator(".line")).to_contain_text("Offline")
    page.get_by_label("Message", exact=True).fill("lost?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".composer .problem")).to_contain_text("cannot be reached")
    assert page.get_by_label("Message", exact=True).input_value() == "lost?"
    caller.post(f"/api/sessions/{person.session_id}/messages", {"message": "from elsewhere"})
    person.context.set_offline(False)
    person.says("Two.")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("Three.")
    assert page.locator(".prompt").all_text_contents() == ["Count", "from elsewhere", "lost?"]
    assert [said.strip() for said in page.locator(".said").all_text_contents()] == ["One.", "Two.", "Three."]


@pytest.mark.soak  # a question on a phone is not: the edit above
def test_nothing_is_wider_than_the_screen(
    person: Person, open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    wide = "x" * 400
    directory = site.project(text(f"# {wide}\n\n`{wide}`\n\n```\n{wide}\n```\n\n| a | b |\n|---|---|\n| {wide} | b |"))
    person.start(f"Long {wide}", directory)
    session = f"/sessions/{person.session_id}"
    phone = open_browser(storage_state=signed_in, **PHONE).arrive()
    for one in (person, phone):
        for route in (session, "/new", "/costs", "/servers", "/settings"):
            one.page.goto(f"{site.url}/#{route}")
            expect(one.page.locator("main h1")).to_be_visible()
            if "sessions" in route:
                expect(one.page.locator(".said table")).to_be_visible()
            excess = one.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert excess == 0, route
