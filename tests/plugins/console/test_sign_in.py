"""Signing in and out: tickets, tokens, cookies, devices; what ends a sign-in, and what does not."""

import time
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import RateLimited
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.plugins.console.sign_ins import SIGN_IN_SECONDS, TICKET_SECONDS, SignIns
from claude_code_mcp.server.transports.identity import Identity
from claude_code_mcp.server.transports.running_calls import FailureLimit
from tests.support import waiting

from .conftest import PROXY, Console, write_tokens
from .console_client import Browser, until

ALICE = Identity("alice", "token:x")


class Clock:
    """A time that only tests move."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sign_ins(tmp_path: Path, clock: Clock) -> SignIns:
    return SignIns(Database(tmp_path / "state"), clock)


# -- on disk ----------------------------------------------------------------------------------------------------------


def test_a_ticket_works_once(sign_ins: SignIns) -> None:
    ticket, _ = sign_ins.new_ticket(ALICE)
    assert sign_ins.use_ticket(ticket) == ALICE
    assert sign_ins.use_ticket(ticket) is None


def test_a_ticket_expires_and_is_used_up_by_the_late_try(sign_ins: SignIns, clock: Clock) -> None:
    ticket, expires_at = sign_ins.new_ticket(ALICE)
    assert expires_at == clock.now + TICKET_SECONDS
    clock.now = expires_at
    assert sign_ins.use_ticket(ticket) is None
    clock.now -= 100
    assert sign_ins.use_ticket(ticket) is None


@pytest.mark.parametrize("forged", ["", "x", "../sign-ins/x", "\0", "a" * 100_000, "\udc80"])
def test_what_was_never_given_is_no_ticket_and_no_cookie(sign_ins: SignIns, forged: str) -> None:
    sign_ins.new_ticket(ALICE)
    made = sign_ins.begin(ALICE, "")
    assert sign_ins.use_ticket(forged) is None
    assert sign_ins.find(forged, made.csrf) is None
    assert sign_ins.find(made.cookie, forged) is None


def test_neither_secret_of_a_sign_in_is_on_the_disk(sign_ins: SignIns, tmp_path: Path) -> None:
    ticket, _ = sign_ins.new_ticket(ALICE)
    made = sign_ins.begin(ALICE, "Phone")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    everything = b"".join(path.read_bytes() for path in files)
    assert made.sign_in.id.encode() in everything
    assert [secret for secret in (ticket, made.cookie, made.csrf) if secret.encode() in everything] == []


def test_a_sign_in_outlives_the_server_and_ends_a_while_after_its_last_use(
    sign_ins: SignIns, tmp_path: Path, clock: Clock
) -> None:
    made = sign_ins.begin(ALICE, "Phone")
    clock.now += SIGN_IN_SECONDS - 10
    assert SignIns(Database(tmp_path / "state"), clock).find(made.cookie, made.csrf) is not None
    clock.now += SIGN_IN_SECONDS - 10
    assert sign_ins.find(made.cookie, made.csrf) is not None
    clock.now += SIGN_IN_SECONDS + 10
    assert sign_ins.find(made.cookie, made.csrf) is None


def test_sign_in_of_another_person_cannot_be_ended(sign_ins: SignIns) -> None:
    made = sign_ins.begin(ALICE, "")
    assert not sign_ins.end(made.sign_in.id, "bob")
    assert not sign_ins.end(f"../sign-ins/{made.sign_in.id}", "alice")
    assert sign_ins.end_all("bob") == 0
    assert sign_ins.find(made.cookie, made.csrf) is not None
    assert sign_ins.end(made.sign_in.id, "alice")
    assert sign_ins.find(made.cookie, made.csrf) is None


def test_sign_ins_and_tickets_of_one_principal_are_bounded(tmp_path: Path, clock: Clock) -> None:
    sign_ins = SignIns(Database(tmp_path / "state"), clock, most=5)
    first = sign_ins.begin(ALICE, "first")
    oldest, _ = sign_ins.new_ticket(ALICE)
    for _ in range(5):
        clock.now += 1
        sign_ins.begin(ALICE, "")
        sign_ins.new_ticket(ALICE)
    assert len(sign_ins.of("alice")) == 5
    assert sign_ins.find(first.cookie, first.csrf) is None
    assert sign_ins.use_ticket(oldest) is None


def test_an_address_that_fails_too_often_waits_and_others_do_not(clock: Clock) -> None:
    limit = FailureLimit(10, clock)
    for _ in range(10):
        limit.check("192.0.2.1")
        limit.failed("192.0.2.1")
    with pytest.raises(RateLimited) as refused:
        limit.check("192.0.2.1")
    assert 0 < refused.value.retry_after <= 61
    limit.check("192.0.2.2")
    clock.now += 61
    limit.check("192.0.2.1")


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_a_ticket_of_the_server_signs_in_one_browser_once(console: Console) -> None:
    ticket, browser, thief = console.ticket("alice"), console.browser(), console.browser()
    answered = browser.sign_in(ticket=ticket)
    assert answered.json["principal"] == "alice"
    assert browser.get("/api/me").json["principal"] == "alice"
    assert (thief.sign_in(ticket=ticket).status, thief.get("/api/me").status) == (401, 401)


def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(console: Console) -> None:
    browser = console.browser()
    cookie = browser.sign_in(token=console.tokens["alice"]).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie
    behind_tls = console.browser().post(
        "/api/sign-in", {"token": console.tokens["alice"]}, Origin=browser.base.replace("http:", "https:")
    )
    assert "secure" in behind_tls.headers["set-cookie"].lower()


def test_signing_out_ends_this_browser_and_its_stream_and_no_other(console: Console) -> None:
    here, there = console.browser("bob"), console.browser("bob")
    with here.stream() as events:
        assert here.post("/api/sign-out").status == 200
        assert until(events, "signed-out")
    assert here.get("/api/me").status == 401
    assert there.get("/api/me").status == 200


def test_signing_out_everywhere_ends_all_browsers_and_tickets_of_this_person_alone(console: Console) -> None:
    here, there, other = console.browser("bob"), console.browser("bob"), console.browser("alice")
    ticket = console.ticket("bob")
    with there.stream() as events:
        assert here.post("/api/sign-out", {"everywhere": True}).status == 200
        assert until(events, "signed-out")
    assert (here.get("/api/me").status, there.get("/api/me").status) == (401, 401)
    assert console.browser().sign_in(ticket=ticket).status == 401
    assert other.get("/api/me").status == 200


def test_a_lost_device_is_signed_out_from_another_one(console: Console) -> None:
    lost, here = console.browser("carol"), console.browser("carol")
    (wanted,) = [row["id"] for row in lost.get("/api/sign-ins").json["signIns"] if row["current"]]
    assert wanted in [row["id"] for row in here.get("/api/sign-ins").json["signIns"] if not row["current"]]
    assert console.browser("bob").ask("DELETE", f"/api/sign-ins/{wanted}").status == 400
    assert here.ask("DELETE", f"/api/sign-ins/{wanted}").status == 200
    assert (lost.get("/api/me").status, here.get("/api/me").status) == (401, 200)


def test_a_link_for_another_device_comes_with_its_code(console: Console, alice: Browser) -> None:
    made = alice.post("/api/tickets").json
    assert made["url"].startswith(f"{console.base}/#ticket=")
    assert len({len(row) for row in made["qr"]}) == 1
    assert set("".join(made["qr"])) == {"0", "1"}
    assert console.browser().sign_in(ticket=made["url"].partition("#ticket=")[2]).json["principal"] == "alice"


def test_every_act_is_in_the_audit_trail_as_the_persons(console: Console) -> None:
    browser = console.browser("carol")
    browser.post("/api/tickets")
    browser.post("/api/sign-out")
    console.browser().sign_in(ticket="guessed")
    acts = [f'"act": "{act}", "who": "carol"' for act in ("signed_in", "ticket_given", "signed_out")]
    trail = console.audited(*acts, '"act": "auth_failed"')
    assert browser.cookie.partition("=")[2] not in trail


def test_taking_a_token_out_of_the_file_ends_its_sign_ins_and_a_broken_file_ends_none(console: Console) -> None:
    dave, bob = console.browser("dave"), console.browser("bob")
    file = Path(console.environment["CLAUDE_CODE_MCP_TOKENS_FILE"])
    try:
        file.write_text("dave\n")
        until_status(dave, 503)
        write_tokens(file, {name: token for name, token in console.tokens.items() if name != "dave"})
        until_status(dave, 401)
        assert bob.get("/api/me").status == 200
        assert console.browser().sign_in(token=console.tokens["dave"]).status == 401
    finally:
        file.write_text("bob\n")
        until_status(bob, 503)
        write_tokens(file, console.tokens)
        until_status(bob, 200)
    assert dave.get("/api/me").status == 401  # it has ended, and stays so
    assert console.browser("dave").get("/api/me").status == 200


def until_status(browser: Browser, wanted: int) -> None:
    """The file is looked at once a second."""
    waiting.until(lambda: browser.get("/api/me").status == wanted)


def test_guessing_is_slowed_down_and_a_sign_in_that_stands_is_not(console: Console, alice: Browser) -> None:
    guesser = Browser(console.base, address="127.0.0.7")
    statuses = [guesser.sign_in(token=f"guess-{number}").status for number in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    slowed = guesser.sign_in(token=console.tokens["bob"])
    assert (slowed.code, int(slowed.headers["retry-after"]) <= 61) == ("RATE_LIMITED", True)
    alice.address = guesser.address
    assert alice.get("/api/me").status == 200
    assert console.browser("bob").get("/api/me").status == 200


def test_only_a_proxy_of_the_settings_says_where_a_request_is_from(console: Console) -> None:
    def tries(address: str, *claimed: str) -> list[int]:
        guesser = Browser(console.base, address=address)
        return [guesser.post("/api/sign-in", {"token": "guess"}, X_Forwarded_For=one).status for one in claimed]

    everywhere = [f"203.0.113.{number}" for number in range(11)]
    assert tries("127.0.0.8", *everywhere) == [401] * 10 + [429]
    assert tries(PROXY, *everywhere) == [401] * 11
    # What a client has written itself stands before what the proxy adds.
    forged = [f"198.51.100.{number}, 203.0.113.50" for number in range(11)]
    assert tries(PROXY, *forged) == [401] * 10 + [429]
