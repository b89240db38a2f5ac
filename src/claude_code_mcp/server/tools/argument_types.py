"""The types of the tools' arguments, each with a limit that no honest call reaches. Pure.

The limits are not in the JSON schemas, where they would cost every caller a part of its context.
"""

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

from ...store.transcripts import is_session_id

_MAX_RULES = 200
_MAX_COUNT = 1_000_000
_MAX_MILLISECONDS = 10**12


def _check_text(text: str, limit: int) -> str:
    if not 0 < len(text) <= limit:
        raise ValueError(f"must have 1 to {limit} characters")
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _check_session_id(text: str) -> str:
    if not is_session_id(text):
        raise ValueError("is not a session id")
    return text.lower()


def _check_rules(rules: list[str]) -> list[str]:
    if len(rules) > _MAX_RULES:
        raise ValueError(f"must not be more than {_MAX_RULES}")
    return rules


def _check_count(number: int) -> int:
    if number > _MAX_COUNT:
        raise ValueError(f"must not be more than {_MAX_COUNT}")
    return number


def _check_offset(number: int) -> int:
    if not 0 <= number < 1 << 40:
        raise ValueError("must be nextOffset of an earlier answer")
    return number


def _check_milliseconds(milliseconds: int) -> int:
    if milliseconds > _MAX_MILLISECONDS:
        raise ValueError(f"must not be more than {_MAX_MILLISECONDS}")
    return milliseconds


Milliseconds = Annotated[int, Field(gt=0), AfterValidator(_check_milliseconds)]
Count = Annotated[int, Field(gt=0), AfterValidator(_check_count)]
Name = Annotated[str, AfterValidator(partial(_check_text, limit=1000))]
Offset = Annotated[int, AfterValidator(_check_offset)]
Path = Annotated[str, AfterValidator(partial(_check_text, limit=4096))]
Rules = Annotated[list[Name], AfterValidator(_check_rules)]
SessionId = Annotated[str, AfterValidator(_check_session_id)]
