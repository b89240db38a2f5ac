"""What the plug-in adds to a server. The server imports this module at every start, so the rest is imported later."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from claude_code_mcp.plugin import Finding, Plugin, RunningServer

if TYPE_CHECKING:
    from claude_code_mcp import Channel, Section, Settings

    from .channel import SlackChannel

_FAREWELL_SECONDS = 5.0
"""How long a server that ends waits for Slack to take its last edits."""


class SlackPlugin(Plugin):
    """Posts questions to a Slack channel and takes the answers of the people listed."""

    name = "slack"
    _channel: "SlackChannel | None" = None

    def section(self) -> "type[Section]":
        from .settings import SlackSettings  # noqa: PLC0415

        return SlackSettings

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .settings import SlackSettings  # noqa: PLC0415
        from .slack_api import problem_with  # noqa: PLC0415

        own = settings.section(SlackSettings)
        if own.slack_bot_token is None:
            yield Finding("slack", True, "not configured: CLAUDE_CODE_MCP_SLACK_BOT_TOKEN is not set")
        elif own.missing():
            yield Finding(
                "slack", False, f"incomplete: {', '.join(own.missing())} not set", "Set them, see the README."
            )
        elif problem := problem_with(own):
            yield Finding("slack", False, problem, "Compare the tokens and scopes of the app with the README.")
        else:
            yield Finding("slack", True, f"{len(own.slack_users)} people may answer in {own.slack_channel}")

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        from .settings import SlackSettings  # noqa: PLC0415

        own = server.settings.section(SlackSettings)
        if own.slack_bot_token is None:
            yield
            return
        if own.missing():
            from claude_code_mcp import InvalidArgument  # noqa: PLC0415

            raise InvalidArgument(f"slack_bot_token is set, but not {', '.join(own.missing())}.")
        from .channel import SlackChannel  # noqa: PLC0415
        from .slack_api import SlackApi  # noqa: PLC0415

        async with SlackApi(own) as api:
            self._channel = channel = SlackChannel(server.service, api, frozenset(own.slack_users))
            tasks = [
                server.service.start_task(work, endless=True)
                for work in (channel.send(), channel.receive(api.presses()))
            ]
            try:
                yield
            finally:
                try:
                    async with asyncio.timeout(_FAREWELL_SECONDS):
                        await channel.close()
                except TimeoutError:
                    pass  # the buttons stay until the next press
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    def channels(self, server: RunningServer) -> "Iterable[Channel]":
        return () if self._channel is None else (self._channel,)
