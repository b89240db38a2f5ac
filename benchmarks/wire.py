"""The least client of an MCP server on stdio: it writes bytes and reads lines."""

import json
import subprocess
from typing import Any


def encode_message(method: str, request_id: int | None = None, **params: Any) -> bytes:
    """One message, a request if it has an id."""
    identity = {} if request_id is None else {"id": request_id}
    return json.dumps({"jsonrpc": "2.0", **identity, "method": method, "params": params}).encode() + b"\n"


INITIALIZE = encode_message(
    "initialize", 0, protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "bench", "version": "1"}
)
INITIALIZED = encode_message("notifications/initialized")
LIST_TOOLS = encode_message("tools/list", 1)


class Wire:
    """A server as a child process."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, data: bytes) -> bytes:
        """Writes, and reads one line."""
        self.send(data)
        return self.read()

    def send(self, data: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(data)
        stdin.flush()

    def read(self) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        answer = stdout.readline()
        assert answer, "the server is gone"
        return answer
