"""The plug-in: several people at one server."""

from typing import TYPE_CHECKING

from ...plugin import Plugin

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.policy.policy import Policy
    from ...core.sessions.session_access import SessionAccess


class TeamPlugin(Plugin):
    """People sign in, and share sessions with one another."""

    name = "team"

    def access(self, settings: "Settings", policy: "Policy") -> "SessionAccess | None":
        from ...core.state.state_directory import database_in  # noqa: PLC0415 - of a plug-in only this module is light
        from .shared_sessions import SharedSessions  # noqa: PLC0415

        return SharedSessions(database_in(settings.state_dir), policy.groups_of)


PLUGIN = TeamPlugin
