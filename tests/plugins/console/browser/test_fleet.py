"""The console of a gateway, in a browser: machines as users start them, with the real CLI on the scripted model."""

import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.support.fleet import Computer, MortalComputer, processes_of

pytest.importorskip("nats", reason="the extra `fleet` is not installed")

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.support.repositories import repository
from tests.support.waiting import until

from .console import DESKTOP, Person


class GatewaySite:
    """Where the gateway of a fleet serves its console."""

    def __init__(self, url: str) -> None:
        self.url = url


@pytest.mark.soak  # what the gateway answers is in `tests/plugins/fleet/test_console.py`; this is the page on it
def test_sessions_of_all_machines_are_answered_moved_and_taken_over_in_the_page(
    browser: Browser, tmp_path: Path, model: ScriptedModelThread
) -> None:
    server, laptop = places = [MortalComputer(tmp_path / name, model.url) for name in ("server", "laptop")]
    with server.up(), laptop.joined("laptop", ticket=server.ticket) as runner:
        link = next(word for word in server.run("web").split() if "#ticket=" in word)
        person = Person(browser.new_context(**DESKTOP), GatewaySite(link.partition("/#")[0]))  # type: ignore[arg-type]  # of a site it needs the address
        try:
            work_with_machines(person, link, laptop)
            runner.send_signal(signal.SIGKILL)
            go_on_elsewhere(person)
        finally:
            person.context.close()
        assert person.faults == []
    until(lambda: not processes_of(places), "something was left running")
    assert "Traceback" not in server.errors


def work_with_machines(person: Person, link: str, laptop: Computer) -> None:
    page, source = person.page, repository(laptop.root / "source")
    page.goto(link)
    page.goto(f"{person.site.url}/#/new")
    page.get_by_label("Task").fill(script("make it", tool("Bash", command="echo new > made.txt"), "I made it"))
    page.get_by_role("button", name="Choose…").click()
    page.get_by_role("group", name="On which machine?").get_by_role("button", name="laptop").click()
    expect(page.locator("main select").first.locator("option:checked")).to_contain_text("laptop")
    expect(page.locator(".directories").get_by_role("heading", name="Choose a directory")).to_be_visible()
    page.get_by_role("button", name="Choose…").click()
    page.get_by_label("Directory").fill(str(source))
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".about")).to_contain_text("on laptop")
    person.question("made.txt").get_by_role("button", name="Allow once").click()
    person.says("I made it")
    assert (source / "made.txt").read_text() == "new\n"
    section = page.locator(".fleet section", has_text="laptop")
    expect(section.locator(".row")).to_have_count(1)
    # To the other machine, and back, with its history and its files.
    for name in ("server", "laptop"):
        page.get_by_label("More actions").click()
        page.get_by_role("button", name="Move…").click()
        choose(page.locator(".menu-body select").last, name)
        page.get_by_role("button", name="Move", exact=True).click()
        expect(page.locator(".note[role=status]")).to_contain_text(f"It is on machine {name} now.")
        expect(page.locator(".about")).to_contain_text(f"on {name}")
        page.get_by_role("textbox", name="Message").fill(
            script(f"at {name}", tool("Bash", command="cat made.txt"), f"{name}: ${{tool_result}}")
        )
        page.get_by_role("button", name="Send", exact=True).click()
        person.says(f"{name}: new")
        expect(page.locator(".about .badge")).to_have_text("done")  # the fleet has the turn by then


def choose(machines: Locator, name: str) -> None:
    machines.select_option(value=machines.locator("option", has_text=name).get_attribute("value"))


def go_on_elsewhere(person: Person) -> None:
    page = person.page
    expect(page.locator(".fleet section", has_text="laptop: gone")).to_be_visible()
    page.reload()
    # After the page was read anew too, with what the fleet's copy knows.
    row = page.locator(".fleet section", has_text="laptop: gone").locator(".row")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("laptop (gone):")
    expect(row).to_contain_text("make it")
    notice = page.locator(".gone")
    expect(notice).to_contain_text("laptop is offline")
    notice.get_by_role("button", name="Continue on server").click()
    person.says("laptop: new")
    expect(page.locator(".about")).to_contain_text("on server")
    page.get_by_role("textbox", name="Message").fill(script("again", "here I am"))
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("here I am")
