"""A conversation of some thousand items: what is on the page stays bounded, nothing is missing, no place is lost."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from claude_code_mcp.testing.script import parallel, text

from .console import PATIENCE, Person, Site

MAX_COUNT = 300
TURNS, ITEMS, LONG_TURN = 60, 25, 1000
TOTAL = TURNS * ITEMS + LONG_TURN
_ITEMS = "document.querySelectorAll('.log .items > *')"
_NUMBERS = f"[...{_ITEMS}].map((one) => Number(/number (\\d+)/.exec(one.textContent)?.[1] ?? 0)).filter(Boolean)"
_HEIGHT_OF = f"(text) => Math.round([...{_ITEMS}].find((one) => one.textContent === text).getBoundingClientRect().top)"
_SCROLL_AND_READ = f"""(to) => {{
    const scroller = document.querySelector('.scroller');
    scroller.scrollTop = to;
    const top = scroller.getBoundingClientRect().top;
    const read = [...{_ITEMS}].find((one) => one.getBoundingClientRect().bottom > top);
    return [read.textContent, Math.round(read.getBoundingClientRect().top)];
}}"""
_UNTIL = f"""(wanted) => new Promise((done, failed) => {{
    setTimeout(() => failed(new Error("nothing was added")), {PATIENCE});
    const look = () => {{
        const all = {_NUMBERS};
        if (all[0] < (wanted.before ?? Infinity) && all.at(-1) > (wanted.after ?? 0)) done();
        else requestAnimationFrame(look);
    }};
    look();
}})"""
_SCROLL = "(to) => { document.querySelector('.scroller').scrollTop = to; }"


def lengthen(transcript: Path) -> None:
    """Adds turns to a transcript that the CLI wrote, in its own form: many short ones, and one that is very long."""
    records = [json.loads(line) for line in transcript.read_text().splitlines()]
    asked = next(record for record in records if record.get("type") == "user")
    said = [record for record in records if record.get("type") == "assistant"][-1]
    parent, number, lines = said["uuid"], 0, []

    def add(record: dict[str, Any], **message: Any) -> None:
        nonlocal parent
        made = {**record, "uuid": str(uuid.uuid4()), "parentUuid": parent, "message": {**record["message"], **message}}
        parent = made["uuid"]
        lines.append(json.dumps(made))

    for turn, items in enumerate([ITEMS] * (TURNS // 2) + [LONG_TURN] + [ITEMS] * (TURNS // 2), 2):
        add(asked, content=f"Prompt {turn}")
        for _ in range(items):
            number += 1
            add(said, id=f"msg_{number}", content=[{"type": "text", "text": f"This is number {number}."}])
    with transcript.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def numbers(page: Page) -> list[int]:
    """The items on the page; they follow one another, and are not too many."""
    found: list[int] = page.evaluate(_NUMBERS)
    assert len(found) <= MAX_COUNT
    assert found == list(range(found[0], found[0] + len(found)))
    return found


@pytest.mark.soak
def test_long_conversation_shows_a_window_around_the_reading_position(person: Person, site: Site) -> None:
    person.start("Begin", site.project("Begun."))
    person.says("Begun.")
    expect(person.page.locator(".ending")).to_contain_text("Done")
    (transcript,) = site.sandbox.root.glob(f"**/projects/*/{person.session_id}.jsonl")
    lengthen(transcript)
    page, address = person.page, person.page.url
    page.goto(f"{site.url}/#/")
    page.goto(address)
    person.says(f"This is number {TOTAL}.")
    seen = numbers(page)
    assert seen[-1] == TOTAL
    # Else what scrolls to a place in the conversation would scroll the whole page with it.
    assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    while seen[0] > 1:
        read, height = page.evaluate(_SCROLL_AND_READ, 150)
        page.evaluate(_UNTIL, {"before": seen[0]})
        assert page.evaluate(_HEIGHT_OF, read) == height
        earlier = numbers(page)
        assert earlier[-1] >= seen[0]  # nothing between is left out
        seen = earlier
    expect(page.locator(".prompt").first).to_have_text("Begin")
    expect(page.get_by_role("button", name="Show earlier turns")).to_be_hidden()
    for _ in range(8):
        page.evaluate(_SCROLL, 10**6)
        page.evaluate(_UNTIL, {"after": seen[-1]})
        later = numbers(page)
        assert later[0] <= seen[-1] + 1
        seen = later
    page.get_by_role("button", name="Jump to the end").click()
    person.says(f"This is number {TOTAL}.")
    assert numbers(page)[-1] == TOTAL
    expect(page.get_by_role("button", name="Jump to the end")).to_be_hidden()


@pytest.mark.soak
def test_a_turn_of_many_items_keeps_the_newest_on_the_page_while_it_runs(person: Person, site: Site) -> None:
    blocks = [text(f"This is number {number}.") for number in range(1, 341)]
    person.start("Say a lot", site.project(parallel(*blocks), "That was all."))
    person.says("This is number 340.")
    page = person.page
    seen = numbers(page)
    assert (seen[0] > 1, seen[-1]) == (True, 340)
    expect(page.locator(".turn .note", has_text="Earlier steps")).to_be_visible()
    expect(page.locator(".ending")).to_contain_text("Done")
    while seen[0] > 1:
        page.evaluate(_SCROLL, 0)
        page.evaluate(_UNTIL, {"before": seen[0]})
        seen = numbers(page)
    expect(page.locator(".turn .note", has_text="Earlier steps")).to_be_hidden()
    page.get_by_role("button", name="Jump to the end").click()
    person.says("This is number 340.")
    page.get_by_label("Message", exact=True).fill("And more?")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("That was all.")
    assert numbers(page)[-1] == 340  # what is told again when the page comes back is not there twice
