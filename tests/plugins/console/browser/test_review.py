"""A session's changes reviewed: comments on lines, what becomes of a worktree, subagents, and places in files."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from claude_code_mcp.testing.script import script, text, tool
from tests.support.system_packages import require

from .conftest import Desk, OpenBrowser
from .console import PHONE, Caller, Person, Site, changes_of, write_script

PLUS = "(button) => getComputedStyle(button, '::after').content"


def _repository(directory: Path) -> None:
    require("git")
    git = ["git", "-C", str(directory)]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for name, value in (("user.name", "A"), ("user.email", "a@example.com")):
        subprocess.run([*git, "config", name, value], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Begin"], check=True)


def _in_worktree(person: Person, site: Site, directory: Path, prompt: str) -> str:
    """A session in a worktree of its own, whose first turn has ended; its id."""
    options = {"workingDirectory": str(directory), "permissionMode": "acceptEdits", "worktree": True}
    session: str = Caller(site).post("/api/sessions", {"prompt": prompt, **options})["sessionId"]
    person.page.goto(f"{site.url}/#/sessions/{session}")
    return session


def test_comments_on_lines_survive_a_reload_and_are_sent_as_one_message(person: Person, site: Site) -> None:
    directory = site.project()
    file = directory / "app.py"
    file.write_text("one = 1\ntwo = 2\nthree = 3\n")
    (directory / "other.py").write_text("x = 0\n")
    steps = (
        tool("Read", file_path=str(file)),
        tool("Edit", file_path=str(file), old_string="two = 2", new_string="two = 'zwei'"),
        tool("Read", file_path=str(directory / "other.py")),
        tool("Edit", file_path=str(directory / "other.py"), old_string="x = 0", new_string="x = 9"),
        "Edited.",
    )
    write_script(directory, *steps, "Both are changed.")
    person.start("Change both", directory, "acceptEdits")
    person.says("Edited.")
    page = person.page
    call = page.locator("details.tool", has_text="app.py").filter(has_text="Edit")
    call.get_by_role("button", name="Comment on line 2", exact=True).click()
    page.get_by_label("Comment on app.py:2", exact=True).fill("A number, please.")
    expect(page.get_by_role("button", name="Send 1 comment")).to_be_enabled()

    page.reload()
    page.get_by_role("link", name="Changes").click()
    expect(page.get_by_label("Comment on app.py:2", exact=True)).to_have_value("A number, please.")
    page.get_by_role("button", name="Comment on line 1, removed").click()
    other = page.get_by_role("textbox", name="Comment on other.py:1 (removed)")
    other.fill("Why not zero?")
    page.reload()  # the changes are the first that is read
    expect(other).to_have_value("Why not zero?")
    page.get_by_role("button", name="Send 2 comments").click()

    person.says("Both are changed.")
    sent = page.locator(".sent .prompt").last
    expect(sent).to_have_text(
        "2 comments on the changes:\n\n"
        "app.py:2:\n> two = 'zwei'\n\nA number, please.\n\n"
        "other.py:1, as it was before the change:\n> x = 0\n\nWhy not zero?"
    )
    expect(page.locator(".comments")).to_be_hidden()
    page.reload()
    expect(page.locator(".comments")).to_be_hidden()


@pytest.fixture(scope="module")
def three_files(desk: Desk, site: Site) -> str:
    """A session that wrote three files in two directories, for tests that only look at its changes."""
    return _write_three_files(desk.person().arrive(), site)


def _open_changes(person: Person, session: str) -> None:
    person.page.goto(f"{person.site.url}/#/sessions/{session}")
    changes_of(person, 3)


def _write_three_files(person: Person, site: Site) -> str:
    """The session that wrote three files. With its second message it changes one of them."""
    directory = site.project()
    long = "".join(f"line {number}\n" for number in range(1, 101))
    files = (("README.md", "Read me.\n"), ("src/long.txt", long), ("src/app.py", "one = 1\ntwo = 2\n"))
    steps = [tool("Write", file_path=str(directory / name), content=content) for name, content in files]
    edit = tool("Edit", file_path=str(directory / "src/app.py"), old_string="two = 2", new_string="two = 'zwei'")
    write_script(directory, *steps, "Written.", edit, "Changed.")
    person.start("Write three files", directory, "acceptEdits")
    person.says("Written.")
    return person.session_id


def _change_one(person: Person) -> None:
    page = person.page
    page.get_by_role("link", name="Back to the session").click()
    page.get_by_label("Message", exact=True).fill("Change one")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("Changed.")
    changes_of(person, 3, "zwei")


@pytest.mark.soak
def test_a_file_is_found_in_the_list_of_files(person: Person, three_files: str, open_browser: OpenBrowser) -> None:
    _open_changes(person, three_files)
    page = person.page
    tree = page.locator(".file-tree")
    expect(tree.locator("summary")).to_contain_text("0 of 3 viewed")
    expect(tree.locator(".tree-directory")).to_have_text(["src/"])
    expect(tree.locator(".tree-file .path")).to_have_text(["README.md", "long.txt", "app.py"])
    tree.get_by_role("button", name="long.txt 100 lines added, 0 lines removed").click()
    long = page.locator("details.tool", has_text="src/long.txt")
    expect(long.locator("td.new").first).to_be_visible()
    expect(long.locator("summary")).to_be_focused()
    expect(long.locator("summary")).to_be_in_viewport()
    tree.get_by_role("button", name="README.md").click()
    expect(page.locator("details.tool", has_text="README.md")).to_be_in_viewport()

    phone = open_browser(**PHONE).sign_in(page.url.partition("#")[2])
    listed = phone.page.locator(".file-tree")
    expect(listed.locator("summary")).to_be_visible()
    expect(listed.get_by_role("button", name="app.py")).to_be_hidden()
    listed.locator("summary").click()
    listed.get_by_role("button", name="app.py").click()
    expect(phone.page.locator("details.tool", has_text="app.py").locator("summary")).to_be_in_viewport()


def test_what_was_viewed_stays_folded_until_it_changes(person: Person, site: Site) -> None:
    _open_changes(person, _write_three_files(person, site))
    page = person.page
    app, readme = (page.locator("details.tool", has_text=name) for name in ("app.py", "README.md"))
    viewed, lines = page.locator(".file-tree summary"), app.locator("td.new")
    expect(lines.first).to_be_visible()
    page.get_by_label("Viewed src/app.py").check()
    page.get_by_label("Viewed README.md").check()
    expect(viewed).to_contain_text("2 of 3 viewed")
    expect(lines.first).to_be_hidden()
    page.reload()
    expect(viewed).to_contain_text("2 of 3 viewed")
    expect(page.get_by_label("Viewed src/app.py")).to_be_checked()
    expect(app.locator("summary")).to_be_visible()
    expect(app).not_to_have_attribute("open", "")

    _change_one(person)
    expect(page.get_by_label("Viewed src/app.py")).not_to_be_checked()
    expect(page.get_by_label("Viewed README.md")).to_be_checked()
    expect(viewed).to_contain_text("1 of 3 viewed")
    expect(lines.filter(has_text="zwei").first).to_be_visible()
    page.get_by_label("Viewed README.md").uncheck()
    expect(readme.locator("td.new").first).to_be_visible()
    expect(viewed).to_contain_text("0 of 3 viewed")


@pytest.mark.parametrize("layout", ["inline", pytest.param("side", marks=pytest.mark.soak)])
def test_a_plus_next_to_the_line_pointed_at_opens_a_comment(person: Person, three_files: str, layout: str) -> None:
    _open_changes(person, three_files)
    page = person.page
    file = page.locator("details.tool", has_text="app.py")
    if layout == "side":
        file.get_by_role("button", name="Side by side").click()
    expect(file.locator(".diff")).to_have_attribute("data-layout", layout)
    numbers = [file.get_by_role("button", name=f"Comment on line {number}", exact=True) for number in (1, 2)]
    file.locator("td.new", has_text="two = 2").hover()
    assert [number.evaluate(PLUS) for number in numbers] == ["none", '"+"']
    box = numbers[1].bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] + 4, box["y"] + box["height"] / 2)  # where the plus is drawn
    expect(page.get_by_role("textbox", name="Comment on src/app.py:2")).to_be_focused()

    page.keyboard.press("Shift+Tab")
    expect(numbers[1]).to_be_focused()
    page.mouse.move(0, 0)
    assert [number.evaluate(PLUS) for number in numbers] == ["none", '"+"']
    page.keyboard.press("Shift+Tab")
    assert [number.evaluate(PLUS) for number in numbers] == ['"+"', "none"]
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Comment on src/app.py:1")).to_be_focused()


def _five_lines(person: Person, site: Site) -> Locator:
    """The changes of a session that replaced two of five lines."""
    directory = site.project()
    file = directory / "app.py"
    file.write_text("one = 1\ntwo = 2\nthree = 3\nfour = 4\nfive = 5\n")
    edit = tool("Edit", file_path=str(file), old_string="two = 2\nthree = 3", new_string="two = 'zwei'\nthree = 'drei'")
    write_script(directory, tool("Read", file_path=str(file)), edit, "Edited.", "Understood.")
    person.start("Change it", directory, "acceptEdits")
    person.says("Edited.")
    return changes_of(person, 1)


def _number(changes: Locator, line: str) -> Locator:
    return changes.get_by_role("button", name=f"Comment on line {line}", exact=True)


def _center(place: Locator) -> tuple[float, float]:
    box = place.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _by_shift(changes: Locator) -> None:
    _number(changes, "2").click()
    _number(changes, "4").click(modifiers=["Shift"])


def _by_dragging(changes: Locator) -> None:
    mouse = changes.page.mouse
    mouse.move(*_center(_number(changes, "4")))
    mouse.down()
    mouse.move(*_center(changes.locator("td.line", has_text="three = 'drei'")), steps=3)
    mouse.move(*_center(changes.locator("td.line", has_text="two = 'zwei'")), steps=3)
    expect(changes.locator("td.line.marked")).to_have_count(3)
    mouse.up()


def _by_keyboard(changes: Locator) -> None:
    _number(changes, "2").focus()
    keyboard = changes.page.keyboard
    keyboard.press("Shift+ArrowDown")
    keyboard.press("Shift+ArrowDown")
    expect(changes.get_by_role("button", name="Comment on lines 2 to 4", exact=True)).to_be_focused()
    keyboard.press("Enter")


@pytest.mark.soak
@pytest.mark.parametrize(
    "select", [_by_keyboard, *(pytest.param(way, marks=pytest.mark.soak) for way in (_by_shift, _by_dragging))]
)
def test_a_comment_on_several_lines_is_shown_on_them_and_sent_with_them(
    person: Person, site: Site, select: Callable[[Locator], None]
) -> None:
    changes = _five_lines(person, site)
    page = person.page
    select(changes)
    field = page.get_by_role("textbox", name="Comment on app.py:2-4", exact=True)
    expect(field).to_be_focused()
    page.keyboard.type("All of these?")
    marked = ["+added: two = 'zwei'", "+added: three = 'drei'", "four = 4"]
    expect(changes.locator("td.line.marked")).to_have_text(marked)
    expect(changes.locator("tr.comment")).to_have_count(1)
    page.reload()
    expect(field).to_have_value("All of these?")
    expect(changes.locator("td.line.marked")).to_have_text(marked)
    assert changes.locator("tr", has_text="four = 4").evaluate("(row) => row.nextElementSibling.className") == "comment"
    page.get_by_role("button", name="Send 1 comment").click()
    person.says("Understood.")
    expect(page.locator(".sent .prompt").last).to_have_text(
        "A comment on the changes:\n\napp.py:2-4:\n> two = 'zwei'\n> three = 'drei'\n> four = 4\n\nAll of these?"
    )


@pytest.mark.soak
def test_on_a_phone_a_second_line_that_is_tapped_extends_the_comment(
    person: Person, site: Site, open_browser: OpenBrowser
) -> None:
    _five_lines(person, site)
    page = open_browser(**PHONE).sign_in(person.page.url.partition("#")[2]).page
    changes = page.locator(".changes details.tool")
    _number(changes, "5").tap()
    page.get_by_role("textbox", name="Comment on app.py:5", exact=True).fill("Kept?")
    _number(changes, "3, removed").tap()
    expect(page.get_by_role("textbox", name="Comment on app.py:3 (removed)", exact=True)).to_be_focused()
    _number(changes, "2").tap()
    both = page.get_by_role("textbox", name="Comment on app.py:2 (with removed lines)", exact=True)
    expect(both).to_be_focused()
    _number(changes, "2, removed").tap()
    gone = page.get_by_role("textbox", name="Comment on app.py:2-3 (removed)", exact=True)
    expect(gone).to_be_focused()
    expect(changes.locator("td.line.marked")).to_have_text(["−removed: two = 2", "−removed: three = 3"])
    expect(changes.locator("tr.comment")).to_have_count(2)
    gone.fill("Why?")
    page.get_by_role("button", name="Send 2 comments").tap()
    expect(page.locator(".sent .prompt").last).to_have_text(
        "2 comments on the changes:\n\n"
        "app.py:2-3, as it was before the change:\n> two = 2\n> three = 3\n\nWhy?\n\n"
        "app.py:5:\n> five = 5\n\nKept?"
    )


def test_the_changes_of_one_turn_are_shown_alone(person: Person, site: Site) -> None:
    _open_changes(person, _write_three_files(person, site))
    page = person.page
    shown = page.get_by_label("Show", exact=True)
    expect(page.get_by_text("3 files.")).to_be_visible()
    expect(shown).to_be_hidden()
    _change_one(person)
    expect(shown.locator("option")).to_have_text(
        [
            "All changes",
            "The last turn: Change one",
            "Turn 1: Write three files",
            "Since turn 1: Write three files",
        ]
    )
    shown.select_option("The last turn: Change one")
    expect(page.get_by_text("1 file.")).to_be_visible()
    expect(page.locator("td.new")).to_have_text(["+added: two = 'zwei'"])
    shown.select_option("Turn 1: Write three files")
    expect(page.get_by_text("3 files.")).to_be_visible()
    expect(page.locator("details.tool", has_text="src/app.py").locator("td.new")).to_have_text(
        ["+added: one = 1", "+added: two = 2"]
    )
    shown.select_option("All changes")
    expect(page.locator("td.new", has_text="zwei").first).to_be_visible()
    expect(page.locator(".file-tree summary")).to_contain_text("0 of 3 viewed")


@pytest.mark.soak  # tests/plugins/console/test_changes.py asks for the same without a page
def test_a_worktree_is_committed_and_merged_as_it_was_agreed(person: Person, site: Site) -> None:
    directory = site.project()
    (directory / "app.py").write_text("one = 1\n")
    write_script(directory, tool("Bash", command="echo 'two = 2' > new.py"), "Written.", "Merged.")
    _repository(directory)
    _in_worktree(person, site, directory, "Write it")
    person.says("Written.")
    page = person.page
    page.get_by_role("link", name="Changes").click()
    work = page.locator(".work")
    expect(work).to_contain_text("1 uncommitted file")
    expect(work).not_to_contain_text("Looking")
    work.get_by_role("button", name="Merge into main").click()
    expect(work).to_contain_text("new.py")
    expect(work).to_contain_text("will be committed on worktree-mcp-")
    assert not (directory / "new.py").exists()
    # Something else is merged in between: what was agreed to is not what would be done.
    (directory / "app.py").write_text("one = 'eins'\n")
    git = ["git", "-C", str(directory), "commit", "-qam", "Meanwhile"]
    subprocess.run(git, check=True)
    work.get_by_label("Commit message").fill("Two")
    work.get_by_role("button", name="Merge", exact=True).click()
    expect(work.get_by_role("alert")).to_contain_text("changed since you reviewed it")
    assert not (directory / "new.py").exists()
    # What was written stays, and what is agreed to now is what there is now.
    work.get_by_role("button", name="Merge", exact=True).click()
    expect(work).to_contain_text(", now at")
    assert (directory / "new.py").read_text() == "two = 2\n"
    assert (directory / "app.py").read_text() == "one = 'eins'\n"
    expect(work).to_contain_text("has no commits that main lacks")
    expect(work.get_by_role("button", name="Merge into main")).to_be_disabled()
    expect(page.get_by_text("All changes are merged already.")).to_be_visible()
    # Without gh the session is asked for the pull request.
    work.get_by_role("button", name="Open a pull request").click()
    work.get_by_label("Title").fill("Add two")
    work.get_by_role("button", name="Ask Claude to open it").click()
    person.says("Merged.")
    expect(page.locator(".sent .prompt").last).to_contain_text("Title: Add two")


def test_the_conversation_of_a_subagent_opens_from_its_call_while_it_works(
    person: Person, site: Site, tmp_path: Path
) -> None:
    may_end = tmp_path / "may-end"
    steps = (tool("Read", file_path="${cwd}/none.md"), text("Looked. ", repeat=2, until=str(may_end)))
    where = {"subagent_type": "general-purpose", "run_in_background": False}
    directory = site.project(
        tool("Task", description="Look", prompt=script("Look around", *steps), **where), "All is done."
    )
    person.start("Have it looked at", directory)
    page = person.page
    call = page.locator("details.tool", has_text="Look").first
    call.locator("summary").first.click()
    call.get_by_role("link", name="Open the subagent's conversation").click()
    agent = page.get_by_role("region", name="Conversation of the subagent")
    expect(agent).to_contain_text("Look around")
    expect(agent.locator("details.tool")).to_contain_text("failed")
    expect(agent).not_to_contain_text("Looked. Looked.")
    may_end.touch()
    expect(agent).to_contain_text("Looked. Looked.")
    page.get_by_role("link", name="Back to the session").click()
    person.says("All is done.")


@pytest.mark.soak  # tests/plugins/tui/test_stories.py, on a screen
def test_what_was_found_in_the_list_is_opened_where_it_stands(person: Person, site: Site) -> None:
    steps = [text(f"Answer {number}. " + "Some words. " * 40) for number in range(12)]
    steps[1] = text("Here the heliotrope is mentioned.")
    directory = site.project(*steps)
    person.start("Answer 0?", directory)
    page = person.page
    for number in range(1, 12):
        person.says("heliotrope" if number == 2 else f"Answer {number - 1}.")
        page.get_by_label("Message", exact=True).fill(f"Answer {number}?")
        page.get_by_role("button", name="Send", exact=True).click()
    person.says("Answer 11.")
    page.goto(f"{site.url}/#/")
    page.get_by_label("Search sessions").fill("heliotrope")
    page.locator(".sessions .row", has_text="heliotrope").click()
    found = page.locator(".found", has_text="heliotrope")
    expect(found).to_be_in_viewport()
    page.get_by_label("Search sessions").fill("")


@pytest.mark.soak  # which files: tests/plugins/console/test_changes.py
def test_a_place_in_a_file_is_a_link_to_its_line(person: Person, site: Site) -> None:
    directory = site.project(
        "See src/app.py:30 and `src/app.py:2`, but not ../secret.py:1 or example.com:443.", "Thanks."
    )
    (directory / "src").mkdir()
    (directory / "src" / "app.py").write_text("".join(f"line_{number} = {number}\n" for number in range(1, 61)))
    (directory.parent / "secret.py").write_text("secret = 1\n")
    person.start("Where?", directory)
    person.says("See src/app.py:30")
    page = person.page
    expect(page.locator(".said a")).to_have_text(["src/app.py:30", "src/app.py:2"])
    page.get_by_role("link", name="src/app.py:30").click()
    expect(page.locator("tr.found")).to_contain_text("line_30 = 30")
    expect(page.locator("tr.found")).to_be_in_viewport()
    page.get_by_role("button", name="Comment on line 30", exact=True).click()
    page.get_by_role("textbox", name="Comment on src/app.py:30").fill("Odd.")
    page.get_by_role("button", name="Send 1 comment").click()
    person.says("Thanks.")
    session = person.session_id
    page.goto(f"{site.url}/#/sessions/{session}/file/..%2Fsecret.py/1")
    expect(page.get_by_role("alert")).to_contain_text("There is no such file")
