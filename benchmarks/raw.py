"""The raw protocol: the CLI on plain pipes with blocking reads, the least that any host has to do."""

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claude_code_mcp.core.claude.command_line import ConversationStart, build_command
from claude_code_mcp.core.claude.protocol import control_request, control_success, encode, user_message
from claude_code_mcp.core.model.options import SessionOptions

from .common import Place

Frame = dict[str, Any]


class RawSession:
    """One process, started with the flags that the engine gives it, and initialized."""

    def __init__(self, place: Place) -> None:
        command = build_command(SessionOptions(), ConversationStart(str(uuid.uuid4())), Path())
        self._process = subprocess.Popen(
            [place.executable, *command.arguments],
            cwd=place.cwd,
            env=place.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._lines = open(self._process.stdout.fileno(), "rb", closefd=False)  # noqa: SIM115 - closed with the process
        self._write(control_request("init", "initialize", {}))
        self._until("control_response")

    def __enter__(self) -> "RawSession":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._process.kill()
        self._process.communicate()

    def turn(self, prompt: str) -> list[tuple[float, bytes, Frame]]:
        """One turn: every line with the moment it came. Questions are answered at once with yes."""
        self._write(user_message(prompt, str(uuid.uuid4())))
        seen = []
        for line in self._lines:
            frame = json.loads(line)
            seen.append((time.perf_counter(), line, frame))
            if frame["type"] == "control_request":
                self._allow(frame)
            elif frame["type"] == "result":
                break
        return seen

    def _allow(self, frame: Frame) -> None:
        answer = {"behavior": "allow", "updatedInput": frame["request"]["input"]}
        self._write(control_success(frame["request_id"], answer))

    def _write(self, frame: Frame) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(encode(frame))

    def _until(self, kind: str) -> Frame:
        return next(frame for frame in self._frames() if frame["type"] == kind)

    def _frames(self) -> Iterator[Frame]:
        return (json.loads(line) for line in self._lines)


def tool_times(seen: list[tuple[float, Frame]]) -> list[float]:
    """Milliseconds from each tool call to its result."""
    started: dict[str, float] = {}
    times = []
    for moment, frame in seen:
        content = frame.get("message", {}).get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_use":
                started[block["id"]] = moment
            elif block.get("type") == "tool_result":
                times.append((moment - started[block["tool_use_id"]]) * 1000)
    return times
