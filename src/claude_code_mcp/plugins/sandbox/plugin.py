"""The plug-in: sandboxes and containers, and a home for each of several callers."""

from typing import TYPE_CHECKING

from ...plugin import Plugin

if TYPE_CHECKING:
    from ...core.isolation import Isolation


class SandboxPlugin(Plugin):
    """Runs sessions in bubblewrap or in a container, and keeps the files of several callers apart."""

    name = "sandbox"

    def isolation(self) -> "type[Isolation] | None":
        from .homes import Homes  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return Homes


PLUGIN = SandboxPlugin
