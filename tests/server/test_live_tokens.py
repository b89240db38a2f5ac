"""A tokens file that changes while the server runs: who is let in from then on, and what of whom ends."""

import asyncio
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest

from claude_code_mcp.core.audit.trail import timestamp
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import UpstreamUnavailable
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.transcripts.watched_files import WatchedFile
from claude_code_mcp.server.transports import callers as callers_module
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.identity import Identity
from claude_code_mcp.server.transports.running_calls import AccessUntil, RunningCalls
from claude_code_mcp.server.transports.tokens_file import load_tokens
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, stall
from tests.conftest import RUN, StartService
from tests.plugins.console.console_client import Browser
from tests.support.program import HttpServer, http_server
from tests.support.waiting import HANG_SECONDS

from .connection import LONG
from .test_http import ACCEPT, HELLO, as_caller

ANN, BOB, EVE = (f"{name}-5f0c9d2e7b41a86c3d90-and-more" for name in ("ann", "bob", "eve"))
NEW = "another-91e4d7c2a5b8f3061e7d-and-more"


class Served:
    """A server with its tokens file and its audit trail."""

    def __init__(self, server: HttpServer, file: Path, audit: Path, place: Sandbox) -> None:
        self.server = server
        self.file = file
        self.audit = audit
        self.place = place
        self._audited_before = 0

    def begin(self) -> None:
        """Everybody is let in; of the audit trail, what comes from now on counts."""
        self.write(ann=ANN, bob=BOB)
        until(lambda: self.hello(ANN).status_code == self.hello(BOB).status_code == 200)
        self._audited_before = len(self.audit.read_bytes())

    def write(self, **tokens: str) -> None:
        """Replaces the file as an editor does."""
        beside = self.file.with_name("tokens.new")
        beside.touch(mode=0o600)
        beside.write_text("".join(f"{name} {token}\n" for name, token in tokens.items()))
        os.replace(beside, self.file)

    def hello(self, token: str) -> httpx2.Response:
        headers = {**ACCEPT, "authorization": f"Bearer {token}"}
        return httpx2.post(self.server.url, json=HELLO, headers=headers, timeout=LONG)

    def audited(self, act: str, **about: Any) -> dict[str, Any]:
        """The first entry of this kind; waits until it is written. What the test before has done may be written only
        now, so `about` says which one is meant."""
        return dict(until(lambda: next((entry for entry in self.entries() if self._fits(entry, act, about)), None)))

    @staticmethod
    def _fits(entry: dict[str, Any], act: str, about: dict[str, Any]) -> bool:
        return entry["act"] == act and about.items() <= entry.items()

    def entries(self) -> list[dict[str, Any]]:
        whole = self.audit.read_bytes()[self._audited_before :].rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    @contextmanager
    def stream(self, token: str) -> "Iterator[tuple[str, threading.Event]]":
        """A connection of the older protocol whose stream is being read; the event is set when the stream ends."""
        session = self.hello(token).headers["mcp-session-id"]
        headers = {"accept": "text/event-stream", "authorization": f"Bearer {token}", "mcp-session-id": session}
        opened: queue.Queue[int] = queue.Queue()
        ended = threading.Event()

        def read() -> None:
            try:
                with httpx2.stream("GET", self.server.url, headers=headers, timeout=None) as response:
                    opened.put(response.status_code)
                    for _ in response.iter_raw():
                        pass
            except httpx2.HTTPError:
                pass  # it was cut, which is an end too
            finally:
                ended.set()

        threading.Thread(target=read, daemon=True).start()
        assert opened.get(timeout=LONG) == 200
        yield session, ended


def until(look: Callable[[], Any]) -> Any:
    """What the look finds as soon as it finds something."""
    for _ in range(2000):
        found = look()
        if found:
            return found
        threading.Event().wait(0.02)
    raise AssertionError("it did not happen")


@contextmanager
def serving(root: Path, model: ScriptedModelThread, names: dict[str, str], **more: str) -> Iterator[Served]:
    place = Sandbox(root, model.url)
    secrets = root / "secrets"
    secrets.mkdir(mode=0o700)
    file = secrets / "tokens"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name} {token}\n" for name, token in names.items()))
    environment = place.environment(
        **{
            RUN: os.environ[RUN],
            "CLAUDE_CODE_MCP_PROFILE": "local",
            "CLAUDE_CODE_MCP_STATE_DIR": str(root / "state"),
            "CLAUDE_CODE_MCP_TOKENS_FILE": str(file),
            **more,
        }
    )
    with http_server(environment, place.project) as server:
        yield Served(server, file, root / "state" / "audit.jsonl", place)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), model, {"ann": ANN, "bob": BOB}) as started:
        yield started


@pytest.fixture
def served(running: Served) -> Served:
    running.begin()
    return running


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"], ids=["2025", "2026"])
def test_caller_removed_from_the_file_loses_running_work(served: Served, mode: str) -> None:
    with as_caller(served.server, ANN, mode) as ann, as_caller(served.server, BOB, mode) as bob:
        session = ann.create(script("work", stall())).session
        waiting = ann.start("claude_get_status", sessionId=session, waitSeconds=50)
        theirs = bob.create(script("work", stall())).session
        served.write(bob=BOB)
        assert until(lambda: served.hello(ANN).status_code == 401)
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client makes of a cut connection
            waiting.result(LONG).data  # noqa: B018
        assert bob.look(theirs).status == "running"
    assert served.audited("callers_changed", removed=["ann"])
    assert served.audited("caller_ended", who="ann", why="removed")
    served.audited("turn_ended", who="ann", session=session)


def test_the_streams_of_a_removed_caller_end_and_those_of_others_continue(served: Served) -> None:
    with served.stream(ANN) as (_, ann_ended), served.stream(BOB) as (session, bob_ended):
        served.write(bob=BOB)
        assert ann_ended.wait(LONG)
        assert not bob_ended.is_set()
        headers = {**ACCEPT, "authorization": f"Bearer {BOB}", "mcp-session-id": session}
        body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        assert httpx2.post(served.server.url, json=body, headers=headers, timeout=LONG).status_code == 200


def test_audit_trail_starts_with_the_profile_of_callers(served: Served) -> None:
    first = json.loads(served.audit.read_bytes().splitlines()[0])
    assert (first["act"], first["profile"], "policy" in first) == ("server_started", "local", False)


def test_shares_of_a_removed_caller_end(served: Served) -> None:
    ann, bob = (Browser(served.server.base) for _ in range(2))
    assert [ann.sign_in(token=ANN).status, bob.sign_in(token=BOB).status] == [200, 200]
    with as_caller(served.server, ANN, "2026-07-28") as tools:
        session = tools.create(script("work", stall())).session
    assert ann.ask("PUT", f"/api/sessions/{session}/shares/bob", {"access": "watch"}).status == 200
    with bob.stream(f"?session={session}&after=0-0") as events:
        assert next(events)
        served.write(bob=BOB)
        for _ in events:
            pass  # until the stream ends
    assert bob.get(f"/api/sessions/{session}").status == 404
    served.audited("session_unshared", who="operator", session=session, owner="ann", why="removed")
    served.write(ann=ANN, bob=BOB)
    until(lambda: served.hello(ANN).status_code == 200)
    assert bob.get(f"/api/sessions/{session}").status == 404


def test_with_another_token_the_old_connections_end_and_the_work_continues(served: Served) -> None:
    with as_caller(served.server, ANN) as ann, served.stream(ANN) as (connection, ended):
        session = ann.create(script("work", stall())).session
        served.write(ann=NEW, bob=BOB)
        assert ended.wait(LONG)
    assert served.audited("caller_ended", who="ann", why="renewed")
    with as_caller(served.server, NEW) as renewed:
        assert renewed.look(session).status == "running"
    headers = {**ACCEPT, "authorization": f"Bearer {NEW}", "mcp-session-id": connection}
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    assert httpx2.post(served.server.url, json=body, headers=headers, timeout=LONG).status_code == 404
    assert served.hello(ANN).status_code == 401


def test_the_console_of_a_removed_caller_ends_too(served: Served) -> None:
    ann, bob = Browser(served.server.base), Browser(served.server.base)
    assert ann.sign_in(token=ANN).status == bob.sign_in(token=BOB).status == 200
    with ann.stream() as events:
        served.write(bob=BOB)
        assert "message" not in [event.name for event in events]  # until it ends
    assert (ann.get("/api/me").status, bob.get("/api/me").status) == (401, 200)
    assert ann.sign_in(token=ANN).status == 401


@pytest.mark.parametrize(
    "content",
    # What is refused in such a file: tests/server/test_http.py.
    [b"\xff\xfe\x00", f"ann {ANN}\nann {BOB}\n".encode(), None],
    ids=["no text", "a name twice", "missing"],
)
def test_unusable_tokens_file_admits_and_removes_no_callers(served: Served, content: bytes | None) -> None:
    with as_caller(served.server, ANN) as ann:
        session = ann.create(script("work", stall())).session
        if content is None:
            served.file.unlink()
        else:
            served.file.write_bytes(content)
        assert until(lambda: served.hello(ANN).status_code == 503)
        assert served.hello(NEW).status_code == 503
        health = httpx2.get(f"{served.server.base}/health").json()
        assert health["status"] == "degraded"
        assert str(served.file) not in str(health)
        assert served.audited("tokens_unusable")
        served.write(ann=ANN, bob=BOB)
        assert until(lambda: served.hello(BOB).status_code == 200)
        assert httpx2.get(f"{served.server.base}/health").json()["status"] == "ok"
        assert ann.look(session).status == "running"


@pytest.mark.soak  # waits for the time that a file may be unusable
def test_what_runs_ends_too_if_the_file_stays_unusable(served: Served) -> None:
    with as_caller(served.server, ANN) as ann, served.stream(ANN) as (_, ended):
        session = ann.create(script("work", stall())).session
        served.file.chmod(0o644)  # others could read it
        assert ended.wait(LONG)
    served.file.chmod(0o600)
    assert until(lambda: served.hello(ANN).status_code == 200)
    with as_caller(served.server, ANN) as again:
        assert again.look(session).status == "running"


def test_emptied_tokens_file_admits_no_callers(served: Served) -> None:
    served.write()
    assert until(lambda: served.hello(ANN).status_code == 401)
    assert httpx2.post(served.server.url, json=HELLO, headers=ACCEPT, timeout=LONG).status_code == 401
    anybody = Browser(served.server.base)
    assert anybody.post("/api/sign-in", {"device": "x"}).status == 401
    assert httpx2.get(f"{served.server.base}/metrics").status_code == 401


def test_the_token_of_the_settings_does_not_depend_on_the_file(tmp_path: Path, model: ScriptedModelThread) -> None:
    with serving(tmp_path, model, {"ann": ANN, "bob": BOB}, CLAUDE_CODE_MCP_TOKEN=EVE) as served:
        served.file.write_text("broken")
        assert until(lambda: served.hello(ANN).status_code == 503)
        assert served.hello(EVE).status_code == 200
        served.write()
        assert until(lambda: served.hello(ANN).status_code == 401)
        assert served.hello(EVE).status_code == 200


class FileOnWatch:
    """A watched file, of which there is a newer version at any moment as long as it is not at rest."""

    def __init__(self, *, at_rest: bool, while_empty: Callable[[], object] = lambda: None) -> None:
        self.is_noted = not at_rest
        self._while_empty = while_empty

    def clear(self) -> None:
        """What was noted is noted again at once, if anything was."""

    async def watch_again(self) -> None:
        """It is watched."""

    async def wait(self, longest: float) -> None:
        """What happens while the file is empty."""
        self._while_empty()


@dataclass
class Reading:
    """The callers of a tokens file in this process, and a look at the file that is made when a test says so."""

    file: Path
    callers: Callers
    service: Service

    async def look(self, **watched: Any) -> None:
        file = FileOnWatch(**{"at_rest": True, **watched})
        await self.callers._read_again(cast("WatchedFile", file), self.service)

    def known(self) -> list[str]:
        return [name for name in ("ann", "bob") if self.callers.knows(name)]


@pytest.fixture
async def reading(tmp_path: Path, start_service: StartService, monkeypatch: pytest.MonkeyPatch) -> Reading:
    """The file has Ann and Bob in it when it is read first, and is empty then."""
    monkeypatch.setattr(callers_module, "_SETTLED", 0)
    file = tmp_path / "tokens"
    file.write_text(f"ann {ANN}\nbob {BOB}\n")
    file.chmod(0o600)
    found = Reading(file, Callers(load_settings({}, http_tokens_file=file)), await start_service())
    file.write_text("")
    return found


async def test_intermediate_file_content_is_not_used_as_the_list(reading: Reading) -> None:
    await reading.look(at_rest=False)
    assert reading.known() == ["ann", "bob"]
    with pytest.raises(UpstreamUnavailable):
        await reading.callers.by_token(ANN)
    reading.file.write_text(f"ann {ANN}\n")
    await reading.look()
    assert reading.known() == ["ann"]
    assert await reading.callers.by_token(ANN) is not None


async def test_slow_rewrite_of_the_tokens_file_disconnects_no_one(reading: Reading) -> None:
    await reading.look(while_empty=lambda: reading.file.write_text(f"ann {ANN}\nbob {BOB}\n"))
    assert reading.known() == ["ann", "bob"]
    reading.file.write_text("")
    await reading.look()
    assert reading.known() == [], "it has stayed empty"


async def test_a_list_that_changes_while_it_is_read_is_read_again(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = load_tokens

    def slow(*arguments: Any, **more: Any) -> Any:
        found = read(*arguments, **more)
        reading.file.write_text(f"ann {ANN}\n")
        return found

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(callers_module, "load_tokens", slow)
        await reading.look()
    assert reading.known() == ["ann", "bob"]
    await reading.look()
    assert reading.known() == ["ann"]


async def test_who_is_taken_out_while_no_server_runs_is_missed_at_the_next_start(reading: Reading) -> None:
    async def start(content: str) -> list[str]:
        reading.file.write_text(content)
        callers, removed = Callers(load_settings({}, http_tokens_file=reading.file)), list[str]()

        async def remove(name: str) -> None:
            removed.append(name)

        callers.remove = remove
        following = asyncio.create_task(callers.follow(reading.service))
        await asyncio.sleep(0)  # it begins
        await callers.by_token("nobody's")  # waits until the list counts
        following.cancel()
        await asyncio.wait([following])
        return removed

    assert await start(f"ann {ANN}\nbob {BOB}\n") == []
    assert await start(f"bob {BOB}\n") == ["ann"]
    assert await start(f"bob {BOB}\neve {EVE}\n") == []


def test_rewriting_the_tokens_file_disconnects_no_one(served: Served) -> None:
    """Between the truncation and the writing it is empty, which must not be taken for a removal."""
    whole, began = served.file.read_text(), timestamp()
    with served.stream(ANN) as (_, ended):
        for _ in range(200):
            served.file.write_text(whole)
        assert served.hello(ANN).status_code == 200
        assert not ended.is_set()
    assert "caller_ended" not in [entry["act"] for entry in served.entries() if entry["at"] >= began]


def test_a_file_behind_links_that_are_swapped_is_followed(tmp_path: Path, model: ScriptedModelThread) -> None:
    """As Kubernetes mounts secrets: tokens -> ..data/tokens, ..data -> ..2026_01."""
    mounted = tmp_path / "mounted"
    for version, tokens in (("..1", f"ann {ANN}\nbob {BOB}\n"), ("..2", f"bob {BOB}\n")):
        (mounted / version).mkdir(parents=True)
        (mounted / version / "tokens").touch(mode=0o600)
        (mounted / version / "tokens").write_text(tokens)
    (mounted / "..data").symlink_to("..1")
    (mounted / "tokens").symlink_to("..data/tokens")
    with serving(tmp_path, model, {}, CLAUDE_CODE_MCP_TOKENS_FILE=str(mounted / "tokens")) as served:
        assert served.hello(ANN).status_code == 200
        (mounted / "..data_tmp").symlink_to("..2")
        os.replace(mounted / "..data_tmp", mounted / "..data")
        assert until(lambda: served.hello(ANN).status_code == 401)
        assert served.hello(BOB).status_code == 200


def test_no_request_that_is_sent_after_the_change_is_answered_by_the_old_list(served: Served) -> None:
    """The order of the two is certain, as the answer to one request comes before the file is written."""
    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            served.write(ann=ANN, bob=BOB)
            assert until(lambda: served.hello(ANN).status_code == 200)
            served.write(bob=BOB)
            assert {answer.status_code for answer in threads.map(served.hello, [ANN] * 8)} == {401}


def test_a_new_caller_is_let_in_where_each_has_a_directory_of_its_own(served: Served) -> None:
    served.write(ann=ANN, bob=BOB, eve=EVE)
    assert until(lambda: served.hello(EVE).status_code == 200)
    with as_caller(served.server, EVE) as eve:
        assert eve.sessions() == []
    assert served.audited("callers_changed", added=["eve"])


def test_a_second_caller_of_a_server_that_was_started_for_one_waits_for_a_restart(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    with serving(tmp_path, model, {"ann": ANN}) as served:
        served.write(ann=ANN, eve=EVE)
        assert served.audited("callers_changed")["waiting"] == ["eve"]
        assert served.hello(EVE).status_code == 401
        assert served.hello(ANN).status_code == 200


async def test_a_stream_whose_access_cannot_be_checked_ends_and_the_log_says_whose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = RunningCalls()

    async def fail() -> float | None:
        raise RuntimeError("a bug")

    with calls.running(Identity("ann", "")) as call:
        call.standing, call.access = True, AccessUntil(time.time() + 3600, 0.0, fail)
        calls._schedule(call)
        looking = asyncio.create_task(calls.end_streams_with_tokens())
        await asyncio.wait_for(anyio.sleep_forever(), HANG_SECONDS)
    looking.cancel()
    assert call.scope.cancelled_caught
    assert any("ann" in record.getMessage() and record.exc_info for record in caplog.records), caplog.text
