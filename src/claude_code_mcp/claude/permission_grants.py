"""Permission updates that a person granted for a session, as a new process of it is given them. Pure.

A grant is a permission update of the control protocol: rules (`addRules`), a mode (`setMode`) or directories
(`addDirectories`). The CLI forgets grants with the process, so the next process gets them as settings and options.
Updates of other types and malformed ones are left out.
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
            texts = (text for rule in _items(grant.get("rules")) if (text := _rule_text(rule)) is not None)
            rules.setdefault(behaviour, []).extend(texts)
    return {behaviour: list(dict.fromkeys(texts)) for behaviour, texts in rules.items() if texts}


def with_grants(options: SessionOptions, grants: Sequence[Mapping[str, Any]]) -> SessionOptions:
    """The options with the mode and the directories in permission updates; the last mode counts."""
    mode, directories = options.permission_mode, list(options.additional_directories)
    for grant in grants:
        if grant.get("type") == "setMode" and isinstance(grant.get("mode"), str):
            mode = grant["mode"]
        elif grant.get("type") == "addDirectories":
            directories.extend(path for path in _items(grant.get("directories")) if isinstance(path, str))
    changes = {"permission_mode": mode, "additional_directories": tuple(dict.fromkeys(directories))}
    return options.model_copy(update=changes)


def _rule_text(rule: object) -> str | None:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("toolName"), str):
        return None
    name, content = rule["toolName"], rule.get("ruleContent")
    if content is None:
        return str(name)
    escaped = str(content).replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"{name}({escaped})"


def _items(value: object) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()
