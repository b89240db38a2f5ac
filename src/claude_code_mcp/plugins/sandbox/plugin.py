"""The sandbox plug-in: sandboxes and containers, and a home for each of several callers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...plugin import Finding, Plugin

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.isolation import Isolation
    from ...core.settings_section import Section


class SandboxPlugin(Plugin):
    """Runs sessions in bubblewrap or in a container, and keeps the files of several callers apart."""

    name = "sandbox"

    def section(self) -> "type[Section]":
        from .settings import SandboxSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return SandboxSettings

    def isolation(self) -> "type[Isolation] | None":
        from .homes import Homes  # noqa: PLC0415

        return Homes

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .doctor import check_isolation  # noqa: PLC0415

        yield check_isolation(settings)


PLUGIN = SandboxPlugin
