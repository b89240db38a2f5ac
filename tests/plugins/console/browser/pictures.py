"""Takes the pictures of the documentation, on the real CLI: `python -m tests.plugins.console.browser.pictures`."""

import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import parallel, plan, text, tool

from .chromium import find_chromium
from .console import DESKTOP, PHONE, Person, Site, launch, read_on, running, write_script

PLACE = Path(__file__).parents[4] / "docs" / "pictures"
SETTLED = 900
"""Milliseconds in which the list has caught up."""
CODE = """import time


class Session:
    def __init__(self, token, expires_at):
        self.token = token
        self.expires_at = expires_at

    def is_valid(self):
        return self.expires_at > time.time()
"""
OLD = """    def is_valid(self):
        return self.expires_at > time.time()
"""
NEW = """    def is_valid(self, margin=30):
        return self.expires_at - margin > time.time()
"""
FOUND = """The sign-in fails because **the token expires** while the request is under way:

1. `is_valid()` compares with the clock at the last second
2. nothing renews a token that is about to end

I will check with a margin."""
PLAN = """# Move orders to Postgres

1. Add a migration for `orders` and `order_lines`
2. Write to both databases for a week, compare every night
3. Read from Postgres, switch the old tables off

No downtime; each step can be taken back on its own.
"""


def take(site: Site, browser: Browser) -> None:
    """A desk with a plan to approve, a phone with an edit to approve, and a review of it."""
    desk = Person(browser.new_context(**DESKTOP), site).sign_in()
    desk.start("Rename the helper module", site.project("Renamed, with 14 imports.", name="src/docs"))
    desk.says("Renamed")
    working = site.project(text("word " * 300, chunks=300, interval=1), name="src/api")
    desk.start("Summarize the API changes of last week", working)
    shop = site.project(name="src/shop")
    file = shop / "auth.py"
    file.write_text(CODE)
    read = parallel(text(FOUND), tool("Read", file_path=str(file)))
    write_script(shop, read, tool("Edit", file_path=str(file), old_string=OLD, new_string=NEW), "Done.")
    desk.start("The sign-in fails now and then. Find out why.", shop)
    desk.question("Edit")
    session = desk.session_id
    desk.start("Plan the move of orders to Postgres", site.project(plan(PLAN), name="src/warehouse"), mode="plan")
    desk.question("Postgres")
    desk.page.wait_for_timeout(SETTLED)
    desk.page.screenshot(path=PLACE / "console-desktop.png")
    phone = Person(browser.new_context(**PHONE, color_scheme="dark"), site).sign_in()
    phone.page.goto(f"{site.url}/#/sessions/{session}")
    phone.question("Edit")
    phone.page.wait_for_timeout(SETTLED)
    phone.page.screenshot(path=PLACE / "console-phone.png")
    read_on(phone.question("Edit"))
    phone.question("Edit").get_by_role("button", name="Allow once").click()
    phone.says("Done.")
    _review(desk, session)


def _review(desk: Person, session: str) -> None:
    """What was changed, with a comment on a line of it."""
    page = desk.page
    page.goto(f"{desk.site.url}/#/sessions/{session}")
    desk.says("Done.")
    page.wait_for_timeout(SETTLED)
    page.get_by_role("link", name="Changes", exact=True).click()
    page.get_by_role("button", name="Comment on line 9", exact=True).click()
    page.get_by_role("textbox", name="Comment on auth.py:9").fill("Take the margin from the settings, please.")
    page.wait_for_timeout(SETTLED)
    page.screenshot(path=PLACE / "console-review.png")


def main() -> None:
    chromium = find_chromium()
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root, ScriptedModelThread() as model, sync_playwright() as playwright:
        sandbox = Sandbox(Path(root), model.url)
        with running(Site(sandbox, sandbox.environment())) as site:
            browser = launch(playwright.chromium, chromium)
            take(site, browser)
            browser.close()


if __name__ == "__main__":
    main()
