"""The push plug-in: notifies people about questions and results."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...plugin import Plugin, RunningServer

if TYPE_CHECKING:
    from ...core.settings_section import Section
    from ...server.api_parts import ApiPart


class PushPlugin(Plugin):
    """Sends notifications to browsers, phones and webhooks."""

    name = "push"

    def section(self) -> "type[Section]":
        from .settings import PushSettings  # noqa: PLC0415 - of a plug-in only this module is light

        return PushSettings

    def api(self, server: RunningServer) -> "Iterable[ApiPart]":
        from .push_routes import PushOfServer  # noqa: PLC0415

        return [PushOfServer(server.service)]


PLUGIN = PushPlugin
