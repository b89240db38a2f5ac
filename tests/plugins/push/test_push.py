"""Push: what arrives at real receivers, when, and what never does."""

import asyncio
import base64
import contextlib
import errno
import functools
import hashlib
import hmac
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.core.model.events import Event, QuestionOpened, Stalled, TurnEnded, WaitChanged
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.question import Question, QuestionKind
from claude_code_mcp.core.model.usage_limits import LimitWait
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.database import FILE_NAME, Database
from claude_code_mcp.core.state.documents import Documents
from claude_code_mcp.plugins.push import sending, web_push
from claude_code_mcp.plugins.push.delivery import Push
from claude_code_mcp.plugins.push.preferences import (
    Notice,
    Preferences,
    PreferenceStore,
    QuietHours,
    Receiver,
    notice_of,
)
from claude_code_mcp.plugins.push.receivers import KINDS, ReceiverDetails
from claude_code_mcp.plugins.push.sending import SendFailed, post
from claude_code_mcp.plugins.push.web_push import ServerKey, decode64, encrypt
from claude_code_mcp.server.outbound_urls import check_url
from claude_code_mcp.testing.script import script, text, tool
from tests.plugins.console.conftest import Console
from tests.plugins.console.console_client import Browser
from tests.plugins.console.test_conversation import answer, ended, question_of, start
from tests.plugins.sandbox.support import Certificates
from tests.support.waiting import until_true

from .receiver import BrowserKeys, encode64, receiving, verified_claims

# -- from a session to the receiver ------------------------------------------------------------------------------------


def test_question_and_end_of_a_turn_reach_a_webhook_ntfy_and_a_browser(console: Console, alice: Browser) -> None:
    keys, began = BrowserKeys(), int(time.time())
    with receiving() as webhook, receiving() as ntfy, receiving(201) as service:
        made = alice.post("/api/push/receivers", {"kind": "webhook", "url": f"{webhook.url}/hook?x=1"})
        topic = {"kind": "ntfy", "url": f"{ntfy.url}/my-topic", "token": "tk_123"}
        browser = {"kind": "webpush", "subscription": keys.subscription(f"{service.url}/send/abc"), "device": "Phone"}
        ids = [made.json["receiver"]["id"]]
        ids += [alice.post("/api/push/receivers", body).json["receiver"]["id"] for body in (topic, browser)]
        try:
            step = tool("Write", file_path=str(console.project / "pushed.txt"), content="x\n")
            session = start(alice, console, script("Push it.", step, text("All is well.")))
            question = question_of(alice, session)
            link = f"{console.base}/#/sessions/{session}/questions/{question['questionId']}"
            deliveries = [webhook.next(), ntfy.next(), service.next()]
            answer(alice, question, decision="allow")
            ended(alice, session)
            at_the_end = [webhook.next(), ntfy.next(), service.next()]
        finally:
            for receiver_id in ids:
                assert alice.ask("DELETE", f"/api/push/receivers/{receiver_id}").status == 200
    hook, publication, message = deliveries
    assert hook.path == "/hook?x=1"
    signed = f"{hook.headers['webhook-id']}.{hook.headers['webhook-timestamp']}.".encode() + hook.body
    key = base64.b64decode(made.json["secret"].removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert hook.headers["webhook-signature"] == f"v1,{expected}"
    assert began <= int(hook.headers["webhook-timestamp"]) <= time.time()
    assert json.loads(hook.body)["url"] == link
    topic_message = json.loads(publication.body)
    assert (publication.path, topic_message["topic"], topic_message["click"]) == ("/", "my-topic", link)
    assert topic_message["message"] == "Wants to write pushed.txt: 1 line"
    assert publication.headers["authorization"] == "Bearer tk_123"
    shown = keys.decrypt(message.body)
    assert (shown["kind"], shown["sessionId"], shown["url"]) == ("question", session, link)
    assert (message.headers["content-encoding"], message.headers["urgency"]) == ("aes128gcm", "high")
    assert 0 < int(message.headers["ttl"]) <= 3600
    claims = verified_claims(message.headers["authorization"], alice.get("/api/push").json["vapidPublicKey"])
    assert claims["aud"] == service.url
    assert time.time() < claims["exp"] < time.time() + 86_400
    assert json.loads(at_the_end[0].body)["body"] == "Finished: All is well."
    assert keys.decrypt(at_the_end[2].body)["kind"] == "ended"


def test_a_test_message_reports_whether_it_arrived(console: Console, alice: Browser) -> None:
    with receiving(200, 500) as webhook:
        made = alice.post("/api/push/receivers", {"kind": "webhook", "url": webhook.url}).json["receiver"]
        path = f"/api/push/receivers/{made['id']}"
        assert alice.post(f"{path}/test").json == {"sent": True, "error": None}
        assert alice.post(f"{path}/test").json == {"sent": False, "error": "it answered 500"}
        tries = [alice.post(f"{path}/test") for _ in range(12)]
        assert (tries[-1].status, tries[-1].code) == (429, "RATE_LIMITED"), "each sends where somebody wants"
        (row,) = alice.get("/api/push").json["receivers"]
        assert (row["lastError"], row["target"]) == ("it answered 500", webhook.url.removeprefix("http://"))
        assert row["lastSentAt"] is not None
    alice.ask("DELETE", path)


def test_receivers_are_each_persons_own_and_their_secrets_are_shown_once(console: Console, alice: Browser) -> None:
    made = alice.post("/api/push/receivers", {"kind": "webhook", "url": "http://127.0.0.1:9/x"}).json
    receiver_id, secret = made["receiver"]["id"], made["secret"]
    assert secret not in alice.get("/api/push").body.decode()
    other = console.browser("bob")
    assert other.get("/api/push").json["receivers"] == []
    assert other.ask("DELETE", f"/api/push/receivers/{receiver_id}").status == 400
    assert other.post(f"/api/push/receivers/{receiver_id}/test").status == 400
    files = [path for path in console.state.iterdir() if path.name.startswith(FILE_NAME)]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert secret.encode() in b"".join(path.read_bytes() for path in files)  # it is needed to sign
    assert alice.ask("DELETE", f"/api/push/receivers/{receiver_id}").status == 200
    console.audited('"act": "push_changed", "who": "alice"')


def test_quiet_hours_and_kinds_are_kept(alice: Browser) -> None:
    hours = {"from": "22:00", "to": "07:00", "timezone": "UTC"}
    changed = alice.ask("PUT", "/api/push", {"events": ["question"], "quietHours": hours}).json
    assert (changed["events"], changed["quietHours"]) == (["question"], hours)
    assert alice.get("/api/push").json == changed
    assert {"ntfy", "webhook"} <= {*changed["kinds"]}
    assert "webpush" not in changed["kinds"], "a browser registers itself"
    reset = alice.ask("PUT", "/api/push", {"events": ["question", "ended", "stalled"], "quietHours": None}).json
    assert reset["quietHours"] is None


def test_preferences_of_a_later_version_are_reported_and_never_replaced(tmp_path: Path) -> None:
    documents, store = Documents(Database(tmp_path), "push"), PreferenceStore(Database(tmp_path))
    later = {"principal": "alice", "from": "a later version"}
    documents.write("alice", later)
    with pytest.raises(UpstreamUnavailable, match="damaged"):
        store.read("alice")
    with pytest.raises(UpstreamUnavailable):
        store.update("alice", lambda chosen: chosen)
    assert documents.read("alice") == later


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"damaged", "vapid.pem"), (b"x" * 9000, "large"), (None, "vapid.pem")],
)
def test_a_key_that_cannot_be_read_is_never_replaced(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "vapid.pem"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(OSError, match=reason):
        ServerKey(path)
    assert path.is_fifo() if content is None else path.read_bytes() == content


def test_a_key_is_read_again_once_the_disk_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vapid.pem"
    public = ServerKey(path).public

    def failing(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(web_push, "read_regular", failing)
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            ServerKey(path)
    assert ServerKey(path).public == public


def test_two_servers_that_make_the_key_at_the_same_time_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = {key.public for key in pool.map(lambda _: ServerKey(tmp_path / "web" / "vapid.pem"), range(8))}
    assert len(keys) == 1
    assert (tmp_path / "web" / "vapid.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "webhook", "url": "http://hooks.example.com/x"},
        {"kind": "webhook", "url": "file:///etc/passwd"},
        {"kind": "webhook", "url": "https://user:pw@example.com/"},
        {"kind": "webhook", "url": "https://example.com/\r\nX: y"},
        {"kind": "webhook"},
        {"kind": "ntfy", "url": "https://ntfy.sh/"},
        {"kind": "ntfy", "url": "https://ntfy.sh/a/b"},
        {"kind": "ntfy", "url": "https://ntfy.sh/topic", "token": "a\r\nb"},
        {"kind": "webpush"},
        {"kind": "webpush", "subscription": {"endpoint": "https://example.com", "keys": {"p256dh": "x", "auth": "y"}}},
        {"kind": "pigeon", "url": "https://example.com"},
    ],
)
def test_invalid_address_is_refused(bob: Browser, body: Any) -> None:
    assert bob.post("/api/push/receivers", body).status == 400


def test_who_is_not_the_operator_reaches_no_private_address(bob: Browser) -> None:
    made = bob.post("/api/push/receivers", {"kind": "webhook", "url": "https://localhost:9/x"})
    assert made.status == 201
    tried = bob.post(f"/api/push/receivers/{made.json['receiver']['id']}/test").json
    assert tried == {"sent": False, "error": "its address is not public"}
    bob.ask("DELETE", f"/api/push/receivers/{made.json['receiver']['id']}")


# -- addresses ---------------------------------------------------------------------------------------------------------


async def test_a_receiver_that_redirects_is_not_followed() -> None:
    with receiving(302) as receiver:
        reply = await post(receiver.url, {}, b"x", private=True)
        assert (reply.status, reply.ok) == (302, False)


async def test_a_receiver_that_says_nothing_is_abandoned_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(SendFailed, match="time"):
            await post(url, {}, b"x", private=True, timeout=0.2)


async def test_what_this_machine_trusts_is_read_once_and_never_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, threads = Certificates(tmp_path), []
    trusted = certificates.trusting()

    def read(*_: object, **__: object) -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return trusted

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    monkeypatch.setattr(ssl, "create_default_context", read)
    monkeypatch.setattr(sending, "_trust", functools.cache(sending._trust.__wrapped__))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.server("localhost"))
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        assert [(await post(url, {}, b"", private=True)).status for _ in range(3)] == [204, 204, 204]
    (thread,) = threads
    assert thread is not threading.current_thread()


def lead_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Has every name lead to these addresses. Returns the names that are looked up."""
    names: list[str] = []
    known = socket.getaddrinfo

    def found(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if host in addresses:
            return known(host, port, *rest, **options)
        names.append(host)
        return [entry for address in addresses for entry in known(address, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    return names


async def test_the_connection_goes_to_the_address_that_was_checked_with_the_certificate_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates, asked = Certificates(tmp_path), []
    names = lead_to(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(sending, "_trust", certificates.trusting)
    for variable in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # where nobody answers

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\nno")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=certificates.server("hook.example.org"))
    async with server:
        port = server.sockets[0].getsockname()[1]
        reply = await post(f"https://hook.example.org:{port}/a?b=c", {"X-Y": "z"}, b"", private=True)
        assert (reply.status, reply.retry_after) == (429, 7)
        with pytest.raises(SendFailed, match="certificate"):
            await post(f"https://other.example.org:{port}/", {}, b"", private=True)
    assert names == ["hook.example.org", "other.example.org"]
    (head,) = asked
    assert head.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert f"\r\nhost: hook.example.org:{port}\r\n" in head.decode().lower()
    assert head.lower().count(b"host:") == 1


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::1"], ["169.254.169.254"], ["::ffff:192.168.0.1"]]
)
async def test_a_name_that_leads_to_a_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    lead_to(monkeypatch, *addresses)
    with pytest.raises(SendFailed, match="not public"):
        await post("https://hook.example.org/", {}, b"", private=False)


async def test_an_ipv6_address_is_connected_to() -> None:
    with contextlib.suppress(OSError):  # a machine without IPv6

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(serve, "::1", 0) as server:
            url = f"http://[::1]:{server.sockets[0].getsockname()[1]}/"
            assert (await post(url, {}, b"", private=True)).status == 204


@pytest.mark.parametrize(
    ("head", "piece", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Y: " + b"z" * 4000 + b"\r\n", None),
        (b"HTTP/1.1 200 OK\r\nX: ", b"z" * 4000, None),
        (b"", b"z" * 4000, None),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", "time"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"z" * 4000, ""),
    ],
    ids=["fields", "field", "noise", "preludes", "body"],
)
async def test_only_the_head_of_an_endless_answer_is_read(head: bytes, piece: bytes, reason: str | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(piece)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        sending_it = post(
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, b"", private=True,
            timeout=1 if reason == "time" else 60,
        )  # fmt: skip
        if reason == "":
            assert (await sending_it).status == 200
        else:
            with pytest.raises(SendFailed, match=reason):
                await sending_it


async def test_reason_is_reported_if_the_port_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(SendFailed, match=r"(?i)refused|connect call failed"):
        await post(url, {}, b"", private=True)


async def test_a_line_break_begins_no_header_of_its_own() -> None:
    with receiving() as receiver, pytest.raises(SendFailed):
        await post(receiver.url, {"X-Y": "a\r\nZ: b"}, b"", private=True)


async def test_the_address_of_a_receiver_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with receiving() as receiver:
        await post(f"{receiver.url}/secret-topic", {}, b"", private=True)
    assert "secret-topic" not in caplog.text


def test_without_the_operators_trust_only_encrypted_addresses_count() -> None:
    check_url("http://10.0.0.1/x", private=True)
    with pytest.raises(InvalidArgument):
        check_url("http://10.0.0.1/x", private=False)


# -- what is told ------------------------------------------------------------------------------------------------------

SECRET = "correct-horse-battery"
NOW = datetime(2026, 11, 15, 23, 30, tzinfo=UTC)


def notice(event: Event, title: str = "Fix it") -> Notice | None:
    event.at = NOW.timestamp()
    return notice_of("s-1", event, lambda: title, Redactor([SECRET]))


def permission(command: str) -> QuestionOpened:
    deadline = NOW.timestamp() + 300
    return QuestionOpened(
        Question("q-1", "s-1", QuestionKind.PERMISSION, "Bash", {}, f"Run: {command}", deadline=deadline)
    )


def test_a_notice_has_session_reason_and_link_and_no_secret() -> None:
    made = notice(permission(f"curl -u me:{SECRET} example.com"), title=f"Deploy with {SECRET}\nnow")
    assert made is not None
    fields = made.fields("https://console.example/")
    assert SECRET not in json.dumps(fields)
    assert "Wants to run: curl" in fields["body"]
    assert fields["title"].startswith("Deploy with")
    assert "\n" not in fields["title"]
    assert fields["url"] == "https://console.example/#/sessions/s-1/questions/q-1"


def test_a_turn_that_the_person_ended_is_no_news() -> None:
    ends = {code: notice(TurnEnded(1, Outcome(code, result="r", detail="d"))) for code in OutcomeCode}
    silent = {code for code, made in ends.items() if made is None}
    by_person = {OutcomeCode.INTERRUPTED, OutcomeCode.CANCELLED, OutcomeCode.DROPPED}
    assert silent == by_person | {OutcomeCode.LIMIT_REACHED}, "a limit is announced with the wait that follows it"
    failed = ends[OutcomeCode.CRASHED]
    assert failed is not None
    assert failed.body == "Failed (crashed): d"


def test_a_usage_limit_is_news_with_the_time_at_which_the_session_continues() -> None:
    wait = LimitWait("w", "again", since=0.0, continues_at=1_794_983_114, resets_at=1_794_983_113, kind="five_hour")
    made = notice(WaitChanged(wait, stopped=True))
    assert made is not None
    assert made.kind == "ended"
    assert made.body.startswith("Stopped: The 5-hour limit is reached. It resets at 2026-11-18T06:25Z.")
    assert made.body.endswith("The session continues automatically at 2026-11-18T06:25Z.")
    assert notice(WaitChanged(wait)) is None, "somebody has changed it, and knows"
    assert notice(WaitChanged(None)) is None


def test_a_stall_is_news() -> None:
    made = notice(Stalled(120.0))
    assert made is not None
    assert (made.kind, "120 seconds" in made.body) == ("stalled", True)


@pytest.mark.parametrize(
    ("begins", "ends", "quiet"),
    [("22:00", "07:00", True), ("23:31", "07:00", False), ("08:00", "12:00", False), ("23:30", "23:31", True)],
)
def test_quiet_hours_hold_also_over_midnight(begins: str, ends: str, quiet: bool) -> None:
    hours = QuietHours.model_validate({"from": begins, "to": ends, "timezone": "UTC"})
    assert hours.hold(NOW) is quiet
    chosen = Preferences(principal="p", quiet_hours=hours)
    assert chosen.wants("question", NOW) is not quiet


def test_quiet_hours_are_those_of_the_persons_own_zone() -> None:
    hours = QuietHours.model_validate({"from": "00:00", "to": "06:00", "timezone": "Europe/Berlin"})
    assert hours.hold(NOW)  # half past midnight there
    assert not hours.hold(NOW - timedelta(hours=1))


def test_a_message_for_a_browser_differs_each_time_and_is_read_by_that_browser_alone() -> None:
    keys = BrowserKeys()
    public, auth = encode64(keys.public), encode64(keys.auth)
    first, second = (encrypt(b'{"a": 1}', public, auth) for _ in range(2))
    assert first != second
    assert keys.decrypt(first) == {"a": 1}
    with pytest.raises(InvalidTag):
        BrowserKeys().decrypt(second)


def test_base64url_is_read_strictly() -> None:
    assert decode64("_-8") == b"\xff\xef"
    with pytest.raises(ValueError, match="base64url"):
        decode64("a b")


# -- delivery ----------------------------------------------------------------------------------------------------------

Pushing = Callable[..., Push]


@pytest.fixture
async def pushing(service: Service, tmp_path: Path) -> Any:
    made: list[Push] = []

    def make(*urls: str, kind: str = "webhook", **fields: Any) -> Push:
        push = Push(service, tmp_path / "web", pauses=(0.01, 0.01, 0.01))
        push.base = "http://console/"
        for number, url in enumerate(urls):
            secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
            receiver = Receiver(
                id=f"r{number}",
                kind=kind,
                url=url,
                created_at=0.0,
                secret=secret,
                **fields,
            )
            push.preferences.add("local", receiver)
        made.append(push)
        return push

    yield make
    for push in made:
        push.close()


def news(push: Push, body: str = "r") -> None:
    event = TurnEnded(1, Outcome(OutcomeCode.COMPLETED, result=body))
    event.at = time.time()
    push.event("s-1", "local", event)


async def taken(receiver: Any) -> Any:
    return await asyncio.to_thread(receiver.next)


async def test_without_the_extra_there_is_no_web_push(pushing: Pushing, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = BrowserKeys()
    details = ReceiverDetails("https://example.org", public_key=encode64(keys.public), auth=encode64(keys.auth))
    push = pushing()
    assert KINDS["webpush"].fields(details)
    assert await push.vapid_key() is not None
    monkeypatch.setitem(sys.modules, "http_ece", None)
    assert await push.vapid_key() is None
    with pytest.raises(InvalidArgument, match="needs the extra `web`"):
        KINDS["webpush"].fields(details)


async def test_a_receiver_that_fails_is_tried_again_with_the_same_id(pushing: Pushing) -> None:
    with receiving(500, 503, 429, 200) as receiver:
        news(pushing(receiver.url))
        tries = [await taken(receiver) for _ in range(4)]
    assert len({one.headers["webhook-id"] for one in tries}) == 1
    assert {json.loads(one.body)["body"] for one in tries} == {"Finished: r"}


async def test_unreachable_receiver_delays_neither_others_nor_the_sender(pushing: Pushing) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, receiving() as receiver:
        push = pushing(f"http://127.0.0.1:{mute.getsockname()[1]}", receiver.url)
        for number in range(200):
            news(push, str(number))
        while json.loads((await taken(receiver)).body)["body"] != "Finished: 199":
            pass  # what finds no room are the oldest


async def test_a_receiver_of_a_later_version_fails_alone_and_is_kept(pushing: Pushing) -> None:
    with receiving() as receiver:
        push = pushing(receiver.url)
        later = Receiver.model_validate(
            {"id": "later", "kind": "pigeon", "url": receiver.url, "created_at": 0.0, "loft": "north"}
        )
        push.preferences.add("local", later)
        news(push)
        assert json.loads((await taken(receiver)).body)["body"] == "Finished: r"
        await until_true(lambda: "kind pigeon" in (push.status("later").error or ""))
        assert push.status("r0").error is None
    kept = push.preferences.update("local", lambda chosen: chosen.model_copy(update={"events": ("question",)}))
    assert kept == push.preferences.read("local")
    assert kept.receivers[1].model_dump()["loft"] == "north"


async def test_permanent_refusal_is_not_retried(pushing: Pushing) -> None:
    with receiving(403, 200) as receiver:
        push = pushing(receiver.url)
        news(push, "first")
        news(push, "second")
        got = [json.loads((await taken(receiver)).body)["body"] for _ in range(2)]
    assert got == ["Finished: first", "Finished: second"]


async def test_a_subscription_that_has_ended_is_removed(pushing: Pushing) -> None:
    keys = BrowserKeys()
    with receiving(410) as receiver:
        push = pushing(receiver.url, kind="webpush", public_key=encode64(keys.public), auth=encode64(keys.auth))
        news(push)
        await taken(receiver)
        await until_true(lambda: not push.preferences.read("local").receivers)


async def test_answered_question_is_not_pushed(pushing: Pushing) -> None:
    with receiving() as receiver:
        push = pushing(receiver.url)
        push.event("s-1", "local", permission("ls"))  # no such question is open
        news(push)
        assert json.loads((await taken(receiver)).body)["kind"] == "ended"


async def test_removed_person_gets_no_notifications(pushing: Pushing) -> None:
    with receiving() as receiver:
        push = pushing(receiver.url)
        push.knows = lambda _: False
        news(push, "to the one who is gone")
        await until_true(lambda: bool(push._outboxes._boxes) and not _waiting(push))
        push.knows = lambda _: True
        news(push, "to the one who is back")
        assert json.loads((await taken(receiver)).body)["body"] == "Finished: to the one who is back"


def _waiting(push: Push) -> bool:
    return any(push._unread.values()) or push._outboxes.pending


async def test_a_message_for_a_browser_is_short_enough_whatever_it_says(pushing: Pushing) -> None:
    keys = BrowserKeys()
    with receiving(201) as receiver:
        push = pushing(receiver.url, kind="webpush", public_key=encode64(keys.public), auth=encode64(keys.auth))
        news(push, "\U0001f600" * 5000)
        got = await taken(receiver)
    assert len(got.body) < 4096
    assert keys.decrypt(got.body)["kind"] == "ended"
