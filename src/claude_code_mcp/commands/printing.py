"""Sessions, tables and questions as the verbs print them.

Everything that a model or a file may have written passes `visible` first: nothing in it can steer the terminal.
"""

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from ..client.open_questions import OpenQuestion
from ..client.question_view import Style, question_lines
from ..model.text import age, clip_line, visible

_COLOURS = {Style.HEAD: "1", Style.REMOVED: "31", Style.ADDED: "32", Style.SAME: "2"}
_LONGEST = 60
"""Characters of a title or a question in a table."""


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours; NO_COLOR and a dumb terminal say no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_question(asked: OpenQuestion, stream: TextIO | None = None) -> None:
    """Prints all of a question, whose it is first."""
    stream = stream or sys.stdout
    colour = has_colour(stream)
    print(f"[{asked.id}] {session_name(asked.session)}", file=stream)
    for text, style in question_lines(asked.question):
        code = _COLOURS.get(style) if colour else None
        print(f"\x1b[{code}m{text}\x1b[0m" if code else text, file=stream)
    stream.flush()


def session_name(session: Mapping[str, Any]) -> str:
    """The id of a listed session and, where known, title and directory."""
    title, project = session.get("displayText"), session.get("projectDirectory")
    named = f" {visible(clip_line(title, _LONGEST))}" if title else ""
    return f"session {session['sessionId'][:8]}{named}" + (f" in {visible(project)}" if project else "")


def table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of equal columns for listed sessions."""
    cells = [("ID", "STATE", "AGE", "COST", "PROJECT", "QUESTION", "TITLE"), *map(_row, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _row(session: Mapping[str, Any]) -> tuple[str, ...]:
    asks: list[str] = session.get("asks") or []
    more = f" (+{len(asks) - 1})" if len(asks) > 1 else ""
    cost = session.get("costUsd")
    return (
        session["sessionId"][:8],
        session.get("activeStatus") or session.get("lastStatus") or "-",
        age(session.get("created") or session["timestamp"], time.time()),
        f"${cost:.4f}" if cost is not None else "-",
        _short_path(session.get("projectDirectory") or "-"),
        visible(clip_line(asks[0], _LONGEST)) + more if asks else "",
        visible(clip_line(session["displayText"], _LONGEST)),
    )


def _short_path(path: str) -> str:
    """The end of a long path, which tells more than its beginning."""
    home = os.path.expanduser("~")
    path = f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}{os.sep}") else path
    return visible(path if len(path) <= _LONGEST // 2 else f"...{path[3 - _LONGEST // 2 :]}")
