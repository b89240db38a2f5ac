"""The arguments of a tool as people type them: one JSON object, or `name=value` pairs read by the tool's schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidArgument

_NOTHING = object()
_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


def arguments_of(given: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidArgument for what is neither."""
    if len(given) == 1 and given[0].lstrip().startswith(("{", "[", '"')):
        return _object(given[0])
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    found = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name:
            raise InvalidArgument(f"Arguments are one JSON object or NAME=VALUE pairs, not {one[:40]!r}.")
        found[name] = typed(value, known.get(name) or {})
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"The arguments are not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidArgument("The arguments must be a JSON object.")
    return value


def typed(text: str, schema: Mapping[str, Any]) -> Any:
    """The value that a schema wants: a string stays what it is, anything else is read as JSON where it is that."""
    wanted = _types(schema)
    if wanted == {"string"}:
        return text
    value = _json(text)
    if value is not _NOTHING and (not wanted or wanted & set(_TYPES[type(value)])):
        return value
    return text if value is _NOTHING or "string" in wanted else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOTHING


def _types(schema: Mapping[str, Any]) -> set[str]:
    own = schema.get("type", [])
    found = {own} if isinstance(own, str) else set(own)
    if not found and "enum" in schema:
        found = {_TYPES[type(one)][0] for one in schema["enum"]}
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found |= _types(one) if isinstance(one, dict) else set()
    return found
