"""The transport under the server: it survives what clients send, and ends when they go."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .client import INITIALIZED, PLAIN, SCRIPT, Client, initialize, lines, request, unknown_tool


@pytest.fixture
def client(environment: dict[str, str]) -> Iterator[Client]:
    """A client that has shaken hands with the server itself."""
    with Client({**environment, **PLAIN}) as connected:
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


def test_a_client_that_reads_no_more_ends_the_server(client: Client) -> None:
    assert client.process.stdout is not None
    assert client.process.stderr is not None
    client.process.stdout.close()
    assert client.process.stderr.read() == b""
    assert client.process.wait() == 0


def test_a_pipe_is_given_back_as_it_was(environment: dict[str, str]) -> None:
    """Others may share it, and would not expect that reading or writing fails because it would have to wait."""
    (stdin, to_server), (from_server, stdout) = os.pipe(), os.pipe()
    process = subprocess.Popen([SCRIPT], env={**environment, **PLAIN}, stdin=stdin, stdout=stdout)
    os.write(to_server, lines(initialize()))
    assert os.read(from_server, 1)
    assert not os.get_blocking(stdin)
    os.close(to_server)
    assert process.wait(60) == 0
    assert os.get_blocking(stdin)
    assert os.get_blocking(stdout)
    for fd in (stdin, stdout, from_server):
        os.close(fd)


def test_a_file_is_served_too(environment: dict[str, str], tmp_path: Path) -> None:
    asked, answers = tmp_path / "asked", tmp_path / "answers"
    asked.write_bytes(lines(initialize()))
    with asked.open("rb") as stdin, answers.open("wb") as stdout:
        assert subprocess.run([SCRIPT], env=environment, stdin=stdin, stdout=stdout, check=True, timeout=60)
    assert [json.loads(line)["id"] for line in answers.read_text().splitlines()] == [0]


def test_one_socket_for_both_ways_is_served_too(environment: dict[str, str]) -> None:
    here, there = socket.socketpair()
    with here, there, here.makefile("rb") as incoming:
        process = subprocess.Popen([SCRIPT], env=environment, stdin=there.fileno(), stdout=there.fileno())
        there.close()
        for message in (initialize(), request("ping", 1), request("ping", 2)):
            here.sendall(lines(message))
            assert json.loads(incoming.readline())["id"] == message["id"]
        here.shutdown(socket.SHUT_WR)
        assert process.wait(60) == 0


def test_neither_a_print_nor_a_child_touches_the_protocol(environment: dict[str, str]) -> None:
    code = """
import asyncio, subprocess, sys
from claude_code_mcp.greeting import Heard
from claude_code_mcp.server.stdio import stdio_streams
async def main():
    async with stdio_streams(Heard()) as (inbox, outbox):
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
