"""One browser and one server for all of these tests. They are plain functions: Playwright's own loop runs meanwhile."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support import npm

from .chromium import Chromium, find_chromium, find_complete_chromium
from .console import DESKTOP, Person, Site, launch, running

HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def chromium() -> Chromium:
    try:
        return find_chromium()
    except npm.Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package")
def browser(chromium: Chromium) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = launch(playwright.chromium, chromium)
        yield started
        started.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Site]:
    sandbox = Sandbox(tmp_path_factory.mktemp("console"), model.url)
    settings = {RUN: os.environ[RUN], "CLAUDE_CODE_MCP_PUSH_PRIVATE": "default"}
    with running(Site(sandbox, sandbox.environment(**settings))) as started:
        yield started


class Desk:
    """The browser of somebody who is signed in, at a desk: to open one takes longer than most tests. It is left as it
    is for the next test, and opened anew after one that failed."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self._browser, self._site = browser, site
        self._person: Person | None = None

    def person(self) -> Person:
        if self._person is None:
            self._person = Person(self._browser.new_context(**DESKTOP), self._site).sign_in()
        return self._person

    def close(self) -> None:
        if self._person is not None:
            self._person.context.close()
        self._person = None


@pytest.fixture(scope="package")
def desk(browser: Browser, site: Site) -> Iterator[Desk]:
    opened = Desk(browser, site)
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def signed_in(desk: Desk) -> Any:
    """What a browser keeps of a sign-in: most tests are not about signing in."""
    return desk.person().context.storage_state()


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture
def person(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Person]:
    """Somebody who is signed in, at a desk; what went wrong in the browser fails the test. A test that changes more
    than the page, such as what may be shown or what is installed, opens a browser of its own."""
    person = desk.person().arrive()
    yield person
    faults, person.faults = person.faults, []
    if faults or request.node.stash.get(_FAILED, False):
        desk.close()
    assert faults == []


OpenBrowser = Callable[..., Person]


@contextmanager
def opening(browser: Browser, site: Site) -> Iterator[OpenBrowser]:
    people: list[Person] = []

    def start(at: Site | None = None, **options: Any) -> Person:
        person = Person(browser.new_context(**{**DESKTOP, **options}), at or site)
        people.append(person)
        return person

    yield start
    for person in people:
        person.context.close()
    assert [fault for person in people for fault in person.faults] == []


@pytest.fixture
def open_browser(browser: Browser, site: Site) -> Iterator[OpenBrowser]:
    """Opens browsers of people who have nothing to do with each other; what went wrong in one fails the test."""
    with opening(browser, site) as start:
        yield start


@pytest.fixture
def open_complete_browser(browser: Browser, site: Site) -> Iterator[OpenBrowser]:
    """The same with a complete Chromium, which has notifications."""
    try:
        chromium = find_complete_chromium()
    except npm.Unavailable as error:
        pytest.skip(str(error))
    with launch(browser.browser_type, chromium) as started, opening(started, site) as start:
        yield start


@pytest.fixture(scope="session")
def axe() -> str:
    """The program of axe-core."""
    place = npm.BUILD / "web-checks"
    try:
        npm.install(HERE / "package.json", place)
    except npm.Unavailable as error:
        pytest.skip(f"axe cannot be had here: {error}")
    return (place / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
