"""What a person types, as values for a server: the arguments of a call, and answers to questions in mid-call.

Nothing here reads or writes by itself; where lines come from and go to is handed in.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import anyio

from ...errors import InvalidArgument
from .fields import LEFT_OUT, FieldEntry, Unfit, read_entries, shown_content
from .render import clean

Show = Callable[[str], None]
"""Shows a line of text."""


class ReadLine(Protocol):
    """Shows a prompt and waits for a line; None when there are no more. `choices` complete what is typed."""

    def __call__(self, prompt: str, choices: Sequence[str] = ()) -> Awaitable[str | None]: ...


_CANCEL: dict[str, Any] = {"action": "cancel"}
_END = object()
_NOT_JSON = object()
_SCHEMA_TYPES: dict[type, tuple[str, ...]] = {
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}


# -- questions of a server -----------------------------------------------------------------------------------------


class QuestionPrompter:
    """Answers `elicitation/create` field by field. An empty line takes the default of a field or leaves it out, a line
    that does not fit is asked for again; the end of input cancels."""

    def __init__(self, show: Show, read_line: ReadLine) -> None:
        self._show = show
        self._read_line = read_line
        self._asking: anyio.CancelScope | None = None
        self._finished = anyio.Event()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self._finished = anyio.Event()
        try:
            with anyio.CancelScope() as self._asking:
                return await self._answer(params)
        finally:
            self._finished.set()
        return _CANCEL  # reached when `withdraw` has cancelled the scope

    async def withdraw(self) -> None:
        """Cancels an open question and waits until it reads no more: the next line is meant for the next command."""
        if self._asking is not None:
            self._asking.cancel()
            with anyio.CancelScope(shield=True):
                await self._finished.wait()

    async def _answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self._show(f"The server asks: {clean(str(params.get('message', '')))}")
        if params.get("mode") == "url":
            self._show(f"It wants you to open {clean(str(params.get('url')))}")
            return await self._confirm("Have you opened it?", {"action": "accept"})
        content: dict[str, Any] = {}
        for entry in read_entries(params.get("requestedSchema")):
            value = await self._fill_in(entry)
            if value is _END:
                return _CANCEL
            if value is not LEFT_OUT:
                content[entry.model.name] = value
        return await self._confirm(f"Send {shown_content(content)}?", {"action": "accept", "content": content})

    async def _fill_in(self, entry: FieldEntry) -> Any:
        if entry.heading:
            self._show(entry.heading)
        while (line := await self._read_line(entry.prompt, entry.choices)) is not None:
            try:
                return entry.value(line)
            except Unfit as reason:
                self._show(f"  That does not fit: {reason}.")
        return _END

    async def _confirm(self, question: str, agreed: dict[str, Any]) -> dict[str, Any]:
        line = await self._read_line(f"{question} [y/n] ", ("yes", "no"))
        if line is None:
            return _CANCEL
        return agreed if line.strip().lower() in {"y", "yes"} else {"action": "decline"}


# -- arguments of a call -------------------------------------------------------------------------------------------


def parse_arguments(texts: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, from one JSON object or from NAME=VALUE pairs; the schema says which values are strings.

    Raises InvalidArgument for what is neither.
    """
    if len(texts) == 1 and texts[0].lstrip().startswith(("{", "[", '"')):
        return _parse_object(texts[0])
    properties = schema.get("properties")
    fields = properties if isinstance(properties, dict) else {}
    arguments = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidArgument(f"Arguments are one JSON object or NAME=VALUE pairs, not {text[:40]!r}.")
        arguments[name] = parse_value(value, fields.get(name) or {})
    return arguments


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"The arguments are not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise InvalidArgument("The arguments must be a JSON object.")
    return value


def parse_value(text: str, schema: Mapping[str, Any]) -> Any:
    """The value that fits the schema: a string stays as it is, anything else is read as JSON where it is JSON.

    A value that does not fit is sent all the same; the server knows best what to say about it.
    """
    types = _schema_types(schema)
    if types == {"string"}:
        return text
    value = _parse_json(text)
    if value is not _NOT_JSON and (not types or types & set(_SCHEMA_TYPES[type(value)])):
        return value
    return text if value is _NOT_JSON or "string" in types else value


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _NOT_JSON


def _schema_types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty if it does not say."""
    declared = schema.get("type", [])
    types = {declared} if isinstance(declared, str) else set(declared)
    if not types and "enum" in schema:
        types = {_SCHEMA_TYPES[type(choice)][0] for choice in schema["enum"]}
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        types |= _schema_types(alternative) if isinstance(alternative, dict) else set()
    return types
