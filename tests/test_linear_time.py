"""Text that a model or a stranger wrote takes time in proportion to its length, whatever it is made of.

Each function is given text of a length and of four times that length: time must grow fourfold, where it would be
sixteenfold if it grew with the square. Processor time is measured, the quickest of several runs counts, and what looks
wrong is measured again, so that a busy machine changes nothing.

Usually every function is given the shapes that are made for its kind of text, at a moderate length. With
`LINEAR_TIME=full`, as in `make soak`, each gets every shape, at four times that length.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import mcp_types as types
import pytest

from claude_code_mcp.claude.frames import parse_frame
from claude_code_mcp.escaped_text import unescaped
from claude_code_mcp.hub import url_patterns
from claude_code_mcp.hub.config_entry import expand
from claude_code_mcp.hub.failure_reasons import status_reason, stderr_summary
from claude_code_mcp.hub.tool_search import ToolIndex
from claude_code_mcp.hub.trimming import with_long_parts_saved
from claude_code_mcp.json_text import decode_with_comments
from claude_code_mcp.model.mcp_servers import ToolNames
from claude_code_mcp.model.paths import POSIX, WINDOWS
from claude_code_mcp.policy import programs, shell
from claude_code_mcp.policy.prompt_reader import mentioned_paths, mentioned_servers, slash_command
from claude_code_mcp.policy.rules import ToolCall, fits, judge, parse_rule
from claude_code_mcp.processes.lines import LineSplitter
from claude_code_mcp.questions.form_model import questions_of
from claude_code_mcp.questions.presentation import describe
from claude_code_mcp.redaction import Redactor, is_secret_name, redact_url, secrets_in
from claude_code_mcp.store.conversation import read_outline, read_turn
from claude_code_mcp.store.transcript_html import page
from claude_code_mcp.store.transcript_lines import is_bare_command, unwrapped
from claude_code_mcp.store.transcript_reader import first_mention, readable_lines
from claude_code_mcp.store.transcript_summary import summarize
from claude_code_mcp.store.transcript_text import Detail, markdown

Handle = Callable[[str], object]

FULL = os.environ.get("LINEAR_TIME") == "full"
SIZE = 8_000 if FULL else 2_000
TIMES = 4
MOST = 9.0
ENOUGH = 0.005 if FULL else 0.0005
"""Seconds: below this the larger text is fine. Were it read anew from many places, it would take far longer."""
ATTEMPTS = 8

PLAIN = {
    "letters": "a",
    "digits": "1",
    "spaces": " ",
    "newlines": "\n",
    "dashes": "-",
    "dots and letters": "a.",
    "quotes": "'",
    "double quotes": '"',
    "both quotes": "'\"",
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "brackets": "[(",
    "slashes": "/",
    "equals": "=",
    "colons": ":",
    "commas": "a, ",
    "semicolons": ";",
    "at signs": "@",
    "dollars": "$",
    "not ASCII": "ü",
    "emoji": "😀",
    "names of tools": "mcp__a__",
}
SHELL = {
    "parents": "../",
    "stars": "*",
    "braces": "${",
    "unclosed references": "${A:-",
    "unclosed names": "${A",
    "nested commands": "$(",
    "backticks": "`",
    "redirections": "2> ",
    "wrappers": "sudo ",
    "options of wrappers": "env -i ",
    "interpreters": "sh -c '",
    "assignments": "a[",
    "escaped punctuation": "\\(",
    "names of files": "ls a* ",
    "options with values": "git log --author x ",
    "programs with a time": "timeout 1 ",
    "places of sed": "/a/,",
    "replacements of sed": "s/[a/b/;",
    "names": "a/",
    "windows names": "a\\",
}
SECRETS = {
    "marks": "[redacted]",
    "escapes of URLs": "%2f",
    "escapes of escapes": "%25",
    "escapes of JSON": "\\u0026",
    "halves of characters": "\\ud83d",
    "escapes of HTML": "&amp;",
    "quotes of shells": "'\\''",
    "an escaped secret": "se%2fcret\\u0026with",
    "cut marks": "…",
    "schemes": "a.://",
    "addresses": "https://a",
    "addresses with names": "https://a@",
    "parameters": "?a",
    "secret parameters": "?token",
    "parameters with values": "?token=ab",
    "jwt": "-eyJaaaaaaaaaa",
    "jwt parts": "eyJaaaaaaaaaa.eyJ",
    "sendgrid": "SG.aaaaaaaaaaaaaaaaaaaa.",
    "anthropic": "sk-ant-",
    "openai": "sk-aaaa",
    "github": "ghp_",
    "github fine": "github_pat_",
    "gitlab": "glpat-",
    "slack": "xoxb-",
    "aws": "AKIA",
    "google": "AIza",
    "google login": "ya29.",
    "npm": "npm_",
    "pypi": "pypi-",
    "stripe": "sk_live_",
    "authorization": "authorization",
    "authorization with colons": "authorization: ",
    "authorization schemes": "authorization: bearer ",
    "bearer": "bearer ",
    "basic": "basic Aa",
    "api keys": "x-api-key: ",
    "cookies": "cookie:",
    "cookies with spaces": "cookie : a",
    "key beginnings": "-----BEGIN ",
    "key names": "-----BEGIN PRIVATE ",
    "keys": "-----BEGIN PRIVATE KEY-----",
    "key ends": "-----END PRIVATE KEY-----",
    "beginnings of a secret": "opaque-value-0123456789-",
    "secret names": "API_KEY_",
    "tokens": "MAX_TOKENS",
}
TRANSCRIPTS = {
    "tags": "<a>",
    "commands": "<command-name>",
    "arguments": "<command-args>",
    "shell": "<bash-input>",
    "unclosed wrappers": "<tick ",
    "wrappers of prompts": "<tick>",
    "closed wrappers": "<goal></goal>",
    "types": '"type":"user"',
    "contents": '"content":"',
    "directories": '"cwd":"',
    "directories of others": '"cwd":"/x",',
    "summaries": '{"type":"summary","summary":"a","leafUuid":"b"}\n',
    "titles": '{"type":"custom-title"}\n',
    "branches": '"gitBranch":"',
    "sidechains": '"isSidechain": ',
}
PIECES = {**PLAIN, **SHELL, **SECRETS, **TRANSCRIPTS}
ENDS = ("", "://@x=\n")


def texts(size: int, pieces: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A text of this size for each piece repeated, with each of the ends, and one of all pieces together."""
    for name, piece in (PIECES if FULL else pieces).items():
        for end in ENDS:
            yield f"{name} {end!r}", (piece * (size // len(piece) + 1))[:size] + end
    yield "everything", ("".join(PIECES.values()) * (size // 200))[:size]


escapable = Redactor(["se/cret&with'special%characters", "another/one\\with&more"])
redactor = Redactor(["opaque-value-0123456789-abcdefghij", "another\nsecret-of-several-lines\nthat-has-three"])
RULES = [parse_rule(f"Bash({program} *)") for program in ("rm", "git push", "curl")]
FILES = [parse_rule("Edit(**/a/**/b/**/c)"), parse_rule("Edit(a*b*c*d)")]


def _judge(tool: str, **given: str) -> object:
    call = ToolCall(tool, given, "/code", lambda path: path)
    return judge(call, [*RULES, *FILES], [*RULES, *FILES])


def _tolerant(text: str) -> None:
    for form in (text, f'["{text}', f"[/*{text}", f"[{text},,"):
        with contextlib.suppress(ValueError):
            decode_with_comments(form)


def _lines(text: str) -> object:
    splitter = LineSplitter()
    data = text.encode()
    return [splitter.feed(data[at : at + 1000]) for at in range(0, len(data), 1000)]


HANDLERS: dict[str, Handle] = {
    "redact text": redactor.text,
    "redact data": lambda text: redactor.data({text: [text], "password": text}),
    "redact escapes": lambda text: escapable.text(f"cret {text} with {text}"),
    "undo escapes": unescaped,
    "address and pattern": lambda text: url_patterns.fits(f"http://a/{text}", "http://*a*/*b*c*"),
    "redact url": redact_url,
    "hold back": redactor.held_back,
    "secret name": is_secret_name,
    "secrets in options": lambda text: list(secrets_in({"url": text, "args": [text, text], text: text})),
    "learn": lambda text: Redactor([text]),
    "prompt": unwrapped,
    "bare command": lambda text: is_bare_command(f"/{text}"),
    "slash command": slash_command,
    "mentions": lambda text: [*mentioned_paths(text), *mentioned_servers(text)],
    "mentions in words": lambda text: [*mentioned_paths(text.replace("a", ' @"'))],
    "tool search": lambda text: ToolIndex([(text, text, {"properties": {text: {"description": text}}})]).ranked(text),
    "comments": _tolerant,
    "expand": lambda text: expand(text, {"A": "b"}),
    "shell": programs.read_loosely,
    "shell in quotes": lambda text: programs.read_loosely(f"sh -c '{text}'"),
    "command": lambda text: _judge("Bash", command=text),
    "script of sed": lambda text: _judge("Bash", command=f"sed -n '{text}'"),
    "program of awk": lambda text: _judge("Bash", command=f"awk '{text}'"),
    "words of git": lambda text: _judge("Bash", command=f"git log {text}"),
    "words of find": lambda text: _judge("Bash", command=f"find {text}"),
    "words of printf": lambda text: _judge("Bash", command=f"printf '{text}'"),
    "address": lambda text: _judge("WebFetch", url=text),
    "path": lambda text: fits(f"/code/{text}", "**/a/**/b/**/c", "/code", POSIX),
    "windows path": lambda text: fits(f"C:\\code\\{text}", "**/a/**/b/**/c", "C:\\code", WINDOWS),
    "name": lambda text: fits(f"/code/{text.replace('/', '')}", "a*a*b", "/code", POSIX),
    "describe a command": lambda text: describe("Bash", {"command": text}, "/code"),
    "describe an edit": lambda text: describe(
        "Edit", {"file_path": text, "old_string": text, "new_string": "a"}, "/code"
    ),
    "describe a plan": lambda text: describe("ExitPlanMode", {"plan": text}, "/code"),
    "describe anything": lambda text: describe(text, {text: [text]}, "/code"),
    "form": lambda text: questions_of(
        text, {"message": text, "requestedSchema": {"properties": {"a": {"enum": [text]}}}}
    ),
    "end of stderr": stderr_summary,
    "refusal as a page": lambda text: status_reason(500, {"content-type": "text/html"}, text.encode()),
    "refusal as text": lambda text: status_reason(500, {"content-type": "text/plain"}, text.encode()),
    "tool names": lambda text: ToolNames([(text, text), (text, "a")]),
    "frame": lambda text: parse_frame(text.encode()),
    "frame with text": lambda text: parse_frame(json.dumps({"type": "assistant", "message": text}).encode()),
    "lines": _lines,
    "result of a server": lambda text: with_long_parts_saved(
        types.CallToolResult(content=[types.TextContent(text=text)] * 2),
        10,
        lambda content, ending: ending,
        keep_structured=False,
    ),
}


_COMMANDS = {**PLAIN, **SHELL}
_DESCRIBED = {**PLAIN, **SECRETS}
MADE_FOR: dict[str, Mapping[str, str]] = {
    "shell": _COMMANDS,
    "shell in quotes": _COMMANDS,
    **dict.fromkeys(("command", "script of sed", "program of awk", "words of git", "words of find"), _COMMANDS),
    "words of printf": _COMMANDS,
    "path": _COMMANDS,
    "windows path": _COMMANDS,
    "name": _COMMANDS,
    "describe a command": _DESCRIBED,
    "describe an edit": _DESCRIBED,
    "describe a plan": _DESCRIBED,
    "describe anything": _DESCRIBED,
    "tool names": {**PLAIN, **SHELL},
    "redact url": _DESCRIBED,
    "secret name": _DESCRIBED,
    "secrets in options": _DESCRIBED,
}
"""The shapes that concern a function; the others are quick, and get all of them."""


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that more than the longest command is read: reading it must be linear by itself."""
    monkeypatch.setattr(shell, "LONGEST_COMMAND", 1 << 30)
    monkeypatch.setattr(shell, "LONGEST_SEARCHED", 1 << 30)


def _seconds(handle: Handle, text: str) -> float:
    began = time.thread_time()
    handle(text)
    return time.thread_time() - began


def assert_linear(name: str, handle: Handle, small: str, large: str) -> None:
    """By the quickest of a few runs; only what seems to be worse is measured more often."""
    least = most = float("inf")
    for _ in range(ATTEMPTS):
        most = min(most, _seconds(handle, large))
        if most < ENOUGH:
            return
        least = min(least, _seconds(handle, small))
        if most < MOST * least:
            return
    pytest.fail(f"{name}: {len(small)} characters take {least:.4f} s, {len(large)} take {most:.4f} s")


@pytest.mark.usefixtures("unlimited")
@pytest.mark.parametrize("name", HANDLERS)
def test_text_is_handled_in_linear_time(name: str) -> None:
    pieces = MADE_FOR.get(name, PIECES)
    for (shape, small), (_, large) in zip(texts(SIZE, pieces), texts(TIMES * SIZE, pieces), strict=True):
        assert_linear(f"{name} of {shape}", HANDLERS[name], small, large)


def _transcripts(text: str) -> Iterator[str]:
    """A text as the prompt of a transcript, as its beginning, as the end of its first lines, and as what is said,
    called and changed in it."""
    line = {"type": "user", "cwd": "/code", "uuid": "1", "message": {"role": "user", "content": text}}
    yield json.dumps(line)
    yield f'{{"type":"user","cwd":"/code"}}\n{text}'
    yield f'{text}\n{{"type":"user","cwd":"/code"}}'
    call = {"type": "tool_use", "id": "t", "name": "Edit", "input": {"text": text}}
    answer = {"type": "assistant", "uuid": "2", "message": {"content": [{"type": "text", "text": text}, call]}}
    result = [{"type": "tool_result", "tool_use_id": "t", "content": text}]
    details = {"structuredPatch": [{"lines": text.splitlines()}]}
    changed = {"type": "user", "uuid": "3", "message": {"content": result}, "toolUseResult": details}
    yield "\n".join(map(json.dumps, (line, answer, changed)))


@pytest.mark.parametrize("end", ["\n", "x" * (1 << 18)], ids=["whole", "cut"])
@pytest.mark.parametrize("place", range(4))
def test_transcripts_are_read_in_linear_time(place: int, end: str, tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"

    def read(text: str) -> None:
        path.write_text(text)
        summarize(str(path), path.stat().st_size)
        first_mention(str(path), "nowhere in it")
        turns = [read_turn(str(path), places) for places in read_outline(str(path)).turns]
        "".join(page("", [], turns, Detail(full=True, thinking=True)))
        "".join(markdown("", [], turns, Detail(full=True, thinking=True)))
        list(readable_lines(str(path)))

    pieces = {**PLAIN, **TRANSCRIPTS}
    for (shape, small), (_, large) in zip(texts(SIZE, pieces), texts(TIMES * SIZE, pieces), strict=True):
        written = [list(_transcripts(text))[place] + end for text in (small, large)]
        assert_linear(shape, read, written[0], written[1])


def test_the_measure_finds_what_is_not_linear() -> None:
    def quadratic(text: str) -> None:
        for _ in range(len(text) // 10):
            text.count("bc")

    with pytest.raises(pytest.fail.Exception, match="characters take"):
        assert_linear("quadratic", quadratic, "a" * SIZE, "a" * SIZE * TIMES)
