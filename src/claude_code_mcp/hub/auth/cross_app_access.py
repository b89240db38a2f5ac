"""Cross-app access (`xaa`): an assertion of the organisation's identity provider instead of a person's sign-in."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ..config_entry import OAuthConfig
from .credentials import CredentialStorage

GetAssertion = Callable[[str, str], Awaitable[str]]
"""From the authorization server's issuer and the resource to an assertion for them."""

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind of token
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


def assertion_auth(
    url: str, config: OAuthConfig, storage: CredentialStorage, get_assertion: GetAssertion
) -> httpx2.Auth:
    """What adds tokens to the requests to a server with `xaa`. Raises OAuthFlowError for an incomplete entry."""
    if not (config.client_id and config.client_secret and config.issuer):
        raise OAuthFlowError("cross-app access needs clientId, clientSecret and issuer under oauth")
    return IdentityAssertionOAuthProvider(
        url, storage, config.client_id, config.client_secret, config.issuer, get_assertion, config.scope
    )


class IdentityProvider(BaseModel):
    """The organisation's identity provider, set up once for all servers with `xaa`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    token_endpoint: str
    client_id: str
    client_secret: str | None = None
    id_token: str | None = Field(None, repr=False)
    id_token_file: Path | None = None
    """Read anew for every assertion, so that a renewed token only has to be written to the file."""

    async def assertion(self, issuer: str, resource: str) -> str:
        """Exchanges the id token for an assertion (RFC 8693). Raises OAuthFlowError."""
        form = {
            "grant_type": _EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": issuer,
            "resource": resource,
            "subject_token": await self._subject_token(),
            "subject_token_type": _ID_TOKEN,
            "client_id": self.client_id,
        }
        if self.client_secret is not None:
            form["client_secret"] = self.client_secret
        async with httpx2.AsyncClient() as client:
            try:
                response = await client.post(self.token_endpoint, data=form)
            except httpx2.TransportError as error:
                raise OAuthFlowError(f"the identity provider cannot be reached: {error}") from None
        if response.status_code != 200:
            raise OAuthFlowError(f"the identity provider answered with HTTP {response.status_code}")
        try:
            return str(response.json()["access_token"])
        except (ValueError, KeyError, TypeError):
            raise OAuthFlowError("the identity provider's answer has no assertion in it") from None

    async def _subject_token(self) -> str:
        if self.id_token_file is not None:
            return (await asyncio.to_thread(self.id_token_file.read_text, "utf-8")).strip()
        if self.id_token is None:
            raise OAuthFlowError("the identity provider is configured without an id token")
        return self.id_token
