"""Everything that Claude or a tool wrote is hostile text: no script runs from it, and it stays what it is."""

import pytest
from playwright.sync_api import expect

from claude_code_mcp.testing.script import ask_user, plan, question, text, tool

from .console import Person, Site, read_on, write_script

CORPUS = (
    "<script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "<svg/onload=window.hit=1>",
    "<svg><script>window.hit=1</script></svg>",
    "<iframe srcdoc='<script>parent.hit=1</script>'></iframe>",
    "<iframe src=javascript:parent.hit=1>",
    "<a href=javascript:window.hit=1>click</a>",
    "[click](javascript:window.hit=1)",
    "[click](JaVaScRiPt:window.hit=1)",
    "[click](java\tscript:window.hit=1)",
    "[click](&#106;avascript:window.hit=1)",
    "[click](data:text/html,<script>window.hit=1</script>)",
    "[click](vbscript:window.hit=1)",
    "[click](//evil.example/x)",
    '![x](x"onerror="window.hit=1)',
    "<javascript:window.hit=1>",
    '<https://example.com/"onmouseover="window.hit=1>',
    "`<script>window.hit=1</script>`",
    "```html\n<script>window.hit=1</script>\n```",
    '```"><script>window.hit=1</script>\nx\n```',
    "<details open ontoggle=window.hit=1>",
    "<body onload=window.hit=1>",
    "<style>*{display:none}</style>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=javascript:window.hit=1'>",
    "<base href=//evil.example/>",
    "<form action=javascript:window.hit=1><input type=submit autofocus onfocus=window.hit=1></form>",
    "<math><mtext></mtext><mglyph><style></math><img src=x onerror=window.hit=1>",
    "{{constructor.constructor('window.hit=1')()}}",
    "</textarea><script>window.hit=1</script>",
    "</code></pre><script>window.hit=1</script>",
    "| a | b |\n| --- | --- |\n| <img src=x onerror=window.hit=1> | [x](javascript:window.hit=1) |",
    "> <script>window.hit=1</script>\n\n- <img src=x onerror=window.hit=1>",
    "\u202e<script>window.hit=1</script>\u202c",
)
ALL = "\n\n".join(CORPUS)


def _unharmed(person: Person) -> None:
    """Nothing ran, nothing of it became an element, every link leads to the web."""
    page = person.page
    assert page.evaluate("window.hit") is None
    # The ring of the context is the page's own.
    elements = (
        "script, iframe, img, object, embed, link, style, base, form, svg:not(.ring), .ring :not(circle, title), math"
    )
    # The field that one writes in grows with what is in it; that is the only style that is not in the page's own sheet.
    forbidden = f"{elements}, [onerror], [onload], [style]:not(textarea)"
    assert page.evaluate(f"document.body.querySelectorAll({forbidden!r}).length") == 0
    schemes = page.evaluate("[...document.querySelectorAll('main a[target]')].map(a => a.protocol)")
    assert set(schemes) <= {"http:", "https:"}
    assert person.faults == []


@pytest.mark.soak
def test_no_script_runs_from_an_answer_or_from_what_a_tool_returned(person: Person, site: Site) -> None:
    directory = site.project(name="<img src=x onerror=hit=1>")
    write_script(directory, tool("Read", file_path=str(directory / "evil.html")), text(ALL, chunks=40))
    (directory / "evil.html").write_text(ALL)
    person.start(f"Look at {CORPUS[0]} {CORPUS[1]}", directory)
    expect(person.page.locator(".ending").last).to_contain_text("Done")
    expect(person.page.locator(".said").last).to_contain_text("<svg/onload=window.hit=1>")
    read = person.page.locator("details.tool").first
    read.locator("summary").click()
    expect(read).to_contain_text("</textarea><script>window.hit=1</script>")
    for link in person.page.locator(".said a").all():
        assert (link.get_attribute("href") or "").startswith(("http://", "https://"))
    _unharmed(person)


def test_no_script_runs_from_what_is_asked_and_what_is_invisible_is_shown(person: Person, site: Site) -> None:
    choice = question(CORPUS[1], (CORPUS[0], CORPUS[2]), (CORPUS[7], CORPUS[5]), header="<b>x</b>")
    directory = site.project()
    write = tool("Write", file_path=str(directory / "<img src=x onerror=hit=1>.html"), content=ALL)
    command = tool("Bash", command=f"cat <<'EOF'\n{ALL}\nEOF", description=CORPUS[1])
    hiding = tool("Bash", command="echo safe\u202e; touch 'harm\u200b'")
    write_script(directory, command, write, ask_user(choice), hiding, "done")
    person.start("Ask", directory)
    for kind, refusal in (("Bash", "Deny"), ("Write", "Deny"), ("<b>x</b>", "Decline to answer")):
        asked = person.question(kind)
        _unharmed(person)
        asked.get_by_role("button", name=refusal, exact=True).click()
    asked = person.question("echo safe")
    expect(asked.locator("pre")).to_contain_text("U+202E")
    expect(asked.locator("pre")).to_contain_text("U+200B")
    asked.get_by_role("button", name="Deny", exact=True).click()
    person.says("done")
    _unharmed(person)


@pytest.mark.soak
def test_no_script_runs_from_a_plan(person: Person, site: Site) -> None:
    person.start("Plan", site.project(plan(ALL), "done"), mode="plan")
    asked = person.question("onerror=window.hit=1")
    _unharmed(person)
    read_on(asked)
    asked.get_by_role("button", name="Approve the plan").click()
    person.says("done")
