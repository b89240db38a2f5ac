"""Push messages in the browser: what the server sends, read as a browser would, reaches the page's service worker while
the page is closed, is shown, and leads to the question."""

import json
from typing import Any

from playwright.sync_api import Route, expect

from claude_code_mcp.testing.script import tool
from tests.plugins.push.receiver import BrowserKeys, receiving

from .conftest import OpenBrowser
from .console import Caller, Site
from .notifications import PushService

_CLICK = """self.registration.getNotifications().then(([one]) =>
    self.dispatchEvent(new NotificationEvent("notificationclick", { notification: one })))"""


def pushed_question(site: Site, *, then: str) -> tuple[str, str]:
    """A session asks, and the server tells a subscribed browser: the message as it is read there, and the session."""
    keys, caller = BrowserKeys(), Caller(site)
    with receiving(201) as service:
        subscription = keys.subscription(f"{service.url}/send/1")
        made = caller.post("/api/push/receivers", {"kind": "webpush", "subscription": subscription})
        directory = site.project(tool("Bash", command=f"touch {then}"), "done")
        session = caller.post("/api/sessions", {"prompt": "Ask me", "workingDirectory": str(directory)})["sessionId"]
        message = keys.plaintext(service.next().body).decode()
        caller.delete(f"/api/push/receivers/{made['receiver']['id']}")
    return message, session


def test_push_notification_opens_the_question(open_complete_browser: OpenBrowser, site: Site, signed_in: Any) -> None:
    person = open_complete_browser(storage_state=signed_in, permissions=["notifications"]).arrive("/settings")
    context, page = person.context, person.page
    pushes = PushService(context, context.new_cdp_session(context.new_page()), site)
    page.get_by_role("button", name="Switch on for this device").click()
    # There is no push service here, which is said; the service worker is registered before.
    expect(page.get_by_role("alert")).to_contain_text("Registration failed")
    assert [fault for fault in person.faults if "Push API" not in fault] == []
    person.faults.clear()
    page.close()

    message, session = pushed_question(site, then="otter")
    link = json.loads(message)["url"]
    assert link.startswith(f"{site.url}/#/sessions/{session}/questions/q-")
    pushes.deliver(message)
    assert pushes.shown() == [{"title": "Ask me", "body": "Wants to run: touch otter", "url": link}]
    assert pushes.errors == [], "its icon too may be loaded"

    worker = pushes.worker
    # A click that no person made may open no window, so what would be opened is noted.
    worker.evaluate("self.clients.openWindow = async (address) => { self.openedAddress = address; return null; }")
    worker.evaluate(_CLICK)
    person.page = context.new_page()
    person.page.goto(str(worker.evaluate("self.openedAddress")))
    expect(person.question("touch otter").locator("h2")).to_be_focused()
    assert pushes.shown() == []

    # With the page open, the click leads it there.
    person.page.goto(f"{site.url}/#/")
    pushes.deliver(message)
    worker.evaluate(_CLICK)
    expect(person.question("touch otter").locator("h2")).to_be_focused()
    assert len(context.pages) == 2
    person.question("touch otter").get_by_role("button", name="Deny", exact=True).click()
    person.says("done")
    pushes.deliver({"title": "x", "url": "https://evil.example/#/costs"})  # or this server under another name
    assert pushes.shown()[0]["url"] == f"{site.url}/#/costs"


def test_the_page_offers_the_kinds_of_receivers_that_the_server_has(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person = open_browser(storage_state=signed_in).arrive()

    def with_another(route: Route) -> None:
        settings = route.fetch().json()
        route.fulfill(json={**settings, "kinds": [*settings["kinds"], "pigeon"]})

    person.page.route("**/api/push", with_another)
    person.page.get_by_role("link", name="Settings").click()
    person.page.get_by_text("Send notifications elsewhere too").click()
    kinds = person.page.get_by_label("Kind of receiver").get_by_role("option")
    expect(kinds).to_have_text([*Caller(site).get("/api/push")["kinds"], "pigeon"])
