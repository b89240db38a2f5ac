"""`${VAR}` references in an entry of `mcpServers`: `${NAME}`, `${NAME:-default}` and `${env:NAME}`."""

import re
from collections.abc import Mapping
from typing import Any

from ..processes.environment import is_own

_REFERENCE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingVariable(ValueError):
    """A reference names a variable that is not set, and gives no default."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the variable {name} is not set and has no default")


def expand(value: Any, environment: Mapping[str, str]) -> Any:
    """Replaces the references in all strings of a JSON value, at any depth. Raises MissingVariable.

    Takes time linear in the length of the strings.
    """
    if isinstance(value, str):
        # No reference begins behind the last brace. Left in, each beginning of one would be read to the very end.
        end = value.rfind("}") + 1
        return _REFERENCE.sub(lambda reference: _value_of(reference, environment), value[:end]) + value[end:]
    if isinstance(value, dict):
        return {key: expand(item, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, environment) for item in value]
    return value


def _value_of(reference: re.Match[str], environment: Mapping[str, str]) -> str:
    name, default = reference.groups()
    # Our own variables hold tokens, and a file could send them anywhere: they count as not set.
    value = None if is_own(name) else environment.get(name)
    if value is not None and (value or default is None):
        return value
    if default is None:
        raise MissingVariable(name)
    return str(default)
