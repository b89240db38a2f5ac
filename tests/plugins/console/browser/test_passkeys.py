"""A person with a browser at the embedded authorization server: from the link of the invitation to a client that works.

The passkey is made by Chromium's virtual authenticator, which does what a real one does.
"""

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from playwright.sync_api import Browser, BrowserContext, Page, expect

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.plugins.team.embedded import Embedded, embedded
from tests.plugins.team.test_sign_in import Memory
from tests.support import npm
from tests.support.local_http import Handler, site
from tests.support.waiting import HANG_SECONDS

from .console import DESKTOP, PATIENCE, PHONE

HOSTILE = "Evil <script>window.hit=1</script><img src=x onerror=window.hit=1>"
SHOTS = npm.BUILD / "pictures"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Embedded]:
    with embedded(tmp_path_factory.mktemp("passkeys"), model.url).running() as started:
        yield started


class Visitor:
    """A browser of its own, with an authenticator that asks for nobody's finger."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda entry: self._note(entry.text))
        self._tools = context.new_cdp_session(self.page)
        self._tools.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": "internal",
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
            "automaticPresenceSimulation": True,
        }
        added = self._tools.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        self.authenticator: str = added["authenticatorId"]

    def _note(self, text: str) -> None:
        if "Content Security Policy" in text or "Trusted" in text:
            self.faults.append(text)

    def passkeys(self) -> list[Any]:
        found = self._tools.send("WebAuthn.getCredentials", {"authenticatorId": self.authenticator})
        return list(found["credentials"])

    def refuse(self) -> None:
        """The next who asks for the person does not find them."""
        verified = {"authenticatorId": self.authenticator, "isUserVerified": False}
        self._tools.send("WebAuthn.setUserVerified", verified)

    def picture(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"passkeys-{name}.png")


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    context = browser.new_context(**DESKTOP)
    opened = Visitor(context)
    yield opened
    context.close()
    assert opened.faults == []


def accept(visitor: Visitor, link: str, name: str) -> None:
    page = visitor.page
    page.goto(link)
    expect(page.get_by_role("heading", name=f"Welcome, {name}")).to_be_visible()
    assert "#" not in page.url, "the secret is not in the history"
    visitor.picture("invited")
    page.get_by_role("button", name="Create a passkey").click()
    expect(page.get_by_role("heading", name=f"All set, {name}")).to_be_visible()
    visitor.picture("made")


class LoopbackClient:
    """A client of the Python SDK in a thread, with a port of its own to which the browser comes back."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self.addresses: queue.Queue[str] = queue.Queue()
        self._answers: queue.Queue[str] = queue.Queue()
        self.outcome: queue.Queue[Any] = queue.Queue()
        answers = self._answers

        class Callback(Handler):
            def do_GET(self) -> None:
                if self.path.startswith("/callback"):
                    answers.put(self.path)
                self.answer(200, b"<h1>You can close this window</h1>", {"Content-Type": "text/html"})

        self._site = site(Callback)
        self._thread = threading.Thread(target=self._connect, daemon=True)

    def __enter__(self) -> "LoopbackClient":
        self.callback = f"{self._site.__enter__()}/callback"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A client whose person never decides would wait for ever.
        self._answers.put("/callback?error=closed")
        self._site.__exit__(None, None, None)
        self._thread.join(HANG_SECONDS)

    def _connect(self) -> None:
        try:
            self.outcome.put(asyncio.run(self._work()))
        except BaseException as error:
            self.outcome.put(error)

    async def _work(self) -> Any:
        async def open_browser(address: str) -> None:
            self.addresses.put(address)

        async def callback() -> AuthorizationCodeResult:
            sent = parse_qs(urlsplit(await asyncio.to_thread(self._answers.get)).query)
            if "error" in sent:
                raise PermissionError(sent["error"][0])
            return AuthorizationCodeResult(code=sent["code"][0], state=sent["state"][0], iss=sent["iss"][0])

        metadata = OAuthClientMetadata.model_validate({"redirect_uris": [self.callback], "client_name": self._name})
        auth = OAuthClientProvider(self._url, metadata, Memory(), open_browser, callback)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=HANG_SECONDS) as http,
            Client(streamable_http_client(self._url, http_client=http)) as client,
        ):
            return (await client.call_tool("claude_code", {"prompt": script("Hi.", "Hello Ann.")})).structured_content


def test_from_the_invitation_to_a_client_that_works_and_the_console(served: Embedded, visitor: Visitor) -> None:
    page, link = visitor.page, served.invite("ann")
    accept(visitor, link, "ann")
    (passkey,) = visitor.passkeys()
    assert passkey["isResidentCredential"]
    with LoopbackClient(served.url, "My editor") as client:
        page.goto(client.addresses.get(timeout=HANG_SECONDS))
        expect(page.get_by_role("heading", name="Allow My editor?")).to_be_visible()
        expect(page.get_by_text(client.callback)).to_be_visible()
        visitor.picture("consent")
        page.get_by_role("button", name="Allow with your passkey").click()
        expect(page.get_by_role("heading", name="You can close this window")).to_be_visible()
        outcome = client.outcome.get(timeout=HANG_SECONDS)
        assert not isinstance(outcome, BaseException), outcome
        assert outcome["result"] == "Hello Ann."
    page.goto(f"{served.origin}/")
    page.get_by_role("button", name="Sign in with your account").click()
    expect(page.get_by_role("heading", name="Sign in to the console")).to_be_visible()
    visitor.picture("sign-in")
    page.get_by_role("button", name="Sign in with your passkey").click()
    expect(page.locator(".bar")).to_be_attached()
    expect(page.get_by_text("Hi.").first).to_be_visible()
    # The same link again, as somebody would open it who has found it.
    page.goto(link)
    expect(page.get_by_role("heading", name="This link is no longer valid")).to_be_visible()


def test_a_client_is_denied_and_its_name_is_text(served: Embedded, visitor: Visitor) -> None:
    accept(visitor, served.invite("ben"), "ben")
    page = visitor.page
    with LoopbackClient(served.url, HOSTILE) as client:
        page.goto(client.addresses.get(timeout=HANG_SECONDS))
        expect(page.get_by_role("heading", name=f"Allow {HOSTILE}?")).to_be_visible()
        assert page.evaluate("window.hit") is None
        page.get_by_role("button", name="Deny").click()
        expect(page.get_by_role("heading", name="You can close this window")).to_be_visible()
        assert "access_denied" in repr(client.outcome.get(timeout=HANG_SECONDS))


def test_person_without_a_passkey_on_the_device_can_retry(served: Embedded, visitor: Visitor) -> None:
    accept(visitor, served.invite("cleo"), "cleo")
    page = visitor.page
    visitor.refuse()
    page.goto(f"{served.origin}/sign-in")
    button = page.get_by_role("button", name="Sign in with your passkey")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Something went wrong")
    expect(button).to_be_enabled()


def test_without_scripts_a_person_can_say_no(served: Embedded, browser: Browser) -> None:
    context = browser.new_context(**PHONE, java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with LoopbackClient(served.url, "My editor") as client:
        page.goto(client.addresses.get(timeout=HANG_SECONDS))
        expect(page.get_by_text("Passkeys need JavaScript")).to_be_visible()
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SHOTS) / "passkeys-phone.png")
        page.get_by_role("button", name="Deny").click()
        expect(page.get_by_role("heading", name="You can close this window")).to_be_visible()
        assert "access_denied" in repr(client.outcome.get(timeout=HANG_SECONDS))
    context.close()


def test_no_other_page_can_frame_the_decision(served: Embedded, browser: Browser) -> None:
    context = browser.new_context(**DESKTOP)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    with LoopbackClient(served.url, "My editor") as client:
        address = client.addresses.get(timeout=HANG_SECONDS)
        page.goto(client.callback.replace("/callback", "/elsewhere"))
        page.evaluate(
            "address => new Promise((done) => { const frame = document.createElement('iframe'); frame.src = address;"
            " frame.onload = done; document.body.append(frame); })",
            address,
        )
        frame = page.frames[-1]
        assert frame.get_by_role("button", name="Allow with your passkey").count() == 0
    context.close()
