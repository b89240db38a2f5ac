"""The settings for people who sign in."""

from typing import ClassVar

from pydantic import Field, SecretStr, field_validator

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section, list_of, not_blank

_OWN = OWN_PREFIX


class TeamSettings(Section):
    """How this server identifies people who sign in at an issuer of access tokens or through a proxy."""

    must_have_value: ClassVar[frozenset[str]] = frozenset({"oauth_introspection"})

    oauth_audience: tuple[str, ...] = Field((), validation_alias=f"{_OWN}OAUTH_AUDIENCE")
    """The accepted audiences of access tokens, separated by commas. Unset: the address of `/mcp`, at `WEB_URL` if
    that is set."""
    oauth_claim: str = Field("sub", min_length=1, validation_alias=f"{_OWN}OAUTH_CLAIM")
    """The claim of an access token that names the person, such as `sub`, `preferred_username` or `email`. It is the
    name in the policy file; it must be one that people cannot choose for themselves."""
    oauth_groups: str = Field("groups", min_length=1, validation_alias=f"{_OWN}OAUTH_GROUPS")
    """The claim of an access token with the person's groups, to which the policy file assigns profiles."""
    oauth_scopes: tuple[str, ...] = Field((), validation_alias=f"{_OWN}OAUTH_SCOPES")
    """Scopes that an access token must all have, separated by commas. People who sign in to the console need them
    too."""
    oauth_id_tokens: bool = Field(False, validation_alias=f"{_OWN}OAUTH_ID_TOKENS")
    """Whether id tokens of the issuer count as access tokens. Needed for providers whose access tokens cannot be
    distinguished from id tokens, such as Dex."""
    oauth_introspection: str | None = Field(None, validation_alias=f"{_OWN}OAUTH_INTROSPECTION")
    """The introspection endpoint of the issuer, if its access tokens are not signed."""
    oauth_client_id: str | None = Field(None, min_length=1, validation_alias=f"{_OWN}OAUTH_CLIENT_ID")
    """This server's client id at the issuer, for introspection and for people who sign in to the console. The
    redirect URI is `/sign-in/callback` at `WEB_URL`."""
    oauth_client_secret: SecretStr | None = Field(None, validation_alias=f"{_OWN}OAUTH_CLIENT_SECRET")
    """The secret for that client id."""
    proxy_groups_header: str | None = Field(
        None, pattern=r"^[A-Za-z0-9-]+$", validation_alias=f"{_OWN}PROXY_GROUPS_HEADER"
    )
    """The header with the user's groups, separated by commas, such as `X-Forwarded-Groups`."""

    @field_validator("oauth_audience", "oauth_scopes", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return list_of(value)

    @field_validator(*must_have_value, mode="before")
    @classmethod
    def _not_blank(cls, value: object) -> object:
        """An empty address must not count as unset, because tokens would be validated differently."""
        return not_blank(value)
