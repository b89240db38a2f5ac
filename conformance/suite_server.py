"""Our server with everything that the suite asks for by name: `python -m conformance.suite_server ADDRESS`.

The transports, the server class, its sessions, tasks, subscriptions and redaction are those of the product, and so are
its own tools, resources and prompts, which stay listed. Added are the suite's tools as one more family, its resources
and prompts in the place of the hub's, and the level of log messages, which the product leaves out because the protocol
has deprecated it.
"""

import asyncio
import signal
import sys
from functools import partial
from typing import Any, cast

import mcp_types as types
from mcp.server.lowlevel import Server

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.callers.expected_callers import ExpectedCallers
from claude_code_mcp.server.content_handlers import ContentRequester
from claude_code_mcp.server.sdk import ChangingServer, Context
from claude_code_mcp.server.server import McpServer
from claude_code_mcp.server.tools.call import Call
from claude_code_mcp.server.tools.hub_contents import HubContents
from claude_code_mcp.server.tools.tool import Reply
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.server.transports.callers import Callers
from claude_code_mcp.server.transports.http import HttpServer, http_app, read_address

from . import suite_tools, task_tools
from .suite_contents import ASKING_PROMPT, SuiteContents, asking_prompt
from .suite_tools import NoArguments


class SuiteServer(McpServer):
    """The product's server, with the suite's tools, resources and prompts beside its own."""

    def __init__(self, service: Service) -> None:
        changes = {
            "test_trigger_tool_change": "tools",
            "test_trigger_prompt_change": "prompts",
        }
        tools = [
            *tools_of(service.settings).values(),
            *suite_tools.TOOLS,
            *task_tools.TOOLS,
            *(suite_tools.tool(name, NoArguments, partial(self._announce, kind)) for name, kind in changes.items()),
        ]
        super().__init__(service, tools={tool.name: tool for tool in tools})
        self._suite = SuiteContents()

    async def _announce(self, kind: str, _: Call, __: NoArguments) -> Reply:
        """Announces a changed list, as the hub has it announced when a server of its has another one."""
        self._contents.hub_changed(kind)
        return types.CallToolResult(content=[suite_tools.text(f"The list of {kind} has changed.")])

    def server(self, environment: ClientEnvironment | None = None) -> Server[Any]:
        server = super().server(environment)
        assert isinstance(server, ChangingServer)
        server.prompts_change = True
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _take_level)
        return server

    def _asker(self, context: Context) -> ContentRequester:
        asker = super()._asker(context)
        return ContentRequester(asker.caller, cast("HubContents", self._suite))

    def _content_handlers(self) -> dict[str, Any]:
        handlers = super()._content_handlers()
        get_prompt = handlers["on_get_prompt"]

        async def prompt(context: Context, params: types.GetPromptRequestParams) -> Any:
            return await (asking_prompt if params.name == ASKING_PROMPT else get_prompt)(context, params)

        return {**handlers, "on_get_prompt": prompt}


async def _take_level(_: Context, __: types.SetLevelRequestParams) -> types.EmptyResult:
    """Every message of the suite's tools is sent, whatever the level."""
    return types.EmptyResult()


async def serve(address: str) -> None:
    settings = load_settings()
    callers = Callers(settings)
    async with Service(settings, callers=ExpectedCallers(others=callers.open)) as service:
        mcp_server = SuiteServer(service)
        make_app = partial(http_app, mcp_server, settings, callers=callers)
        server = HttpServer(read_address(address), make_app, settings=settings)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
