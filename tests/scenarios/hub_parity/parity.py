"""The table of `docs/hub-parity.md`: what a session gets from servers that Claude Code connects to itself, and what it
gets from the same servers through the hub. Every row is what a test has seen both ways.

`PARITY=write` writes what is seen into the table instead of checking it.
"""

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tests.support.npm import BUILD

from .conftest import Seen

DOCUMENT = Path(__file__).parents[3] / "docs" / "hub-parity.md"
_HEAD = "| what | Claude Code's own client | through the hub |"


def check(what: str, native: str, hub: str) -> None:
    """Fails unless the table has this very row."""
    row = f"| {what} | {native} | {hub} |"
    if os.environ.get("PARITY") == "write":
        BUILD.mkdir(exist_ok=True)
        with FileLock(BUILD / "parity.lock"):
            _write(what, row)
    rows = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert row in rows, f"docs/hub-parity.md has not the row that was seen: {row}"


def check_descriptions(both: tuple[Seen, Seen], what: str, describe: Callable[[Seen], str]) -> None:
    """Checks the row of what both sessions showed."""
    native, hub = both
    check(what, describe(native), describe(hub))


def _write(what: str, row: str) -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(f"| {what} |")]
    if places:
        lines[places[0]] = row
    else:
        end = lines.index(_HEAD) + 2
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        lines.insert(end, row)
    DOCUMENT.write_text("\n".join(lines) + "\n", encoding="utf-8")
