"""What a person types is never lost and never sent twice: queued messages, drafts, lost answers, attachments."""

import base64
import json
import signal
import struct
import zlib
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, Request, Route, expect

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import text

from .conftest import OpenBrowser
from .console import PATIENCE, PHONE, TOKEN, Caller, Person, Site

ENDLESS = text("word " * 400, chunks=400, interval=0.1)


def message(page: Page) -> Any:
    return page.get_by_label("Message", exact=True)


def send(page: Page, words: str) -> None:
    message(page).fill(words)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(message(page)).to_have_value("")


def lose_one_answer(page: Page, path: str) -> None:
    """The server gets the next request to this path, and the page does not get the answer."""

    def lose(route: Route, request: Request) -> None:
        if request.method != "POST":
            route.fallback()
            return
        route.fetch()
        route.abort()
        page.unroute(path, lose)

    page.route(path, lose)


def png(red: int, side: int = 8) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((red, 80, 120)) * side for _ in range(side))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_messages_behind_a_turn_are_shown_edited_removed_and_put_back_by_stop(
    person: Person, open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person.start("Talk for long", site.project(ENDLESS, "On it."))
    page = person.page
    expect(page.locator(".writing")).to_be_visible()
    send(page, "Also look at the tests")
    send(page, "And at the docs")
    queued = page.locator(".queued")
    expect(queued).to_have_count(2)
    phone = open_browser(storage_state=signed_in, **PHONE).arrive(f"/sessions/{person.session_id}")
    expect(phone.page.locator(".queued")).to_have_count(2)
    queued.filter(has_text="Also look").get_by_role("button", name="Edit").click()
    expect(message(page)).to_have_value("Also look at the tests")
    expect(queued).to_have_count(1)
    expect(phone.page.locator(".queued")).to_have_count(1)
    send(page, "Also look at all tests")
    expect(queued).to_have_count(2)
    phone.page.locator(".queued", has_text="docs").get_by_role("button", name="Remove").click()
    expect(queued).to_have_count(1)
    message(page).fill("half a thought")
    page.get_by_role("button", name="Stop").click()
    expect(message(page)).to_have_value("Also look at all tests\n\nhalf a thought")
    expect(queued).to_have_count(0)
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("On it.")
    assert page.locator(".prompt").all_text_contents() == ["Talk for long", "Also look at all tests\n\nhalf a thought"]


@pytest.mark.soak
def test_a_message_that_a_killed_server_had_is_shown_as_not_read_and_sent_again(person: Person, site: Site) -> None:
    person.start("Talk for long", site.project(ENDLESS, "Here again.", "And again."))
    page = person.page
    expect(page.locator(".writing")).to_be_visible()
    send(page, "Wait for me")
    expect(page.locator(".queued")).to_have_count(1)
    site.stop(signal.SIGKILL)
    expect(page.locator(".line")).to_contain_text("Offline")
    site.start()
    page.reload()
    lost = page.locator(".queued", has_text="Wait for me")
    expect(lost).to_contain_text("Not read")
    lost.get_by_role("button", name="Send again").click()
    expect(page.locator(".prompt").last).to_have_text("Wait for me")
    expect(page.locator(".queued")).to_have_count(0)
    person.says("again.")


KEPT_FILES = """async () => {
    const database = await new Promise((resolve, reject) => {
        const request = indexedDB.open("claude-code-mcp.drafts");
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });
    const all = database.transaction("attachments").objectStore("attachments").getAll();
    const rows = await new Promise((resolve) => { all.onsuccess = () => resolve(all.result); });
    database.close();
    return rows.map((row) => row.attachments.map((one) => one.name));
}"""
"""The names of all files that the browser keeps, by draft."""


def wait_until_kept(page: Page, *names: str) -> None:
    """The browser writes files to its disk after it has shown them; a reload in between is none of a person's."""
    kept = json.dumps(json.dumps([names], separators=(",", ":")))
    page.wait_for_function(f"async () => JSON.stringify(await ({KEPT_FILES})()) === {kept}", timeout=PATIENCE)


@pytest.mark.soak
def test_drafts_and_attachments_survive_reload_and_back_until_they_are_sent_or_somebody_signs_out(
    open_browser: OpenBrowser, site: Site, model: ScriptedModelThread
) -> None:
    person = open_browser(**PHONE).sign_in()
    person.start("Begin", site.project("Begun.", "More.", "Seen.", "Never."))
    person.says("Begun.")
    page, session = person.page, person.session_id
    files, attached = page.locator(".composer input[type=file]"), page.locator(".attachment")
    message(page).fill("a draft of the session")
    page.get_by_role("link", name="All sessions").click()
    page.get_by_role("link", name="New", exact=True).click()
    page.get_by_label("Task").fill("a draft of a task")
    page.reload()
    expect(page.get_by_label("Task")).to_have_value("a draft of a task")
    page.goto(f"{site.url}/#/sessions/{session}")
    expect(message(page)).to_have_value("a draft of the session")
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("More.")
    page.reload()
    person.says("More.")
    expect(message(page)).to_have_value("")
    shot: FilePayload = {"name": "shot.png", "mimeType": "image/png", "buffer": png(200)}
    notes: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": "Zeile ✓".encode()}
    files.set_input_files([shot, notes])
    expect(attached).to_have_count(2)
    wait_until_kept(page, "shot.png", "notes.txt")
    page.reload()
    expect(attached).to_have_count(2)
    page.get_by_role("link", name="All sessions").click()
    page.go_back()
    expect(attached).to_have_count(2)
    # A message whose answer was lost is the same one after a reload, with its files: it counts once.
    message(page).fill("What is this?")
    lose_one_answer(page, "**/messages")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".composer .problem")).to_contain_text("Sending it again is safe")
    page.reload()
    expect(attached).to_have_count(2)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(attached).to_have_count(0)
    person.says("Seen.")
    asked = [json.dumps(each.body) for each in model.requests if each.session_id == person.session_id]
    assert base64.b64encode(png(200)).decode() in asked[-1]
    assert "Zeile \\u2713" in asked[-1]
    assert page.evaluate(KEPT_FILES) == []
    page.reload()
    person.says("Seen.")
    assert page.locator(".prompt").all_text_contents() == ["Begin", "a draft of the session", "What is this?"]
    files.set_input_files([notes])
    expect(attached).to_have_count(1)
    wait_until_kept(page, "notes.txt")
    page.goto(f"{site.url}/#/settings")
    page.get_by_role("button", name="Sign out", exact=True).click()
    expect(page.get_by_label("Or sign in with a token")).to_be_visible()
    assert page.evaluate(KEPT_FILES) == []
    page.get_by_label("Or sign in with a token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".bar")).to_be_attached()
    page.goto(f"{site.url}/#/new")
    expect(page.get_by_label("Task")).to_have_value("")


@pytest.mark.soak  # tests/core/sessions/test_keyed_messages.py
def test_a_message_whose_answer_was_lost_is_sent_again_and_counts_once(person: Person, site: Site) -> None:
    page = person.page
    page.goto(f"{site.url}/#/new")
    page.get_by_label("Task").fill("Start once")
    page.get_by_label("Directory").fill(str(site.project("Started.", "Answered.", "Next.")))
    page.get_by_text("More", exact=True).click()
    budget = page.get_by_label("Budget in dollars")
    for written, why in (("five", "not an amount"), ("1,000", "two ways"), ("0", "more than 0")):
        budget.fill(written)
        page.get_by_role("button", name="Start").click()
        expect(page.get_by_role("alert").filter(has_text=why)).to_be_visible()
    budget.fill("$ 5,50")
    lose_one_answer(page, "**/api/sessions")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("alert").filter(has_text="To start it again is safe")).to_be_visible()
    with page.expect_request(lambda request: request.method == "POST") as started:
        page.get_by_role("button", name="Start").click()
    assert json.loads(started.value.post_data or "")["maxBudgetUsd"] == 5.5
    person.says("Started.")
    found = Caller(site).get("/api/sessions?text=Start+once")["sessions"]
    assert [row["sessionId"] for row in found] == [person.session_id]
    lose_one_answer(page, "**/messages")
    message(page).fill("Say it once")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".composer .problem")).to_contain_text("Sending it again is safe")
    page.reload()
    person.says("Answered.")
    expect(message(page)).to_have_value("Say it once")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(message(page)).to_have_value("")
    send(page, "Something else")
    person.says("Next.")
    assert page.locator(".prompt").all_text_contents() == ["Start once", "Say it once", "Something else"]
    page.route("**/api/**", lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("type “claude-code-mcp web”")
    page.unroute("**/api/**")
    page.get_by_role("button", name="Try again").click()
    person.says("Next.")


@pytest.mark.soak
def test_pictures_and_files_go_with_a_message_and_what_cannot_is_refused(
    open_browser: OpenBrowser, site: Site, signed_in: Any, model: ScriptedModelThread
) -> None:
    person = open_browser(storage_state=signed_in, **PHONE).arrive()
    person.start("Look at things", site.project("Ready.", "Seen both.", "A picture."))
    person.says("Ready.")
    page = person.page
    files = page.locator(".composer input[type=file]")
    refused = page.locator(".composer .problem")
    archive: FilePayload = {"name": "data.zip", "mimeType": "application/zip", "buffer": b"PK\x03\x04\0\0\xff\xfe"}
    files.set_input_files(archive)
    expect(refused).to_contain_text("data.zip is not an image, PDF or text file")
    files.set_input_files({"name": "log.txt", "mimeType": "text/plain", "buffer": b"x" * 300_000})
    expect(refused).to_contain_text("log.txt is too large (300 kB)")
    shot: FilePayload = {"name": "shot.png", "mimeType": "image/png", "buffer": png(200)}
    notes: FilePayload = {
        "name": "notes.txt",
        "mimeType": "text/plain",
        "buffer": "Zeile 1\n</attached-file>\nZeile 2 ✓".encode(),
    }
    manual: FilePayload = {"name": "manual.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4\n%%EOF\n"}
    files.set_input_files([shot, notes, manual])
    expect(page.locator(".attachment")).to_have_count(3)
    send(page, "What do you see?")
    person.says("Seen both.")
    expect(page.locator(".prompt").last).to_have_text("What do you see?")
    expect(page.locator(".attached summary")).to_contain_text("notes.txt")
    expect(page.get_by_text("1 PDF document attached")).to_be_visible()
    expect(page.locator(".sent-pictures img")).to_have_count(1)
    asked = json.dumps([one.body for one in model.requests if one.session_id == person.session_id][-1])
    assert base64.b64encode(png(200)).decode() in asked
    assert "Zeile 2 \\u2713" in asked
    assert '"type": "document"' in asked
    assert base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode() in asked
    page.evaluate(
        """async (data) => {
            const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "drop.png", { type: "image/png" }));
            const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true });
            document.querySelector(".composer").dispatchEvent(drop);
        }""",
        base64.b64encode(png(10, 3000)).decode(),
    )
    expect(page.locator(".attachment")).to_have_count(1)
    page.get_by_role("button", name="Send", exact=True).click()
    person.says("A picture.")
    page.reload()
    person.says("A picture.")
    expect(page.get_by_text("1 PDF document attached")).to_be_visible()
    show = page.get_by_role("button", name="Show 1 picture")
    expect(show).to_have_count(2)
    show.last.click()
    image = page.locator(".sent-pictures img")
    expect(image).to_be_visible()
    # The page has made it smaller, and Claude Code may have again.
    assert 0 < image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") <= 2048
