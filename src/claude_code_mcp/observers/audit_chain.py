"""The hash chain over the lines of the audit trail: whoever changes, removes or inserts one breaks it from there on.

Each line ends with `"chain"`: the SHA-256 of the chain of the line before it and of the line itself without it. The
first line of a file goes on from the last one of the file that was put aside for it. A line that was cut off, by a full
disk or a crash, is no link: the next one goes on from the last whole line.

The chain has no key. It tells whoever has a value of it from elsewhere (a sink, a note) whether the lines up to there
are the same; somebody who can write the file can make a new chain, and cannot make it end with that value.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BEGIN = "0" * 64
"""What the first line of all goes on from."""
FILES_KEPT = 5
"""Files that are put aside; the oldest is dropped for the next, and with it what the chain goes on from."""
_LINK = re.compile(rb', "chain": "([0-9a-f]{64})"\}\n?\Z')
_CHUNK = 64 << 10
_MOST_FINDINGS = 100


def linked(line: str, before: str) -> tuple[str, str]:
    """A line of JSON, an object that is not empty, with its place in the chain; and its chain."""
    chain = _chain(line.removesuffix("\n").encode("utf-8", "replace"), before)
    return f'{line.rstrip()[:-1]}, "chain": "{chain}"}}\n', chain


def _chain(line: bytes, before: str) -> str:
    return hashlib.sha256(before.encode() + b"\n" + line).hexdigest()


def last_chain(path: Path) -> str | None:
    """The chain of the last whole line of a file; None if it has none. Blocks on the disk; raises OSError."""
    try:
        with path.open("rb") as file:
            end, tail = file.seek(0, os.SEEK_END), b""
            while end > 0:
                start = max(0, end - _CHUNK)
                file.seek(start)
                tail = file.read(end - start) + tail
                # The first of them may be the rest of a line: it is looked at with what stands before it.
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
    """What was found in files that follow each other."""

    lines: int = 0
    """Those with a chain that fits what is before them."""
    earlier: int = 0
    """Lines from before there was a chain."""
    cut_off: int = 0
    """Lines that were never finished."""
    broken: list[str] = field(default_factory=list)
    """Where the chain does not fit, as `file:line`; the first hundred."""
    begins_within: bool = False
    """Whether it begins in the middle of the chain: nothing is known of its first line and of what was before."""
    last: str | None = None
    found: bool = False
    """Whether the value was there that was looked for."""

    @property
    def intact(self) -> bool:
        return not self.broken


def verify(files: Sequence[Path], looked_for: str | None = None, *, whole: bool = False) -> ChainReport:
    """Follows the chain through the files, the oldest first. The `whole` trail, of which nothing was dropped yet, must
    begin with its first line. Blocks on the disk; raises OSError."""
    report = ChainReport()
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                _look_at(report, line, f"{path.name}:{number}", looked_for, whole)
    return report


def _look_at(report: ChainReport, line: bytes, where: str, looked_for: str | None, whole_trail: bool) -> None:
    link = _LINK.search(line)
    if link is None or not line.startswith(b"{"):
        whole = line.startswith(b"{") and line.rstrip().endswith(b"}")
        if not whole:
            report.cut_off += bool(line.strip())
        elif report.last is None:
            report.earlier += 1
        else:
            _note_broken(report, f"{where}: a line without a chain")
        return
    chain = link[1].decode()
    expected = _chain(line[: link.start()] + b"}", report.last or BEGIN)
    first = report.last is None and not report.earlier
    if chain == expected:
        report.lines += 1
    elif first and not whole_trail:
        # The oldest file that is kept may begin in the middle of the chain: what was before it is gone.
        report.begins_within = True
    else:
        gone = "not the first line of the trail" if first else "not what follows the line before it"
        _note_broken(report, f"{where}: {gone}")
    report.last = chain
    report.found = report.found or chain == looked_for


def _note_broken(report: ChainReport, finding: str) -> None:
    if len(report.broken) < _MOST_FINDINGS:
        report.broken.append(finding)
