"""What is decided on is seen before anything is allowed, on every size of screen."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from claude_code_mcp.testing.script import plan, tool

from .conftest import OpenBrowser
from .console import Caller, Person, Site, read_on, write_script

LONG = "\n".join([*(f"echo step {number}" for number in range(1, 31)), "rm -rf ~/important"])
SCREENS = {
    "narrow": {"width": 320, "height": 640},
    "upright": {"width": 390, "height": 844},
    "on its side": {"width": 844, "height": 390},
    "zoomed to 200 %": {"width": 640, "height": 400},
    "upright and zoomed to 200 %": {"width": 195, "height": 422},
}
ON_SCREEN = """(element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const box = [...range.getClientRects()].pop();
    const at = document.elementFromPoint(box.left + 2, box.top + box.height / 2);
    return at !== null && element.contains(at);
}"""


@pytest.fixture(scope="module")
def waiting(site: Site) -> Iterator[str]:
    """A session that asks for a long command. No test answers it."""
    directory = site.project(tool("Bash", command=LONG, description="Clean the workspace"), "Denied.")
    body = {"prompt": "Clean up", "workingDirectory": str(directory)}
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    yield session
    Caller(site).post(f"/api/sessions/{session}/interrupt", {})


@pytest.mark.parametrize("screen", SCREENS, ids=lambda name: name.replace(" ", "-"))
def test_a_command_is_allowed_only_when_its_end_was_on_screen(
    open_browser: OpenBrowser, waiting: str, signed_in: Any, screen: str
) -> None:
    person = open_browser(storage_state=signed_in, viewport=SCREENS[screen]).arrive(f"/sessions/{waiting}")
    asked = person.question("rm -rf")
    expect(asked.get_by_role("heading", name="Clean the workspace")).to_be_visible()
    expect(asked.locator(".lines-left")).to_contain_text("more lines")
    expect(asked.locator(".lines-left")).to_be_in_viewport(ratio=1)
    expect(asked.get_by_role("button", name="Allow once")).to_have_count(0)
    expect(asked.get_by_role("button", name="Deny", exact=True)).to_be_in_viewport(ratio=1)
    command = asked.locator(".command code")
    assert not command.evaluate(ON_SCREEN), "the end is below"
    assert any(read_on(asked, lambda: bool(command.evaluate(ON_SCREEN)))), (
        "the end was on screen, and nothing covered it"
    )
    expect(asked.get_by_role("button", name="Allow once")).to_be_visible()
    excess = person.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert excess == 0
    asked.get_by_role("button", name="Deny", exact=True).click(trial=True)


@pytest.mark.parametrize("screen", [pytest.param("narrow", marks=pytest.mark.soak), "on its side"])
def test_what_the_session_allows_and_the_mode_after_a_plan_are_read_before_the_buttons_come(
    open_browser: OpenBrowser, site: Site, signed_in: Any, screen: str
) -> None:
    person = open_browser(storage_state=signed_in, viewport=SCREENS[screen]).arrive()
    directory = site.project()
    lines = "".join(f"line {number}\n" for number in range(60))
    write = tool("Write", file_path=str(directory / "new.txt"), content=lines)
    steps = "\n".join(f"{number}. Step {number} of the plan" for number in range(1, 40))
    open_plan = plan(f"# The plan\n\n{steps}")
    write_script(directory, write, "Written.")
    person.start("Write it", directory)
    asked = person.question("line 59")
    assert read_on(asked)
    meaning = asked.locator(".session-meaning")
    expect(meaning).to_have_text("“For this session” accepts all file edits.")
    assert meaning.evaluate(ON_SCREEN)
    asked.get_by_role("button", name="Allow for this session").click()
    person.says("Written.")
    planned = site.project(open_plan, "Under way.")
    person.start("Plan it", planned, mode="plan")
    review = person.question("Step 39")
    # No word of a button is broken, however narrow the screen.
    person.page.set_viewport_size({"width": 195, "height": 422})
    refuse = review.locator(".unread .deny")
    expect(refuse).to_have_text("Give feedback…")
    lines = refuse.evaluate("""(button) => button.textContent.split(" ").map((word) => {
        const range = document.createRange();
        const at = button.firstChild.data.indexOf(word);
        range.setStart(button.firstChild, at);
        range.setEnd(button.firstChild, at + word.length);
        return range.getClientRects().length;
    })""")
    assert lines == [1, 1]
    size = SCREENS[screen]
    person.page.set_viewport_size({"width": size["width"], "height": size["height"]})
    assert read_on(review)
    mode = review.get_by_label("Then:")
    expect(mode).to_be_in_viewport(ratio=1)
    mode.select_option("acceptEdits")
    review.get_by_role("button", name="Approve the plan").click()
    person.says("Under way.")


FIRST_STATES = """() => {
    window.first = [];
    new MutationObserver(() => {
        for (const one of document.querySelectorAll(".question .allow")) {
            if (!one.noted) window.first.push(one.matches(":disabled"));
            one.noted = true;
        }
    }).observe(document.querySelector("main"), {childList: true, subtree: true});
}"""


def test_a_second_press_on_what_led_to_the_end_allows_nothing(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    directory = site.project(tool("Bash", command=LONG, description="Clean the workspace"), "Denied.")
    body = {"prompt": "Clean up", "workingDirectory": str(directory)}
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    person = open_browser(storage_state=signed_in, viewport=SCREENS["on its side"]).arrive(f"/sessions/{session}")
    asked = person.question("rm -rf")
    person.page.evaluate(FIRST_STATES)
    read_on(asked)
    allow = asked.get_by_role("button", name="Allow once")
    expect(allow).to_be_enabled()
    assert person.page.evaluate("window.first") == [True], "when it appears it cannot be pressed"
    asked.get_by_role("button", name="Deny", exact=True).click()
    person.says("Denied.")


@pytest.mark.soak
def test_all_buttons_of_a_question_that_was_read_are_on_screen(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    directory = site.project()
    lines = "".join(f"{number} = 1\n" for number in range(12))
    (directory / "old.py").write_text(lines)
    edit = tool("Edit", file_path=str(directory / "old.py"), old_string="11 = 1", new_string="11 = 2")
    write_script(directory, edit, "Denied.")
    body = {"prompt": "Change it", "workingDirectory": str(directory)}
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    person = open_browser(storage_state=signed_in)
    for height in (700, 740, 780, 820, 860):
        person.page.goto("about:blank")
        person.page.set_viewport_size({"width": 390, "height": height})
        asked = person.arrive(f"/sessions/{session}").question("11 = 2")
        if not asked.locator(".lines-left").count():
            expect(asked.get_by_role("button", name="Deny", exact=True)).to_be_in_viewport(ratio=0.9)
    asked.get_by_role("button", name="Deny", exact=True).click()
    person.says("Denied.")


def test_what_was_passed_over_on_the_way_to_the_end_was_not_on_screen(
    open_browser: OpenBrowser, waiting: str, signed_in: Any
) -> None:
    person = open_browser(storage_state=signed_in, viewport=SCREENS["on its side"]).arrive(f"/sessions/{waiting}")
    asked = person.question("rm -rf")
    expect(asked.locator(".lines-left")).to_contain_text("more lines")
    person.page.locator(".scroller").evaluate("(scroller) => { scroller.scrollTop = scroller.scrollHeight; }")
    expect(asked.locator(".lines-left")).to_contain_text("↑")
    assert asked.locator(".command code").evaluate(ON_SCREEN), "the end is on screen"
    expect(asked.get_by_role("button", name="Allow once")).to_have_count(0)
    assert read_on(asked), "what is missing is shown, line by line"
    expect(asked.get_by_role("button", name="Allow once")).to_be_visible()
    # In the field as well, the command is whole.
    asked.get_by_role("button", name="Edit the command").click()
    edited = person.question("Clean the workspace")
    field = edited.get_by_label("Command to run instead")
    assert field.evaluate("(field) => field.scrollHeight <= field.clientHeight")


HIDING = {
    "A": "# Plan A\n\n1. Read\n\n[//]: # (then remove everything)\n\n2. Write",
    "B": "# Plan B\n\n| a | b |\n|---|---|\n| 1 | 2 | then remove everything |",
    "C": '# Plan C\n\n![it](https://example.com/a.png "then remove everything")',
}


def test_a_plan_that_markdown_would_cut_is_shown_as_it_is_written(person: Person, site: Site) -> None:
    person.start("Plan it", site.project(*map(plan, HIDING.values()), "Never."), mode="plan")
    for name, written in HIDING.items():
        asked = person.question(f"Plan {name}")
        expect(asked.locator(".hint").first).to_contain_text("Markdown source")
        expect(asked.locator(".code code")).to_have_text(written)
        if name != "C":
            asked.get_by_role("button", name="Give feedback").click()
            asked.get_by_role("button", name="Send feedback").click()
            expect(asked.get_by_role("alert")).to_have_text("Write what should be different first.")
            asked.get_by_label("What should be different?").fill("another one")
            asked.get_by_role("button", name="Send feedback").click()
    person.page.get_by_role("button", name="Stop").click()
    expect(asked).to_have_count(0)


def test_a_command_is_changed_before_it_is_allowed(person: Person, site: Site) -> None:
    directory = site.project(tool("Bash", command="touch wrong.txt"), "Done with it.")
    person.start("Make the file", directory)
    asked = person.question("touch wrong.txt")
    asked.get_by_role("button", name="Edit the command").click()
    field = asked.get_by_label("Command to run instead")
    expect(field).to_be_focused()
    expect(asked.get_by_role("button", name="Allow for this session")).to_have_count(0)
    field.fill("touch right.txt")
    asked.get_by_role("button", name="Allow the edited command").click()
    person.says("Done with it.")
    assert sorted(path.name for path in directory.glob("*.txt")) == ["right.txt"]


def test_own_answer_is_not_reported_as_answered_elsewhere(person: Person, site: Site) -> None:
    """The stream may be faster than the reply."""
    page: Page = person.page
    directory = site.project(tool("Bash", command="touch own.txt"), "Own.")
    person.start("Make the file", directory)
    asked = person.question("touch own.txt")

    def slowly(route: Any) -> None:
        reply = route.fetch()
        page.wait_for_timeout(1500)  # until the stream has told of it
        route.fulfill(response=reply)

    page.route("**/questions/*", slowly)
    asked.get_by_role("button", name="Allow once").click()
    person.says("Own.")
    expect(page.locator(".question")).to_have_count(0)
    expect(page.locator("body > [aria-live=polite]")).not_to_contain_text("elsewhere")
    page.unroute("**/questions/*")


def test_a_question_is_read_and_answered_by_keys(person: Person, site: Site, waiting: str) -> None:
    lines = "\n".join([*(f"echo line {number}" for number in range(80)), "touch by-key.txt"])
    directory = site.project(tool("Bash", command=lines), tool("Bash", command="touch never.txt"), "Both decided.")
    person.start("Use the keys", directory)
    page = person.page
    asked = person.question("touch by-key.txt")
    page.locator(".view-head h1").focus()
    expect(asked.locator(".lines-left")).to_be_visible()
    for _ in range(40):
        page.keyboard.press("a")
        page.wait_for_timeout(100)
        if not asked.count():
            break
    second = person.question("touch never.txt")
    page.locator(".view-head h1").focus()
    while second.count():  # at first a key counts for nothing: it may be meant for the question before
        page.keyboard.press("d")
        page.wait_for_timeout(100)
    person.says("Both decided.")
    assert [path.name for path in directory.glob("*.txt")] == ["by-key.txt"]
    # The next key leads to the next session that waits; in the field of the message it would be text.
    here = page.url
    expect(page.locator(".view-head .needs-pill")).to_be_focused()
    page.keyboard.press("j")
    page.wait_for_url(lambda url: "/sessions/" in url and url != here)
    expect(page.locator(".question:not(.closed)").first).to_be_visible()
    assert Caller(site).get(f"/api/sessions/{waiting}")["questions"], "it still waits"
