"""A tool call as it is shown folded: the purpose of a command and the end of its output, the size of a change, and runs
of calls that only look at something as one line. Pure.

The console's page folds calls itself, because a result reaches it without its call. Its generated types
(`web/src/server_types.ts`) have the names and numbers of this module.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from .text import clip_line, count_of

MIN_RUN = 3
"""The number of calls from which a run is one line."""
COMMANDS = frozenset({"Bash", "PowerShell"})
READS = frozenset({"Read", "NotebookRead"})
SEARCHES = frozenset({"Grep", "Glob", "LS"})
PAGES = frozenset({"WebFetch", "WebSearch"})
_FAILED = frozenset({"error", "denied"})
SHOWN_LINES = 3
"""The number of lines of a result that are shown folded."""
_MAX_LINE = 300


def purpose(name: str, tool_input: object) -> str:
    """Claude's description of a command; empty if the call is not a command or has no description."""
    description = tool_input.get("description") if isinstance(tool_input, Mapping) and name in COMMANDS else None
    return clip_line(description, _MAX_LINE) if isinstance(description, str) else ""


def shown_lines(name: str, status: str, result: str) -> list[str]:
    """The lines of a result that are shown folded: the last ones of a command, the first ones of another call that
    failed. Without empty lines."""
    if name in COMMANDS and status and status != "denied":
        last = islice((line for line in reversed(result.split("\n")) if line.strip()), SHOWN_LINES)
        return [line[:_MAX_LINE] for line in last][::-1]
    if status != "error":
        return []
    return [line[:_MAX_LINE] for line in islice((line for line in result.split("\n") if line.strip()), SHOWN_LINES)]


def change_counts(diff: str) -> tuple[int, int]:
    """The added and removed lines in the hunks of a unified diff without file names."""
    signs = [line[:1] for line in diff.split("\n")]
    return signs.count("+"), signs.count("-")


def is_read_call(name: str, status: str) -> bool:
    """Whether a call only looks at something, and did not fail."""
    return (name in READS or name in SEARCHES or name in PAGES) and status not in _FAILED


def run_line(names: Iterable[str]) -> str:
    """A run of such calls in one line: `Read 5 files, searched 2 times`."""
    known = [*names]
    reads, searches, pages = (sum(name in group for name in known) for group in (READS, SEARCHES, PAGES))
    parts = [
        f"read {count_of(reads, 'file')}" if reads else "",
        f"searched {count_of(searches, 'time')}" if searches else "",
        f"looked at {count_of(pages, 'page')}" if pages else "",
    ]
    line = ", ".join(filter(None, parts))
    return line[:1].upper() + line[1:]
