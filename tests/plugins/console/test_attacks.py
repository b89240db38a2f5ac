"""What an attacker tries: other people's sessions, forged requests, other names for the server, frames, odd paths."""

import http.client
import inspect
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.plugins.console import page_routes
from claude_code_mcp.testing.script import script, text

from .conftest import Console
from .console_client import Answer, Browser
from .test_conversation import ended, start

UNKNOWN = str(uuid.uuid4())
ATTACKS = json.loads(Path(__file__).parents[2].joinpath("scenarios", "attacks", "console.json").read_text())
ON_A_SESSION: list[tuple[str, str, Any]] = [tuple(attack["session"]) for attack in ATTACKS if "session" in attack]


@pytest.fixture(scope="module")
def foreign(console: Console) -> str:
    """A session of Alice's."""
    alice = console.browser("alice")
    session = start(alice, console, script("Private matters.", text("Nobody knows.")))
    ended(alice, session)
    return session


def plain(answer: Answer, session: str) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body.decode().replace(session, "ID"))


@pytest.mark.parametrize(("method", "path", "body"), ON_A_SESSION)
def test_foreign_session_answers_like_a_missing_one(
    bob: Browser, foreign: str, method: str, path: str, body: Any
) -> None:
    there = bob.ask(method, f"/api/sessions/{foreign}{path}", body)
    nowhere = bob.ask(method, f"/api/sessions/{UNKNOWN}{path}", body)
    assert plain(there, foreign) == plain(nowhere, UNKNOWN)
    assert there.status == 404


def test_whoever_only_watches_changes_nothing_by_any_route(console: Console, alice: Browser, foreign: str) -> None:
    watcher = console.browser("dave")
    assert alice.ask("PUT", f"/api/sessions/{foreign}/shares/dave", {"access": "watch"}).status == 200
    try:
        asked = [tuple(attack["session"]) for attack in ATTACKS if attack.get("watcher")]
        found = {(m, p): watcher.ask(m, f"/api/sessions/{foreign}{p}", body).status for m, p, body in asked}
        assert set(found.values()) == {403}, found
    finally:
        assert alice.ask("DELETE", f"/api/sessions/{foreign}/shares/dave").status == 200


def test_every_route_on_a_session_is_among_the_attacks() -> None:
    listed = re.findall(
        r'\("([A-Z]+)", (?:path|f?"\{path\}([^"]*)"|path \+ "([^"]*)"),',
        inspect.getsource(page_routes.ServiceRoutes.handlers),
    )
    assert len(listed) > 20
    tried = {(method, path.partition("?")[0]) for method, path, _ in ON_A_SESSION}
    missed = [
        (method, pattern)
        for method, *parts in listed
        for pattern in ["".join(parts)]
        if not any(m == method and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", pattern), path) for m, path in tried)
    ]
    assert missed == []


def test_foreign_session_is_in_no_list_stream_or_total(bob: Browser, foreign: str) -> None:
    listed = [bob.get(path) for path in ("/api/sessions", "/api/sessions?text=Private", "/api/questions")]
    listed.append(bob.get("/api/sessions?text=Nobody&whole=1"))
    assert [answer.body for answer in listed if foreign in answer.body.decode()] == []
    assert bob.get("/api/costs?by=session").json["lines"] == []
    refused = bob.get(f"/api/events?session={foreign}")
    assert plain(refused, foreign) == plain(bob.get(f"/api/events?session={UNKNOWN}"), UNKNOWN)


CALLS = [
    ("GET", "/api/me"),
    ("GET", "/api/sessions"),
    ("GET", "/api/events"),
    ("POST", "/api/sessions"),
    ("GET", "/api/push"),
    ("PUT", "/api/push"),
    ("POST", "/api/tickets"),
    ("POST", "/api/sign-out"),
    ("GET", "/api/nothing"),
    ("DELETE", "/api/sign-ins/x"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_the_cookie_alone_opens_nothing(alice: Browser, method: str, path: str) -> None:
    assert alice.ask(method, path, X_CSRF_Token="").status == 401
    assert alice.ask(method, path, X_CSRF_Token="forged").status == 401


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_the_value_of_one_sign_in_does_not_go_with_the_cookie_of_another(
    console: Console, alice: Browser, method: str, path: str
) -> None:
    other = console.browser("alice")
    assert alice.ask(method, path, X_CSRF_Token=other.csrf).status == 401


@pytest.mark.parametrize(("method", "path"), [*CALLS, ("POST", "/api/sign-in")])
@pytest.mark.parametrize(
    "headers",
    [attack["headers"] for attack in ATTACKS if "headers" in attack],
    ids=str,
)
def test_pages_of_other_servers_and_other_names_for_this_one_are_refused(
    alice: Browser, method: str, path: str, headers: dict[str, str]
) -> None:
    assert alice.ask(method, path, **headers).status in (403, 421)


def test_the_page_itself_is_not_served_under_a_name_that_was_rebound(console: Console) -> None:
    assert console.browser().get("/", Host="evil.example").status == 421


def test_two_host_headers_are_refused(console: Console) -> None:
    connection = http.client.HTTPConnection(console.browser().netloc)
    connection.putrequest("GET", "/", skip_host=True)
    connection.putheader("Host", console.browser().netloc)
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)
    connection.close()


def test_another_page_cannot_switch_the_account_of_a_browser(console: Console) -> None:
    browser, ticket = console.browser(), console.ticket("bob")
    as_form = browser.post("/api/sign-in", {"ticket": ticket}, Content_Type="text/plain")
    assert as_form.status == 415
    from_elsewhere = browser.post("/api/sign-in", {"ticket": ticket}, Origin="https://evil.example")
    assert from_elsewhere.status == 403
    assert "set-cookie" not in {**as_form.headers, **from_elsewhere.headers}
    assert browser.sign_in(ticket=ticket).status == 200  # neither has used the ticket up


PATHS = ["/", "/sw.js", "/highlighter.js", "/manifest.webmanifest", "/icon.svg",
         "/api/me", "/api/nothing", "/api/sessions", "/nothing"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS[:-1])
def test_no_answer_can_be_framed_sniffed_or_used_by_other_sites(alice: Browser, path: str) -> None:
    for answered in (alice.get(path), Browser(alice.base).get(path)):
        headers = answered.headers
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_the_policy_of_the_page_allows_its_own_scripts_and_nothing_else(console: Console) -> None:
    policy = console.browser().get("/").headers["content-security-policy"]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["frame-ancestors"] == parts["base-uri"] == parts["form-action"] == "'none'"
    allowed = {*parts["script-src"].split(), *parts["style-src"].split()} - {"'none'"}
    assert [source for source in allowed if not source.startswith("'sha256-")] == []
    assert parts["connect-src"] == "'self'"


@pytest.mark.parametrize("path", ["/api/me", "/api/sessions", "/api/push", "/api/questions", "/api/nothing"])
def test_buffering_is_off_for_streams(alice: Browser, path: str) -> None:
    assert alice.get(path).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", [attack["path"] for attack in ATTACKS if "path" in attack])
def test_no_path_leads_to_another_place_or_another_file(console: Console, alice: Browser, path: str) -> None:
    answered = alice.get(path)
    assert answered.status in (200, 400, 401, 404, 405)
    assert "location" not in answered.headers
    if answered.status == 200:
        assert answered.body == console.browser().get("/").body
    assert b"root:" not in answered.body
    assert b"import " not in answered.body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"nonsense", 400),
        (b'{"prompt": ' + b"[" * 100_000, 400),
        (b'{"prompt": "\\ud800", "x": NaN}', 400),
        (b"\xff\xfe", 400),
    ],
)
def test_invalid_request_body_is_refused_with_one_sentence(alice: Browser, body: bytes, status: int) -> None:
    refused = alice.ask("POST", "/api/sessions", body)
    assert refused.status == status
    assert refused.code == "INVALID_ARGUMENT"
    assert len(refused.json["error"]["message"]) < 300


def test_a_body_that_is_too_large_is_refused_before_it_is_read(alice: Browser) -> None:
    connection = http.client.HTTPConnection(alice.netloc)
    connection.putrequest("POST", "/api/sessions")
    headers = {"Content-Type": "application/json", "Cookie": alice.cookie, "X-CSRF-Token": alice.csrf}
    for name, value in {**headers, "Content-Length": str(1 << 30)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_invalid_token_is_refused_despite_a_valid_cookie(alice: Browser) -> None:
    assert alice.get("/api/me", Authorization="Bearer wrong").status == 401
    assert alice.get("/api/me", Authorization="Basic YTpi").status == 401


def test_metrics_and_mcp_do_not_take_the_cookie(alice: Browser) -> None:
    assert alice.get("/metrics").status == 401
    assert alice.post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}).status == 401
