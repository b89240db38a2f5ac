"""Questions that a server asks in the middle of a call, put to whoever gives us lines."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio

from ...errors import InvalidArgument
from .render import clean, one_line

Tell = Callable[[str], None]


NextLine = Callable[[str], Awaitable[str | None]]


"""Shows a prompt and waits for a line; None when there are no more."""


_CANCEL: dict[str, Any] = {"action": "cancel"}


class Person:
    """Answers `elicitation/create`. An empty line leaves a field out; the end of input cancels."""

    def __init__(self, tell: Tell, next_line: NextLine) -> None:
        self._tell = tell
        self._next_line = next_line
        self._asking: anyio.CancelScope | None = None
        self._quiet = anyio.Event()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self._quiet = anyio.Event()
        try:
            with anyio.CancelScope() as self._asking:
                return await self._answer(params)
        finally:
            self._quiet.set()
        return _CANCEL

    async def withdraw(self) -> None:
        """Asks no more: a call that is over must not take the lines meant for the next command."""
        if self._asking is not None:
            self._asking.cancel()
            with anyio.CancelScope(shield=True):
                await self._quiet.wait()

    async def _answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self._tell(f"The server asks: {clean(str(params.get('message', '')))}")
        if params.get("mode") == "url":
            self._tell(f"It wants you to open {clean(str(params.get('url')))}")
            return await self._agree({})
        schema = params.get("requestedSchema") or {}
        content: dict[str, Any] = {}
        for name, field in (schema.get("properties") or {}).items():
            line = await self._next_line(f"  {_prompt(name, field)}: ")
            if line is None:
                return _CANCEL
            if line:
                content[name] = typed(line, field)
        return await self._agree(content)

    async def _agree(self, content: dict[str, Any]) -> dict[str, Any]:
        line = await self._next_line(f"Send {json.dumps(content, ensure_ascii=False)}? [y/n] ")
        if line is None:
            return _CANCEL
        if line.strip().lower() not in {"y", "yes"}:
            return {"action": "decline"}
        return {"action": "accept", "content": content}


def _prompt(name: str, field: Mapping[str, Any]) -> str:
    choices = field.get("enum") or field.get("type") or "anything"
    shown = " | ".join(map(str, choices)) if isinstance(choices, list) else str(choices)
    about = one_line(field.get("description") or field.get("title"))
    return clean(f"{name} ({shown}{', ' + about if about else ''})")


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
