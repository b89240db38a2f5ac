"""A Messages API on loopback that plays the scripts it finds in the prompts, and remembers each request.

It keeps no conversations, so any number of sessions can share one. The only state is a record of the last
requests, and how often each step that fails a limited number of times has failed.

`Sandbox` is an environment for the real CLI: a separate home, a project directory and clean variables.
"""

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .http_api import Request, chunk, error_body, message_of, pieces_of, read_request, stream_head, write_json
from .script import Fault, ModelAnswer, answer_to, messages_of, newest_script, texts_by_role, texts_of, tool_results_in

_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL")
_INHERITED_ON_WINDOWS = (
    "PATH", "PATHEXT", "SYSTEMROOT", "WINDIR", "SYSTEMDRIVE", "COMSPEC", "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMDATA", "USERNAME",
)  # fmt: skip
SHORT_RUN = {
    "BUN_JSC_useDFGJIT": "0",
    "BUN_JSC_useConcurrentJIT": "0",
    "BUN_JSC_numberOfGCMarkers": "1",
    "BUN_GC_TIMER_DISABLE": "1",
}
"""Disables a compiler and garbage collection threads, which cost a process of a few turns a sixth of its time, and the
collection in an idle process, which costs as much again."""
_XDG = ("cache", "config", "data", "state")


def model_environment(model_url: str, api_key: str = "sk-scripted") -> dict[str, str]:
    """The variables that make Claude Code use a scripted model and nothing else on the network."""
    return {
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": api_key,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


class Sandbox:
    """Directories under `root` and the environment that keeps Claude Code inside them."""

    def __init__(self, root: Path, model_url: str) -> None:
        """Create the directories; `root` need not exist yet."""
        self.root = root
        self.model_url = model_url
        self.home = root / "home"
        """The home directory; Claude Code keeps its sessions in `.claude` below it."""
        self.project = root / "project"
        """An empty directory to run in."""
        self.temporary = root / "tmp"
        """The directory for temporary files."""
        for directory in (self.home, self.project, self.temporary):
            directory.mkdir(parents=True, exist_ok=True)

    def environment(self, **extra: str) -> dict[str, str]:
        """The complete environment for a process; `extra` adds to it or replaces values."""
        windows = sys.platform == "win32"
        inherited = _INHERITED_ON_WINDOWS if windows else _INHERITED
        kept = {name: os.environ[name] for name in inherited if name in os.environ}
        places = self._windows_places() if windows else self._posix_places()
        return {**kept, **places, **SHORT_RUN, **model_environment(self.model_url), **extra}

    def _posix_places(self) -> dict[str, str]:
        xdg = {f"XDG_{kind.upper()}_HOME": str(self.home / ".xdg" / kind) for kind in _XDG}
        return {"HOME": str(self.home), "TMPDIR": str(self.temporary), **xdg}

    def _windows_places(self) -> dict[str, str]:
        return {
            "USERPROFILE": str(self.home),
            "HOME": str(self.home),
            "APPDATA": str(self.home / "AppData" / "Roaming"),
            "LOCALAPPDATA": str(self.home / "AppData" / "Local"),
            "TEMP": str(self.temporary),
            "TMP": str(self.temporary),
        }


# -- the model --------------------------------------------------------------------------------------------------------


_HEADERS = (
    *("anthropic-beta", "anthropic-version", "authorization", "user-agent", "x-api-key", "x-app", "x-gateway-key"),
    "x-stainless-retry-count",
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool result as the model received it."""

    tool_use_id: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request to the scripted model."""

    at: float
    """When it was read completely, in seconds of the monotonic clock."""
    path: str
    """Without its query."""
    status: int
    """The status of the response; 200 also for a stream that was cut or stalled."""
    session_id: str
    """The Claude Code session that sent the request; subagents use their parent's."""
    model: str
    """The requested model."""
    stream: bool
    """Whether a streamed answer was requested."""
    messages: int
    """The number of messages."""
    tools: tuple[str, ...]
    """The names of the tools offered to the model."""
    system: str
    """The system prompt."""
    prompt: str
    """The newest text with a script in it; the newest text of the user if none has one."""
    tool_results: tuple[ToolResult, ...]
    """The results of the last answer's tool calls."""
    step: int | None
    """The index of the script's step that was the answer, if any."""
    headers: Mapping[str, str]
    """The relevant headers, with lower-case names."""
    body: Mapping[str, Any] | None
    """The decoded request, only with `keep_bodies`."""


def record_of(
    path: str,
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    status: int,
    step: int | None,
    keep_body: bool,
) -> RequestRecord:
    """The record of one request. System prompts repeat, so equal ones share their memory."""
    messages = messages_of(body)
    newest = newest_script(messages)
    results = (
        ToolResult(
            str(block.get("tool_use_id", "")), "\n".join(texts_of(block.get("content"))), bool(block.get("is_error"))
        )
        for block in tool_results_in(messages)
    )
    return RequestRecord(
        at=time.monotonic(),
        path=path.partition("?")[0],
        status=status,
        session_id=_session_id(body),
        model=str(body.get("model", "")),
        stream=bool(body.get("stream")),
        messages=len(messages),
        tools=tuple(str(tool.get("name")) for tool in body.get("tools") or []),
        system=sys.intern("\n".join(texts_of(body.get("system")))),
        prompt=newest[1] if newest else "".join(texts_by_role(messages, "user")[-1:]),
        tool_results=tuple(results),
        step=step,
        headers={name: headers[name] for name in _HEADERS if name in headers},
        body=body if keep_body else None,
    )


def _session_id(body: Mapping[str, Any]) -> str:
    """The CLI hides it in the user id, which is JSON in a string."""
    try:
        return str(json.loads(body["metadata"]["user_id"])["session_id"])
    except (KeyError, TypeError, ValueError):
        return ""


BAD_KEY = "sk-bad"
"""The API key that is refused with 401; any other is accepted."""

_FAILURES_KEPT = 10_000
_LOOK_INTERVAL = 0.02
"""Seconds between two checks for a file that an answer waits for."""


class ScriptedModel:
    """The scripted Messages API: `async with ScriptedModel() as model:` and point the CLI at `model.url`."""

    def __init__(self, port: int = 0, *, keep_bodies: bool = False, remember: int = 1000) -> None:
        """Port 0 chooses a free one. The last `remember` requests are kept, with bodies if requested."""
        self._port = port
        self._keep_bodies = keep_bodies
        self._records: deque[RequestRecord] = deque(maxlen=remember)
        self._failures: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._arrival = asyncio.Event()

    @property
    def url(self) -> str:
        """The value for ANTHROPIC_BASE_URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests so far, oldest first."""
        return list(self._records)

    async def wait_for_requests(self, count: int) -> list[RequestRecord]:
        """The requests, as soon as there are at least this many."""
        while len(self._records) < count:
            # No await between the check and `clear`: a later request sets it again.
            self._arrival.clear()
            await self._arrival.wait()
        return self.requests

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop every open stream at once."""
        if self._server is None:
            return
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        """Listen."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        await self.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Each piece is sent at once: tests rely on the pauses between them.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (request := await read_request(reader)) and await self._respond(request, reader, writer):
                pass
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.transport.abort()

    async def _respond(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection must end."""
        path = request.path.partition("?")[0]
        if request.method != "POST" or not path.startswith("/v1/messages"):
            await _respond_to_other_path(request.method, path, writer)
            return True
        body = _decoded(request.body)
        if (refusal := _refusal(request, body)) is not None:
            self._record(request, refusal.status, None, body)
            await _write_error(writer, refusal)
            return True
        if path.endswith("/count_tokens"):
            self._record(request, 200, None, body)
            await write_json(writer, 200, {"input_tokens": len(request.body) // 4})
            return True
        return await self._answer(request, body, reader, writer)

    async def _answer(
        self,
        request: Request,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        answer = answer_to(body)
        fault = self._current_fault(answer)
        refused = fault is not None and fault.kind == "error"
        # Before the delay: tests wait for the request, not for its answer.
        self._record(request, fault.status if fault and refused else 200, answer.step, body)
        await asyncio.sleep(answer.delay)
        if fault and refused:
            await _write_error(writer, fault)
        else:
            await _write_answer(reader, writer, answer, body, fault)
        if fault and fault.kind == "stall":
            await reader.read()  # until the client gives up
        return fault is None or refused

    def _current_fault(self, answer: ModelAnswer) -> Fault | None:
        """The fault of this attempt, if the step has not failed often enough yet."""
        if answer.fault is None or answer.fault.times is None:
            return answer.fault
        # Bounded: one server may serve a whole run of tests.
        if len(self._failures) > _FAILURES_KEPT:
            self._failures.clear()
        self._failures[answer.key] += 1
        return answer.fault if self._failures[answer.key] <= answer.fault.times else None

    def _record(self, request: Request, status: int, step: int | None, body: dict[str, Any]) -> None:
        record = record_of(request.path, request.headers, body, status=status, step=step, keep_body=self._keep_bodies)
        self._records.append(record)
        self._arrival.set()


class ScriptedModelThread:
    """A scripted model with a separate thread and event loop: for code that is not async, or shares no loop."""

    def __init__(self, port: int = 0, *, keep_bodies: bool = False, remember: int = 1000) -> None:
        """The arguments of `ScriptedModel`."""
        self._model = ScriptedModel(port, keep_bodies=keep_bodies, remember=remember)
        self._thread = threading.Thread(target=self._run, name="scripted-model", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    @property
    def url(self) -> str:
        """The value for ANTHROPIC_BASE_URL."""
        return self._model.url

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests so far, oldest first."""
        return self._model.requests

    def __enter__(self) -> Self:
        """Listen; raises the error that prevented it."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wait until the thread has ended."""
        assert self._loop is not None
        # On the thread of that loop: its event must not be set from here.
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            # Also after a failure: `__enter__` waits for it.
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._model:
            self._ready.set()
            await self._stop.wait()


def _decoded(raw: bytes) -> dict[str, Any]:
    """The body, or nothing if it is not a JSON object."""
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _refusal(request: Request, body: dict[str, Any]) -> Fault | None:
    if BAD_KEY in (request.headers.get("x-api-key"), request.headers.get("authorization", "")[7:]):
        return Fault("error", None, 401, "authentication_error", "invalid x-api-key")
    if not body:
        return Fault("error", None, 400, "invalid_request_error", "the body is not a JSON object")
    return None


async def _respond_to_other_path(method: str, path: str, writer: asyncio.StreamWriter) -> None:
    if method == "HEAD":
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
    elif path == "/v1/models":
        await write_json(writer, 200, {"data": [], "has_more": False, "first_id": None, "last_id": None})
    else:
        await write_json(writer, 404, error_body("not_found_error", path))


async def _write_error(writer: asyncio.StreamWriter, fault: Fault) -> None:
    wait = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    body = error_body(fault.error_type, fault.message)
    await write_json(writer, fault.status, body, {**wait, **fault.headers})


async def _write_answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: ModelAnswer,
    body: dict[str, Any],
    fault: Fault | None,
) -> None:
    model = str(body.get("model", "scripted"))
    if body.get("stream"):
        await _write_stream(reader, writer, answer, model, fault)
    elif fault is None:
        await _wait_for_file(answer.until, reader)
        await write_json(writer, 200, message_of(answer, model), answer.headers)


async def _wait_for_file(path: str | None, reader: asyncio.StreamReader) -> None:
    """Returns when the file is there; ConnectionError if the client leaves before."""
    while path is not None and not os.path.exists(path):  # noqa: ASYNC240 - anybody may make it, anywhere
        if reader.at_eof():
            raise ConnectionResetError
        await asyncio.sleep(_LOOK_INTERVAL)


async def _write_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: ModelAnswer, model: str, fault: Fault | None
) -> None:
    """A piece is due when the pauses before it are over, however late the previous piece was, so the average rate is
    kept."""
    head, loop = stream_head(answer.headers), asyncio.get_running_loop()
    due = loop.time()
    for piece in pieces_of(answer, model, fault):
        writer.write(head + chunk(piece.data))
        head = b""
        await writer.drain()
        if piece.pause:
            due += piece.pause
            await asyncio.sleep(max(0.0, due - loop.time()))
        if piece.waits:
            await _wait_for_file(answer.until, reader)
            # Time spent waiting is not compensated by a burst.
            due = loop.time()
    if fault is None:
        writer.write(chunk(b""))
        await writer.drain()
