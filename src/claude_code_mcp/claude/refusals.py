"""What a started Claude Code says of its options: refused by it, ignored by it, or not working.

Some versions end with a message on stderr, others go on without what they cannot use, so all of it is read: stderr of a
process that ended (`refused_argument`), the reply to `initialize` (`check_agents`) and the state of its MCP servers
(`check_servers`). Pure. What is wrong for every version is refused before a start: see `option_checks.py`.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import ClaudeCodeError, InvalidArgument, UpstreamUnavailable
from ..model.options import SessionOptions

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
_BAD_SCHEMA = "--json-schema is not a valid JSON Schema: "
_BAD_AGENTS = "Invalid --agents configuration:"
_BAD_SERVERS = "Invalid MCP configuration:"
_UNKNOWN_FLAG = re.compile(r"error: unknown option '--([a-z-]{1,40})")
_LONGEST = 500
"""Characters of the CLI's own words that a refusal quotes."""


def refused_argument(stderr: str) -> InvalidArgument | None:
    """The option that a process complained about before it ended, if it was one."""
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
    return None


def _refusal(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{field}: {why[:_LONGEST].rstrip('.')}.", field=field)


def check_agents(options: SessionOptions, reply: Mapping[str, Any]) -> None:
    """InvalidArgument if the reply to `initialize` lists agents, and not those that the options define or name."""
    listed = reply.get("agents")
    if not isinstance(listed, list):
        return  # an early version, which does not list them
    names = [str(agent.get("name")) for agent in listed if isinstance(agent, Mapping)]
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
    by_name = {str(server.get("name")): server for server in status}
    settled = True
    for name, server in (options.mcp_servers or {}).items():
        if server.get("type") == "sdk":
            continue  # it is reached through us, and not listed
        problem = _problem(name, by_name.get(name), strict=options.strict_mcp_config)
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
    reason = str(status.get("error") or {"needs-auth": "it wants somebody to sign in"}.get(state, state))
    return UpstreamUnavailable(
        f"{field}: the server did not connect: {reason[:_LONGEST].rstrip('.')}.", field=field, state=state
    )
