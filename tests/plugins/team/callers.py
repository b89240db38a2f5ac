"""Callers of a server that takes access tokens, without the server."""

from collections.abc import Mapping

from claude_code_mcp.core.config import Settings
from claude_code_mcp.plugins.team.access_tokens import TokenIssuer
from claude_code_mcp.plugins.team.authenticators import TokenAuthenticator
from claude_code_mcp.plugins.team.people import Admit, Assign, People, Returning
from claude_code_mcp.plugins.team.person_names import PersonGroups, PersonNames
from claude_code_mcp.plugins.team.settings import TeamSettings
from claude_code_mcp.server.transports.callers import Callers


class TokenCallers(Callers):
    """The callers, with the people among them."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenIssuer,
        admit: Admit,
        assign: Assign | None = None,
        names: PersonNames | None = None,
        returning: Returning | None = None,
        invited: Mapping[str, PersonGroups] | None = None,
    ) -> None:
        self.way = TokenAuthenticator(settings, settings.section(TeamSettings).oauth_scopes)
        super().__init__(settings, authenticators=[self.way])
        self.people = People(tokens.issuer, admit, assign, names, self.is_taken, returning, invited)
        self.way.take(tokens, self.people)


async def nobody_objects(*_: object) -> None:
    return None
