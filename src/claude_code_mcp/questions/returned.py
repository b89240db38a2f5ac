"""An input that comes back from a caller who was shown it without secrets. Pure."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument


def put_back(updated: Any, shown: Any, original: Any, mark: str) -> Any:
    """The caller's input in which every part that was left as it was `shown` is the `original` again.

    InvalidArgument if the caller changed a text and left the `mark` of a secret in it: nobody could say what belongs
    there, and the tool would be run with the mark itself.
    """
    if updated == shown:
        return original
    if isinstance(updated, Mapping) and isinstance(shown, Mapping) and isinstance(original, Mapping):
        return {
            key: put_back(value, shown[key], original[key], mark) if key in shown and key in original else value
            for key, value in updated.items()
        }
    if isinstance(updated, list) and isinstance(shown, list) and isinstance(original, list | tuple):
        known = min(len(shown), len(original))
        pairs = enumerate(updated)
        return [put_back(one, shown[at], original[at], mark) if at < known else one for at, one in pairs]
    if isinstance(updated, str) and mark in updated and shown != original:
        raise InvalidArgument(
            f"updatedInput changes a text in which {mark} stands for a secret that was not shown. "
            "Leave that text as it is, or write it whole.",
            field="updatedInput",
        )
    return updated
