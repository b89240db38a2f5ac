"""One browser and one server for all of these tests. They are plain functions: Playwright's own loop runs meanwhile."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support import npm

from .console import DESKTOP, Person, Site, find_chromium, launch, running

HERE = Path(__file__).parent


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("there is no Chromium here; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        started = launch(playwright, executable)
        yield started
        started.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Site]:
    sandbox = Sandbox(tmp_path_factory.mktemp("console"), model.url)
    settings = {RUN: os.environ[RUN], "CLAUDE_CODE_MCP_PUSH_PRIVATE": "default"}
    with running(Site(sandbox, sandbox.environment(**settings))) as started:
        yield started


@pytest.fixture(scope="package")
def signed_in(browser: Browser, site: Site) -> Any:
    """What a browser keeps of a sign-in: most tests are not about signing in."""
    context = browser.new_context()
    Person(context, site).sign_in()
    state = context.storage_state()
    context.close()
    return state


OpenBrowser = Callable[..., Person]


@pytest.fixture
def open_browser(browser: Browser, site: Site) -> Iterator[OpenBrowser]:
    """Opens browsers of people who have nothing to do with each other; what went wrong in one fails the test."""
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
def person(open_browser: OpenBrowser, signed_in: Any) -> Person:
    """Somebody who is signed in, at a desk."""
    return open_browser(storage_state=signed_in).arrive()


@pytest.fixture(scope="session")
def axe() -> str:
    """The program of axe-core."""
    place = npm.BUILD / "web-checks"
    try:
        npm.install(HERE / "package.json", place)
    except npm.Unavailable as error:
        pytest.skip(f"axe cannot be had here: {error}")
    return (place / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
