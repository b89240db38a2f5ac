"""The settings of the plug-in."""

import shlex

from pydantic import Field, field_validator

from claude_code_mcp import Section


class WrapperSettings(Section):
    """Through which command sessions run."""

    wrapper_command: str | None = Field(None, validation_alias="CLAUDE_CODE_MCP_WRAPPER_COMMAND")
    """The command, quoted as in a shell. The command line of Claude Code follows it."""

    @field_validator("wrapper_command")
    @classmethod
    def _can_be_split(cls, value: str | None) -> str | None:
        shlex.split(value or "")  # ValueError says what is wrong
        return value

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.wrapper_command or ""))
