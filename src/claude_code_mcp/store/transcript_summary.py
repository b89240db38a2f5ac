"""What a listing shows of one transcript, read from a bounded part of its beginning and of its end.

The first functions read any file of JSON lines that others write, which may be unfinished, damaged or huge: what cannot
be opened or parsed counts as empty, and nothing raises for what is in a file. They block on the disk.

Claude Code writes the first prompt at the beginning, and repeats titles at the end when it exits. Prompts are shown
as the person typed them (`typed`, `unwrapped`), without what the CLI wraps around them. Takes time linear in what is
read, whatever is in it; most lines are looked at by patterns alone, since parsing them would take far longer.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.text import clip_line

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None if there is none."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def parse_all(lines: list[bytes]) -> list[dict[str, Any]]:
    """The objects in many lines. Parsing all at once takes a third of the time, so that is tried first."""
    try:
        parsed = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        parsed = []
    if len(parsed) != len(lines):
        parsed = [parse(line) for line in lines]
    return [value for value in parsed if isinstance(value, dict)]


def ends_of(path: str, head: int, tail: int) -> tuple[bytes, bytes] | None:
    """The first and the last bytes of a file; the second part is empty if the first is the whole file.

    None if it cannot be read or is not a regular file. It is opened without blocking: a pipe would wait for its writer.
    """
    try:
        with open(path, "rb", opener=_open_nonblocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size <= head + tail:
                return file.read(head + tail), b""
            first = file.read(head)
            file.seek(-tail, os.SEEK_END)
            return first, file.read(tail)
    except (OSError, ValueError):
        return None


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def last_lines(path: str, at_most: int) -> tuple[list[bytes], bool]:
    """The lines in the last bytes of a file, and whether something before them was left out."""
    ends = ends_of(path, 0, at_most)
    if ends is None:
        return [], False
    first, rest = ends
    if not rest:
        return first.split(b"\n"), False
    return rest.split(b"\n")[1:], True


def clean(text: str) -> str:
    """The text without control characters that would steer a terminal, and without lone surrogates."""
    return _SURROGATE.sub("�", _UNPRINTABLE.sub("", text))


LONGEST_TITLE = 200
"""Characters of a title or first prompt."""
_HEAD = 1 << 17
_TAIL = 1 << 16
_STRING = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'
_CWD = re.compile(rb'"(?:cwd|relocatedCwd)": ?' + _STRING)
_BRANCH = re.compile(rb'"gitBranch": ?' + _STRING)
_SIDECHAIN = re.compile(rb'"isSidechain": ?(true|false)')
_USER = re.compile(rb'"type": ?"user"')
_PROMPT_LINE = re.compile(rb'"type": ?"(?:user|queue-operation)"')
_CUT_PROMPT = re.compile(rb'"(?:content|text)": ?"((?:[^"\\]|\\.){1,2000})', re.DOTALL)
_UUID = re.compile(rb'"uuid": ?"([^"\\]{1,200})"')
_TITLES = (("custom-title", "customTitle"), ("ai-title", "aiTitle"))
_LONGEST_FOLDER = 200
_MACHINE_TAGS = (
    "system-reminder", "local-command-caveat", "local-command-stdout", "local-command-stderr", "bash-stdout",
    "bash-stderr", "ide_opened_file", "ide_selection", "session-start-hook", "user-prompt-submit-hook",
    "task-notification", "tick", "goal",
)  # fmt: skip
_MACHINE_TAG = re.compile(rf"<({'|'.join(_MACHINE_TAGS)})\b")
_INTERRUPTED = "[Request interrupted by user"
_NOT_TYPED = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")


@dataclass(frozen=True, slots=True)
class Heading:
    """The part of a listing entry that comes from the transcript itself."""

    cwd: str
    title: str | None
    first_prompt: str | None
    branch: str | None


def read_heading(path: str, folder: str) -> Heading | None:
    """None for what is not a session: a damaged file, one without a message, a subagent's own transcript."""
    ends = ends_of(path, _HEAD, _TAIL)
    if ends is None:
        return None
    head, tail = ends
    everything = head + b"\n" + tail
    cwd = _cwd(everything, folder)
    sidechain = _SIDECHAIN.search(head)
    if cwd is None or (sidechain and sidechain[1] == b"true"):
        return None
    return Heading(cwd, _title(everything), _first_prompt(head, is_cut=bool(tail)), _branch(everything))


def folder_of(directory: str) -> str:
    """The folder in which Claude Code keeps the transcripts of a directory.

    Different directories may share one. Longer names end in a hash, which is left out here.
    """
    name = re.sub("[^a-zA-Z0-9]", lambda found: "--" if ord(found[0]) > 0xFFFF else "-", directory)
    return name[:_LONGEST_FOLDER]


def in_folder(directory: str, folder: str) -> bool:
    """Whether the transcripts of a directory would lie in a folder of this name."""
    return folder_of(directory).casefold() == folder[:_LONGEST_FOLDER].casefold()


def _cwd(everything: bytes, folder: str) -> str | None:
    """The directory that the folder is named after: a forked or moved session has lines of other ones too."""
    first, seen = None, set()
    for found in _CWD.finditer(everything):
        if found[1] in seen:  # nearly every line has one, and nearly always the same
            continue
        seen.add(found[1])
        cwd = _string(found[1])
        if cwd and in_folder(cwd, folder):
            return cwd
        first = first or cwd
    return first


def _string(raw: bytes) -> str | None:
    try:
        return clean(json.loads(f'"{raw.decode(errors="replace")}"', strict=False)) or None
    except ValueError:
        return None


def _branch(everything: bytes) -> str | None:
    """The latest; a detached HEAD, and no repository at all, are no branch."""
    found = _BRANCH.match(everything, max(0, everything.rfind(b'"gitBranch":')))
    branch = _string(found[1]) if found else None
    return branch if branch != "HEAD" else None


def _title(everything: bytes) -> str | None:
    """The last title that the person set, else the last one that the model made, else a summary of older versions."""
    for kind, field in _TITLES:
        title = next(_lines_of(everything, kind), {}).get(field)
        if isinstance(title, str) and title.strip():
            return clip_line(clean(title), LONGEST_TITLE)
    summary = next(_own_summaries(everything), {}).get("summary")
    return clip_line(clean(summary), LONGEST_TITLE) if isinstance(summary, str) and summary.strip() else None


def _own_summaries(everything: bytes) -> Iterator[dict[str, Any]]:
    """Old versions wrote summaries of other conversations too; ours is one whose last message is in this file."""
    message_ids: set[str] | None = None
    for line in _lines_of(everything, "summary"):
        if message_ids is None:
            message_ids = {uuid.decode(errors="replace") for uuid in _UUID.findall(everything)}
        leaf = line.get("leafUuid")
        if isinstance(leaf, str) and leaf in message_ids:
            yield line


def _lines_of(everything: bytes, kind: str) -> Iterator[dict[str, Any]]:
    """The lines of one type, last first."""
    mark = f'"{kind}"'.encode()
    end = len(everything)
    while (at := everything.rfind(mark, 0, end)) >= 0:
        start = everything.rfind(b"\n", 0, at) + 1
        stop = everything.find(b"\n", at)
        line = parse(everything[start : stop if stop >= 0 else len(everything)])
        if line is not None and line.get("type") == kind:
            yield line
        end = start


def _first_prompt(head: bytes, *, is_cut: bool) -> str | None:
    """The first prompt that is more than a bare command; such a command if there is nothing else."""
    lines = head.split(b"\n")
    last = lines.pop() if is_cut else b""
    command = None
    for line in lines:
        prompt = typed(parse(line) or {}) if _USER.search(line) else None
        if prompt and not is_bare_command(prompt):
            return clip_line(prompt, LONGEST_TITLE)
        command = command or prompt
    return command or _cut_prompt(last)


def _cut_prompt(line: bytes) -> str | None:
    """The prompt in a line that goes on behind the part that was read."""
    kind = _PROMPT_LINE.search(line)
    found = _CUT_PROMPT.search(line, kind.end()) if kind else None
    if not found or b'"tool_result"' in line[: found.start(1)]:
        return None
    whole = re.sub(rb"\\u[0-9a-fA-F]{0,3}$", b"", found[1])
    prompt = unwrapped(_string(whole) or "")
    return clip_line(prompt, LONGEST_TITLE) if prompt else None


def typed(line: Mapping[str, Any]) -> str | None:
    """What a person typed in a line of a transcript; None if the line is not a prompt of theirs."""
    message = line.get("message")
    if line.get("type") != "user" or not isinstance(message, Mapping) or any(line.get(key) for key in _NOT_TYPED):
        return None
    return unwrapped(_text_of(message.get("content")))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    has_image = any(block.get("type") == "image" for block in blocks)
    return "\n".join(texts) or ("[image]" if has_image else "")


def unwrapped(text: str) -> str | None:
    """A message without what was wrapped around it; a command as it was typed."""
    command, shell = _inside(text, "command-name"), _inside(text, "bash-input")
    if command is not None:
        text = f"{command} {_inside(text, 'command-args') or ''}"
    elif shell is not None:
        text = f"! {shell}"
    plain = clean(_without_machine_tags(text)).strip()
    return plain if plain and not plain.startswith(_INTERRUPTED) else None


def _inside(text: str, tag: str) -> str | None:
    """What the first element of this name holds; None if it is not closed, since then no later one can be."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside if opening and closing else None


def _without_machine_tags(text: str) -> str:
    """The text without the elements that the CLI adds; one that is not closed reaches to the end."""
    kept, reached = [], 0
    while (found := _MACHINE_TAG.search(text, reached)) is not None:
        opened = text.find(">", found.end())
        if opened < 0:
            break
        kept.append(text[reached : found.start()])
        closing = f"</{found[1]}>"
        closed = text.find(closing, opened)
        reached = len(text) if closed < 0 else closed + len(closing)
    return "".join((*kept, text[reached:]))


def is_bare_command(text: str) -> bool:
    """Such as `/clear`, which does not say what the conversation is about."""
    return text.startswith("/") and len(text.split()) == 1
