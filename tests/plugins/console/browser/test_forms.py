"""Forms of MCP servers in a session, and the servers themselves: a real server asks, through the hub and the CLI."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import Step, tool
from tests.conftest import RUN
from tests.hub.oauth import Authority
from tests.hub.remote import RemoteServer, http_server
from tests.support.local_http import in_thread
from tests.support.ports import free_port

from .conftest import Desk, OpenBrowser
from .console import PHONE, Caller, Person, Site, read_on, running, write_script
from .test_hostile_text import CORPUS, _unharmed

A_SERVER = Path(__file__).parents[3] / "hub" / "a_server.py"
FORM = {
    "message": "A few details for the release.",
    "requestedSchema": {
        "type": "object",
        "required": ["name", "count", "color", "sure", "parts"],
        "properties": {
            "name": {"type": "string", "title": "Name", "description": "How it is called", "maxLength": 20},
            "mail": {"type": "string", "title": "Mail", "format": "email"},
            "count": {"type": "integer", "title": "Count", "minimum": 1, "maximum": 9},
            "ratio": {"type": "number", "title": "Ratio", "default": 0.5},
            "color": {
                "type": "string",
                "title": "Color",
                "oneOf": [{"const": "r", "title": "Red, dark"}, {"const": "g", "title": "Green"}],
            },
            "sure": {"type": "boolean", "title": "Sure"},
            "parts": {
                "type": "array",
                "title": "Parts",
                "items": {"anyOf": [{"const": "d", "title": "Docs"}, {"const": "t", "title": "Tests"}]},
                "default": ["d"],
            },
            "city": {"type": "string", "title": "City", "enum": [f"City {number}" for number in range(12)]},
        },
    },
}

LATER = {
    "message": "When?",
    "requestedSchema": {
        "type": "object",
        "properties": {"when": {"type": "string", "title": "When", "format": "date-time"}},
    },
}


def hostile_form() -> dict[str, Any]:
    """One in which every text is an attempt to become part of the page."""
    fields = {
        f"<b>{number}</b>{evil}": {
            "type": kind,
            "title": evil,
            "description": evil,
            **({"enum": CORPUS[:3]} if kind == "string" else {}),
            "default": evil,
        }
        for number, (kind, evil) in enumerate(zip(("string", "number", "boolean", "array"), CORPUS, strict=False))
    }
    return {"message": "\n".join(CORPUS), "requestedSchema": {"type": "object", "properties": fields}}


def protected_server() -> AbstractContextManager[str]:
    """A remote MCP server that requires a sign-in, in a thread of its own; the value is its address."""
    port = free_port()
    return in_thread(http_server(RemoteServer(), port, **Authority().options(port)))


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Site]:
    """A site whose sessions share servers: one that asks, one that fails and one that wants a sign-in."""
    sandbox = Sandbox(tmp_path_factory.mktemp("forms"), model.url)
    with protected_server() as address:
        hub_file = sandbox.root / "mcp.json"
        asks = {"command": sys.executable, "args": ["-S", str(A_SERVER)]}
        broken = {"command": "no-<b>such</b>-program"}
        servers = {"asker": asks, "broken": broken, "private": {"type": "http", "url": address}}
        hub_file.write_text(json.dumps({"mcpServers": {**servers, "unusable": {"type": "smoke-signals"}}}))
        settings = {RUN: os.environ[RUN], "CLAUDE_CODE_MCP_HUB_FILE": str(hub_file)}
        with running(Site(sandbox, sandbox.environment(**settings))) as started:
            yield started


@pytest.fixture(scope="module")
def desk(browser: Browser, asking: Site) -> Iterator[Desk]:
    """At this site, not at that of the other tests."""
    opened = Desk(browser, asking)
    yield opened
    opened.close()


@pytest.fixture
def guest(person: Person) -> Person:
    return person


def ask(params: dict[str, Any], **more: str) -> Step:
    return tool("mcp__asker__ask", params=params, **more)


def begin(person: Person, directory: Path) -> None:
    """A session that may use the server that asks."""
    body = {"prompt": "Ask me", "workingDirectory": str(directory), "allowedTools": ["mcp__asker"]}
    session = Caller(person.site).post("/api/sessions", body)["sessionId"]
    person.page.goto(f"{person.site.url}/#/sessions/{session}")


def say(person: Person, message: str) -> None:
    person.page.get_by_label("Message", exact=True).fill(message)
    person.page.get_by_role("button", name="Send", exact=True).click()


def result(person: Person, number: int = 1) -> Any:
    """What the server was answered, as it told the model; for so many times now."""
    reply_line = person.page.locator(".said:not(.writing)", has_text="I heard:")
    expect(reply_line).to_have_count(number)
    return json.loads((reply_line.last.text_content() or "").partition("I heard:")[2])


def test_a_form_of_a_server_is_filled_in_field_by_field(guest: Person, asking: Site) -> None:
    begin(guest, asking.project(ask(FORM), "I heard: ${tool_result}", ask(LATER), "I heard: ${tool_result}"))
    form = guest.question("asker asks")
    expect(form).to_contain_text("A few details for the release.")
    expect(form.get_by_label("Ratio")).to_have_value("0.5")
    expect(form.get_by_role("checkbox", name="Docs")).to_be_checked()
    assert read_on(form)
    send = form.get_by_role("button", name="Send", exact=True)
    send.click()
    expect(form.get_by_role("alert")).to_have_text("Please fill in: Name")
    expect(form.get_by_label("Name")).to_be_focused()
    form.get_by_label("Name").fill("Ada")
    form.get_by_label("Count").fill("12")
    send.click()
    expect(form.get_by_role("alert")).to_contain_text("Count:")
    form.get_by_label("Count").fill("7")
    form.get_by_role("radio", name="Red, dark").check()
    form.get_by_role("radio", name="Yes").check()
    form.get_by_role("checkbox", name="Tests").check()
    form.get_by_label("City").select_option("City 11")
    send.click()
    chosen = {"color": "r", "sure": True, "parts": ["d", "t"], "city": "City 11"}
    assert result(guest) == {"action": "accept", "content": {"name": "Ada", "count": 7, "ratio": 0.5, **chosen}}
    say(guest, "And when?")
    asked = guest.question("When?")
    asked.get_by_label("When").fill("soon")
    asked.get_by_role("button", name="Send", exact=True).click()
    expect(asked.get_by_role("alert")).to_have_text("When: must be a date-time.")  # which the server alone can tell
    asked.get_by_label("When").fill("")
    asked.get_by_role("button", name="Send", exact=True).click()
    assert result(guest, 2) == {"action": "accept", "content": {}}


def test_default_values_of_a_form_are_shown_in_full(open_browser: OpenBrowser, asking: Site) -> None:
    """A field shows the beginning of its value, and a menu that of what is chosen."""
    command = f"echo harmless{' ' * 200}; rm -rf everything"
    cities = [f"City {number} {'of the long names ' * 8}{number}" for number in range(12)]
    fields = {
        "command": {"type": "string", "title": "Command", "default": command},
        "city": {"type": "string", "title": "City", "enum": cities, "default": cities[3]},
        "short": {"type": "string", "title": "Short", "default": "ok"},
    }
    form = {"message": "Run it?", "requestedSchema": {"type": "object", "properties": fields}}
    phone = open_browser(asking, **PHONE).sign_in()
    begin(phone, asking.project(ask(form), "I heard: ${tool_result}"))
    asked = phone.question("Run it?")
    whole = asked.locator(".whole-value")
    expect(whole).to_have_count(2)
    expect(whole.first).to_contain_text("; rm -rf everything")
    expect(whole.last).to_have_text(cities[3])
    asked.get_by_label("Command").fill("make")
    expect(whole).to_have_text([cities[3]])
    read_on(asked)
    asked.get_by_role("button", name="Send", exact=True).click()
    assert result(phone)["content"] == {"command": "make", "city": cities[3], "short": "ok"}


@pytest.mark.soak  # other hostile text: test_hostile_text.py
def test_a_hostile_form_is_declined_an_address_is_opened_and_a_stopped_turn_cancels(
    open_browser: OpenBrowser, asking: Site
) -> None:
    phone = open_browser(asking, **PHONE).sign_in()
    directory, note = asking.project(), asking.sandbox.root / "note"
    address = f"{asking.url}/?a=1#/costs"
    url = {"mode": "url", "message": "Please pay.", "url": address, "elicitationId": "1"}
    evil = {**url, "message": CORPUS[1], "url": "javascript:window.hit=1"}
    steps = [
        ask(hostile_form()),
        ask(evil),
        "I heard: ${tool_result}",
        ask(url),
        "I heard: ${tool_result}",
        ask(FORM, note=str(note)),
    ]
    write_script(directory, *steps)
    begin(phone, directory)
    asked = phone.question("asker asks")
    expect(asked).to_contain_text("<svg/onload=window.hit=1>")
    _unharmed(phone)
    asked.get_by_role("button", name="Decline").click()
    asked = phone.question("javascript:window.hit=1")
    expect(asked.get_by_role("link")).to_have_count(0)
    _unharmed(phone)
    asked.get_by_role("button", name="Decline").click()
    assert result(phone) == {"action": "decline"}
    say(phone, "And the address?")
    asked = phone.question("Please pay.")
    expect(asked.locator(".address")).to_have_text(address)
    expect(asked.locator("strong")).to_have_text(asking.url.removeprefix("http://"))
    with phone.context.expect_page() as opened:
        asked.get_by_role("link", name="Open this address").click()
    assert opened.value.url == address
    assert opened.value.evaluate("window.opener") is None
    opened.value.close()
    asked.get_by_role("button", name="I have opened it").click()
    assert result(phone, 2) == {"action": "accept"}
    say(phone, "And again?")
    phone.question("asker asks")
    phone.page.get_by_role("button", name="Stop").click()
    expect(phone.page.locator(".question:not(.closed, .unanswered)")).to_have_count(0)
    expect(phone.page.locator(".ending").last).to_contain_text("Interrupted")
    assert json.loads(note.read_text()) == {"action": "cancel"}


def test_the_servers_are_shown_with_what_is_wrong_and_signed_in_to(guest: Person, asking: Site, axe: str) -> None:
    page = guest.page
    page.goto(f"{asking.url}/#/servers")

    def card(name: str) -> Any:
        return page.locator(".card", has=page.get_by_role("heading", name=name))

    page.get_by_role("button", name="connect asker").click()
    expect(card("asker").locator(".badge")).to_have_text("connected")
    expect(card("asker")).to_contain_text("version 1")
    page.get_by_role("button", name="Connect broken").click()
    expect(card("broken").locator(".badge")).to_have_text("failed")
    expect(card("broken").locator(".why")).to_contain_text("no-<b>such</b>-program")
    expect(page.locator(".problem:visible")).to_contain_text("unusable")
    page.get_by_role("button", name="Connect private").click()
    expect(card("private").locator(".badge")).to_have_text("sign-in needed")
    page.get_by_role("button", name="Sign in to private").click()
    link = card("private").get_by_role("link", name="Open the sign-in page")
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(result => result.violations.map(one => one.id))")
    assert found == []
    with guest.context.expect_page() as opened:
        link.click()
    expect(opened.value.locator("body")).to_contain_text("signed in", ignore_case=True)
    opened.value.close()
    page.evaluate("dispatchEvent(new Event('focus'))")
    expect(card("private").locator(".badge")).to_have_text("connected")
    page.get_by_role("button", name="Disable private").click()
    expect(card("private").locator(".badge")).to_have_text("off")
    _unharmed(guest)
