"""The files of the page, and the code that leads a phone to it."""

import base64
import gzip
import hashlib

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.console.console import Consoles
from claude_code_mcp.plugins.console.guard import Accounts
from claude_code_mcp.plugins.console.page_files import page_policy
from claude_code_mcp.plugins.console.settings import ConsoleSettings
from claude_code_mcp.plugins.console.sign_in_routes import qr_rows, qr_text
from claude_code_mcp.server.transports.http import Address, host_check
from tests.conftest import StartService

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


@pytest.mark.parametrize(
    ("listens", "name", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1:8765", True),
        ("127.0.0.1", "localhost:9999", True),
        ("127.0.0.1", "localhost:evil", False),
        ("127.0.0.1", "localhost", False),
        ("127.0.0.1", "192.168.1.5:8765", False),
        ("0.0.0.0", "localhost:8765", True),
        ("192.168.1.5", "192.168.1.5:8765", True),
        ("192.168.1.5", "localhost:8765", False),
        ("192.168.1.5", "claude.example.org", True),
        ("192.168.1.5", "proxy.example.org:443", True),
        ("192.168.1.5", "other.example.org", False),
    ],
)
def test_the_console_is_served_under_its_own_names_alone(listens: str, name: str, allowed: bool) -> None:
    settings = load_settings(
        {}, web_url="https://claude.example.org", http_allowed_hosts=("proxy.example.org:*", "named.example.org")
    )
    assert host_check(settings, Address(listens, 8765))(name) is allowed


@pytest.mark.parametrize("address", ["claude.example.org", "https://x.example/path", "javascript:alert(1)", "ftp://x"])
def test_the_address_of_the_page_must_be_one(address: str) -> None:
    with pytest.raises(InvalidArgument, match="WEB_URL"):
        load_settings({"CLAUDE_CODE_MCP_WEB_URL": address})


async def test_where_it_is_switched_off_there_is_no_console(start_service: StartService) -> None:
    accounts = Accounts(None)
    off, on = await start_service(sections=[ConsoleSettings(web=False)]), await start_service()
    assert isinstance(off, Service)
    assert Consoles(off, lambda: None).open(Address("127.0.0.1", 1), accounts) is None
    console = Consoles(on, lambda: None).open(Address("127.0.0.1", 1), accounts)
    assert console is not None
    assert len(console.routes()) > 20


def test_the_code_in_a_terminal_has_two_rows_in_a_line_and_light_where_the_code_is_dark() -> None:
    rows = qr_rows("http://127.0.0.1:1/#ticket=x")
    assert rows is not None
    lines = qr_text(rows).split("\n")
    assert len(lines) == (len(rows) + 1) // 2
    assert {len(line) for line in lines} == {len(rows[0])}
    assert set(lines[0]) == {"█"}  # the quiet zone is as light as the light parts
