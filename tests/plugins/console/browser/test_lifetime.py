"""What is left of a session's view when another one is opened: nothing."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from claude_code_mcp.testing.script import parallel, text, tool

from .conftest import OpenBrowser
from .console import Caller, Person, Site, write_script

WARM = 4
PAGE = 30
"""Sessions that the list reads at once."""


@pytest.mark.soak
@pytest.mark.parametrize("openings", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_nodes_and_listeners_do_not_grow_with_the_sessions_that_were_opened(
    open_browser: OpenBrowser, site: Site, signed_in: Any, openings: int
) -> None:
    person = open_browser(storage_state=signed_in).arrive()
    routes = []
    for number in (1, 2):
        directory = site.project()
        blocks = [text(f"**Part {part}** of answer {number}\n\n```py\nx = {part}\n```") for part in range(20)]
        read = tool("Read", file_path=str(directory / "CLAUDE.md"))
        write_script(directory, parallel(*blocks, read), f"The end of {number}.")
        person.start(f"Session {number}", directory)
        person.says(f"The end of {number}.")
        expect(person.page.locator(".ending").last).to_contain_text("Done")
        routes.append((person.page.url, f"The end of {number}."))
    devtools = person.context.new_cdp_session(person.page)
    devtools.send("Performance.enable")

    def counted() -> dict[str, int]:
        devtools.send("HeapProfiler.collectGarbage")
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return {
            entry["name"]: int(entry["value"]) for entry in metrics if entry["name"] in ("Nodes", "JSEventListeners")
        }

    def open_sessions(times: int) -> None:
        for number in range(times):
            url, end = routes[number % 2]
            person.page.goto(url)
            person.says(end)

    open_sessions(WARM)
    before = counted()
    open_sessions(openings)
    after = counted()
    assert before["Nodes"] > 200
    # The views that were left last may still wait for the collector; one left by each opening would be thousands.
    assert after["Nodes"] < 3 * before["Nodes"], (before, after)
    assert after["JSEventListeners"] < 2 * before["JSEventListeners"], (before, after)


@pytest.mark.soak
def test_an_address_that_leads_nowhere_is_a_page_that_says_so(person: Person, site: Site) -> None:
    page = person.page
    missing = "/sessions/00000000-0000-4000-8000-000000000000"
    for route in ("/sessions/%E0%A4%A", "/nothing", missing, "/sessions/no-such-id", "/sessions/%2e%2e%2fx"):
        page.goto(f"{site.url}/#{route}")
        expect(page.locator("main h1")).to_have_text("Not found")
        expect(page.get_by_label("Message", exact=True)).to_be_hidden()
        page.locator("main").get_by_role("link", name="all sessions").or_(page.locator("main .note a")).first.click()
        # Sessions of other tests may wait.
        expect(page.locator("main h1")).to_have_text(re.compile(r"^(Sessions|\d+ sessions? needs? you)$"))
    # Who was lost finds the next session as ever.
    person.start("Say hello", site.project("Hello."))
    person.says("Hello.")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


@pytest.mark.soak
def test_the_list_reports_how_many_sessions_there_are(person: Person, site: Site) -> None:
    person.start("Count", site.project("Counted."))
    person.says("Counted.")
    expect(person.page.locator(".ending").last).to_contain_text("Done")
    program = Caller(site)
    for _ in range(PAGE):
        program.post(f"/api/sessions/{person.session_id}/fork", {})
    page = person.page
    page.reload()
    expect(page.get_by_role("button", name="Show more")).to_be_visible()
    in_all = len(program.get("/api/sessions?limit=200")["sessions"])
    assert in_all > PAGE
    numbers = page.locator("nav.sessions .number").all()
    assert sum(int(number.text_content() or 0) for number in numbers) == in_all
