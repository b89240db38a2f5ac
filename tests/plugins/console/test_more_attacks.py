"""More of what an attacker tries: bodies that never end, links that sign others in under a foreign name."""

import asyncio
import contextlib
import http.client
import json
import select

import pytest
from starlette.requests import Request

from claude_code_mcp.server import web_answers
from claude_code_mcp.server.web_answers import MAX_BODY, MAX_CONCURRENT, RequestRefused, body_of
from tests.support.waiting import until

from .conftest import Console
from .console_client import PATIENCE, Browser


def test_who_is_not_signed_in_can_send_a_few_kilobytes_at_most(console: Console) -> None:
    refused = Browser(console.base).post("/api/sign-in", {"token": "x" * 20_000})
    assert (refused.status, refused.code) == (413, "INVALID_ARGUMENT")
    connection = http.client.HTTPConnection(Browser(console.base).netloc)
    connection.putrequest("POST", "/api/sign-in")
    for name, value in {"Content-Type": "application/json", "Content-Length": str(1 << 20)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413  # before anything of it was read
    connection.close()


async def test_incomplete_request_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_answers, "_MAX_SILENCE", 0.05)
    parts = iter([{"type": "http.request", "body": b'{"ticket": "', "more_body": True}])

    async def receive() -> dict[str, object]:
        found = next(parts, None)
        return found if found is not None else await asyncio.get_running_loop().create_future()

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]}
    with pytest.raises(RequestRefused) as refused:
        await body_of(Request(scope, receive))
    assert refused.value.status == 408


def test_sign_in_link_does_not_switch_accounts_without_confirmation(console: Console, alice: Browser) -> None:
    ticket = console.ticket("bob")
    refused = alice.post("/api/sign-in", {"ticket": ticket})
    assert (refused.status, refused.code) == (409, "OTHER_PERSON")
    assert refused.json["error"]["message"] == "You are signed in as alice. This link signs you in as bob."
    assert "set-cookie" not in refused.headers
    assert json.loads(alice.get("/api/me").body)["principal"] == "alice"
    assert alice.sign_in(ticket=console.ticket("alice")).status == 200  # her own needs no question
    changed = alice.post("/api/sign-in", {"ticket": ticket, "replace": True})  # it was not used up
    assert changed.json["principal"] == "bob"
    assert alice.post("/api/sign-in", {"ticket": ticket, "replace": True}).status == 401


def half_sent(browser: Browser, size: int) -> http.client.HTTPConnection:
    """A request of which so many bytes are sent, and the last is not."""
    connection = http.client.HTTPConnection(browser.netloc, timeout=PATIENCE)
    connection.putrequest("POST", "/api/sessions", skip_host=True)
    sent = {"Host": browser.netloc, "Origin": browser.base, "Cookie": browser.cookie, "X-CSRF-Token": browser.csrf}
    for name, value in {**sent, "Content-Type": "application/json", "Content-Length": str(size + 1)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    with contextlib.suppress(OSError):  # refused before all of it was read
        connection.send(b" " * size)
    return connection


def test_many_small_requests_cannot_fill_the_memory(console: Console, bob: Browser) -> None:
    senders = [half_sent(bob, MAX_BODY - 1) for _ in range(MAX_CONCURRENT // MAX_BODY + 1)]
    try:
        # The four before it have not ended: whichever found no room is answered, the others wait for their last byte.
        readable, _, _ = select.select([sender.sock for sender in senders], [], [], PATIENCE)
        (refused,) = [sender for sender in senders if sender.sock in readable]
        assert refused.getresponse().status == 429
        assert console.browser("carol").post("/api/sessions", {"prompt": ""}).status == 400
    finally:
        for sender in senders:
            sender.close()
    until(
        lambda: bob.post("/api/sessions", {"prompt": "", "title": " " * (1 << 20)}).status == 400,
        "room is not given back",
    )
