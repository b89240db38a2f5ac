"""Completion of the arguments of prompts and resource templates.

Offers only what the caller may use: no other callers' sessions, no directories outside the roots, no modes above the
profile's ceiling.
"""

import os
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import get_args

import mcp_types as types

from ..core.model.caller import Caller
from ..core.service import Service
from ..core.sessions.callers.caller_policy import CallerPolicy
from ..core.transcripts.cost_table import Grouping

_MAX_VALUES = 100
"""Maximum values in a response, set by the protocol."""
_MAX_ENTRIES = 5000
"""Maximum directory entries that are read."""
_MAX_TYPED = 1000
_MODELS = ("default", "opus", "sonnet", "haiku", "opusplan", "sonnet[1m]")
"""The names that Claude Code resolves to its current models."""


async def complete(service: Service, argument: types.CompletionArgument, caller: Caller) -> types.CompleteResult:
    """The possible values of an argument that match the typed text; none for free-text arguments."""
    typed = argument.value[:_MAX_TYPED]
    if argument.name in ("session", "id"):  # by words in title, prompts, directory or id, the newest first
        entries = await service.stored.entries(caller=caller, text=typed.strip() or None, limit=_MAX_VALUES)
        found = [entry.session_id for entry in entries]
    elif argument.name == "directory":
        look = partial(_directories, service.policy_for(caller), typed)
        found = await service.caller_threads.run(caller.principal, look)
    else:
        values: Iterable[str] = ()
        if argument.name == "model":
            values = await _models(service, caller)
        elif argument.name == "mode":
            values = service.policy_for(caller).modes
        elif argument.name == "by":
            values = get_args(Grouping)
        found = [value for value in values if value.casefold().startswith(typed.casefold())]
    shown = found[:_MAX_VALUES]
    return types.CompleteResult(
        completion=types.Completion(values=shown, total=len(found), has_more=len(found) > len(shown))
    )


async def _models(service: Service, caller: Caller) -> list[str]:
    """The models that Claude Code has names for, and those that answered in the newest sessions. A name from a
    transcript that contains a secret is omitted."""
    entries = await service.stored.entries(caller=caller, limit=_MAX_VALUES)
    models = (entry.model for entry in entries if entry.model)
    return [*dict.fromkeys((*_MODELS, *(model for model in models if service.redaction.text(model) == model)))]


def _directories(policy: CallerPolicy, typed: str) -> list[str]:
    """Directories that begin with the typed text, or the roots if it is empty. Blocks on the disk."""
    if not typed:
        return [path for path in policy.directories() if os.path.isdir(path)]
    parent, begun = os.path.split(typed)
    if not os.path.isabs(parent) or not policy.may_list(parent):
        return [path for path in policy.directories() if path.startswith(typed)]
    try:
        with os.scandir(parent) as entries:
            names = sorted(
                entry.name
                for entry in islice(entries, _MAX_ENTRIES)
                if entry.name.startswith(begun)
                # Hidden directories only if a dot was typed.
                and (begun.startswith(".") or not entry.name.startswith("."))
                and entry.is_dir()
            )
    except OSError:
        return []
    found = (os.path.join(parent, name) for name in names[: _MAX_VALUES + 1])
    return [path for path in found if policy.may_list(path)]
