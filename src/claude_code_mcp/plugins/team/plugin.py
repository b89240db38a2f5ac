"""The team plug-in: several people on one server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...plugin import Command, Plugin

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.policy.policy import Policy
    from ...core.sessions.callers.session_access import SessionAccess
    from ...core.settings_section import Section
    from ...server.transports.authenticator import Authenticator


class TeamPlugin(Plugin):
    """Lets people sign in and share sessions."""

    name = "team"

    def commands(self) -> "Sequence[Command]":
        module = "claude_code_mcp.plugins.team.commands"
        return (
            Command("people", f"{module}:add_people"),
            Command("sessions share", f"{module}:add_share"),
            Command("sessions unshare", f"{module}:add_unshare"),
        )

    def section(self) -> "type[Section]":
        from .settings import TeamSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return TeamSettings

    def access(self, settings: "Settings", policy: "Policy") -> "SessionAccess | None":
        from ...core.state.state_directory import database_in  # noqa: PLC0415 - of a plug-in only this module is light
        from .shared_sessions import SharedSessions  # noqa: PLC0415

        return SharedSessions(database_in(settings.state_dir), policy.groups_of)

    def authenticators(self, settings: "Settings") -> "Sequence[Authenticator]":
        if not (settings.oauth or settings.oauth_issuer or settings.proxy_user_header):
            return ()
        from .authenticators import authenticators  # noqa: PLC0415

        return authenticators(settings)


PLUGIN = TeamPlugin
