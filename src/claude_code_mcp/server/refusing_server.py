"""The server that is run instead of the real one when the settings cannot be used.

Many clients show nobody what a process writes to stderr; so the problem is reported in the protocol, by every call.
"""

from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

from .. import __version__
from ..config import Settings
from ..errors import ClaudeCodeError, InvalidArgument
from .sdk import Context
from .server import NAME, refusal, tools_of
from .tools.answering import instructions
from .transports.wire import checked_results


def refusing_server(problem: ClaudeCodeError, settings: Settings) -> Server[Any]:
    """Answers the handshake and lists the tools of these settings as usual; refuses every call with the problem."""
    error = InvalidArgument(
        f"This server was started with something that it cannot use, and runs nothing. {problem.message} "
        "Correct that and start the server again.",
        **problem.data,
    )
    listing = types.ListToolsResult(tools=[tool.listing() for tool in tools_of(settings).values()])

    async def list_tools(_: Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listing

    async def call_tool(_: Context, __: types.CallToolRequestParams) -> types.CallToolResult:
        return refusal(error)

    server = Server[Any](
        NAME,
        version=__version__,
        title="Claude Code",
        instructions=instructions(settings),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware[:] = [checked_results]
    return server
