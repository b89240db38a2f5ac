"""A client that writes and reads lines itself, so that a test decides what is sent when."""

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS
from tests.support.warm_commands import HELD, WarmProcess, helper

LEGACY = HANDSHAKE_PROTOCOL_VERSIONS
(MODERN,) = MODERN_PROTOCOL_VERSIONS
PLAIN = {"CLAUDE_CODE_MCP_GREETING": "off"}
BROKEN = {"PYTHONPATH": str(Path(__file__).parent / "unloadable")}
"""With this the server is never loaded, so whatever is answered comes from the greeting."""
WRONG = {"MAX_SESSIONS": "many"}
"""With this the server cannot run sessions."""

Message = dict[str, Any]

INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def request(method: str, request_id: int | str, **params: Any) -> Message:
    message: Message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return {**message, "params": params} if params else message


def initialize(version: str = LEGACY[-1], request_id: int | str = 0, **more: Any) -> Message:
    client = {"name": "test", "title": "Prüfung", "version": "1"}
    capabilities = {"roots": {"listChanged": True}, "elicitation": {}}
    given = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client, **more}
    return request("initialize", request_id, **given)


def enveloped(method: str, request_id: int | str, version: str = MODERN, **params: Any) -> Message:
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    }
    return request(method, request_id, _meta=meta, **params)


def unknown_tool(request_id: int | str) -> Message:
    return request("tools/call", request_id, name="no_such_tool", arguments={})


def lines(*messages: Message) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


class Client:
    """The server as a child of the test, on two pipes. With `warm` it is a process that need not load."""

    def __init__(
        self, environment: dict[str, str], *arguments: str, command: tuple[str, ...] = (COMMAND,), warm: bool = False
    ) -> None:
        variables = {"LOG_LEVEL": "error", **environment}
        self.process: subprocess.Popen[bytes] | WarmProcess
        if warm and os.name == "posix":
            self.process = helper().open(arguments, variables)
            return
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Most tests have seen what they wanted to see before the server is even loaded."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                pipe.close() if pipe is not None else None
        self.process.wait()

    def send(self, *messages: Message) -> None:
        self.write(lines(*messages))

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> Message:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the server has closed its output: {self.process.communicate()[1].decode()}"
        message: Message = json.loads(line)
        return message

    def ask(self, message: Message) -> Message:
        """One request, and its answer as the next thing that is said."""
        self.send(message)
        answer = self.read()
        assert answer["id"] == message["id"]
        return answer

    def answers(self, count: int) -> dict[int | str, Message]:
        """The next answers by the id of their requests; every id comes once."""
        read = [self.read() for _ in range(count)]
        assert len({answer["id"] for answer in read}) == count
        return {answer["id"]: answer for answer in read}

    def end(self) -> tuple[int, list[Message], str]:
        """Closes the input; the exit code, what else was said, and stderr."""
        said, errors = self.process.communicate(timeout=HANG_SECONDS)
        assert self.process.returncode is not None
        return self.process.returncode, [json.loads(line) for line in said.splitlines()], errors.decode()


class HeldClient(Client):
    """The server as a process that greets until the test calls `load`, and then takes over at once."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="held-")
        fifo = str(Path(self._directory.name) / "fifo")
        os.mkfifo(fifo)
        self._gate = os.open(fifo, os.O_RDWR)  # for reading too, so that it does not wait for the server
        super().__init__({**environment, HELD: fifo}, *arguments, warm=True)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._gate)
        self._directory.cleanup()

    def load(self) -> None:
        """Lets the server take over."""
        os.write(self._gate, b".")

    def end(self) -> tuple[int, list[Message], str]:
        """The input ends while the greeting still answers, if the server was not loaded before."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.load()
        return super().end()
