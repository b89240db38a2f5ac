"""The log for people, without secrets."""

import logging

from ..redaction import Redactor


class RedactingFormatter(logging.Formatter):
    """Takes secrets out of what is written at last, tracebacks included. The records stay as they are for others."""

    def __init__(self, layout: str, redactor: Redactor) -> None:
        super().__init__(layout)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))
