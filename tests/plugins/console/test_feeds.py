"""How events reach watchers: encoded once, nothing lost but what is said to be lost, no secret in pieces."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message as AsgiMessage

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.events import (
    Event,
    Message,
    Output,
    Partial,
    PartialRun,
    QuestionOpened,
    StateChanged,
    TurnStarted,
)
from claude_code_mcp.core.model.question import Question, QuestionKind
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.redaction import MARK, Redactor
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.transcripts.event_log import EventLog
from claude_code_mcp.plugins.console import feeds
from claude_code_mcp.plugins.console.event_frames import Frame, FrameEncoder, whole_parts
from claude_code_mcp.plugins.console.feeds import Feeds, Ring, Streams
from claude_code_mcp.plugins.console.guard import Accounts, Guard, WebUser
from claude_code_mcp.plugins.console.sign_ins import SignIns
from claude_code_mcp.server.transports.identity import Identity
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.core.sessions.support import PATIENCE, options, parked, run
from tests.support.waiting import until_true

SECRET = "hunter2-hunter2-hunter2"


def decoded(frames: list[Frame]) -> list[tuple[str, Any]]:
    found = []
    for frame in frames:
        lines = dict(line.split(": ", 1) for line in frame.data.decode().strip().split("\n"))
        found.append((lines["event"], json.loads(lines["data"])))
    return found


class Encoding:
    """A log and an encoder that is given its events."""

    def __init__(self) -> None:
        self.log = EventLog(100, 1 << 20)
        self.encoder = FrameEncoder(Redactor([SECRET]), self.log.cursor)

    def take(self, *events: Event) -> list[tuple[str, Any]]:
        frames: list[Frame] = []
        for event in events:
            self.log.append(event)
            frames += self.encoder.take(event)
        return decoded(frames)

    def flush(self) -> list[tuple[str, Any]]:
        return decoded(list(self.encoder.flush()))


@pytest.fixture
def encoding() -> Encoding:
    return Encoding()


def test_fragments_wait_for_the_flush_and_become_one_frame(encoding: Encoding) -> None:
    assert encoding.take(Partial("one "), Partial("two")) == []
    ((name, data),) = encoding.flush()
    assert (name, data["kind"], data["text"]) == ("partial", "text", "one two")
    assert encoding.flush() == []


def test_fragments_of_another_kind_are_another_frame(encoding: Encoding) -> None:
    ((_, first),) = encoding.take(Partial("hm", "thinking"), Partial("no", "text"))
    ((_, second),) = encoding.flush()
    assert (first["kind"], first["text"], second["kind"], second["text"]) == ("thinking", "hm", "text", "no")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_known_secret_in_fragments_never_passes_in_pieces(encoding: Encoding, size: int) -> None:
    text = f"the word is {SECRET}, as you know"
    sent = ""
    for start in range(0, len(text), size):
        encoding.take(Partial(text[start : start + size]))
        sent += "".join(data["text"] for _, data in encoding.flush())
    sent += "".join(data["text"] for name, data in encoding.take(StateChanged(State.IDLE)) if name == "partial")
    assert SECRET[:8] not in sent
    assert sent.startswith("the word is ")
    assert sent.endswith(", as you know")


def test_other_events_between_fragments_do_not_split_a_secret(encoding: Encoding) -> None:
    sent = ""
    for event in (Partial(f"the\n{SECRET[:7]}"), Output("the"), Partial(SECRET[7:]), Message({"type": "assistant"})):
        frames = [*encoding.take(event), *encoding.flush()]
        sent += "".join(data["text"] for name, data in frames if name == "partial")
    assert sent == f"the\n{MARK}"


async def test_who_begins_to_watch_within_a_secret_does_not_see_it(service: Service, sandbox: Sandbox) -> None:
    service.add_secrets([SECRET])
    session, _ = await run(service, script("go", "done"), options(sandbox))
    log = session.log
    for event in (Partial(f"the\n{SECRET[:7]}"), Output("the"), Partial(SECRET[7:10])):
        log.append(event)
    feed = feeds.SessionFeed(service, session)
    backlog = feed.backlog(0).decode()
    log.append(Partial(SECRET[10:]))
    log.append(Message({"type": "assistant"}))
    await until_true(lambda: MARK in str(feed.ring.read(0).data))
    feed.close()
    assert SECRET[:7] not in backlog


def test_backlog_is_flushed_up_to_the_last_possible_secret_start() -> None:
    redactor = Redactor([SECRET])
    parts = ["see: ", SECRET[:4], SECRET[4:10]]
    assert whole_parts(parts, redactor) == 1
    assert whole_parts([*parts, "nothing of the kind"], redactor) == 4
    assert whole_parts([], redactor) == 0


def test_what_the_log_did_not_keep_is_a_gap(encoding: Encoding) -> None:
    ((name, data),) = encoding.take(Message({"type": "assistant", "omitted_bytes": 5_000_000}))
    assert (name, data["first"], data["last"]) == ("gap", 1, 1)


def test_a_question_in_the_stream_has_no_input_and_no_secret(encoding: Encoding) -> None:
    command = f"curl -H 'X: {SECRET}'"
    question = Question("q-1", "s", QuestionKind.PERMISSION, "Bash", {"command": command}, f"Run: {command}")
    ((name, data),) = encoding.take(QuestionOpened(question))
    assert (name, data["questionId"]) == ("question", "q-1")
    assert SECRET not in json.dumps(data)
    assert "toolInput" not in data


def test_no_text_can_forge_an_event_of_the_stream(encoding: Encoding) -> None:
    forged = 'x\n\nevent: answered\ndata: {"allow": true}\r\rid: 9\n\n'
    encoding.log.append(TurnStarted(1, "m", forged))
    (frame,) = encoding.encoder.take(encoding.log.after(0)[0])
    assert frame.data.count(b"\n\n") == 1
    assert frame.data.endswith(b"\n\n")
    assert b"\r" not in frame.data
    assert decoded([frame])[0][1]["prompt"] == forged


def test_a_subagent_is_named_to_the_page_when_it_begins_to_work(encoding: Encoding) -> None:
    started = {"type": "system", "subtype": "task_started", "task_id": "a1b2", "tool_use_id": "t2"}
    ((name, data),) = encoding.take(Message({**started, "task_type": "local_agent"}))
    assert (name, data["call"], data["agent"]) == ("agent", "t2", "a1b2")
    for other in ({"task_type": "local_bash"}, {"task_type": "local_agent", "task_id": "../a"}, {"tool_use_id": None}):
        assert encoding.take(Message({**started, "task_type": "local_agent", **other})) == []


def test_fragments_of_a_subagent_are_not_mixed_into_the_text(encoding: Encoding) -> None:
    encoding.take(Partial("inner", raw={"parent_tool_use_id": "t"}), Partial("outer", raw={"event": {}}))
    ((_, data),) = encoding.flush()
    assert data["text"] == "outer"


@pytest.mark.soak
async def test_transcript_continued_elsewhere_is_reported(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, script("Say.", "Hello."), options(sandbox))
    await parked(session)
    wake = asyncio.Event()
    with Feeds(service).transcript("local", session.id) as feed:
        place = feed.ring.join(wake)
        (file,) = sandbox.home.rglob(f"{session.id}.jsonl")
        async with asyncio.timeout(PATIENCE):
            while not wake.is_set():  # it is followed from a moment on that nothing tells
                with file.open("a") as transcript:
                    transcript.write(json.dumps({"type": "user", "uuid": "u", "message": {"content": "more"}}) + "\n")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake.wait(), 1.0)
        assert b"event: grown" in place.read()[0]
        place.leave()


# -- rings ------------------------------------------------------------------------------------------------------------


def frame_of(seq: int, size: int = 10) -> Frame:
    return Frame(seq, b"%d" % seq + b"." * size)


async def test_all_watchers_get_the_very_same_bytes() -> None:
    ring = Ring()
    places = [ring.join(asyncio.Event()) for _ in range(50)]
    for seq in range(1, 101):
        ring.add(frame_of(seq))
    reads = [place.read()[0] for place in places]
    assert len({id(data) for data in reads}) == 1
    assert [place.read() for place in places] == [(b"", None)] * 50


async def test_a_watcher_that_falls_behind_learns_which_events_it_lost_and_continues() -> None:
    ring = Ring(most_frames=10)
    slow, wake = ring.join(asyncio.Event()), asyncio.Event()
    quick = ring.join(wake)
    got = b""
    for seq in range(1, 31):
        ring.add(frame_of(seq, 0))
        ring.wake()
        assert wake.is_set()
        got += quick.read()[0]
    assert got == b"".join(b"%d" % seq for seq in range(1, 31))
    data, lost = slow.read()
    assert lost == (1, 20)
    assert data == b"".join(b"%d" % seq for seq in range(21, 31))
    ring.add(frame_of(31, 0))
    assert slow.read() == (b"31", None)


async def test_a_ring_is_bounded_by_bytes_and_a_read_by_size() -> None:
    ring = Ring(most_bytes=1 << 20)
    place = ring.join(asyncio.Event())
    for seq in range(1, 41):
        ring.add(frame_of(seq, 100 << 10))
    first, lost = place.read()
    assert lost is not None
    assert len(first) <= 256 << 10
    total = len(first)
    while data := place.read()[0]:
        total += len(data)
    assert total <= 1 << 20


async def test_departed_waiter_is_not_woken() -> None:
    ring, wake = Ring(), asyncio.Event()
    place = ring.join(wake)
    place.leave()
    assert not ring.watched
    ring.add(frame_of(1))
    ring.wake()
    assert not wake.is_set()


def test_a_run_of_fragments_from_the_log_is_one_frame_with_the_number_of_its_last() -> None:
    log = EventLog(100, 1 << 20)
    for part in ("a", "b", "c"):
        log.append(Partial(part))
    (run,) = log.after(1)
    assert isinstance(run, PartialRun)
    encoder = FrameEncoder(Redactor(), log.cursor)
    assert list(encoder.take(run)) == []
    (frame,) = encoder.finish()
    assert frame.seq == 3
    assert decoded([frame])[0][1]["text"] == "bc"


# -- streams -----------------------------------------------------------------------------------------------------------


async def test_streams_are_counted_when_they_are_asked_for_and_released_however_they_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_MAX_STREAMS", 2)
    signed = SignIns(service.state)
    guard = Guard(
        signed, Accounts(None, by_socket=True), host_allowed=lambda _: True, origins=frozenset(), port=1, refused=print
    )
    streams = Streams(service, guard.still_signed_in, Feeds(service))
    caller = WebUser(Identity("local", ""), None)
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}

    async def ask() -> Response:
        return await streams.open(Request(scope), caller)

    async def gone() -> AsgiMessage:
        return {"type": "http.disconnect"}

    async def broken(_: AsgiMessage) -> None:
        raise ConnectionError

    async def taken(_: AsgiMessage) -> None:
        return

    responses = [await ask(), await ask()]
    with pytest.raises(LimitReached):
        await ask()
    responses.pop()  # which was never sent
    responses.append(await ask())
    with pytest.raises(LimitReached):
        await ask()
    for response, send in zip(responses, (broken, taken), strict=True):
        with contextlib.suppress(ExceptionGroup):
            await response(scope, gone, send)
    assert not streams.watched()
    kept = [await ask(), await ask()]
    assert len(kept) == 2


async def test_a_stream_that_always_has_something_to_tell_ends_with_its_sign_in_too(service: Service) -> None:
    async def ended(_: WebUser) -> bool:
        return False

    lists, sent = Feeds(service), list[bytes]()
    streams = Streams(service, ended, lists, heartbeat=0.01)
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}

    async def stays() -> AsgiMessage:
        await asyncio.Event().wait()
        raise AssertionError

    with lists.list_of("local") as feed:

        async def taken(message: AsgiMessage) -> None:
            sent.append(message.get("body", b""))
            feed.ring.add(Frame(0, b"data: {}\n\n"))  # there is more before anybody has looked at anything else
            feed.ring.wake()
            await asyncio.sleep(0)

        async with asyncio.timeout(PATIENCE):
            response = await streams.open(Request(scope), WebUser(Identity("local", ""), None))
            await response(scope, stays, taken)
    assert sent[-2].startswith(b"event: signed-out")
