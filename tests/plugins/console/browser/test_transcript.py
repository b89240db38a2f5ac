"""A conversation shows the work: changes with their size, commands with their words, looks in one line."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from claude_code_mcp.testing.script import fail, parallel, tool

from .conftest import OpenBrowser
from .console import Caller, Person, Site, write_script


def test_changes_and_commands_are_seen_without_a_press_and_looks_are_one_line(person: Person, site: Site) -> None:
    directory = site.project(name="app")
    new = tool("Write", file_path=str(directory / "new.py"), content="a = 1\nb = 2\n")
    file = directory / "greet.py"
    file.write_text('def greet(name):\n    return "Hello " + name\n')
    looks = [tool("Read", file_path=str(file)) for _ in range(3)]
    run = tool("Bash", command="printf 'one\\ntwo\\nthree\\nfour\\n'", description="Count to four")
    edit = tool("Edit", file_path=str(file), old_string='"Hello " + name', new_string='f"Hello, {name}!"')
    write_script(directory, parallel(*looks), run, edit, new, "Look at greet.py:2. Then go on.")
    body = {
        "prompt": "Greet",
        "workingDirectory": str(directory),
        "permissionMode": "acceptEdits",
        "allowedTools": ["Bash"],
    }
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    person.arrive(f"/sessions/{session}")
    person.says("Then go on.")
    page = person.page
    run_of_looks = page.locator("details.looks")
    expect(run_of_looks.locator(":scope > summary")).to_have_text("Read 3 files")
    expect(run_of_looks.locator(".tool").first).to_be_hidden()
    command = page.locator("details.tool", has_text="Count to four")
    expect(command.locator(".tail")).to_have_text("two\nthree\nfour")
    expect(command.locator(".tail")).to_be_visible()
    change = page.locator("details.tool", has_text="Edit")
    expect(change.locator("summary .plus")).to_have_text("+1")
    expect(change.locator("summary .minus")).to_have_text("−1")
    expect(change.locator("td.new")).to_contain_text('f"Hello, {name}!"')
    expect(change.locator("td.new .hl-keyword")).to_have_text("return")
    expect(change.locator("td.new mark .hl-string").first).to_be_visible()
    expect(change.locator("td.gone .source")).to_have_text('    return "Hello " + name')
    created = page.locator("details.tool", has_text="Write")
    expect(created.locator("summary .plus")).to_have_text("+2")
    expect(page.locator("a.file-link", has_text="greet.py:2")).to_be_visible()


def test_text_from_right_to_left_stands_so_and_printing_shows_the_conversation(person: Person, site: Site) -> None:
    answer = "هذا هو الجواب.\n\n- `refresh()` متأخر\n\n```python\ndef f():\n    pass\n```"
    person.start("مرحبا كيف الحال", site.project(answer))
    person.says("الجواب")
    page = person.page
    direction = "(element) => getComputedStyle(element).direction"
    assert page.locator(".prompt").evaluate(direction) == "rtl"
    assert page.locator(".said .markdown").evaluate(direction) == "rtl"
    # Code runs from left to right, and does not decide the direction of the text around it.
    assert page.locator(".said .code code").evaluate(direction) == "ltr"
    sides = page.locator(".said li").evaluate("""(item) => {
        const range = document.createRange();
        range.selectNodeContents(item);
        const words = range.getBoundingClientRect();
        const all = item.getBoundingClientRect();
        return [words.left - all.left, all.right - words.right];
    }""")
    assert sides[0] > sides[1], "the item begins on the right"
    page.emulate_media(media="print")
    expect(page.locator(".said")).to_be_visible()
    for chrome in (".sessions", ".composer", ".bar"):
        expect(page.locator(chrome)).to_be_hidden()
    page.emulate_media(media="screen")
    page.locator(".menu > summary").click()
    with page.expect_download() as kept:
        page.get_by_role("button", name="Export as Markdown").click()
    assert kept.value.suggested_filename.endswith(".md")
    assert "هذا هو الجواب." in kept.value.path().read_text(encoding="utf-8")


def test_a_call_that_failed_says_why_without_the_marks_that_are_for_the_model(person: Person, site: Site) -> None:
    directory = site.project(name="app")
    missing = tool("Read", file_path=str(directory / "missing.txt"))
    refused = tool("Bash", command="sleep 600 & wait", description="Wait for the deployment")
    write_script(directory, missing, refused, "That was all.")
    body = {"prompt": "Try", "workingDirectory": str(directory), "allowedTools": ["Bash"]}
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    person.arrive(f"/sessions/{session}")
    person.says("That was all.")
    page = person.page
    expect(page.locator("details.tool", has_text="missing.txt").locator(".tail")).to_contain_text("does not exist")
    expect(page.locator("details.tool", has_text="Wait for the deployment").locator(".tail")).to_contain_text("Blocked")
    expect(page.locator(".conversation")).not_to_contain_text("tool_use_error")


@pytest.mark.soak
def test_a_session_has_two_rows_of_head_on_a_narrow_phone_and_its_height_on_a_landscape_phone(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    prompt = "Summarize everything that has changed in the interfaces"
    begun = {"prompt": prompt, "workingDirectory": str(site.project("Said."))}
    session = Caller(site).post("/api/sessions", begun)["sessionId"]
    narrow = {"width": 320, "height": 640}
    person = open_browser(storage_state=signed_in, viewport=narrow).arrive(f"/sessions/{session}")
    page = person.page
    head = page.locator(".view-head")
    expect(head.get_by_role("link", name="Changes")).to_be_in_viewport(ratio=1)
    tops = head.evaluate("""(head) => ["h1", ".find-open", ".menu", ".about", ".changes-link"].map((name) => {
        const box = head.querySelector(name).getBoundingClientRect();
        return box.top + box.height / 2;
    })""")
    first, second = tops[:3], tops[3:]
    assert max(first) - min(first) < 8
    assert max(second) - min(second) < 8
    assert min(second) > max(first)
    page.set_viewport_size({"width": 844, "height": 390})
    page.reload()
    person.says("Said.")
    expect(page.locator("header.bar")).to_be_hidden()
    page.get_by_role("link", name="All sessions").click()
    expect(page.locator("header.bar")).to_be_visible()


def test_a_turn_that_failed_says_why_once_and_is_tried_again(person: Person, site: Site) -> None:
    person.start("Fail", site.project(fail(400, message="The request is not valid."), fail(400, message="Not today.")))
    page = person.page
    expect(page.locator(".ending").last).to_have_class("ending bad")
    assert page.locator(".turn").inner_text().count("The request is not valid.") == 1
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".prompt")).to_have_text(["Fail", "The last turn failed. Please try again."])
    expect(page.locator(".ending.bad")).to_have_count(2)
    expect(page.locator(".turn").first.get_by_role("button", name="Try again")).to_have_count(0)
    expect(page.locator(".turn").last.get_by_role("button", name="Try again")).to_be_visible()


def test_the_menu_shows_when_turns_ran_and_waited_and_leads_to_them(person: Person, site: Site) -> None:
    person.start("Touch a file", site.project(tool("Bash", command="touch here"), "Touched.", "Done."))
    asked = person.question("touch here")
    asked.get_by_role("button", name="Allow once").click()
    person.says("Touched.")
    page = person.page
    page.get_by_label("Message", exact=True).fill("And then?")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("Done.")
    path = f"/api/sessions/{person.session_id}/timeline"
    while True:  # Claude Code writes its transcript a moment after it has said something
        timeline = Caller(site).get(path)
        if [turn["until"] is not None for turn in timeline["turns"]] == [True, True]:
            break
    (wait,) = timeline["waits"]
    assert timeline["turns"][0]["at"] <= wait["at"] <= wait["until"] <= timeline["turns"][0]["until"]
    page.locator(".menu > summary").click()
    bar = page.get_by_role("img", name=re.compile("^2 turns in .+, waited .+ for you$"))
    expect(bar).to_be_visible()
    expect(bar.locator(".turn-time")).to_have_count(2)
    expect(bar.locator(".turn-time title").last).to_have_text(re.compile(r"^Turn 2, .+: And then\?$"))
    expect(bar.locator("[data-turn='1'] .wait-time title")).to_have_text(re.compile("^Turn 1 waited .+ for you$"))
    page.locator(".past-questions > summary").click()
    past = page.locator(".past-questions").get_by_role("button")
    expect(past).to_have_text(re.compile(r"^Turn 1, Bash: allowed by you \(Chrome on Linux\) after \d+ s$"))
    bar.locator("[data-turn='1']").click()
    expect(bar).to_be_hidden()
    expect(page.locator(".turn.found .prompt")).to_have_text("Touch a file")
