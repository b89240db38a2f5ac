"""Why a connection failed, as the server reports it: the end of a program's stderr, or an HTTP status. Pure."""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

MAX_BODY = 1 << 16
"""Maximum bytes of a refusal that are read."""
_MAX_LENGTH = 280
_GROUP_BAR = re.compile(r"\A *\| ?")
_GROUP_RULE = re.compile(r" *\+[-+ 0-9.]*\Z")
_HEADINGS = ("Traceback (most recent call last):", "+ Exception Group Traceback (most recent call last):")
_NODE_VERSION = re.compile(r"Node\.js v[0-9.]+\Z")
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,300})", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,1000}>")
_MEANINGS = {
    401: "the server requires other credentials",
    400: "the server does not understand the request",
    403: "the server does not allow this with these credentials",
    404: "there is no MCP server at this address",
    405: "there is no MCP server at this address",
    429: "too many requests",
    500: "the server failed",
    502: "the server behind this address is unavailable",
    503: "the server is temporarily unavailable",
    504: "the server behind this address does not respond",
}


def stderr_summary(text: str) -> str:
    """The end of a program's stderr, without traceback frames: the last line has the error."""
    lines = [*_relevant_lines(text)]
    if not lines:
        return ""
    kept = deque([_shortened(lines[-1])])
    room = _MAX_LENGTH - len(kept[0])
    for line in reversed(lines[:-1]):
        room -= len(line) + 1
        if room < 0:
            kept[0] = f"… {kept[0]}"
            break
        kept.appendleft(line)
    return " ".join(kept)


def _relevant_lines(text: str) -> Iterator[str]:
    # In an exception group, each line begins with a bar.
    lines = [_GROUP_BAR.sub("", line, count=1) for line in text.splitlines() if not _GROUP_RULE.match(line)]
    frames = ('File "', "at ")
    has_frames = any(line[:1].isspace() and line.lstrip().startswith(frames) for line in lines)
    for line in lines:
        plain = " ".join(line.split())
        is_frame = has_frames and (line[:1].isspace() or plain in _HEADINGS)
        if len(plain) > 1 and not is_frame and not _NODE_VERSION.match(plain):
            yield plain


def status_reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Describe an HTTP status of 400 or more, with the server's message and its requested delay."""
    meaning = _MEANINGS.get(status)
    if meaning is None:
        known = status in HTTPStatus.__members__.values()
        meaning = HTTPStatus(status).phrase.lower() if known else "the server refused"
    pause = headers.get("retry-after", "").strip()
    if pause:
        meaning += f"; it asks to wait {pause[:40]}{' s' if pause.isdecimal() else ''}"
    detail = _detail(headers.get("content-type", ""), body[:MAX_BODY].decode("utf-8", "replace"))
    return _shortened(f"HTTP {status}: {meaning}{f' ({detail})' if detail else ''}")


def _detail(content_type: str, text: str) -> str:
    """The server's message in the body of a refusal."""
    if "json" in content_type.lower():
        try:
            return _shortened(_message(json.loads(text)))
        except (ValueError, RecursionError):
            return ""
    if "html" in content_type.lower():
        title = _TITLE.search(text)
        return _shortened(title[1]) if title else ""
    return _shortened(_TAG.sub(" ", text[: 4 * _MAX_LENGTH]))


def _message(value: Any) -> str:
    """The text of an error in any of the usual forms: `{"error": {"message": …}}`, `{"detail": …}`, a plain string."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("error_description", "message", "detail", "title", "error"):
            found = _message(value.get(key))
            if found:
                return found
    return ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 1] + "…"
