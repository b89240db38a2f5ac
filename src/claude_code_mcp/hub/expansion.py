"""Variables in configuration: `${NAME}`, `${NAME:-default}`, and Cursor's `${env:NAME}`."""

import re
from collections.abc import Mapping
from typing import Any

from ..child_environment import is_own

_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingVariable(ValueError):
    """A variable is named that is not set and has no default."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the variable {name} is not set and has no default")


def expand(value: Any, environment: Mapping[str, str]) -> Any:
    """The value with the variables in all of its strings replaced, however deep. Raises MissingVariable."""
    if isinstance(value, str):
        # No reference begins behind the last brace. Left in, each beginning of one would be read to the very end.
        end = value.rfind("}") + 1
        return _REFERENCE.sub(lambda found: _value(found, environment), value[:end]) + value[end:]
    if isinstance(value, dict):
        return {key: expand(one, environment) for key, one in value.items()}
    if isinstance(value, list):
        return [expand(one, environment) for one in value]
    return value


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name, default = found.groups()
    value = None if is_own(name) else environment.get(name)  # our own hold tokens, and a file sends them anywhere
    if value is not None and (value or default is None):
        return value
    if default is None:
        raise MissingVariable(name)
    return str(default)
