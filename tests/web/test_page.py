"""The files of the page, and the code that leads a phone to it."""

import base64
import gzip
import hashlib

import pytest

from claude_code_mcp.web.page import page_policy
from claude_code_mcp.web.qr_code import qr_rows, qr_text

from .conftest import Console


def test_the_page_is_packed_for_browsers_that_take_it_and_sent_once(console: Console) -> None:
    browser = console.browser()
    plain = browser.get("/")
    packed = browser.get("/", Accept_Encoding="br, gzip;q=0.5")
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in browser.get("/", Accept_Encoding="gzip;q=0").headers
    again = browser.get("/", If_None_Match=plain.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    "html",
    ["<script>let a = 1 < 2 && '</p>';</script>", "<script type=module>\nlet a;\n</script>", "<SCRIPT>x</SCRIPT >"],
)
def test_the_policy_has_the_hash_of_what_is_between_the_tags(html: str) -> None:
    content = html.partition(">")[2].rpartition("</")[0]
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in page_policy(html)


def test_a_page_without_scripts_allows_none() -> None:
    assert "script-src 'none'; style-src 'none';" in page_policy("<p>hello</p>")


def test_the_code_in_a_terminal_has_two_rows_in_a_line_and_light_where_the_code_is_dark() -> None:
    rows = qr_rows("http://127.0.0.1:1/#ticket=x")
    assert rows is not None
    lines = qr_text(rows).split("\n")
    assert len(lines) == (len(rows) + 1) // 2
    assert {len(line) for line in lines} == {len(rows[0])}
    assert set(lines[0]) == {"█"}  # the quiet zone is as light as the light parts
