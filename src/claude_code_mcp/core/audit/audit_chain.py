"""The chain of hashes that links the lines of the audit trail.

Each line ends with `"chain"`: the SHA-256 of the previous line's chain and of the line itself without this field. A
line that is changed, removed or inserted breaks the chain from there on. The first line of a file continues the chain
of the file that was rotated away. A line that was cut off, by a full disk or a crash, is not part of the chain: the
next line continues from the last complete one.

The chain has no key. A reader who has kept a chain value elsewhere (a sink, a note) can check that the lines up to it
are unchanged. Someone who can write the file can build a new chain, but cannot make it end with that value.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BEGIN = "0" * 64
"""The chain value before the first line."""
FILES_KEPT = 5
"""Number of rotated files; the oldest is dropped, and the beginning of the chain with it."""
_LINK = re.compile(rb', "chain": "([0-9a-f]{64})"\}\n?\Z')
_CHUNK = 64 << 10
_MAX_FINDINGS = 100


def linked(line: str, before: str) -> tuple[str, str]:
    """A line of JSON, a non-empty object, with its chain value appended; and that value."""
    chain = _chain(line.removesuffix("\n").encode("utf-8", "replace"), before)
    return f'{line.rstrip()[:-1]}, "chain": "{chain}"}}\n', chain


def _chain(line: bytes, before: str) -> str:
    return hashlib.sha256(before.encode() + b"\n" + line).hexdigest()


def last_chain(path: Path) -> str | None:
    """The chain of the last complete line of a file; None if it has none. Blocks on the disk; raises OSError."""
    try:
        with path.open("rb") as file:
            end, tail = file.seek(0, os.SEEK_END), b""
            while end > 0:
                start = max(0, end - _CHUNK)
                file.seek(start)
                tail = file.read(end - start) + tail
                # The first piece may be the end of a line: it is checked together with the preceding chunk.
                first, *whole = tail.split(b"\n")
                for line in reversed([first, *whole] if start == 0 else whole):
                    found = _LINK.search(line)
                    if found is not None:
                        return found[1].decode()
                end, tail = start, first
    except FileNotFoundError:
        return None
    return None


@dataclass
class ChainReport:
    """The findings in consecutive files."""

    lines: int = 0
    """Lines whose chain matches."""
    earlier: int = 0
    """Lines that were written before the chain was introduced."""
    cut_off: int = 0
    """Unfinished lines."""
    broken: list[str] = field(default_factory=list)
    """Where the chain does not match, as `file:line`; the first hundred."""
    begins_within: bool = False
    """Whether it begins in the middle of the chain: its first line and earlier ones cannot be checked."""
    last: str | None = None
    found: bool = False
    """Whether the expected value was found."""

    @property
    def intact(self) -> bool:
        return not self.broken


def verify(files: Sequence[Path], expected_hash: str | None = None, *, whole: bool = False) -> ChainReport:
    """Verify the chain through the files, oldest first. With `whole`, no file was dropped, so the chain must begin with
    its first line. Blocks on the disk; raises OSError."""
    report = ChainReport()
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                _check_line(report, line, f"{path.name}:{number}", expected_hash, whole)
    return report


def _check_line(report: ChainReport, line: bytes, where: str, expected_hash: str | None, whole_trail: bool) -> None:
    link = _LINK.search(line)
    if link is None or not line.startswith(b"{"):
        whole = line.startswith(b"{") and line.rstrip().endswith(b"}")
        if not whole:
            report.cut_off += bool(line.strip())
        elif report.last is None:
            report.earlier += 1
        else:
            _note_broken(report, f"{where}: a line without a hash")
        return
    chain = link[1].decode()
    expected = _chain(line[: link.start()] + b"}", report.last or BEGIN)
    first = report.last is None and not report.earlier
    if chain == expected:
        report.lines += 1
    elif first and not whole_trail:
        # The oldest kept file may begin in the middle of the chain, because earlier files were dropped.
        report.begins_within = True
    else:
        gone = "is not the first line of the trail" if first else "does not follow the line before it"
        _note_broken(report, f"{where} {gone}")
    report.last = chain
    report.found = report.found or chain == expected_hash


def _note_broken(report: ChainReport, finding: str) -> None:
    if len(report.broken) < _MAX_FINDINGS:
        report.broken.append(finding)
