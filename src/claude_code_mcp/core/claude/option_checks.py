"""Validates agents, MCP servers and output schemas for Claude Code, before and after its start. Pure.

Claude Code silently drops some invalid values and exits because of others, depending on its version. Values that are
certainly invalid are refused before anything starts, with the path to the invalid part (`check_definitions`). The rest
is found in the output of the started process: stderr of a process that exited (`refused_argument`), the reply to
`initialize` (`check_agents`) and the state of its MCP servers (`check_servers`).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ..model.options import SessionOptions

_Check = Callable[[Any], bool]
_REMOTE = {
    "http": ("http", "https"),
    "streamable-http": ("http", "https"),
    "sse": ("http", "https"),
    "ws": ("ws", "wss"),
}
"""Types of MCP servers with an address, and their accepted schemes."""
_INTERNAL_TYPES = ("sse-ide", "ws-ide", "claudeai-proxy")
"""Internal types of Claude Code, which are not checked."""
_MAX_DEPTH = 100
_SCHEMA_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_PARTS = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties", "items")


def check_definitions(options: SessionOptions) -> None:
    """Raises InvalidArgument for the first part that no version of Claude Code can use; `field` is the path to it."""
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
    "description": (_is_some_text, "must be a non-empty string"),
    "prompt": (_is_text, "must be a string"),
    "tools": (_is_text_list, "must be a list of strings"),
    "disallowedTools": (_is_text_list, "must be a list of strings"),
    "skills": (_is_text_list, "must be a list of strings"),
    "model": (_is_some_text, "must be a model name"),
    "permissionMode": (_is_text, "must be a mode name"),
    "maxTurns": (_is_count, "must be a positive integer"),
    "background": (lambda value: isinstance(value, bool), "must be true or false"),
    "mcpServers": (lambda value: isinstance(value, list | tuple), "must be a list"),
    "memory": (lambda value: value in ("user", "project", "local"), "must be user, project or local"),
}
_TEXTS = (_is_text_map, "must be an object with string values")


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
        _check_parts(field, server, "command", {"args": (_is_text_list, "must be a list of strings"), "env": _TEXTS})
    elif kind in _REMOTE:
        _check_parts(field, server, "url", {"headers": _TEXTS})
        _check_address(f"{field}.url", server["url"], _REMOTE[kind])
    elif kind not in (*_INTERNAL_TYPES, "sdk"):
        raise _invalid(f"{field}.type", "must be stdio, http, sse or ws")


def _check_parts(field: str, server: Mapping[str, Any], needed: str, others: Mapping[str, tuple[_Check, str]]) -> None:
    if server.get(needed) is None:
        raise _invalid(f"{field}.{needed}", "required")
    if not _is_some_text(server[needed]):
        raise _invalid(f"{field}.{needed}", "must be a non-empty string")
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
        raise _invalid(field, f"must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")


def _check_schema(field: str, schema: Any) -> None:
    """Checks every part of the schema once. Iterative, because a schema may be nested to any depth."""
    unchecked = [(field, schema, 0)]
    while unchecked:
        path, part, depth = unchecked.pop()
        if depth > _MAX_DEPTH:
            raise _invalid(field, f"is nested more than {_MAX_DEPTH} schemas deep")
        # Within a schema `true` and `false` are schemas too; the schema as a whole must be an object.
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
        raise _invalid(f"{path}.required", "must be a list of strings")
    if "enum" in part and not (isinstance(part["enum"], list) and part["enum"]):
        raise _invalid(f"{path}.enum", "must be a non-empty list")
    for name in _SCHEMA_MAPS:
        if name in part and not isinstance(part[name], Mapping):
            raise _invalid(f"{path}.{name}", "must be an object whose values are schemas")
    for name in _SCHEMA_LISTS:
        if name in part and not (isinstance(part[name], list) and part[name]):
            raise _invalid(f"{path}.{name}", "must be a non-empty list of schemas")


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


_OPTIONS = {
    "add-dir": "additional_directories",
    "agents": "agents",
    "agent": "agent",
    "betas": "betas",
    "effort": "effort",
    "fallback-model": "fallback_model",
    "json-schema": "output_schema",
    "max-budget-usd": "max_budget_usd",
    "max-thinking-tokens": "thinking",
    "max-turns": "max_turns",
    "mcp-config": "mcp_servers",
    "model": "model",
    "permission-mode": "permission_mode",
    "setting-sources": "setting_sources",
    "strict-mcp-config": "strict_mcp_config",
    "thinking": "thinking",
    "tools": "tools",
}
"""Flags and their options."""
_BAD_SCHEMA = "--json-schema is not a valid JSON Schema: "
_BAD_AGENTS = "Invalid --agents configuration:"
_BAD_SERVERS = "Invalid MCP configuration:"
_UNKNOWN_FLAG = re.compile(r"error: unknown option '--([a-z-]{1,40})")
_UNKNOWN_VALUE = re.compile(
    r"error: option '--([a-z-]{1,40})[^']{0,40}' argument '([^']{0,100})' is invalid\. "
    r"Allowed choices are (.{1,400}?)\.?$"
)
_MAX_LENGTH = 500
"""Characters of the CLI's message that an error quotes."""


def refused_argument(stderr: str) -> InvalidArgument | None:
    """The option that a process complained about before it exited, if any."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if _BAD_SCHEMA in line:
            return _refusal("output_schema", line.partition(_BAD_SCHEMA)[2])
        if line.endswith(_BAD_AGENTS):
            path, _, why = following.partition(": ")
            return _refusal(f"agents.{path}" if why else "agents", why or path)
        if line.endswith(_BAD_SERVERS) and following.startswith("mcpServers"):
            path, _, why = following.partition(": ")
            field = path.replace("mcpServers", "mcp_servers", 1)
            return _refusal(field if why else "mcp_servers", why or path)
        unknown = _UNKNOWN_FLAG.search(line)
        if unknown is not None and unknown[1] in _OPTIONS:
            return _refusal(_OPTIONS[unknown[1]], f"this version of Claude Code has no --{unknown[1]}")
        value = _UNKNOWN_VALUE.search(line)
        if value is not None and value[1] in _OPTIONS:
            field, choices = _OPTIONS[value[1]], value[3]
            return _refusal(field, f"this version of Claude Code has no {value[2]!r}; it has {choices}")
    return None


def _refusal(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {why[:_MAX_LENGTH].rstrip('.')}.", field=field)


def check_agents(options: SessionOptions, reply: Mapping[str, Any]) -> None:
    """Raises InvalidArgument if the reply to `initialize` lists agents, but not those that the options define or
    name."""
    listed = reply.get("agents")
    if not isinstance(listed, list):
        return  # an early version, which does not list them
    names = [str(agent.get("name")) for agent in listed if isinstance(agent, Mapping)]
    for name in options.agents or {}:
        if name not in names:
            raise _refusal(f"agents.{name}", "Claude Code does not accept this definition")
    if options.agent is not None and options.agent not in names:
        raise _refusal("agent", f"there is no agent {options.agent!r}; available: {', '.join(names)}")


def check_servers(options: SessionOptions, status: Collection[Mapping[str, Any]], *, last: bool) -> bool:
    """Whether all servers of the session have reached a sufficient state. Raises InvalidArgument for one that Claude
    Code does not list at all and, with strict servers, UpstreamUnavailable for one that is not connected. With `last`,
    neither is waited for."""
    by_name = {str(server.get("name")): server for server in status}
    settled = True
    for name, server in (options.mcp_servers or {}).items():
        if server.get("type") == "sdk":
            continue  # it is reached through us, and not listed
        problem = _problem(name, by_name.get(name), strict=options.strict_mcp_config)
        # A server may be missing from the list at first, and then be pending: neither is a result until the last check.
        may_change = name not in by_name or by_name[name].get("status") == "pending"
        if problem is not None and (last or not may_change):
            raise problem
        settled = settled and problem is None
    return settled


def _problem(name: str, status: Mapping[str, Any] | None, *, strict: bool) -> ClaudeCodeError | None:
    field = f"mcp_servers.{name}"
    if status is None:
        return _refusal(field, "Claude Code does not accept this server")
    state = str(status.get("status"))
    if not strict or state == "connected":
        return None
    reason = str(status.get("error") or {"needs-auth": "it requires a sign-in"}.get(state, state))
    return UpstreamUnavailable(
        f"{field}: the server did not connect: {reason[:_MAX_LENGTH].rstrip('.')}.", field=field, state=state
    )
