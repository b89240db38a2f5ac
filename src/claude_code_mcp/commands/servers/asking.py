"""Questions that a server asks in the middle of a call, put to whoever gives us lines."""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from .arguments import typed
from .shown import clean, one_line

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


async def nobody(params: dict[str, Any]) -> dict[str, Any]:
    """For calls that nobody watches."""
    return _CANCEL
