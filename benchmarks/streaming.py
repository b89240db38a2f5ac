"""A long answer through `claude_code_query`, fragment by fragment, against a bare server that sends the same."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from claude_code_mcp.testing.script import script, text

from .call_cost import Cost, free_port, over_http, over_stdio, tool_call
from .common import Figure, Place, benchmark, ratio
from .raw import RawSession

_DELTAS = 10_000
_ROUNDS = 3
_GOAL = 1.5
_GOAL_MB = 64.0
_PROMPT = script("Write.", text("The quick brown fox jumps over the very lazy dog.\n", repeat=1000, chunks=_DELTAS))
_SHORT = script("Write.", "A few words.")
_OURS = str(Path(sys.executable).parent / "claude-code-mcp")


@benchmark
async def streaming(place: Place) -> Sequence[Figure]:
    """Ten thousand fragments streamed through claude_code_query over stdio and HTTP."""
    recorded = _record(place)
    figures: list[Figure] = []
    for transport in ("stdio", "HTTP"):
        bare, ours = [], []
        for _ in range(_ROUNDS):
            bare.append(_bare(transport, place, recorded))
            ours.append(_engine(transport, place))
        figures += _figures(transport, bare, ours)
    return figures


def _figures(transport: str, bare: list[Cost], ours: list[Cost]) -> list[Figure]:
    grown = max(cost.grown_mb for cost in ours)
    return [
        ratio(
            f"1,000 messages over {transport}, server CPU",
            [cost.cpu_per_thousand for cost in bare],
            [cost.cpu_per_thousand for cost in ours],
            _GOAL,
        ),
        Figure(
            f"memory while streaming over {transport}",
            f"{max(cost.grown_mb for cost in bare):+.1f} MB",
            f"{grown:+.1f} MB",
            f"{grown:.1f} MB",
            f"≤ {_GOAL_MB:g} MB",
            grown <= _GOAL_MB,
        ),
    ]


def _record(place: Place) -> Path:
    """The notifications that the query would send, in a file."""
    with RawSession(place) as raw:
        frames = [frame for _, _, frame in raw.turn(_PROMPT)]
    about = {"type": "claude_code_message", "timestamp": "2026-01-01T00:00:00.000+00:00"}
    messages = [
        {**about, "sessionId": frame.get("session_id"), "message": frame, "sequence": number}
        for number, frame in enumerate(frames, 1)
    ]
    file = place.sandbox.root / "recorded.json"
    file.write_text(json.dumps(messages), encoding="utf-8")
    return file


def _bare(transport: str, place: Place, recorded: Path) -> Cost:
    message = tool_call("send", {})
    command = [sys.executable, "-m", "benchmarks.bare_stream", str(recorded)]
    if transport == "stdio":
        return over_stdio(command, place.environment, Path(), message, message)
    port = free_port()
    return over_http([*command, str(port)], port, place.environment, Path(), message, message)


def _engine(transport: str, place: Place) -> Cost:
    options = {"includePartialMessages": True, "cwd": place.cwd}
    first, message = (
        tool_call("claude_code_query", {"prompt": prompt, "options": options}) for prompt in (_SHORT, _PROMPT)
    )
    # Without a token over HTTP: the default profile there would require one.
    own = {"CLAUDE_CODE_MCP_PROFILE": "local", "CLAUDE_CODE_MCP_STATE_DIR": str(place.sandbox.root / "state")}
    environment = {**place.environment, **own}
    if transport == "stdio":
        cost = over_stdio([_OURS], environment, Path(place.cwd), first, message)
    else:
        port = free_port()
        command = [_OURS, "serve", "--http", f"127.0.0.1:{port}"]
        cost = over_http(command, port, environment, Path(place.cwd), first, message)
    assert cost.messages > _DELTAS, cost
    return cost
