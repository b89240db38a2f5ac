"""The settings of push."""

from pydantic import Field, field_validator

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section, list_of

_OWN = OWN_PREFIX


class PushSettings(Section):
    """Where notifications may be sent."""

    push_private: tuple[str, ...] = Field((), validation_alias=f"{_OWN}PUSH_PRIVATE")
    """Callers, separated by commas, whose push receivers may be in private networks and may be unencrypted, like the
    local user's."""

    @field_validator("push_private", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return list_of(value)
