"""Markdown from a model is rendered as CommonMark, and the page is safe to open."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.transcripts.markdown_html import MAX_NESTING, markdown_html

TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "s", "a"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "rel", "start", "class", "style"}


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def links(html: str) -> Iterator[str | None]:
    return (attributes["href"] for tag, attributes in Elements(html).found if tag == "a")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# one\n\n## two\n\n###### six", "<h3>one</h3>\n<h4>two</h4>\n<h6>six</h6>\n"),
        ("*a* __b__ ~~c~~ snake_case_name", "<p><em>a</em> <strong>b</strong> <s>c</s> snake_case_name</p>\n"),
        ("``a ` b``", "<p><code>a ` b</code></p>\n"),
        ("> a\n>\n> - b", "<blockquote>\n<p>a</p>\n<ul>\n<li>b</li>\n</ul>\n</blockquote>\n"),
        ("~~~py\nx < 1\n~~~", '<pre><code class="language-py">x &lt; 1\n</code></pre>\n'),
        ("Title\n---\n\ntext", "<h4>Title</h4>\n<p>text</p>\n"),
        ("1 < 2 &amp; <b>x</b>", "<p>1 &lt; 2 &amp; &lt;b&gt;x&lt;/b&gt;</p>\n"),
        ("[a][1]\n\n[1]: http://example.org", '<p><a href="http://example.org" rel="noopener noreferrer">a</a></p>\n'),
        ("<https://example.org/?a&b>", '<p><a href="https://example.org/?a&amp;b" rel="noopener noreferrer">'
         "https://example.org/?a&amp;b</a></p>\n"),
    ],
)  # fmt: skip
def test_markdown_becomes_html(text: str, html: str) -> None:
    assert markdown_html(text) == html


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "java&#10;script:alert(1)",
        "&#x6a;avascript:alert(1)",
        "%6aavascript:alert(1)",
        "\x01javascript:alert(1)",
        "vbscript:x",
        "data:text/html,<script>alert(1)</script>",
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
        "//evil.example/x",
        "/etc/passwd",
        "x.html",
        "http:/\\\tevil",
    ],
)
def test_only_addresses_of_the_web_and_of_mail_are_links(address: str) -> None:
    for text in (f"[a]({address})", f"[a](<{address}>)", f"<{address}>", f"[a]\n\n[a]: <{address}>"):
        assert list(links(markdown_html(text))) == []


def test_link_target_is_not_copied() -> None:
    html = markdown_html('[a](HTTPS://example.org/"x" "onclick=alert(1)") [b](mailto:a@example.org)')
    assert [attributes for tag, attributes in Elements(html).found if tag == "a"] == [
        {"href": "HTTPS://example.org/%22x%22", "rel": "noopener noreferrer"},
        {"href": "mailto:a@example.org", "rel": "noopener noreferrer"},
    ]


@pytest.mark.parametrize("around", ["{}", "[{}](https://example.org)", "**{}**", "| {} |\n|-|"])
def test_an_image_is_its_description_and_its_address(around: str) -> None:
    html = markdown_html(around.format('![a *picture*](http://evil.example/x.png?q=1 "t")'))
    assert "<img" not in html
    assert "🖼 a picture (http://evil.example/x.png?q=1)" in html


@pytest.mark.parametrize("text", ["a\u202eb\x1b[31m", "a&#x202e;b &#27;", "[a](http://x/&#x202e;)", "```&#x202e;\n```"])
def test_nothing_invisible_is_left(text: str) -> None:
    assert re.search("[\u202e\x1b]", markdown_html(text)) is None


MARKUP = st.lists(
    st.sampled_from(
        [*"[]()<>!*_`~|#>-+=&;:\"'\\/\n \t\0\r", "\ud800", "\u2028", "http://", "javascript:", "![", "](", "<script>",
         "<img src=x onerror=alert(1)>", "<!--", "-->", "```", "&#x6a;", "&lt;", "|-|-|\n", "[a]: ", "1. ", "- ", "a"]
    )
    | st.text(max_size=5),
    max_size=40,
).map("".join)  # fmt: skip


@given(MARKUP)
def test_no_text_leads_to_anything_but_harmless_elements(text: str) -> None:
    html = markdown_html(text)
    html.encode()
    for tag, attributes in Elements(html).found:
        assert tag in TAGS
        assert set(attributes) <= ATTRIBUTES
        assert attributes.get("style") in (None, "text-align:left", "text-align:center", "text-align:right")
    assert all(re.match("(?i)https?://|mailto:", href or "") for href in links(html))


@pytest.mark.parametrize(
    "piece",
    ["[", "*", "`", ">", "<", "![", "[a](", "> ", "- ", "* a\n", "*_", "a**", "~~a", "|", "a|b\n-|-\n", "[x]: y\n",
     "<!--", "\\", "&#", "_a", "    x\n", "> - ", "(", "]"],
)  # fmt: skip
def test_the_steps_for_a_hostile_text_grow_with_its_length(piece: str) -> None:
    short, long = (calls_of(partial(markdown_html, piece * count)) for count in (1000, 3000))
    assert long < 4.5 * short  # nine times as many if they grew with the square of the length


def calls_of(function: Callable[[], object]) -> int:
    """The calls of Python and C functions that this one makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_usual_nesting_is_kept() -> None:
    depth = MAX_NESTING // 2 - 1
    assert "deepest" in markdown_html(
        "".join(f"{'  ' * level}- x\n" for level in range(depth)) + "  " * depth + "deepest"
    )


def test_the_parser_is_imported_by_the_first_page_only() -> None:
    code = "import sys, claude_code_mcp.core.service, claude_code_mcp.cli.sessions\nprint('markdown_it' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
