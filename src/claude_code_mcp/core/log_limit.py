"""Limits the log lines that one session can cause."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

_SECONDS = 60.0


@dataclass(slots=True)
class _Repeated:
    written_at: float
    since: int = 0


class FoldedLog:
    """Writes the first line of each kind at once, and then at most one per minute, with the number of suppressed lines.
    The kind is the format string."""

    def __init__(self, log: logging.Logger, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`owner` is the first value of every line."""
        self._logger = log
        self._owner = owner
        self._clock = clock
        self._lines: dict[str, _Repeated] = {}

    def warning(self, text: str, *values: object) -> None:
        self._write(self._logger.warning, text, *values)

    def info(self, text: str, *values: object) -> None:
        self._write(self._logger.info, text, *values)

    def _write(self, write: Callable[..., None], text: str, *values: object) -> None:
        line, now = self._lines.get(text), self._clock()
        if line is not None and now - line.written_at < _SECONDS:
            line.since += 1
            return
        self._lines[text] = _Repeated(now)
        write(text, self._owner, *values)
        if line is not None:
            self._write_count(text, line)

    def close(self) -> None:
        """Log how many lines were suppressed."""
        lines, self._lines = self._lines, {}
        for text, line in lines.items():
            self._write_count(text, line)

    def _write_count(self, text: str, line: _Repeated) -> None:
        if line.since:
            self._logger.warning("%d more lines about %s were suppressed: %r", line.since, self._owner, text)
