"""A session that its owner shares, on the pages of three people. Who watches is offered nothing that is refused.

What everybody spends, on the page of somebody whom the policy shows it to.
"""

import os
import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import tool
from tests.conftest import RUN
from tests.plugins.console.conftest import write_tokens

from .conftest import OpenBrowser
from .console import PHONE, Person, Site, running
from .test_messages import message, send

TOKENS = {name: secrets.token_urlsafe(32) for name in ("alice", "bob", "carol")}

POLICY = """
[profiles.treasurer]
base = "local"
costs = "everybody"

[principals]
carol = "treasurer"

[budgets.platform]
monthly_usd = 50.0
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Site]:
    sandbox = Sandbox(tmp_path_factory.mktemp("team"), model.url)
    tokens = sandbox.root / "tokens"
    write_tokens(tokens, TOKENS)
    policy = sandbox.root / "policy.toml"
    policy.write_text(POLICY)
    settings = {RUN: os.environ[RUN], "CLAUDE_CODE_MCP_TOKENS_FILE": str(tokens), "CLAUDE_CODE_MCP_POLICY": str(policy)}
    with running(Site(sandbox, sandbox.environment(**settings))) as started:
        yield started


def _share(owner: Person, name: str, access: str) -> None:
    page = owner.page
    page.locator(".menu > summary").click()
    page.get_by_role("button", name="Share…").click()
    page.get_by_label("Share with").fill(name)
    page.get_by_label("What they may do").select_option(access)
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.locator(".shares li", has_text=name)).to_be_visible()
    page.keyboard.press("Escape")


@pytest.mark.soak
def test_watcher_sees_who_decides_and_who_may_answer(open_browser: OpenBrowser, team: Site) -> None:
    alice, bob, carol = (open_browser(team).sign_in(token=TOKENS[name]) for name in TOKENS)
    asks = (tool("Bash", command="touch otter"), "Made.", tool("Bash", command="touch heron"), "Made both.")
    alice.start("Build the shop", team.project("Ready.", *asks))
    alice.says("Ready.")
    session = alice.session_id
    _share(alice, "bob", "answer")
    _share(alice, "carol", "watch")
    for person in (bob, carol):
        person.arrive(f"/sessions/{session}")
        person.says("Ready.")
    send(alice.page, "Make an otter")
    shown = carol.question("touch otter")
    expect(shown).to_contain_text("alice decides this")
    for decision in ("Allow once", "Deny"):
        expect(shown.get_by_role("button", name=decision)).to_have_count(0)
    expect(message(carol.page)).to_be_hidden()
    expect(carol.page.get_by_role("button", name="Edit this message")).to_have_count(0)
    expect(carol.page.locator(".sessions section", has_text="Needs you")).to_be_hidden()
    expect(bob.page.locator(".sessions section", has_text="Needs you")).to_be_visible()
    # What carol may do changes while the question is open.
    _share(alice, "carol", "answer")
    expect(shown.get_by_role("button", name="Deny", exact=True)).to_be_visible()
    expect(message(carol.page)).to_be_visible()
    _share(alice, "carol", "watch")
    expect(shown.get_by_role("button", name="Deny", exact=True)).to_have_count(0)
    expect(message(carol.page)).to_be_hidden()
    bob.question("touch otter").get_by_role("button", name="Allow once").click()
    for person in (alice, carol):
        person.says("Made.")
        expect(person.page.locator("details.tool", has_text="touch otter")).to_contain_text("allowed by bob")
    send(bob.page, "And a heron")
    alice.question("touch heron").get_by_role("button", name="Deny", exact=True).click()
    bob.says("Made both.")
    expect(bob.page.locator("details.tool", has_text="touch heron")).to_contain_text("denied by alice")
    # On a phone there is room for the name, and for whose session it is.
    small, watching = (open_browser(team, **PHONE).sign_in(token=TOKENS[name]) for name in ("alice", "carol"))
    small.arrive(f"/sessions/{session}").says("Made both.")
    fits = "(heading) => heading.scrollWidth <= heading.clientWidth"
    assert small.page.locator(".view-head h1").evaluate(fits)
    watching.arrive(f"/sessions/{session}")
    whose = watching.page.get_by_text("You are watching. alice has shared this session with you.")
    expect(whose).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_who_the_policy_shows_it_to_sees_what_everybody_spends_and_others_only_their_own(
    open_browser: OpenBrowser, team: Site, scheme: str
) -> None:
    # As another server on the same state would have written it.
    others = Spending(database_in(team.sandbox.root / "state"), groups_of=lambda _: ["platform"])
    others.write(others.note("dave", 45.0, scheme))
    size = PHONE if scheme == "dark" else {}
    carol, bob = (
        open_browser(team, color_scheme=scheme, **size).sign_in(token=TOKENS[name]) for name in ("carol", "bob")
    )
    carol.arrive("/costs")
    carol.page.get_by_label("Of").select_option("everybody")
    table = carol.page.get_by_role("table")
    expect(table.get_by_role("row", name="dave")).to_contain_text("$")
    expect(carol.page.get_by_role("alert")).to_contain_text(
        "of the budget of the group platform for this month is spent"
    )
    for way, words in (("person and day", "dave"), ("group and month", "platform · dave")):
        carol.page.get_by_label("by", exact=True).select_option(way)
        expect(table.get_by_role("columnheader", name=way)).to_be_visible()
        expect(table.get_by_role("row", name=words)).to_be_visible()
    assert carol.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bob.arrive("/costs")
    expect(bob.page.get_by_label("By", exact=True)).to_be_visible()
    expect(bob.page.get_by_label("Of")).to_have_count(0)
    expect(bob.page.get_by_text("dave")).to_have_count(0)
