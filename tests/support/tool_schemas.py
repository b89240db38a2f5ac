"""The schema of a tool, made once for a process and those that are forked from it. It is a function of the class of its
arguments alone, and to make those of all tools takes each server of the tests a tenth of a second of CPU."""

import copy
import functools
from typing import Any

from pydantic import BaseModel

from claude_code_mcp.server.tools import base

_made = functools.cache(base.compact_schema)


def _shared(model: type[BaseModel]) -> dict[str, Any]:
    """A copy, which belongs to whoever asks for it."""
    return copy.deepcopy(_made(model))


def share() -> None:
    """For the servers of this process, and of those that are forked from it, from now on."""
    base.compact_schema = _shared


def make_all() -> None:
    """Makes those of every class that is imported, for processes that are forked later."""
    waiting: list[type[BaseModel]] = [base.Arguments, base.ToolOutput]
    while waiting:
        model = waiting.pop()
        _made(model)
        waiting += model.__subclasses__()
