"""The settings of sandboxes and callers' homes."""

from typing import Literal

from pydantic import Field, field_validator

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section, UserPath, list_of

_OWN = OWN_PREFIX


class SandboxSettings(Section):
    """How the sessions of named callers reach the model."""

    principal_credentials: Literal["environment", "login"] | UserPath = Field(
        "environment", validation_alias=f"{_OWN}PRINCIPAL_CREDENTIALS"
    )
    """The model credentials of named callers: the `environment` of the server, a copy of the `login` of its user, or
    a directory with one file per caller, `NAME.env` or `NAME.credentials.json`. A single caller uses the user's
    credentials."""
    model_features: tuple[str, ...] = Field((), validation_alias=f"{_OWN}MODEL_FEATURES")
    """Additional betas, headers and request fields that sandboxed sessions may send to the model, separated by
    commas. A newer Claude Code may need some; a refused request names the missing one."""

    @field_validator("model_features", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return list_of(value)
