"""Changes to files as they are shown to whoever decides on them: in their place in the file, however long."""

import pytest
from playwright.sync_api import expect

from claude_code_mcp.testing.script import tool

from .console import PATIENCE, Person, Site, changes_of, write_script


@pytest.mark.soak  # tests/plugins/console/test_changes.py; as a diff: test_stories.py
def test_a_write_over_a_file_shows_what_changes_in_it(person: Person, site: Site) -> None:
    directory = site.project()
    file = directory / "settings.py"
    lines = [f"option_{number} = {number}" for number in range(1, 61)]
    file.write_text("\n".join(lines) + "\n")
    lines[29] = "option_30 = 'thirty'"
    read, write = tool("Read", file_path=str(file)), tool("Write", file_path=str(file), content="\n".join(lines) + "\n")
    write_script(directory, read, write, "Written.")
    person.start("Set option 30", directory)
    asked = person.question("Write")
    expect(asked.locator(".plus")).to_have_text("+1")
    expect(asked.locator(".minus")).to_have_text("−1")
    expect(asked.locator("td.gone")).to_contain_text("option_30 = 30")
    expect(asked.locator("tr", has_text="option_30 = 30").locator("td.number").first).to_have_text("30")
    expect(asked.locator("td.line.same", has_text="option_29 = 29").first).to_be_visible()
    asked.get_by_role("button", name="Show 26 unchanged lines").click()
    expect(asked.locator("td.line.same", has_text="option_1 = 1").first).to_be_attached()
    asked.get_by_role("button", name="Allow once").click()
    person.says("Written.")
    assert file.read_text() == "\n".join(lines) + "\n"
    changed = changes_of(person)
    expect(changed).to_contain_text("settings.py")
    expect(changed.locator("summary .plus")).to_have_text("+1")
    expect(changed.locator("td.new")).to_contain_text("thirty")
    person.page.get_by_role("link", name="Back to the session").click()
    person.says("Written.")


@pytest.mark.soak
def test_the_rows_of_a_long_change_are_made_as_they_are_needed(person: Person, site: Site) -> None:
    directory = site.project()
    content = "\n".join(f"line {number} of many" for number in range(1, 8001))
    write_script(directory, tool("Write", file_path=str(directory / "long.txt"), content=content), "Written.")
    person.start("Write a lot", directory)
    asked = person.question("Write")
    expect(asked.locator(".plus")).to_have_text("+8000")
    rows = asked.locator("tr")
    assert rows.count() < 1500
    expect(asked.get_by_role("button", name="more rows")).to_be_attached()
    before = rows.count()
    asked.get_by_role("button", name="more rows").scroll_into_view_if_needed(timeout=PATIENCE)
    expect(asked.locator("tr").nth(before + 1)).to_be_attached()
    asked.get_by_role("button", name="Deny", exact=True).click()


@pytest.mark.soak
def test_the_output_of_a_command_has_the_colors_of_a_terminal(person: Person, site: Site) -> None:
    command = r"printf '\033[1;31merror\033[0m: \033[32mfine\033[0m\n10%%\r50%%\r100%%\n'"
    person.start("Print", site.project(tool("Bash", command=command), "Printed."))
    person.says("Printed.")
    call = person.page.locator("details.tool", has_text="printf")
    call.locator("summary").click()
    result = call.locator(".result code")
    expect(result.locator(".ansi-red")).to_have_text("error")
    expect(result.locator(".ansi-green")).to_have_text("fine")
    expect(result).to_have_text("error: fine\n100%")
