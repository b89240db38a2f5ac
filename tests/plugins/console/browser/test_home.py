"""What a person meets first: who needs them, with the buttons in place, and a new session with all that is its own."""

import math
import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Route, expect

from claude_code_mcp.testing.script import ask_user, parallel, text, tool
from tests.support.repositories import repository
from tests.support.waiting import until

from .conftest import OpenBrowser
from .console import PATIENCE, PHONE, Caller, Person, Site, read_on, write_script
from .test_messages import png


def begin(site: Site, prompt: str, directory: Any) -> str:
    """A session that nobody has looked at."""
    session: str = Caller(site).post("/api/sessions", {"prompt": prompt, "workingDirectory": str(directory)})[
        "sessionId"
    ]
    return session


def test_what_waits_is_answered_on_the_home_screen_and_the_rest_is_a_press_away(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person = open_browser(storage_state=signed_in).arrive()
    page = person.page
    begin(site, "Buy a parrot", site.project(tool("Bash", command="touch parrot"), "Bought."))
    other = begin(site, "Choose a color", site.project(ask_user("Which color?", "red", "blue"), "Chosen."))
    asked = page.locator(".home .question", has_text="touch parrot")
    expect(asked).to_be_visible()
    expect(page.locator(".home .question", has_text="Which color?")).to_be_visible()
    page.goto(f"{site.url}/#/costs")
    expect(page.locator(".bar .needs-pill")).to_contain_text("need you")
    page.goto(f"{site.url}/#/")
    read_on(asked)
    asked.get_by_role("button", name="Allow once").click()
    expect(asked).to_have_count(0)
    done = page.locator(".home-part", has_text="Finished today").get_by_role("link", name="Buy a parrot")
    expect(done).to_be_visible()
    # From a session that needs nobody, the next one that does is one press away.
    done.click()
    person.says("Bought.")
    page.locator(".view-head .needs-pill").click()
    page.wait_for_url(lambda url: other in url or "/sessions/" in url, timeout=PATIENCE)
    page.goto(f"{site.url}/#/sessions/{other}")
    person.question("Which color?").get_by_role("radio", name="blue").check()
    person.question("Which color?").get_by_role("button", name="Send answer").click()
    person.says("Chosen.")


def test_a_key_answers_only_the_question_that_has_the_focus(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    page = open_browser(storage_state=signed_in, viewport={"width": 1280, "height": 2000}).arrive().page
    wanted = ["touch one-by-key", "touch two-by-key"]
    for command in wanted:
        begin(site, command, site.project(tool("Bash", command=command), f"Answered: {command}."))
    first, second = (page.locator(".home .question", has_text=command) for command in wanted)
    expect(first).to_be_in_viewport(ratio=1)
    expect(second).to_be_in_viewport(ratio=1)
    page.wait_for_timeout(1000)  # a key does nothing in the first moments of a question
    page.keyboard.press("d")
    expect(page.locator(".home .question :focus")).to_have_count(1)
    expect(first).to_have_count(1)
    expect(second).to_have_count(1)
    second.get_by_role("heading").first.focus()
    page.keyboard.press("d")
    expect(second).to_have_count(0)
    expect(first).to_have_count(1)
    page.goto(f"{site.url}/#/costs")
    expect(page.locator(".bar .needs-pill")).to_be_visible()
    page.keyboard.press("j")
    page.wait_for_url("**/sessions/**")
    page.goto(f"{site.url}/#/")
    first.get_by_role("button", name="Deny", exact=True).click()
    expect(first).to_have_count(0)


def test_what_was_finished_today_says_how_much_it_changed(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    directory = site.project()
    steps = [tool("Write", file_path=str(directory / name), content="one\ntwo\n") for name in ("a.py", "b.py")]
    write_script(directory, *steps, "Written.")
    options = {"workingDirectory": str(directory), "permissionMode": "acceptEdits"}
    page = open_browser(storage_state=signed_in).arrive().page
    Caller(site).post("/api/sessions", {"prompt": "Write both files", **options})
    line = page.locator(".home-part", has_text="Finished today").locator("li", has_text="Write both files")
    changes = line.get_by_role("link", name="Changes 4 lines added, 0 lines removed")
    expect(changes).to_be_visible()
    expect(changes.locator(".plus")).to_have_text("+4")
    changes.click()
    expect(page.locator(".file-tree .path")).to_have_text(["a.py", "b.py"])


def test_a_session_is_started_with_a_picture_and_a_completed_file_in_a_worktree(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    source = repository(site.sandbox.root / "with-worktree")
    (source / "greeting.py").write_text("print('hello')\n")
    write_script(source, "Begun.", "Seen.")
    begin(site, "Know the files", source)
    person = open_browser(storage_state=signed_in).arrive("/new")
    page = person.page
    page.get_by_label("Directory").fill(str(source))
    task = page.get_by_label("Task")
    expect(page.get_by_role("link", name="Know the files")).to_be_visible()
    task.press_sequentially("Look at @greet")
    expect(page.get_by_role("option", name="@greeting.py")).to_be_visible()
    page.keyboard.press("Enter")
    expect(task).to_have_value("Look at @greeting.py ")
    shot: FilePayload = {"name": "shot.png", "mimeType": "image/png", "buffer": png(200)}
    page.locator(".composer input[type=file]").set_input_files([shot])
    expect(page.locator(".attachment img")).to_be_visible()
    page.get_by_label("In a new worktree and branch").check()
    modes = page.get_by_label("Permissions").locator("option").evaluate_all("(all) => all.map((one) => one.value)")
    usable = Caller(site).get("/api/me")["modes"]
    assert modes == usable
    page.get_by_role("button", name="Start").click()
    expect(page.locator(".conversation .prompt")).to_have_text("Look at @greeting.py")
    expect(page.locator(".sent-pictures")).to_be_visible()
    session = Caller(site).get(f"/api/sessions/{person.session_id}")["session"]
    assert session["directory"] != str(source), "it works in a worktree"
    # Nothing of it is left for the next one.
    page.goto(f"{site.url}/#/new")
    expect(page.get_by_label("Task")).to_have_value("")
    expect(page.locator(".attachment")).to_have_count(0)


def test_a_directory_is_chosen_on_a_phone_without_typing(
    open_browser: OpenBrowser, site: Site, signed_in: Any, axe: str
) -> None:
    used = site.project("Begun.", name="used-before")
    begin(site, "Use it", used)
    place = site.sandbox.root / "many"
    names = [f"project {number:03}" for number in range(230)]
    hostile = "<img src=x onerror=window.hit=1>\u202efdp."
    for name in (*names, f"a {hostile}"):
        (place / name).mkdir(parents=True)
    person = open_browser(storage_state=signed_in, **{**PHONE, "viewport": {"width": 320, "height": 640}})
    page = person.arrive("/new").page
    field = page.get_by_label("Directory")
    page.get_by_role("button", name="Choose…").tap()
    chooser = page.locator(".directories")
    chooser.get_by_role("button", name=str(used), exact=True).tap()
    expect(field).to_have_value(str(used))
    expect(chooser).to_have_count(0)
    # Below the directories that the policy allows, as deep as somebody goes.
    page.get_by_role("button", name="Choose…").tap()
    page.route(
        re.compile(r"/api/directories\??$"), lambda route: route.fulfill(json={"recent": [], "roots": [str(place)]})
    )
    page.get_by_role("button", name="Choose…").tap()
    page.get_by_role("button", name="Choose…").tap()
    chooser.get_by_role("button", name=str(place)).tap()
    shown = chooser.get_by_role("listitem")
    expect(shown).to_have_count(200)
    expect(shown.first).to_contain_text("a <img src=x onerror=window.hit=1>⟨U+202E⟩fdp.")
    expect(chooser).to_contain_text("Not all are shown")
    page.evaluate(axe)
    assert page.evaluate("axe.run().then(result => result.violations.map(one => one.id))") == []
    excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert excess == 0
    chooser.get_by_role("searchbox", name="Filter by name").fill("ct 229")
    expect(shown).to_have_count(1)
    shown.first.get_by_role("button").tap()
    expect(chooser.get_by_role("heading")).to_have_text(str(place / names[229]))
    chooser.get_by_role("button", name="Use this directory").tap()
    expect(field).to_have_value(str(place / names[229]))
    assert page.evaluate("window.hit") is None


@pytest.mark.soak
def test_a_small_screen_says_on_every_page_who_waits_and_cuts_no_line_of_a_session(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    directory = site.project(tool("Bash", command="touch newt"), name="a-directory-with-a-name-wider-than-a-phone")
    session = begin(site, "Choose a newt", directory)
    person = open_browser(storage_state=signed_in, **{**PHONE, "viewport": {"width": 844, "height": 390}}).arrive()
    page = person.page
    for route in ("/new", "/costs", "/settings"):
        page.goto(f"{site.url}/#{route}")
        expect(page.locator(".view-head .needs-pill, .bar .needs-pill").filter(visible=True)).to_contain_text("need")
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto(f"{site.url}/#/")
    row = page.locator(f'.sessions [data-key="{session}"]')
    expect(row.locator(".cost")).to_be_visible()
    assert row.locator(".row-foot").evaluate("(foot) => foot.scrollWidth <= foot.clientWidth")
    [asked] = Caller(site).get(f"/api/sessions/{session}")["questions"]
    Caller(site).post(f"/api/sessions/{session}/questions/{asked['questionId']}", {"decision": "deny"})


def test_a_phone_says_in_a_conversation_that_it_is_offline_and_takes_that_back(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person = open_browser(storage_state=signed_in, **PHONE).arrive()
    person.start("Count", site.project("One.", tool("Bash", command="touch here"), "Two."))
    person.says("One.")
    page = person.page
    person.context.set_offline(True)
    activity = page.locator(".activity")
    expect(activity).to_contain_text("Offline")
    expect(activity).to_be_in_viewport()
    page.get_by_label("Message", exact=True).fill("And on?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".composer .problem")).to_contain_text("cannot be reached")
    person.context.set_offline(False)
    expect(page.locator(".composer .problem")).to_have_count(0)
    expect(activity).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value("And on?")
    page.get_by_role("button", name="Send", exact=True).click()
    asked = person.question("touch here")
    read_on(asked)
    person.context.set_offline(True)
    expect(activity).to_contain_text("Offline")
    asked.get_by_role("button", name="Allow once").click()
    problem = asked.get_by_role("alert")
    expect(problem).to_contain_text("cannot be reached")
    expect(problem).to_be_in_viewport(ratio=1)
    person.context.set_offline(False)
    expect(asked).to_contain_text("This question is still open.")
    expect(problem).to_have_count(0)
    asked.get_by_role("button", name="Allow once").click()
    person.says("Two.")


def test_current_activity_is_shown_with_its_time(person: Person, site: Site) -> None:
    wait = tool("Bash", command="sleep 3", description="Wait for the tide")
    body = {"prompt": "Wait", "workingDirectory": str(site.project(wait, text("Over."))), "allowedTools": ["Bash"]}
    session = Caller(site).post("/api/sessions", body)["sessionId"]
    person.arrive(f"/sessions/{session}")
    activity = person.page.locator(".activity[data-state=working]")
    expect(activity.locator(".facts")).to_contain_text(" s")
    person.says("Over.")
    expect(person.page.locator(".activity")).to_have_count(0)


def said_on_disk(site: Site, word: str) -> None:
    """Waits until the server finds a word in a conversation: Claude Code writes shortly after it speaks."""
    until(lambda: Caller(site).get(f"/api/sessions?text={word}&whole=1")["sessions"])


def test_a_word_that_was_said_is_found_without_another_press(person: Person, site: Site) -> None:
    person.start("A question of birds", site.project("The capercaillie is one."))
    person.says("capercaillie")
    said_on_disk(site, "capercaillie")
    page = person.page
    page.goto(f"{site.url}/#/")
    page.get_by_role("searchbox", name="Search sessions").fill("capercaillie")
    said = page.locator(".sessions section", has_text="Found in conversations")
    expect(said.get_by_role("link", name="A question of birds")).to_be_visible()
    page.get_by_role("searchbox", name="Search sessions").fill("")


@pytest.mark.soak
def test_a_search_is_repeated_when_a_turn_has_ended(person: Person, site: Site) -> None:
    page = person.page
    page.get_by_role("searchbox", name="Search sessions").fill("ptarmigan")
    expect(page.locator(".sessions")).to_contain_text("Nothing found")
    answer = parallel("The ptarmigan is one.", tool("Bash", command="touch bird"))
    session = begin(site, "Another question of birds", site.project(answer, "Done."))
    said_on_disk(site, "ptarmigan")
    place = f"/api/sessions/{session}"
    until(lambda: Caller(site).get(place)["questions"])
    [asked] = Caller(site).get(place)["questions"]
    Caller(site).post(f"{place}/questions/{asked['questionId']}", {"decision": "deny"})
    said = page.locator(".sessions section", has_text="Found in conversations")
    expect(said.get_by_role("link", name="Another question of birds")).to_be_visible()
    page.get_by_role("searchbox", name="Search sessions").fill("")


@pytest.mark.parametrize("scheme", ["light"])
def test_costs_start_with_the_newest_day_and_zero_has_no_bar(person: Person, site: Site, scheme: str) -> None:
    days = [{"name": "2026-11-01", "usd": 1.0}, {"name": "2026-11-02", "usd": 0.0}, {"name": "2026-11-03", "usd": 2.0}]
    report = {"by": "day", "lines": days, "total": {"usd": 3.0}}
    person.page.route("**/api/costs?*", lambda route: route.fulfill(json=report))
    person.page.goto(f"{site.url}/#/costs")
    rows = person.page.locator(".figures tbody tr")
    expect(rows.locator("th")).to_have_text(["2026-11-03", "2026-11-02", "2026-11-01"])
    expect(rows.nth(1).locator(".bar")).to_have_count(0)
    expect(rows.nth(0)).to_be_hidden()
    person.page.get_by_text("Show as table").click()
    expect(rows.nth(0)).to_be_visible()
    expect(person.page.get_by_role("img", name="Costs by day")).to_be_visible()
    person.page.unroute("**/api/costs?*")


def test_costs_are_bars_of_parts_with_a_legend_and_the_line_of_the_budget(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    """In a fleet each machine has its own line for a day: they are one bar."""
    person = open_browser(storage_state=signed_in).arrive()
    page, today = person.page, datetime.now(UTC).date()
    before = (today - timedelta(days=1)).isoformat()
    lines = [
        {"name": before, "usd": 3.0, "parts": {"opus": 2.0, "haiku": 1.0}, "machine": "one"},
        {"name": before, "usd": 1.0, "parts": {"haiku": 0.5, "other": 0.5}, "machine": "two"},
        {"name": today.isoformat(), "usd": 1.0, "parts": {"opus": 1.0}},
    ]
    budgets = [
        {"period": "day", "limitUsd": 5, "spentUsd": 1.0},
        {"period": "month", "limitUsd": 9000, "spentUsd": 5.0},
    ]
    asked: list[str] = []

    def costs(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"by": "day", "lines": lines, "total": {"usd": 5.0}, "budgets": budgets})

    page.route("**/api/costs?*", costs)
    page.goto(f"{site.url}/#/costs")
    picture = page.get_by_role("img", name="Costs by day and model")
    words = f"{before}: $4.00 (opus $2.00, haiku $1.50, other $0.50); {today}: $1.00 (opus $1.00)"
    expect(picture).to_have_attribute("aria-label", f"Costs by day and model: {words}. Budget for a day: $5.00")
    legend = page.get_by_role("list", name="Legend").get_by_role("listitem")
    expect(legend).to_have_text(["opus $3.00", "haiku $1.50", "other $0.50", "Budget for a day: $5.00"])
    heights = {
        bar.locator("title").text_content(): float(bar.get_attribute("height") or 0)
        for bar in picture.locator("rect").all()
    }
    assert heights[f"{before}, opus: $2.00"] == pytest.approx(2 * heights[f"{today}, opus: $1.00"])
    assert heights[f"{before}, haiku: $1.50"] == pytest.approx(3 * heights[f"{before}, other: $0.50"])
    top = min(float(bar.get_attribute("y") or 0) for bar in picture.locator("rect").all())
    first = re.match(r"M0 ([\d.]+)H10", picture.locator(".limit-line").get_attribute("d") or "")
    assert first is not None
    assert float(first[1]) < top, "the budget is above what was spent"
    page.get_by_label("split by").select_option("project")
    expect(page.get_by_role("img", name="Costs by day and project")).to_be_visible()
    assert ["split=model" in asked[0], "split=project" in asked[-1]] == [True, True]
    # A budget that would make all bars invisible is said, not drawn.
    page.get_by_label("By", exact=True).select_option("month")
    lines[:] = [{"name": f"{today:%Y-%m}", "usd": 5.0, "parts": {"opus": 5.0}}]
    page.get_by_label("split by").select_option("model")
    expect(legend).to_have_text(["opus $5.00", "Budget for a month: $9000.00, too high for this chart"])
    expect(page.locator(".limit-line")).to_have_count(0)
    # A budget of another period is drawn for its share.
    budgets[:] = [{"period": "day", "limitUsd": 0.2, "spentUsd": 0.1}]
    page.get_by_label("split by").select_option("project")
    share = 0.2 * monthrange(today.year, today.month)[1]
    expect(legend.last).to_have_text(f"Budget for a day, for each day of a month: ${share:.2f}")
    expect(page.locator(".limit-line")).to_be_attached()
    page.get_by_label("By", exact=True).select_option("project")
    expect(page.get_by_label("split by")).to_have_count(0)
    expect(page.locator(".figures")).to_be_visible()


def test_the_head_shows_how_full_the_context_is_as_a_ring_that_says_it(person: Person, site: Site) -> None:
    person.start("Fill the context", site.project("Filled."))
    person.says("Filled.")
    ring = person.page.locator(".view-head").get_by_role("img", name=re.compile(r"^context (<?\d+) %, \d+k? tokens$"))
    expect(ring).to_be_visible()
    drawn = float((ring.locator(".ring-part").get_attribute("stroke-dasharray") or "").split()[0])
    tokens, window = Caller(site).get(f"/api/sessions/{person.session_id}")["session"]["context"]
    assert drawn == pytest.approx(2 * math.pi * 6 * tokens / window)
