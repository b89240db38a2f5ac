"""The server and the browsers of these tests: one server on a port of its own, and pages that are signed in."""

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, BrowserType, Dialog, Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import MARKER, Step
from tests.support.ports import free_port
from tests.support.program import http_server
from tests.support.waiting import HANG_SECONDS

from .chromium import Chromium

PATIENCE = int(HANG_SECONDS * 1000)
"""Milliseconds after which something that must happen counts as not happening, on however busy a machine."""
PRESS_AGAIN = 3000
"""Milliseconds after which a button is looked for again before it is pressed."""
TOKEN = "a-token-for-the-tests-of-the-console"
PHONE: dict[str, Any] = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
expect.set_options(timeout=PATIENCE)
_DRAWN = """() => new Promise((done) => {
    const draw = (frames) => (frames ? requestAnimationFrame(() => draw(frames - 1)) : setTimeout(done));
    draw(3);
})"""
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def launch(browser_type: BrowserType, chromium: Chromium) -> Browser:
    environment: dict[str, str | float | bool] = {**os.environ, **chromium.environment}
    return browser_type.launch(executable_path=chromium.executable, args=_FLAGS, env=environment)


class Site:
    """A server of the product, with a home and projects of its own."""

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str]) -> None:
        self.sandbox = sandbox
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {
            "CLAUDE_CODE_MCP_PROFILE": "local",
            "CLAUDE_CODE_MCP_TOKEN": TOKEN,
            "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state"),
            **environment,
        }
        self._running: ExitStack | None = None
        self._projects = 0

    def start(self) -> None:
        address = f"127.0.0.1:{self.port}"
        self._running = ExitStack()
        self._server = self._running.enter_context(http_server(self._environment, self.sandbox.project, address))

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self._running is not None
        self._server.process.send_signal(number)
        self._running.close()
        self._running = None

    def project(self, *steps: Step, name: str = "shop") -> Path:
        """A directory whose CLAUDE.md has the script, so that prompts are as people write them."""
        self._projects += 1
        directory = self.sandbox.root / f"p{self._projects}" / name
        directory.mkdir(parents=True)
        write_script(directory, *steps)
        return directory

    def ticket(self) -> str:
        """A link with a one-time ticket."""
        address: str = Caller(self).post("/api/tickets", {})["url"]
        return address


def write_script(directory: Path, *steps: Step) -> None:
    """What the model answers in sessions of this directory, one step for each request."""
    (directory / "CLAUDE.md").write_text(f"{MARKER}{json.dumps(steps)}\n", encoding="utf-8")


@contextmanager
def running(site: Site) -> Iterator[Site]:
    site.start()
    try:
        yield site
    finally:
        site.stop()


class Person:
    """Somebody at a browser."""

    def __init__(self, context: BrowserContext, site: Site) -> None:
        self.context = context
        self.site = site
        self.page: Page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.faults: list[str] = []
        """What scripts of the page have thrown, and what its policy has refused."""
        self.page.on("pageerror", lambda error: self.faults.append(f"{error}"))
        self.page.on("console", lambda message: self._told(message.type, message.text))
        self.page.on("dialog", self._asked)

    def _asked(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _told(self, kind: str, text: str) -> None:
        refused = "Content Security Policy" in text or "Trusted" in text
        if refused or (kind == "error" and "Failed to load resource" not in text and "ERR_" not in text):
            self.faults.append(text)

    def sign_in(self, route: str = "/", token: str = TOKEN) -> "Person":
        """By the token, which is the quickest."""
        self.page.goto(f"{self.site.url}/#{route}")
        self.page.get_by_label("Or sign in with a token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator(".bar")).to_be_attached()
        return self

    def arrive(self, route: str = "/") -> "Person":
        """With a sign-in from before."""
        self.page.goto(f"{self.site.url}/#{route}")
        expect(self.page.locator(".bar")).to_be_attached()
        return self

    def start(self, prompt: str, directory: Path, mode: str = "default") -> None:
        """A new session by the form; returns when its page is shown."""
        page = self.page
        page.goto(f"{self.site.url}/#/new")
        page.get_by_label("Task").fill(prompt)
        page.get_by_label("Directory").fill(str(directory))
        page.get_by_label("Permissions").select_option(mode)
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".conversation")).to_be_visible()

    @property
    def session_id(self) -> str:
        return self.page.url.split("/sessions/")[1].split("/")[0]

    def says(self, text: str) -> None:
        """Claude has said this, whole."""
        expect(self.page.locator(".said:not(.writing)", has_text=text).last).to_be_visible()

    def question(self, words: str = "") -> Any:
        found = self.page.locator(".question:not(.closed, .unanswered)", has_text=words)
        expect(found).to_be_visible()
        return found


def changes_of(person: Person, files: int = 1, words: str = "") -> Locator:
    """The changed files on the page of changes. Claude Code writes its transcript a moment after it has said something,
    so the page is opened again until it has this many of them, and these words."""
    page = person.page
    changed = page.locator(".changes details.tool")
    while True:
        page.get_by_role("link", name="Changes").click()
        expect(changed.or_(page.get_by_text("Nothing was changed.")).first).to_be_visible()
        if changed.count() == files and changed.filter(has_text=words).count():
            return changed
        page.get_by_role("link", name="Back to the session").click()


def read_on(asked: Locator, look: Callable[[], bool] = lambda: True) -> list[bool]:
    """Presses what leads to the end of a question until all of it was on screen; what `look` returned after each."""
    more = asked.locator(".lines-left")
    expect(more.or_(asked.locator(".allow"))).to_be_visible()
    seen = []
    while more.count():
        try:
            more.click(timeout=PRESS_AGAIN)
        except PlaywrightTimeout:
            continue  # it went away meanwhile: everything was on screen once the page was drawn
        asked.page.evaluate(_DRAWN)  # the buttons follow what is on screen
        seen.append(look())
    return seen


class Caller:
    """A program of the same person, at the routes of the console."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def post(self, path: str, body: Any) -> Any:
        return self._send(path, json.dumps(body).encode())

    def get(self, path: str) -> Any:
        return self._send(path, None)

    def delete(self, path: str) -> Any:
        return self._send(path, None, "DELETE")

    def _send(self, path: str, body: bytes | None, method: str | None = None) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._site.url}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE / 1000) as response:
            return json.loads(response.read())
