"""Counts the tokens in an answer of the model's API while its bytes pass by. Pure; a few kilobytes are kept at most.

An answer says what it used in objects called `usage`: one when it is not streamed; when it is, one at its beginning and
one at its end, which repeats or raises the counts. Of each count the largest is taken, so that nothing in between can
lower it. Text of the model cannot be mistaken for such an object: its quotes are escaped.
"""

import json
import re

from ..model.usage import ModelUsage, Usage, read_number

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_LONGEST_USAGE = 4096
_OVERLAP = 256
"""Bytes that are looked at again with the next ones, so that nothing is missed between two pieces."""
_LAST_EVENT = b'"message_stop"'
_BYTES_PER_TOKEN = 30
"""Of a stream that was cut off before it said what its output was: most of it is the wrapping of the events."""
_read_value = json.JSONDecoder().raw_decode


class ResponseMeter:
    """Fed the body of an answer, as it comes over the line and without what frames it."""

    def __init__(self, status: int) -> None:
        self._succeeded = status == 200
        self._kept = b""
        self._model = b""
        self._used = ModelUsage()
        self._size = 0
        self.complete = False
        """Whether the whole answer has passed; the connection may stay open behind it."""

    def feed(self, data: bytes) -> None:
        if not self._succeeded:
            return
        self._size += len(data)
        text = self._kept + data
        if not self._model and (found := _MODEL.search(text)) is not None:
            self._model = found[1]
        self._kept = self._read(text)
        self.complete = self.complete or _LAST_EVENT in text

    def _read(self, text: bytes) -> bytes:
        """Takes every whole usage in the text; returns what is to be looked at again."""
        at = 0
        while (found := _USAGE.search(text, at)) is not None:
            start = found.end() - 1
            try:
                value, length = _read_value(text[start : start + _LONGEST_USAGE].decode("latin-1"))
            except (ValueError, RecursionError):
                if len(text) - start < _LONGEST_USAGE:
                    return text[found.start() :]  # the rest of it is still to come
                at = found.end()
                continue
            self._used |= _tokens(value)
            at = start + length
        return text[max(at, len(text) - _OVERLAP) :]

    @property
    def usage(self) -> Usage:
        """What the answer has used so far; nothing if it used none. Of one that ended in the middle, the output is
        estimated from its size."""
        if self._used == ModelUsage():
            return Usage()
        used = self._used if self.complete else self._used | ModelUsage(output_tokens=self._size // _BYTES_PER_TOKEN)
        return Usage({self._model.decode("ascii", "replace") or "unknown": used})


def _tokens(value: object) -> ModelUsage:
    if not isinstance(value, dict):
        return ModelUsage()
    return ModelUsage(
        int(read_number(value, "input_tokens")),
        int(read_number(value, "output_tokens")),
        int(read_number(value, "cache_read_input_tokens")),
        int(read_number(value, "cache_creation_input_tokens")),
    )
