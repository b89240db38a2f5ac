"""Completion of what a person types into a prompt or an address of ours: sessions, models, modes, directories.

Nothing is offered that the caller may not use: sessions of others, directories outside of the roots, modes above the
ceiling of the policy's profile.
"""

import asyncio
import os
from collections.abc import Iterable
from itertools import islice
from typing import get_args

import mcp_types as types

from ..model.origin import ClientOrigin
from ..service import Service
from ..store.cost_report import Grouping

_MOST = 100
"""Values in an answer; the protocol allows no more."""
_MOST_LOOKED_AT = 5000
"""Entries of a directory that are looked at."""
_LONGEST = 1000
_MODELS = ("default", "opus", "sonnet", "haiku", "opusplan", "sonnet[1m]")
"""The names that Claude Code resolves to its current models."""


async def complete(
    service: Service, argument: types.CompletionArgument, owner: str, origin: ClientOrigin | None
) -> types.CompleteResult:
    """The values that an argument may have and that fit what was typed; none for arguments of any text."""
    typed = argument.value[:_LONGEST]
    if argument.name in ("session", "id"):
        values = await _sessions(service, typed, owner, origin)
    elif argument.name == "directory":
        values = await asyncio.to_thread(_directories, service, typed, owner, origin)
    elif argument.name == "model":
        values = _beginning(await _models(service, owner, origin), typed)
    elif argument.name == "mode":
        values = _beginning(service.modes(owner), typed)
    elif argument.name == "by":
        values = _beginning(get_args(Grouping), typed)
    else:
        values = []
    shown = values[:_MOST]
    return types.CompleteResult(
        completion=types.Completion(values=shown, total=len(values), has_more=len(values) > len(shown))
    )


def _beginning(values: Iterable[str], typed: str) -> list[str]:
    return [value for value in values if value.casefold().startswith(typed.casefold())]


async def _sessions(service: Service, typed: str, owner: str, origin: ClientOrigin | None) -> list[str]:
    """The ids of sessions with these words in title, prompts, directory or id, the newest first."""
    entries = await service.catalogue(owner=owner, origin=origin, text=typed.strip() or None, limit=_MOST)
    return [entry.session_id for entry in entries]


async def _models(service: Service, owner: str, origin: ClientOrigin | None) -> list[str]:
    """Those that Claude Code has names for, and those that answered in the newest sessions."""
    entries = await service.catalogue(owner=owner, origin=origin, limit=_MOST)
    return [*dict.fromkeys((*_MODELS, *(entry.model for entry in entries if entry.model)))]


def _directories(service: Service, typed: str, owner: str, origin: ClientOrigin | None) -> list[str]:
    """Directories that begin with what was typed, and the roots themselves where nothing was. Blocks on the disk."""
    if not typed:
        return [path for path in service.directories(owner, origin=origin) if os.path.isdir(path)]
    parent, begun = os.path.split(typed)
    if not os.path.isabs(parent) or not service.may_work_in(parent, owner, origin=origin):
        return [path for path in service.directories(owner, origin=origin) if path.startswith(typed)]
    try:
        with os.scandir(parent) as entries:
            names = sorted(
                entry.name for entry in islice(entries, _MOST_LOOKED_AT) if _fits(entry, begun) and entry.is_dir()
            )
    except OSError:
        return []
    found = (os.path.join(parent, name) for name in names[: _MOST + 1])
    return [path for path in found if service.may_work_in(path, owner, origin=origin)]


def _fits(entry: "os.DirEntry[str]", begun: str) -> bool:
    """Hidden ones only if a dot was typed."""
    return entry.name.startswith(begun) and (begun.startswith(".") or not entry.name.startswith("."))
