"""The transport under the server: it survives what clients send, and ends when they go."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.program import COMMAND
from tests.support.terminal import Terminal
from tests.support.waiting import HANG_SECONDS
from tests.support.warm_commands import WarmProcess, helper

from .client import INITIALIZED, PLAIN, Client, Message, initialize, lines, request, unknown_tool


@pytest.fixture
def client(environment: dict[str, str]) -> Iterator[Client]:
    """A client that has shaken hands with the server itself."""
    with Client({**environment, **PLAIN}, warm=True) as connected:
        connected.ask(initialize())
        connected.send(INITIALIZED)
        yield connected


def test_a_line_that_is_no_message_is_refused_and_the_server_lives_on(client: Client) -> None:
    client.write(b"garbage\n")
    assert client.read() == {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}}
    for wrong in ({"jsonrpc": "2.0", "id": "x", "method": 5}, {"id": "x", "method": "ping"}):
        client.send(wrong)
        assert client.read() == {"jsonrpc": "2.0", "id": "x", "error": {"code": -32600, "message": "Invalid request"}}
    client.write(b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]\n')
    assert client.read()["error"]["code"] == -32600
    client.send({"jsonrpc": "2.0", "id": 5, "result": 7}, {})
    client.write(b"\n\r\n \n")
    assert client.ask(request("ping", 2))["result"] == {}
    assert client.end() == (0, [], "")


MALFORMED: dict[str, tuple[bytes, list[Any]]] = {
    "an id that is half of a surrogate pair": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', [(None, -32600)]),
    "half of a surrogate pair in a call": (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\\ud800"}}',
        [(7, -32600)],
    ),
    "a cancellation of an object": (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
        [],
    ),
    "a cancellation of a list": (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[[]]}}',
        [],
    ),
    "an id that is no number": (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', []),
    "an id without end": (b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', []),
    "an id of 5000 digits": (b'{"jsonrpc":"2.0","id":1' + b"0" * 5000 + b',"method":"ping"}', [(None, -32700)]),
    "nested too deeply": (
        b'{"jsonrpc":"2.0","id":8,"method":"ping","params":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        [(None, -32700)],
    ),
    "not an object": (b"5", [(None, -32600)]),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', [(None, -32600)]),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":9,"method":"\xff"}', [(None, -32700)]),
    "a number that is none in a call": (
        b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"x","arguments":{"a":NaN}}}',
        [(10, -32602)],
    ),
}


def test_no_single_line_ends_the_server(client: Client) -> None:
    for what, (line, expected) in MALFORMED.items():
        client.write(line + b"\n")
        answers = [client.read() for _ in expected]
        assert [(answer["id"], answer["error"]["code"]) for answer in answers] == expected, what
        assert client.ask(request("ping", what))["result"] == {}
    assert client.end() == (0, [], "")


def refused(answer: Message) -> str:
    assert answer["result"]["isError"], answer
    return str(answer["result"]["content"][0]["text"])


def test_numbers_that_cannot_be_used_are_refused_by_name(client: Client) -> None:
    def call(tool: str, number: str, field: str) -> str:
        line = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{{field}}}}}}}'
        client.write(line.replace("NUMBER", number).encode() + b"\n")
        return refused(client.read())

    for number in ("1" + "0" * 400, "NaN", "-1", "1e999", "0", "true"):
        said = call("claude_code", number, '"prompt":"hi","timeout":NUMBER')
        assert said.startswith("Error [INVALID_ARGUMENT]: timeout:"), said
    for number in ("1" + "0" * 400, "NaN", "-1", "1e999"):
        said = call("claude_create_session", number, '"prompt":"hi","maxBudgetUsd":NUMBER')
        assert said.startswith("Error [INVALID_ARGUMENT]: maxBudgetUsd:"), said
        said = call("claude_create_session", number, '"prompt":"hi","waitSeconds":NUMBER')
        assert said.startswith("Error [INVALID_ARGUMENT]: waitSeconds:"), said


def test_many_unknown_arguments_are_refused_with_a_short_message(client: Client) -> None:
    strangers = {f"stranger-{number}": number for number in range(20_000)}
    for number, arguments in enumerate(({"prompt": "hi", **strangers}, {"prompt": "hi", "systemPrompt": strangers})):
        client.send(request("tools/call", number, name="claude_code", arguments=arguments))
        answer = client.read()
        assert refused(answer).startswith("Error [INVALID_ARGUMENT]: ")
        assert len(json.dumps(answer)) < 3000


def test_a_long_line_is_read_and_an_endless_one_refused(client: Client) -> None:
    client.send(request("tools/call", 1, name="no_such_tool", arguments={"text": "x" * (20 << 20)}))
    assert client.read()["error"]["message"] == "Unknown tool: no_such_tool"
    client.write(b"x" * (70 << 20) + b"\n" + lines(request("ping", 2)))
    assert client.read()["error"]["code"] == -32700
    assert client.read() == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert client.end() == (0, [], "")


def test_many_requests_in_one_write_are_all_answered(client: Client) -> None:
    client.send(*(unknown_tool(number) for number in range(300)))
    assert set(client.answers(300)) == set(range(300))


def test_what_was_asked_before_the_end_of_input_is_answered(client: Client) -> None:
    client.send(*(request("ping", number) for number in range(20)))
    code, said, errors = client.end()
    assert ({answer["id"] for answer in said}, code, errors) == (set(range(20)), 0, "")


def test_server_ends_when_the_client_stops_reading(client: Client) -> None:
    assert client.process.stdout is not None
    assert client.process.stderr is not None
    client.process.stdout.close()
    assert client.process.stderr.read() == b""
    assert client.process.wait() == 0


def serving(environment: dict[str, str], stdin: int, stdout: int, stderr: int = 2) -> WarmProcess:
    """The server on these descriptors; it need not load."""
    return helper().start([], environment, None, (stdin, stdout, stderr))


def test_a_pipe_is_given_back_as_it_was(environment: dict[str, str]) -> None:
    """Others may share it, and would not expect that reading or writing fails because it would have to wait."""
    (stdin, to_server), (from_server, stdout) = os.pipe(), os.pipe()
    process = serving({**environment, **PLAIN}, stdin, stdout)
    os.write(to_server, lines(initialize()))
    assert os.read(from_server, 1)
    assert not os.get_blocking(stdin)
    os.close(to_server)
    assert process.wait(HANG_SECONDS) == 0
    assert os.get_blocking(stdin)
    assert os.get_blocking(stdout)
    for fd in (stdin, stdout, from_server):
        os.close(fd)


def test_a_file_is_served_too(environment: dict[str, str], tmp_path: Path) -> None:
    asked, answers = tmp_path / "asked", tmp_path / "answers"
    asked.write_bytes(lines(initialize()))
    with asked.open("rb") as stdin, answers.open("wb") as stdout:
        assert serving(environment, stdin.fileno(), stdout.fileno()).wait(HANG_SECONDS) == 0
    assert [json.loads(line)["id"] for line in answers.read_text().splitlines()] == [0]


def test_one_socket_for_both_ways_is_served_too(environment: dict[str, str]) -> None:
    here, there = socket.socketpair()
    with here, there, here.makefile("rb") as incoming:
        process = serving(environment, there.fileno(), there.fileno())
        there.close()
        for message in (initialize(), request("ping", 1), request("ping", 2)):
            here.sendall(lines(message))
            assert json.loads(incoming.readline())["id"] == message["id"]
        here.shutdown(socket.SHUT_WR)
        assert process.wait(HANG_SECONDS) == 0


@pytest.fixture
def terminal(environment: dict[str, str]) -> Iterator[Terminal]:
    """The server in its own terminal."""
    with Terminal.of([COMMAND], {**environment, "LOG_LEVEL": "error"}) as running:
        yield running


def test_in_a_terminal_it_says_what_it_waits_for_and_ends_with_ctrl_c(terminal: Terminal) -> None:
    assert "claude-code-mcp config CLIENT" in terminal.until("Ctrl-C")
    terminal.type(lines(initialize()).decode())
    terminal.until('"serverInfo"')  # it handles signals by now
    terminal.type("\x03")
    assert terminal.process.wait(HANG_SECONDS) == 0


def test_ctrl_c_ends_it_while_it_is_still_loading(terminal: Terminal) -> None:
    terminal.until("Ctrl-C")
    terminal.type("\x03")
    assert terminal.process.wait(HANG_SECONDS) in (0, 130)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_signals_end_it_wherever_a_thread_reads(environment: dict[str, str], number: int) -> None:
    here, there = socket.socketpair()
    errors, their_errors = os.pipe()
    with here, here.makefile("rb") as incoming, os.fdopen(errors, "rb") as complaints:
        process = serving(environment, there.fileno(), there.fileno(), their_errors)
        there.close()
        os.close(their_errors)
        here.sendall(lines(initialize()))
        assert json.loads(incoming.readline())["id"] == 0
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == 0
        assert b"Traceback" not in complaints.read()


@pytest.mark.parametrize(
    "redirection", [*(pytest.param(one, marks=pytest.mark.soak) for one in ("</dev/null", "<&-")), "<&- >&-"]
)
def test_empty_read_is_end_of_file(environment: dict[str, str], redirection: str) -> None:
    ended = subprocess.run(
        f'exec "{COMMAND}" {redirection}',
        shell=True,
        env=environment,
        capture_output=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_neither_a_print_nor_a_child_touches_the_protocol(environment: dict[str, str]) -> None:
    code = """
import asyncio, subprocess, sys
from claude_code_mcp.startup.greeting.first_answers import GreetedInput
from claude_code_mcp.server.transports.stdio import stdio_streams
async def main():
    async with stdio_streams(GreetedInput()) as (inbox, outbox):
        print("printed", flush=True)
        subprocess.run(["sh", "-c", "echo said; cat"], check=True)
        await outbox.send((await inbox.receive()))
        await outbox.aclose()
asyncio.run(main())
"""
    with Client(environment, command=(sys.executable, "-c", code)) as client:
        client.send(request("ping", 1))
        assert client.read() == request("ping", 1)
        assert client.end() == (0, [], "printed\nsaid\n")
