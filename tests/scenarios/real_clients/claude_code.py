"""Claude Code as a client of this server: the real CLI, kept in conversation over stream-json."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from claude_code_mcp.testing.script import script, tool
from tests.support.waiting import HANG_SECONDS

from .serving import Served

SERVER = "claude-code"


def registration(served: Served, environment: Mapping[str, str]) -> dict[str, Any]:
    """The entry that Claude Code wants for an MCP server."""
    if served.url is not None:
        return {"type": "http", "url": served.url, "headers": dict(served.headers)}
    return {"command": served.command[0], "args": list(served.command[1:]), "env": dict(environment)}


def options(served: Served, environment: Mapping[str, str], directory: Path) -> list[str]:
    """The arguments that give a run this server alone, with all of its tools allowed."""
    file = directory / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {SERVER: registration(served, environment)}}))
    return ["--mcp-config", str(file), "--strict-mcp-config", "--allowedTools", f"mcp__{SERVER}"]


class Conversation:
    """Turns of one running CLI, whose host answers every form in the same way."""

    def __init__(self, process: subprocess.Popen[str], answer: Mapping[str, Any]) -> None:
        self._process = process
        self._answer = answer
        self.forms: list[dict[str, Any]] = []

    def use(self, tool_name: str, **arguments: Any) -> dict[str, Any]:
        """The model calls one tool of the server and says what came back, which is JSON."""
        step = tool(f"mcp__{SERVER}__{tool_name}", **arguments)
        result: dict[str, Any] = json.loads(self.say(script("Use the tool.", step, "${tool_result}")))
        return result

    def say(self, prompt: str) -> str:
        """One turn; what the model said at its end."""
        self._send(type="user", message={"role": "user", "content": prompt}, session_id="")
        assert self._process.stdout is not None
        for line in self._process.stdout:
            frame = json.loads(line)
            if frame["type"] == "control_request":
                self._fill_in(frame)
            elif frame["type"] == "result":
                return str(frame["result"])
        raise AssertionError("the CLI ended in the middle of a turn")

    def _fill_in(self, frame: Mapping[str, Any]) -> None:
        assert frame["request"]["subtype"] == "elicitation", frame
        self.forms.append(frame["request"])
        answer = {"subtype": "success", "request_id": frame["request_id"], "response": dict(self._answer)}
        self._send(type="control_response", response=answer)

    def _send(self, **frame: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(frame) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Ends the conversation, which the CLI must do well."""
        self._process.communicate(timeout=HANG_SECONDS)
        assert self._process.returncode == 0


@contextmanager
def conversation(
    argv: list[str], directory: Path, environment: Mapping[str, str], answer: Mapping[str, Any]
) -> Iterator[Conversation]:
    """A conversation, ended well at the end."""
    stream = ["-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json"]
    process = subprocess.Popen(
        [*argv, *stream],
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        running = Conversation(process, answer)
        yield running
        running.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
