"""The page itself: its size, its policy, its build, who can use it."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from claude_code_mcp.testing.script import ask_user, text, tool
from tests.support import npm

from .conftest import OpenBrowser
from .console import PHONE, Person, Site, changes_of, write_script
from .notifications import PushService

ROOT = Path(__file__).parents[4]
PACKAGE = ROOT / "src" / "claude_code_mcp"
BUILT = (
    "plugins/console/static/index.html",
    "plugins/console/static/sw.js",
    "plugins/console/static/highlighter.js",
    "plugins/console/static/licenses.txt",
    "plugins/console/static/manifest.webmanifest",
    "plugins/console/static/icon.svg",
    "plugins/console/static/icon-192.png",
    "plugins/console/static/icon-512.png",
    "server/app.html",
)
COLD_LOAD = 110_000


def test_the_shipped_pages_are_what_the_sources_build(tmp_path: Path) -> None:
    modules = npm.BUILD / "web"
    try:
        npm.install(ROOT / "web" / "package.json", modules)
    except npm.Unavailable as error:
        pytest.skip(f"the pages cannot be built here: {error}")
    node = shutil.which("node")
    assert node is not None
    subprocess.run([modules / "node_modules" / ".bin" / "tsc", "-p", ROOT / "web"], check=True)
    subprocess.run([node, ROOT / "web" / "build.mjs", tmp_path, modules], check=True)
    different = [name for name in BUILT if (tmp_path / name).read_bytes() != (PACKAGE / name).read_bytes()]
    assert different == [], "run `make web`"


@pytest.mark.parametrize("name", ["plugins/console/static/index.html", "server/app.html"])
def test_a_page_needs_nothing_from_elsewhere_and_takes_no_markup(name: str) -> None:
    page = (PACKAGE / name).read_text(encoding="utf-8")
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
    assert [word for word in markup if word in page] == []
    styles = page.split("<style>")[1].split("</style>")[0]
    assert [word for word in ("@import", "url(") if word in styles] == []
    addresses = {part.split('"')[0].split("'")[0] for part in page.split("://")[1:]}
    # Of `marked`: the address in a message that nobody sees, and parts of patterns.
    known = {"www.w3.org", "", "…", "github.com", "\\/\\", "\\S+$", "\\/"}
    assert {address.split("/")[0] for address in addresses} <= known, addresses


def test_wheel_and_source_distribution_contain_the_pages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and "No module named" in done.stderr:
        pytest.skip("hatchling is not installed here")
    assert done.returncode == 0, done.stderr
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        for name in BUILT:
            assert archive.read(f"claude_code_mcp/{name}") == (PACKAGE / name).read_bytes()
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/claude_code_mcp/{name}" for name in BUILT} | {"web/build.mjs", "web/src/main.tsx"} <= names


def test_a_cold_load_transfers_little(open_browser: OpenBrowser, site: Site) -> None:
    person = open_browser(**PHONE)
    network = person.context.new_cdp_session(person.page)
    sizes: list[float] = []
    network.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    network.send("Network.enable")
    person.page.goto(site.url)
    expect(person.page.get_by_role("button", name="Sign in")).to_be_visible()
    assert 10_000 < sum(sizes) < COLD_LOAD  # the colors of code come later, when there is code


@pytest.mark.soak
def test_code_gets_its_colors_from_a_worker_that_is_loaded_when_there_is_code(
    open_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person = open_browser(storage_state=signed_in).arrive()
    loaded: list[str] = []
    person.page.on("request", lambda request: loaded.append(request.url))
    person.start("No code", site.project("Only `words`."))
    person.says("Only")
    expect(person.page.locator(".ending")).to_contain_text("Done")
    assert not any(url.endswith("/highlighter.js") for url in loaded)
    person.start("Code", site.project("```python\ndef f(): return '<b>'  # x\n```\n\n```nonsense\nx = 1\n```"))
    code = person.page.locator(".said:not(.writing) .code code").first
    expect(code.locator(".hl-keyword").first).to_have_text("def")
    expect(code.locator(".hl-string")).to_have_text("'<b>'")
    expect(code).to_have_text("def f(): return '<b>'  # x")
    expect(person.page.locator(".said:not(.writing) .code code").nth(1)).to_have_text("x = 1")
    assert any(url.endswith("/highlighter.js") for url in loaded)


AXE = """async () => {
    const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
    const {violations} = await axe.run(document, {runOnly: rules});
    return violations.map(({id, nodes}) => `${id}: ${nodes.slice(0, 3).map(node => node.html).join(" | ")}`);
}"""


def _violations(page: Page, axe: str) -> Any:
    if page.evaluate("typeof axe === 'undefined'"):  # half a megabyte, once for each load of the page
        page.evaluate(axe)
    return page.evaluate(AXE)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_every_screen_passes_the_accessibility_checks(
    open_browser: OpenBrowser, site: Site, signed_in: Any, axe: str, scheme: str
) -> None:
    stranger = open_browser(color_scheme=scheme, reduced_motion="reduce")
    stranger.page.goto(site.url)
    expect(stranger.page.get_by_role("button", name="Sign in")).to_be_visible()
    found = {"sign-in": _violations(stranger.page, axe)}
    size = PHONE if scheme == "dark" else {}
    person = open_browser(storage_state=signed_in, color_scheme=scheme, reduced_motion="reduce", **size).arrive()
    directory = site.project()
    file = str(directory / "a.py")
    steps = (
        tool("Read", file_path=file),
        tool("Bash", command="touch checked"),
        tool("Edit", file_path=file, old_string="a\nb", new_string="a\nc"),
        ask_user("Which?", "red", "blue"),
        text("# Done\n\n- [x] all\n\n| a |\n|---|\n| b |\n\n```py\nx\n```"),
    )
    Path(file).write_text("a\nb\n")
    write_script(directory, *steps)
    person.start("Check everything", directory)
    found["command"] = _violations(person.question("touch checked") and person.page, axe)
    person.question("touch checked").get_by_role("button", name="Allow once").click()
    found["edit"] = _violations(person.question("Edit") and person.page, axe)
    person.question("Edit").get_by_role("button", name="Deny with a reason").click()
    found["reason"] = _violations(person.page, axe)
    person.question("Edit").get_by_role("button", name="Deny", exact=True).click()
    found["question"] = _violations(person.question("Which?") and person.page, axe)
    person.question("Which?").get_by_role("radio", name="blue").check()
    person.question("Which?").get_by_role("button", name="Send answer").click()
    expect(person.page.locator(".ending").last).to_contain_text("Done")
    for fold in person.page.locator("details.tool > summary").all():
        fold.click()
    found["conversation"] = _violations(person.page, axe)
    person.page.locator(".menu > summary").click()
    expect(person.page.locator(".past-questions")).to_be_visible()
    found["menu"] = _violations(person.page, axe)
    person.page.keyboard.press("Escape")
    person.page.locator(".find-open").click()
    found["find"] = _violations(person.page, axe)
    person.page.goto(f"{site.url}/#/sessions/{person.session_id}/file/a.py/1")
    person.page.emulate_media(color_scheme="dark")
    found["line of a file"] = _violations(person.page, axe)
    person.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    person.page.get_by_role("button", name="Comment on line 1", exact=True).click()
    person.page.get_by_role("textbox", name="Comment on a.py:1").fill("Why?")
    person.page.locator(".comments summary").click()
    found["file with a comment"] = _violations(person.page, axe)
    person.page.goto(f"{site.url}/#/sessions/{person.session_id}/changes")
    expect(person.page.get_by_text("Nothing was changed.")).to_be_visible()
    found["no changes"] = _violations(person.page, axe)
    writes = [tool("Write", file_path=str(directory / name), content="x = 1\n") for name in ("b.py", "src/c.py")]
    write_script(directory, *writes, "Written.")
    person.start("Write two files", directory, "acceptEdits")
    person.says("Written.")
    changes_of(person, 2)
    person.page.get_by_label("Viewed b.py").check()
    person.page.locator(".file-tree").evaluate("(tree) => (tree.open = true)")
    found["changes"] = _violations(person.page, axe)
    for route, ready in (
        ("/", ".row"),
        ("/new", "main textarea"),
        ("/costs", "main .legend"),
        ("/servers", "main code"),
        ("/settings", "main fieldset"),
        ("/design", "main .question .deny"),
    ):
        person.page.goto(f"{site.url}/#{route}")
        expect(person.page.locator(ready).first).to_be_visible()
        found[route] = _violations(person.page, axe)
    assert {screen: problems for screen, problems in found.items() if problems} == {}


SIZES = {"phone": (390, 844), "on its side": (844, 390), "tablet": (820, 1180), "desk": (1440, 900)}


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.soak), "dark"])
def test_the_page_of_the_design_system_is_photographed_at_every_size(
    open_browser: OpenBrowser, site: Site, signed_in: Any, scheme: str, tmp_path: Path
) -> None:
    """Pictures in the directory of the test, and what a picture of any size must have: nothing is wider than it."""
    person = open_browser(storage_state=signed_in, color_scheme=scheme).arrive("/design")
    page = person.page
    expect(page.locator("main .question .deny")).to_be_attached()
    for name, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.locator(".design").evaluate("(body) => { body.scrollTop = 0; }")
        picture = page.screenshot(path=tmp_path / f"{name}-{scheme}.png")
        assert len(picture) > 10_000, name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark == ("rgb(21, 21, 20)" if scheme == "dark" else "rgb(247, 246, 243)")


def test_everything_can_be_done_with_the_keyboard_alone_and_is_told_to_those_who_do_not_see_the_screen(
    person: Person, site: Site
) -> None:
    page = person.page
    live_region = page.locator("body > [aria-live=polite]")
    page.keyboard.press("n")
    expect(page.locator("h1", has_text="New session")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Task")).to_be_focused()
    page.keyboard.type("Touch a file")
    for _ in range(3):  # past what attaches and what starts
        page.keyboard.press("Tab")
    expect(page.get_by_label("Directory")).to_be_focused()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type(str(site.project(tool("Bash", command="touch keyboard"), "Touched.")))
    page.get_by_label("Task").focus()
    page.keyboard.press("Control+Enter")
    asked = person.question("touch keyboard")
    expect(asked.get_by_role("button", name="Allow once")).to_be_enabled()
    expect(live_region).to_contain_text("Claude asks: Run: touch keyboard")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Allow once":
            break
    page.keyboard.press("Enter")
    person.says("Touched.")
    expect(live_region).to_contain_text("Claude has finished")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Escape")


REGISTER = """async () => {
    const policy = trustedTypes.createPolicy("claude-code-mcp", {createScriptURL: () => "/sw.js"});
    await navigator.serviceWorker.register(policy.createScriptURL(""));
    return new URL((await navigator.serviceWorker.ready).active.scriptURL).pathname;
}"""


def test_the_page_can_be_installed_and_shows_what_is_pushed_to_it(
    open_complete_browser: OpenBrowser, site: Site, signed_in: Any
) -> None:
    person = open_complete_browser(storage_state=signed_in).arrive()
    manifest = json.loads(person.page.evaluate("fetch('/manifest.webmanifest').then(answer => answer.text())"))
    assert manifest["display"] == "standalone"
    for one in manifest["icons"]:
        assert person.page.evaluate(f"fetch({one['src']!r}).then(answer => answer.status)") == 200
    person.context.grant_permissions(["notifications"], origin=site.url)
    pushes = PushService(person.context, person.context.new_cdp_session(person.page), site)
    assert person.page.evaluate(REGISTER) == "/sw.js"
    text = {"title": "Fix the login", "body": "Wants to run: make"}
    pushes.deliver({**text, "url": "https://evil.example/#/sessions/1", "tag": "t"})
    assert pushes.shown() == [{**text, "url": f"{site.url}/#/sessions/1"}]


def test_the_costs_say_what_is_left_of_budgets_and_warn_of_those_that_are_low(person: Person, site: Site) -> None:
    warning = "85 % of the budget of the group leads for this month is spent: $850.00 of $1,000.00."
    day = {"period": "day", "group": None, "limitUsd": 20, "spentUsd": 1.5}
    month = {"period": "month", "group": "leads", "limitUsd": 1000, "spentUsd": 850, "warning": warning}
    report = {"by": "day", "lines": [], "total": {"usd": 0}, "budgets": [day, month]}
    person.page.route("**/api/costs?*", lambda route: route.fulfill(json=report))
    person.page.goto(f"{site.url}/#/costs")
    budgets = person.page.get_by_role("list", name="Budgets").get_by_role("listitem")
    expect(budgets.nth(0)).to_have_text("$1.50 of $20.00 (today)")
    expect(budgets.nth(1)).to_contain_text("$850.00 of $1000.00 (group leads, this month)")
    expect(budgets.get_by_role("alert")).to_have_text(warning)
