"""Kinds of text that arguments are made of, each with a limit that no honest call meets. Pure.

The limits are kept out of the JSON schemas, where they would cost every caller.
"""

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from ...store.transcripts import is_session_id

_RULES = 200
_HIGHEST = 1_000_000
_LONGEST_WAIT = 10**12


def _bounded(text: str, limit: int) -> str:
    if not 0 < len(text) <= limit:
        raise ValueError(f"must have 1 to {limit} characters")
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _session_id(text: str) -> str:
    if not is_session_id(text):
        raise ValueError("is not a session id")
    return text.lower()


def _few(rules: list[str]) -> list[str]:
    if len(rules) > _RULES:
        raise ValueError(f"must not be more than {_RULES}")
    return rules


def _countable(number: int) -> int:
    if number > _HIGHEST:
        raise ValueError(f"must not be more than {_HIGHEST}")
    return number


def _offset(number: int) -> int:
    if not 0 <= number < 1 << 40:
        raise ValueError("must be nextOffset of an earlier answer")
    return number


def _bearable(milliseconds: int) -> int:
    if milliseconds > _LONGEST_WAIT:
        raise ValueError(f"must not be more than {_LONGEST_WAIT}")
    return milliseconds


Milliseconds = Annotated[int, Field(gt=0), AfterValidator(_bearable)]
Count = Annotated[int, Field(gt=0), AfterValidator(_countable)]
Name = Annotated[str, AfterValidator(partial(_bounded, limit=1000))]
Offset = Annotated[int, AfterValidator(_offset)]
Path = Annotated[str, AfterValidator(partial(_bounded, limit=4096))]
Rules = Annotated[list[Name], AfterValidator(_few)]
SessionId = Annotated[str, AfterValidator(_session_id)]
