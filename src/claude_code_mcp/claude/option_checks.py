"""Whether agents, MCP servers and an output schema can be what Claude Code expects. Pure.

Claude Code drops some of what it cannot use without a word, and ends because of the rest, which of them depends on
its version. So what is certainly wrong is refused here, before anything is started, with the path to the part that
is wrong. What only a certain version knows better is left to that version: see `refusals.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import InvalidArgument
from ..model.options import SessionOptions

_Check = Callable[[Any], bool]

_REMOTE = {
    "http": ("http", "https"),
    "streamable-http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}
"""Types of MCP servers that have an address, and the schemes that it may have."""
_INTERNAL_TYPES = ("sse-ide", "ws-ide", "claudeai-proxy")
"""Types that Claude Code has for itself; it knows what they need."""

_DEEPEST = 100
_SCHEMA_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_PARTS = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "items")


def check_definitions(options: SessionOptions) -> None:
    """InvalidArgument for the first part that no version of Claude Code can use; `field` is the path to it."""
    for name, agent in (options.agents or {}).items():
        _check_agent(f"agents.{name}", agent)
    for name, server in (options.mcp_servers or {}).items():
        _check_server(f"mcp_servers.{name}", name, server)
    if options.output_schema is not None:
        _check_schema("output_schema", options.output_schema)


def _invalid(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {why}.", field=field)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_some_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_AGENT_FIELDS: Mapping[str, tuple[_Check, str]] = {
    "description": (_is_some_text, "must be a text that is not empty"),
    "prompt": (_is_text, "must be a text"),
    "tools": (_is_text_list, "must be a list of names"),
    "disallowedTools": (_is_text_list, "must be a list of names"),
    "skills": (_is_text_list, "must be a list of names"),
    "model": (_is_some_text, "must be the name of a model"),
    "permissionMode": (_is_text, "must be the name of a mode"),
    "maxTurns": (_is_count, "must be a whole number above 0"),
    "background": (lambda value: isinstance(value, bool), "must be true or false"),
    "mcpServers": (lambda value: isinstance(value, list | tuple), "must be a list"),
    "memory": (lambda value: value in ("user", "project", "local"), "must be user, project or local"),
}


_TEXTS = (_is_text_map, "must be an object of texts")


def _check_agent(field: str, agent: Any) -> None:
    if not isinstance(agent, Mapping):
        raise _invalid(field, "must be an object")
    for name in ("description", "prompt"):
        if agent.get(name) is None:
            raise _invalid(f"{field}.{name}", "required")
    for name, (is_valid, requirement) in _AGENT_FIELDS.items():
        if agent.get(name) is not None and not is_valid(agent[name]):
            raise _invalid(f"{field}.{name}", requirement)


def _check_server(field: str, name: str, server: Any) -> None:
    if not name.strip():
        raise _invalid(field, "a server needs a name")
    if not isinstance(server, Mapping):
        raise _invalid(field, "must be an object")
    kind = server.get("type", "stdio")
    if kind == "stdio":
        _check_parts(field, server, "command", {"args": (_is_text_list, "must be a list of texts"), "env": _TEXTS})
    elif kind in _REMOTE:
        _check_parts(field, server, "url", {"headers": _TEXTS})
        _check_address(f"{field}.url", server["url"], _REMOTE[kind])
    elif kind not in (*_INTERNAL_TYPES, "sdk"):
        raise _invalid(f"{field}.type", "must be stdio, http, sse or ws")


def _check_parts(field: str, server: Mapping[str, Any], needed: str, others: Mapping[str, tuple[_Check, str]]) -> None:
    if server.get(needed) is None:
        raise _invalid(f"{field}.{needed}", "required")
    if not _is_some_text(server[needed]):
        raise _invalid(f"{field}.{needed}", "must be a text that is not empty")
    for name, (is_valid, requirement) in others.items():
        if name in server and not is_valid(server[name]):
            raise _invalid(f"{field}.{name}", requirement)


def _check_address(field: str, url: str, schemes: tuple[str, ...]) -> None:
    if "${" in url:
        return  # Claude Code puts the value of a variable there
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in schemes and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise _invalid(
            field, f"must be an address that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}"
        )


def _check_schema(field: str, schema: Any) -> None:
    """Looks at every part of the schema once. A list and no recursion: a schema may come nested to any depth."""
    unchecked = [(field, schema, 0)]
    while unchecked:
        path, part, depth = unchecked.pop()
        if depth > _DEEPEST:
            raise _invalid(field, f"is nested more than {_DEEPEST} schemas deep")
        if isinstance(part, bool) and path != field:
            continue
        if not isinstance(part, Mapping):
            raise _invalid(path, "must be a JSON schema, which is an object")
        _check_keywords(path, part)
        unchecked.extend((inner_path, inner, depth + 1) for inner_path, inner in _subschemas(path, part))


def _check_keywords(path: str, part: Mapping[str, Any]) -> None:
    kinds = part.get("type", ())
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list | tuple) else [None]:
        if kind not in _SCHEMA_TYPES:
            raise _invalid(f"{path}.type", f"must be one of {', '.join(_SCHEMA_TYPES)}, or a list of these")
    if "required" in part and not _is_text_list(part["required"]):
        raise _invalid(f"{path}.required", "must be a list of names")
    if "enum" in part and not (isinstance(part["enum"], list) and part["enum"]):
        raise _invalid(f"{path}.enum", "must be a list that is not empty")
    for name in _SCHEMA_MAPS:
        if name in part and not isinstance(part[name], Mapping):
            raise _invalid(f"{path}.{name}", "must be an object of schemas")
    for name in _SCHEMA_LISTS:
        if name in part and not (isinstance(part[name], list) and part[name]):
            raise _invalid(f"{path}.{name}", "must be a list of schemas that is not empty")


def _subschemas(path: str, part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in _SCHEMA_MAPS:
        for name, inner in part.get(keyword, {}).items():
            yield f"{path}.{keyword}.{name}", inner
    for keyword in _SCHEMA_LISTS:
        for number, inner in enumerate(part.get(keyword, ())):
            yield f"{path}.{keyword}.{number}", inner
    for keyword in _SCHEMA_PARTS:
        inner = part.get(keyword)
        for number, item in enumerate(inner if isinstance(inner, list) else ()):  # items of an earlier draft
            yield f"{path}.{keyword}.{number}", item
        if inner is not None and not isinstance(inner, list):
            yield f"{path}.{keyword}", inner
