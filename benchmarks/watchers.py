"""The console under load: fifty browsers that watch one session stream, 500 events a second, over real HTTP.

The watchers are in a process of their own; meanwhile this one asks the server for a short answer again and again: how
late that is tells how busy its event loop is.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from claude_code_mcp.testing.script import script, text

from .common import Figure, Place, benchmark

_WATCHERS = 50
_EVENTS = 3000
_RATE = 500
_LINE = "The quick brown fox jumps over the very lazy dog again.\n"
_REPEAT = 300
_TEXT = _LINE * _REPEAT
_FASTER = 1.02
"""By so much the model offers more than is wanted: the last of the fragments may be a moment late."""
_PROMPT = script("Write.", text(_LINE, repeat=_REPEAT, chunks=_EVENTS, interval=1 / (_RATE * _FASTER)))
_COMMAND = str(Path(sys.executable).parent / "claude-code-mcp")
_GOAL_CPU = 60.0
_GOAL_LAG = 50.0
_PROBE_INTERVAL = 0.02


@benchmark
async def watchers(place: Place) -> Sequence[Figure]:
    """Fifty watchers of a session that streams 500 events a second."""
    with _server(place) as (process, address):
        alone = await _run(process, address, place, 1)
        crowd = await _run(process, address, place, _WATCHERS)
    return [
        Figure(
            f"{_WATCHERS} watchers, text whole",
            f"{alone.whole} of 1",
            f"{crowd.whole}",
            f"{crowd.whole}",
            f"all {_WATCHERS}",
            crowd.whole == _WATCHERS,
        ),
        Figure(
            f"events a second at each of {_WATCHERS} watchers",
            f"{_EVENTS / alone.seconds:.0f} with one",
            f"{_EVENTS / crowd.seconds:.0f}",
            f"{_EVENTS / crowd.seconds:.0f}",
            f"≥ {_RATE}",
            _EVENTS / crowd.seconds >= _RATE,
        ),
        Figure(
            f"server CPU for {_RATE} events/s",
            f"{alone.cpu:.0f} % with one",
            f"{crowd.cpu:.0f} %",
            f"{crowd.cpu:.0f} %",
            f"≤ {_GOAL_CPU:g} % of a core",
            crowd.cpu <= _GOAL_CPU,
        ),
        Figure(
            "a short answer meanwhile, p99",
            f"{alone.late:.1f} ms with one",
            f"{crowd.late:.1f} ms",
            f"{crowd.late:.1f} ms",
            f"≤ {_GOAL_LAG:g} ms",
            crowd.late <= _GOAL_LAG,
        ),
    ]


class Load(NamedTuple):
    """One run."""

    whole: int
    """Watchers that got all of the text."""
    cpu: float
    """The server's share of a core for so many events a second, in percent."""
    late: float
    """Milliseconds that 99 of 100 short answers took at most."""
    seconds: float
    """From the first fragment to the last."""


@contextmanager
def _server(place: Place) -> Iterator[tuple[psutil.Process, tuple[str, int]]]:
    environment = {
        **place.environment,
        "CLAUDE_CODE_MCP_STATE_DIR": str(place.sandbox.root / "web-state"),
        "CLAUDE_CODE_MCP_PROFILE": "local",
        "CLAUDE_CODE_PATH": str(place.executable),
    }
    command = [_COMMAND, "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment, cwd=place.cwd, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "serving MCP on " in line)
            host, _, port = line.split("http://")[1].partition("/")[0].partition(":")
            yield psutil.Process(process.pid), (host, int(port))
        finally:
            process.terminate()


async def _run(process: psutil.Process, address: tuple[str, int], place: Place, count: int) -> Load:
    headers = await _sign_in(address)
    made = await _ask(address, "POST", "/api/sessions", headers, {"prompt": _PROMPT, "workingDirectory": place.cwd})
    with ProcessPoolExecutor(1) as pool:
        loop = asyncio.get_running_loop()
        watching = loop.run_in_executor(pool, _watch_all, address, headers, made["sessionId"], count)
        cpu, delays = _cpu(process), [0.0]
        while not watching.done():
            delays.append(await _delay(address))
            await asyncio.sleep(_PROBE_INTERVAL)
    share = (_cpu(process) - cpu) / _EVENTS * _RATE * 100  # by the work for each, however fast they came
    whole, streaming = watching.result()
    return Load(whole, share, sorted(delays)[int(len(delays) * 0.99)], streaming)


def _watch_all(address: tuple[str, int], headers: dict[str, str], session: str, count: int) -> tuple[int, float]:
    """How many got all of the text, and the seconds from its first fragment to its last."""

    async def run() -> tuple[int, float]:
        results = await asyncio.gather(*(_watch(address, headers, session) for _ in range(count)))
        return sum(whole for whole, _ in results), max(seconds for _, seconds in results)

    return asyncio.run(run())


async def _delay(address: tuple[str, int]) -> float:
    began = time.perf_counter()
    async with _request(address, "GET", "/health", {}) as (reader, _):
        await reader.read()
    return (time.perf_counter() - began) * 1000


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _sign_in(address: tuple[str, int]) -> dict[str, str]:
    cookies: list[str] = []
    answer = await _ask(address, "POST", "/api/sign-in", {}, {}, cookies)
    return {"Cookie": cookies[0].partition(";")[0], "X-CSRF-Token": answer["csrf"]}


@asynccontextmanager
async def _request(
    address: tuple[str, int], method: str, path: str, headers: dict[str, str], body: Any = None
) -> AsyncIterator[tuple[asyncio.StreamReader, str]]:
    reader, writer = await asyncio.open_connection(*address, limit=8 << 20)
    try:
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        yield reader, (await reader.readuntil(b"\r\n\r\n")).decode()
    finally:
        writer.close()


async def _ask(
    address: tuple[str, int],
    method: str,
    path: str,
    headers: dict[str, str],
    body: Any = None,
    cookies: list[str] | None = None,
) -> Any:
    async with _request(address, method, path, headers, body) as (reader, head):
        if cookies is not None:
            cookies += [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("set-cookie")]
        return json.loads(await reader.read())


async def _watch(address: tuple[str, int], headers: dict[str, str], session: str) -> tuple[bool, float]:
    """Whether everything of the text has come, each fragment once, and no gap; and how long that took."""
    turns = await _ask(address, "GET", f"/api/sessions/{session}/turns", headers)
    got: list[str] = []
    began = latest = 0.0
    path = f"/api/events?session={session}&after={turns['cursor']}"
    async with _request(address, "GET", path, headers) as (reader, _):
        name = b""
        while True:
            line = await reader.readline()
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"partial":
                fragment = json.loads(line[6:])
                latest = time.perf_counter()
                began = began or latest
                got.append(fragment["text"] if fragment["kind"] == "text" else "")
            elif name in (b"ended", b"gap", b"reset") or not line:
                return "".join(got) == _TEXT, latest - began
