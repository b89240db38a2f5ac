"""What was allowed for a session while it ran, for the next process of it. Pure.

The CLI keeps such permission updates in memory only. A new process is given them at its start: rules in a settings
file of its own, modes and directories as options; never in a settings file of the project or the person.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model.options import SessionOptions

_BEHAVIOURS = ("allow", "deny", "ask")


def granted_rules(grants: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The rules in permission updates, as settings files write them, by what they do."""
    rules: dict[str, list[str]] = {}
    for grant in grants:
        behaviour = grant.get("behavior", "allow")
        if grant.get("type") == "addRules" and behaviour in _BEHAVIOURS:
            written = (text for rule in _listed(grant.get("rules")) if (text := _written(rule)) is not None)
            rules.setdefault(behaviour, []).extend(written)
    return {behaviour: list(dict.fromkeys(listed)) for behaviour, listed in rules.items() if listed}


def with_grants(options: SessionOptions, grants: Sequence[Mapping[str, Any]]) -> SessionOptions:
    """The options with the mode and the directories in permission updates; the last mode counts."""
    mode, directories = options.permission_mode, list(options.additional_directories)
    for grant in grants:
        if grant.get("type") == "setMode" and isinstance(grant.get("mode"), str):
            mode = grant["mode"]
        elif grant.get("type") == "addDirectories":
            directories.extend(one for one in _listed(grant.get("directories")) if isinstance(one, str))
    changes = {"permission_mode": mode, "additional_directories": tuple(dict.fromkeys(directories))}
    return options.model_copy(update=changes)


def _written(rule: object) -> str | None:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("toolName"), str):
        return None
    name, content = rule["toolName"], rule.get("ruleContent")
    if content is None:
        return str(name)
    escaped = str(content).replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"{name}({escaped})"


def _listed(value: object) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()
