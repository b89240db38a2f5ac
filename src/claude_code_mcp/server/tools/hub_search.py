"""`claude_mcp_search` and `claude_mcp_call`: tools of the hub's servers, found and called on demand.

With hundreds of tools, listing all of them costs a client more context than its work. Both tools go through the proxy
that lists and calls them for other clients, so that the policy decides in the same way.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import mcp_types as types
from pydantic import Field

from ...core.errors import InvalidArgument
from .arguments import Arguments, Name, Text
from .call import Call
from .hub_admin import NO_HUB
from .output import ErrorInfo, ToolOutput, declared
from .tool import Reply, Tool

if TYPE_CHECKING:
    from .hub_proxy import HubProxy

_DEFAULT_FOUND, _MAX_FOUND = 5, 20


class Search(Arguments):
    query: Text
    limit: Annotated[int, Field(ge=1, le=_MAX_FOUND)] = _DEFAULT_FOUND


class CallFound(Arguments):
    name: Name
    arguments: dict[str, Any] = Field(default_factory=dict)


FoundTool = Annotated[dict[str, Any], declared({"name": "string", "description": "string", "inputSchema": "object"})]


class Found(ToolOutput):
    tools: list[FoundTool] | None = None
    more: int | None = None
    servers: dict[str, int] | None = None
    error: ErrorInfo | None = None


async def claude_mcp_search(call: Call, arguments: Search) -> Reply:
    """The best tools for the query that the caller may use. If none match, the available servers."""
    proxy = _proxy_of(call)
    found = await proxy.find(call.caller, arguments.query)
    shown = [
        {"name": tool.name, "description": tool.description or "", "inputSchema": tool.input_schema}
        for tool in found[: arguments.limit]
    ]
    servers = None if found else proxy.tools_by_server(call.caller)
    return Found(tools=shown, more=len(found) - len(shown) or None, servers=servers)


async def claude_mcp_call(call: Call, arguments: CallFound) -> Reply:
    proxy = _proxy_of(call)
    if not await proxy.knows(call.caller, arguments.name):
        raise InvalidArgument(
            f"There is no tool {arguments.name[:100]!r}; claude_mcp_search finds the names.", field="name"
        )
    return await proxy.call(arguments.name, call, arguments.arguments)


def _proxy_of(call: Call) -> "HubProxy":
    if call.proxy is None:
        raise InvalidArgument(NO_HUB)
    return call.proxy


def search_tools() -> Mapping[str, Tool[Any]]:
    """The two tools of the toolset `hub-search`."""
    tools: tuple[Tool[Any], ...] = (
        Tool(
            "claude_mcp_search",
            "Search the hub's tools",
            "Find tools of the MCP servers that all sessions share by keywords. Returns names and input schemas, "
            "best match first.",
            Search,
            Found,
            claude_mcp_search,
            types.ToolAnnotations(read_only_hint=True, open_world_hint=True),
        ),
        Tool(
            "claude_mcp_call",
            "Call a tool of the hub",
            "Call a tool that claude_mcp_search found, with arguments for its inputSchema.",
            CallFound,
            None,
            claude_mcp_call,
            types.ToolAnnotations(read_only_hint=False, open_world_hint=True),
        ),
    )
    return {tool.name: tool for tool in tools}
