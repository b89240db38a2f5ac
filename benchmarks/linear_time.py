"""`make soak`: text that a model or a stranger wrote takes time in proportion to its length, whatever it is made of.

Each function is given text of a length and of four times that length: time must grow fourfold, where it would be
sixteenfold if it grew with the square. Processor time is measured, the quickest of several runs counts, and what looks
wrong is measured again. The shapes and the functions are also those of `tests/test_linear_time.py`, which counts steps
instead, and so sees nothing of what one call of the standard library takes.
"""

import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import mcp_types as types

from claude_code_mcp.core.claude.protocol import parse_frame
from claude_code_mcp.core.json_text import decode_with_comments, unescaped
from claude_code_mcp.core.json_text import encode as encode_json
from claude_code_mcp.core.model.paths import POSIX, WINDOWS
from claude_code_mcp.core.model.text import as_json, gaps, has_mark, hidden_in, one_line, visible
from claude_code_mcp.core.model.tool_names import ToolNames
from claude_code_mcp.core.policy import shell
from claude_code_mcp.core.policy.admission import mentioned_paths, mentioned_servers, slash_command
from claude_code_mcp.core.policy.rules import ToolCall, fits, judge, parse_rule
from claude_code_mcp.core.processes.line_splitter import LineSplitter
from claude_code_mcp.core.questions.form_model import questions_of
from claude_code_mcp.core.questions.presentation import describe
from claude_code_mcp.core.redaction import Redactor, is_secret_name, redact_url, secrets_in
from claude_code_mcp.core.transcripts.checkpoints import read_checkpoints
from claude_code_mcp.core.transcripts.conversation import read_turn
from claude_code_mcp.core.transcripts.outline import read_outline
from claude_code_mcp.core.transcripts.transcript_export import Detail, markdown, page
from claude_code_mcp.core.transcripts.transcript_lines import is_bare_command, unwrapped
from claude_code_mcp.core.transcripts.transcript_reader import first_mention, readable_lines
from claude_code_mcp.core.transcripts.transcript_summary import summarize
from claude_code_mcp.hub import address_patterns
from claude_code_mcp.hub.config_entry import StdioConfig, expand, for_directory
from claude_code_mcp.hub.long_results import with_long_parts_saved
from claude_code_mcp.hub.streams import id_of_answer, parse_message
from claude_code_mcp.hub.tool_search import ToolIndex
from claude_code_mcp.hub.transports.failure_reasons import status_reason, stderr_summary

Handle = Callable[[str], object]

_SIZE = 8_000
_TIMES = 4
_MAX_RATIO = 9.0
_ENOUGH = 0.005
"""Seconds: below this the larger text is fine. Were it read anew from many places, it would take far longer."""
_ATTEMPTS = 8
_CROWD = 500

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
    "blank lines": " \n",
    "tabs": "\t x",
    "turned text": "\u202e",
    "escaped surrogates": "\\ud800",
    "marks of cuts": "[[claude-code-mcp cut ",
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
ENDS = ("", "://@x=\n", "x y", "}")


def texts(size: int, pieces: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """A text of about this size for each piece repeated, with each of the ends, and one of all pieces together. Pieces
    are whole, so that texts of all sizes end alike."""
    for name, piece in pieces.items():
        for end in ENDS:
            yield f"{name} {end!r}", piece * max(1, size // len(piece)) + end
    everything = "".join(PIECES.values())
    yield "everything", everything * max(1, size // len(everything))


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
    "address and pattern": lambda text: address_patterns.fits(f"http://a/{text}", "http://*a*/*b*c*"),
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
    "shell": shell.read_loosely,
    "shell in quotes": lambda text: shell.read_loosely(f"sh -c '{text}'"),
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
    "line of a server": parse_message,
    "answer of a server": lambda text: id_of_answer(f'{{"id":1,"result":{text}}}'),
    "expand for a directory": lambda text: for_directory(StdioConfig(command="./x", args=[text]), "/code"),
    "JSON": encode_json,
    "JSON with lone surrogates": lambda text: encode_json(text.replace("a", "\ud800")),
    "visible text": visible,
    "hidden characters": hidden_in,
    "marks of a cut": has_mark,
    "JSON to read": as_json,
    "one line": lambda text: one_line(text, 10**9),
    "gaps": lambda text: list(gaps(text)),
    "result of a server": lambda text: with_long_parts_saved(
        types.CallToolResult(content=[types.TextContent(text=text)] * 2),
        10,
        lambda content, ending: ending,
        keep_structured=False,
    ),
}


def transcripts_with(text: str) -> Iterator[str]:
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


TRANSCRIPT_PLACES = 4
TRANSCRIPT_ENDS = {"whole": "\n", "cut": "x" * (1 << 18)}


def crowded_transcript(count: int) -> str:
    """So many of everything that a transcript tells, each different: prompts, answers, models, days, calls, results,
    titles, summaries and what every model cost."""
    lines: list[dict[str, object]] = []
    for at in range(count):
        when, parent = f"{2000 + at // 28}-11-{1 + at % 28:02}T10:00:00Z", f"r{at - 1}" if at else None
        call = {"type": "tool_use", "id": f"t{at}", "name": f"Tool{at}", "input": {"a": f"{at}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": f"{at}"}
        usage = {"input_tokens": 1, "output_tokens": 1}
        answer = {"id": f"m{at}", "model": f"model-{at}", "usage": usage, "content": [call]}
        lines += [
            {"type": "summary", "summary": f"{at}", "leafUuid": f"u{at}"},
            {"type": "custom-title", "customTitle": f"{at}"},
            {"type": "user", "uuid": f"u{at}", "parentUuid": parent, "cwd": f"/{at}", "timestamp": when}
            | {"gitBranch": f"b{at}", "message": {"content": f"prompt {at}"}},
            {"type": "assistant", "uuid": f"a{at}", "parentUuid": f"u{at}", "timestamp": when, "message": answer},
            {"type": "user", "uuid": f"r{at}", "parentUuid": f"a{at}", "message": {"content": [result]}},
            {"type": "file-history-snapshot", "messageId": f"u{at}"},
        ]
    costs = {f"model-{at}": {"inputTokens": 1, "costUSD": 1.0} for at in range(count)}
    return "".join(f"{json.dumps(line)}\n" for line in (*lines, {"type": "cost-state", "modelUsage": costs}))


def _exported(path: str) -> list[str]:
    turns = [read_turn(path, places) for places in read_outline(path).turns]
    whole = Detail(full=True, thinking=True)
    return ["".join(page("", [], turns, whole)), "".join(markdown("", [], turns, whole))]


READERS: dict[str, Callable[[str], object]] = {
    "summary": lambda path: summarize(path, Path(path).stat().st_size),
    "search": lambda path: first_mention(path, "nowhere in it"),
    "export": _exported,
    "end": lambda path: list(readable_lines(path)),
    "checkpoints": lambda path: read_checkpoints(path, 50),
}
"""Everything that is done to a transcript."""


def read_transcript(path: Path, text: str) -> None:
    path.write_text(text)
    for read in READERS.values():
        read(str(path))


@contextlib.contextmanager
def without_longest_command() -> Iterator[None]:
    """More than the longest command is read: reading it must be linear by itself."""
    before = shell.MAX_COMMAND
    shell.MAX_COMMAND = 1 << 30
    try:
        yield
    finally:
        shell.MAX_COMMAND = before


def problem_of(name: str, handle: Handle, small: str, large: str, fixed: int = 0) -> str | None:
    """What is wrong with the times of two texts, by the quickest of a few runs; only what seems to be wrong is measured
    more often. `fixed` characters are the same in both, and do not count: they may take next to no time."""
    least = most = float("inf")
    growth = (len(large) - fixed) / (len(small) - fixed)
    for _ in range(_ATTEMPTS):
        most = min(most, _seconds(handle, large))
        if most < _ENOUGH:
            return None
        least = min(least, _seconds(handle, small))
        if most < _MAX_RATIO * least * growth / _TIMES:
            return None
    return f"{name}: {len(small)} characters take {least:.4f} s, {len(large)} take {most:.4f} s"


def _seconds(handle: Handle, text: str) -> float:
    began = time.thread_time()
    handle(text)
    return time.thread_time() - began


def _cases(directory: Path) -> Iterator[tuple[str, Handle, str, str, int]]:
    pairs = list(zip(texts(_SIZE, PIECES), texts(_TIMES * _SIZE, PIECES), strict=True))
    for (name, handle), ((shape, small), (_, large)) in itertools.product(HANDLERS.items(), pairs):
        yield f"{name} of {shape}", handle, small, large, 0
    read = partial(read_transcript, directory / "transcript.jsonl")
    for place, (ending, end), ((shape, small), (_, large)) in itertools.product(
        range(TRANSCRIPT_PLACES), TRANSCRIPT_ENDS.items(), pairs
    ):
        written = [list(transcripts_with(text))[place] + end for text in (small, large)]
        yield f"a transcript ({place}, {ending}) of {shape}", read, written[0], written[1], len(end)
    yield "a crowded transcript", read, crowded_transcript(_CROWD), crowded_transcript(_TIMES * _CROWD), 0


def main() -> int:
    count, problems = 0, []
    with tempfile.TemporaryDirectory() as directory, without_longest_command():
        for name, handle, small, large, fixed in _cases(Path(directory)):
            count += 1
            if (problem := problem_of(name, handle, small, large, fixed)) is not None:
                problems.append(problem)
                print(problem, flush=True)
    print(f"linear time: {count} cases, {len(problems)} that take too long")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
