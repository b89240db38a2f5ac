"""The settings of the plug-in."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from claude_code_mcp import Section


def _parts(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class SlackSettings(Section):
    """Where questions are posted, and who may answer them there."""

    must_have_value = frozenset({"slack_users"})

    slack_bot_token: SecretStr | None = Field(None, validation_alias="CLAUDE_CODE_MCP_SLACK_BOT_TOKEN")
    """The bot token of the Slack app. Without it nothing is posted."""
    slack_app_token: SecretStr | None = Field(None, validation_alias="CLAUDE_CODE_MCP_SLACK_APP_TOKEN")
    """The app-level token, with which presses are received by Socket Mode."""
    slack_channel: str | None = Field(None, validation_alias="CLAUDE_CODE_MCP_SLACK_CHANNEL")
    """The id of the channel where questions are posted."""
    slack_users: Annotated[tuple[str, ...], BeforeValidator(_parts)] = Field(
        (), validation_alias="CLAUDE_CODE_MCP_SLACK_USERS"
    )
    """The ids of the people who may answer, separated by commas. A press by anybody else changes nothing."""
    slack_api: str = Field("https://slack.com/api", validation_alias="CLAUDE_CODE_MCP_SLACK_API")
    """The address of Slack's web API."""

    def missing(self) -> list[str]:
        """The settings that are needed besides the bot token and have no value."""
        return [name for name in ("slack_app_token", "slack_channel", "slack_users") if not getattr(self, name)]
