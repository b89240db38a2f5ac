"""Lines of `claude mcp add` as the README files of servers have them, and lines that are mistyped."""

import shlex
from typing import Any

import pytest

from claude_code_mcp.cli.mcp.configure import entry_of, read_add_line
from claude_code_mcp.core.errors import InvalidArgument

NPX = {"type": "stdio", "command": "npx", "args": ["-y", "server"]}
REMOTE = {"type": "http", "url": "https://example.com/mcp"}


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("x -- npx -y server", NPX),
        ("x npx -y server", NPX),
        ("-s user x -- npx -y server", NPX),
        ("x --scope project -t stdio -- npx -y server", NPX),
        ("x -e A=b -e C=d=e -- npx -y server", {**NPX, "env": {"A": "b", "C": "d=e"}}),
        ("--env A=b C=d x npx -y server", {**NPX, "env": {"A": "b", "C": "d"}}),
        ("-e A=b x npx -y server", {**NPX, "env": {"A": "b"}}),
        ("x --env=A=b -- npx -y server", {**NPX, "env": {"A": "b"}}),
        ("x -eA=b -- npx -y server", {**NPX, "env": {"A": "b"}}),
        ("x npx server -e A=b -s user", {"type": "stdio", "command": "npx", "args": ["server"], "env": {"A": "b"}}),
        ("x npx server -s user -- -e own", {"type": "stdio", "command": "npx", "args": ["server", "-e", "own"]}),
        ("x npx -- -y server", NPX),
        ("x -- docker run -e T i/m", {"type": "stdio", "command": "docker", "args": ["run", "-e", "T", "i/m"]}),
        ("x https://example.com/mcp", REMOTE),
        ("--transport http x https://example.com/mcp", REMOTE),
        ("x -t http https://example.com/mcp -s user", REMOTE),
        ("x --url https://example.com/mcp", REMOTE),
        ("x -t sse https://example.com/sse", {"type": "sse", "url": "https://example.com/sse"}),
        ("x wss://example.com", {"type": "ws", "url": "wss://example.com"}),
        ("x ${THE_URL}", {"type": "http", "url": "${THE_URL}"}),
        (
            "x https://example.com/mcp -H 'Authorization: Bearer ${T}' 'X-Team: blue'",
            {**REMOTE, "headers": {"Authorization": "Bearer ${T}", "X-Team": "blue"}},
        ),
        (
            "x https://example.com/mcp --header 'A: b' --client-id me --callback-port 8080",
            {**REMOTE, "headers": {"A": "b"}, "oauth": {"clientId": "me", "callbackPort": 8080}},
        ),
        ("x -t stdio http://not-an-address", {"type": "stdio", "command": "http://not-an-address", "args": []}),
    ],
)
def test_a_line_is_read_as_claude_code_reads_it(line: str, entry: dict[str, Any]) -> None:
    read = read_add_line(shlex.split(line))
    assert (read.name, entry_of(read)) == ("x", entry)


@pytest.mark.parametrize(
    "line",
    [
        "x --headr 'Authorization: s3cret' https://example.com",
        "x --token=s3cret -- y",
        "x --s3cret",
        "x -ks3cret -- y",
        "x -e s3cret -- y",
        "x -H s3cret https://a/b",
        "x -t s3cret -- y",
        "x -s s3cret -- y",
        "x https://a/b s3cret",
        "x https://a/b -e A=s3cret",
        "x -H 'A: s3cret' -- y",
        "x --callback-port s3cret https://a/b",
        "x --client-secret s3cret -- y",
        "x npx -y server -e A=s3cret",
        "x npx -e A=s3cret -y server",
        "x typed-wrong.example.com/mcp --header 'Authorization: s3cret'",
        "s3cret/s3cret -- y",
        "s3cret",
        "x ftp://s3cret@a/b",
        "-e",
        "",
    ],
)
def test_a_mistyped_line_is_refused_and_nothing_of_it_repeated(line: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        entry_of(read_add_line(shlex.split(line)))
    assert "s3cret" not in refused.value.message
