"""A turn in a session that is running, with traces, metrics and logs sent by OpenTelemetry, against the same without.

What is measured is the time of the processor, of the server and of Claude Code together: that of the clock says more of
what else the machine does."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import psutil

from claude_code_mcp.testing.script import script, text, tool

from .common import Figure, Place, benchmark, pairs, ratio
from .startup import OURS
from .wire import INITIALIZE, INITIALIZED, Wire, encode_message

_ROUNDS = 6
_TURNS = 10
"""In each round, by turns with and without."""
_GOAL = 1.1
_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_COLLECTOR = """
import http.server, socketserver
class Taker(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
    print(server.server_port, flush=True)
    server.serve_forever()
"""


@benchmark
async def tracing(place: Place) -> Sequence[Figure]:
    """A turn with a tool, with and without OpenTelemetry."""
    file = place.sandbox.project / "notes.txt"
    file.write_text("A line.\n")
    with _collector() as address:
        on = {"CLAUDE_CODE_MCP_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": address}
        plain = {**place.environment, "LOG_LEVEL": "warning", "CLAUDE_CODE_MCP_PROFILE": "local"}
        with Wire(OURS, plain) as off, Wire(OURS, {**plain, **on}) as traced:
            sessions = {wire: _opened(wire, place.cwd) for wire in (off, traced)}
            times: dict[Wire, list[float]] = {off: [], traced: []}
            for warm in (False, *(True for _ in range(_ROUNDS))):
                used = dict.fromkeys((off, traced), 0.0)
                for traced_first in pairs(_TURNS):
                    for wire in (traced, off) if traced_first else (off, traced):
                        used[wire] += _cpu(wire, sessions[wire], file)
                for wire, milliseconds in used.items() if warm else ():
                    times[wire].append(milliseconds / _TURNS)
    return [ratio("CPU of a turn with a tool, traced", times[off], times[traced], _GOAL)]


@contextmanager
def _collector() -> Iterator[str]:
    """The address of somebody who takes everything, in a process of its own."""
    with Popen([sys.executable, "-c", _COLLECTOR], stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _opened(wire: Wire, cwd: str) -> str:
    wire.ask(INITIALIZE)
    wire.send(INITIALIZED)
    return str(_call(wire, "claude_code", prompt=script("Begin.", "Begun."), cwd=cwd)["sessionId"])


def _cpu(wire: Wire, session: str, file: Path) -> float:
    """Milliseconds of the processor for a turn that reads a file."""
    prompt, before = script("Look.", tool("Read", file_path=str(file)), text("Seen.")), _used(wire)
    _call(wire, "claude_code_reply", sessionId=session, prompt=prompt)
    return (_used(wire) - before) * 1000


def _used(wire: Wire) -> float:
    """Seconds of the processor that a server has used, with the processes below it that live."""
    server = psutil.Process(wire.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (server, *server.children(recursive=True)))


def _call(wire: Wire, name: str, **arguments: object) -> dict[str, object]:
    meta = {"traceparent": _TRACE}
    wire.send(encode_message("tools/call", 2, name=name, arguments=arguments, _meta=meta))
    # Notifications of progress come before the answer.
    while "id" not in (answer := json.loads(wire.read())) or "method" in answer:
        pass
    result = answer["result"]
    assert not result.get("isError"), result
    return dict(result["structuredContent"])
