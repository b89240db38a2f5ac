"""What Claude Code itself has against a session's options, as it says so at its start. Pure.

It writes some complaints to stderr and ends, and keeps silent about others, which show in what it lists afterwards.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ..model.options import SessionOptions

_LONGEST = 500
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
"""Flags and the options that they come from."""

_SCHEMA = "--json-schema is not a valid JSON Schema: "
_AGENTS = "Invalid --agents configuration:"
_SERVERS = "Invalid MCP configuration:"
_UNKNOWN = re.compile(r"error: unknown option '--([a-z-]{1,40})")


def refused_argument(stderr: str) -> InvalidArgument | None:
    """The option that a process complained about before it ended, if it was one."""
    for line, following in _pairs(stderr):
        if _SCHEMA in line:
            return _refusal("output_schema", line.partition(_SCHEMA)[2])
        if line.endswith(_AGENTS):
            where, _, why = following.partition(": ")
            return _refusal(f"agents.{where}" if why else "agents", why or where)
        if line.endswith(_SERVERS) and following.startswith("mcpServers"):
            where, _, why = following.partition(": ")
            field = where.replace("mcpServers", "mcp_servers", 1)
            return _refusal(field if why else "mcp_servers", why or where)
        unknown = _UNKNOWN.search(line)
        if unknown is not None and unknown[1] in _OPTIONS:
            return _refusal(_OPTIONS[unknown[1]], f"this version of Claude Code has no --{unknown[1]}")
    return None


def _pairs(text: str) -> list[tuple[str, str]]:
    """Each line with the next one that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return list(zip(lines, [*lines[1:], ""], strict=False))


def _refusal(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {why[:_LONGEST].rstrip('.')}.", field=field)


def check_agents(options: SessionOptions, reply: Mapping[str, Any]) -> None:
    """InvalidArgument if the reply to `initialize` lists agents, and not those that the options define or name."""
    listed = reply.get("agents")
    if not isinstance(listed, list):
        return  # an early version, which does not tell
    names = [str(one.get("name")) for one in listed if isinstance(one, Mapping)]
    for name in options.agents or {}:
        if name not in names:
            raise _refusal(f"agents.{name}", "Claude Code does not accept this definition")
    if options.agent is not None and options.agent not in names:
        raise _refusal("agent", f"there is no agent {options.agent!r}; there is {', '.join(names)}")


def check_servers(options: SessionOptions, status: Collection[Mapping[str, Any]], *, last: bool) -> bool:
    """Whether all servers of the session are settled as far as they need to be.

    InvalidArgument for one that Claude Code does not have at all, and, if servers are to be taken strictly,
    UpstreamUnavailable for one that is not connected. With `last` there is no waiting for either any more.
    """
    by_name = {str(one.get("name")): one for one in status}
    settled = True
    for name, server in (options.mcp_servers or {}).items():
        if server.get("type") == "sdk":
            continue  # it is reached through us, and not listed
        problem = _problem(name, by_name.get(name), strict=options.strict_mcp_config)
        waits = name not in by_name or by_name[name].get("status") == "pending"
        if problem is not None and (last or not waits):
            raise problem
        settled = settled and problem is None
    return settled


def _problem(name: str, told: Mapping[str, Any] | None, *, strict: bool) -> ClaudeCodeError | None:
    field = f"mcp_servers.{name}"
    if told is None:
        return _refusal(field, "Claude Code does not accept this server")
    state = str(told.get("status"))
    if not strict or state == "connected":
        return None
    reason = str(told.get("error") or {"needs-auth": "it wants somebody to sign in"}.get(state, state))
    return UpstreamUnavailable(
        f"{field}: the server did not connect: {reason[:_LONGEST].rstrip('.')}.", field=field, state=state
    )
