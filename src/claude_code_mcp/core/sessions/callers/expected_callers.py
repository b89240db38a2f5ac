"""The callers that a service expects, and their MCP servers."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from ...model.caller import ClientEnvironment
from ..live.mcp_bridge import SessionHub

HubFor = Callable[[ClientEnvironment], AbstractAsyncContextManager[SessionHub | None]]
"""Returns the hub of a client's sessions, shared with clients that have the same servers."""


@dataclass(frozen=True, slots=True)
class ExpectedCallers:
    """The expected callers. With the defaults there is one caller, whose sessions use the service's hub."""

    principals: Collection[str] = ()
    """Callers with a separate token. If there are several, each has a separate Claude Code directory."""
    others: bool = False
    """Whether callers may appear who are not known yet."""
    hub_for: HubFor | None = None
    """Returns the hub for a client with a separate environment; None: the service's hub."""
    hubs: Mapping[str, SessionHub] = field(default_factory=dict)
    """Separate hubs by principal. Callers may be added while the service runs."""
    open_hub: Callable[[str], Awaitable[str | None]] | None = None
    """Adds the hub of a principal who appears later to `hubs`, or returns why it cannot."""
