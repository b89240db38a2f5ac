"""Tools, results and progress of servers as plain text, without colour.

What a server sends may hold control sequences that steer a terminal; `clean` takes them out, and everything that is
printed to a terminal goes through it.
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST = 100
_BAR_WIDTH = 20
ERASE_LINE = "\r\x1b[K"
"""Moves to the beginning of the line and clears it."""


def clean(text: str) -> str:
    """The text without what steers a terminal; lines and tabs stay."""
    return _CONTROLS.sub("", text)


def one_line(text: str | None, longest: int = _LONGEST) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(clean(text or "").split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines with columns that are as wide as what is in them."""
    cells = [list(head), *([clean(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def signature(name: str, schema: Mapping[str, Any] | None) -> str:
    """`name(a, b, c?)`: optional parameters have a question mark."""
    properties = (schema or {}).get("properties")
    required = (schema or {}).get("required") or ()
    names = properties if isinstance(properties, dict) else ()
    parameters = (parameter if parameter in required else f"{parameter}?" for parameter in names)
    return clean(f"{name}({', '.join(parameters)})")


def result_text(result: Mapping[str, Any]) -> str:
    """The result of a call for people: text as it is, and in brackets what else there is."""
    blocks = [block_text(block) for block in result.get("content") or ()]
    if not blocks and result.get("structuredContent") is not None:
        return as_json(result["structuredContent"])
    return "\n".join(blocks)


def block_text(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType')}, {_decoded_size(block.get('data'))}]"
        case "resource":
            return resource_text(block.get("resource") or {})
        case "resource_link":
            return f"[link: {block.get('uri')} {block.get('name', '')}]"
        case other:
            return f"[{other}]"


def resource_text(resource: Mapping[str, Any]) -> str:
    if isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[resource: {resource.get('uri')} {resource.get('mimeType', '')}, {_decoded_size(resource.get('blob'))}]"


def _decoded_size(encoded: object) -> str:
    """How many bytes a base64 text stands for."""
    return counted(len(encoded) * 3 // 4 - encoded[-2:].count("="), "byte") if isinstance(encoded, str) else "empty"


def notification_line(method: str, params: Mapping[str, Any]) -> str:
    """What a server tells by itself, on one line."""
    if method == "notifications/message":
        return f"{params.get('level')}: {one_line(_plain_text(params.get('data')), 1000)}"
    return f"{method} {one_line(_plain_text(params), 1000)}".rstrip() if params else method


def _plain_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


class Progress:
    """The progress of one call: one line that changes in a terminal, one line for each step elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        line = progress_line(progress, total, message)
        if self._live:
            self._write(ERASE_LINE + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(line + "\n")

    def done(self) -> None:
        """Clears the line, so that what is printed next begins at its start."""
        if self._live:
            self._write(ERASE_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def progress_line(progress: float, total: float | None, message: str | None) -> str:
    suffix = f" {one_line(message)}" if message else ""
    if not total or total < 0:
        return f"progress {progress:g}{suffix}"
    full = round(_BAR_WIDTH * min(1.0, max(0.0, progress / total)))
    return f"[{'#' * full}{'-' * (_BAR_WIDTH - full)}] {progress:g}/{total:g}{suffix}"
