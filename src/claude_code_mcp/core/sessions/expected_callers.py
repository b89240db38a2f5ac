"""Who is going to call a service, and which MCP servers they have."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from ..model.caller import ClientEnvironment
from .mcp_bridge import McpServerHost

HubFor = Callable[[ClientEnvironment], AbstractAsyncContextManager[McpServerHost | None]]
"""The MCP servers that the sessions of a client share with those of clients that have the same ones."""


@dataclass(frozen=True, slots=True)
class ExpectedCallers:
    """Without any of this there is one caller, whose sessions use the MCP servers of the service."""

    principals: Collection[str] = ()
    """Callers with a token of their own. Each of several has a Claude Code directory of its own."""
    others: bool = False
    """Whether callers may come who are not known yet."""
    hub_for: HubFor | None = None
    """The MCP servers for each client with an environment of its own; None: those of the service."""
    hubs: Mapping[str, McpServerHost] = field(default_factory=dict)
    """By principal, those of callers who share them with nobody. Callers may be added while the service runs."""
    open_hub: Callable[[str], Awaitable[str | None]] | None = None
    """Adds to `hubs` those of a principal who comes later, or returns why it cannot."""
