"""Cross-app access (SEP-990): an assertion of the organisation's identity provider instead of a person signing in."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ..configuration import OAuthConfig
from .tokens import CredentialStorage

Assert = Callable[[str, str], Awaitable[str]]
"""From the authorization server's issuer and the resource to an assertion for them."""

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind of token
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


class IdentityProvider(BaseModel):
    """The organisation's identity provider, set up once for all servers with `xaa`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

    token_endpoint: str
    client_id: str
    client_secret: str | None = None
    id_token: str | None = Field(None, repr=False)
    id_token_file: Path | None = None
    """Read anew for every assertion, so that whoever renews the token only has to write the file."""

    async def assertion(self, issuer: str, resource: str) -> str:
        """Exchanges the id token for an assertion (RFC 8693)."""
        form = {
            "grant_type": _EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": issuer,
            "resource": resource,
            "subject_token": await self._subject(),
            "subject_token_type": _ID_TOKEN,
            "client_id": self.client_id,
        }
        if self.client_secret is not None:
            form["client_secret"] = self.client_secret
        async with httpx2.AsyncClient() as client:
            try:
                answer = await client.post(self.token_endpoint, data=form)
            except httpx2.TransportError as error:
                raise OAuthFlowError(f"the identity provider cannot be reached: {error}") from None
        return _assertion_in(answer)

    async def _subject(self) -> str:
        if self.id_token_file is not None:
            return (await asyncio.to_thread(self.id_token_file.read_text, "utf-8")).strip()
        if self.id_token is None:
            raise OAuthFlowError("the identity provider is configured without an id token")
        return self.id_token


def _assertion_in(answer: httpx2.Response) -> str:
    if answer.status_code != 200:
        raise OAuthFlowError(f"the identity provider answered with HTTP {answer.status_code}")
    try:
        assertion = answer.json()["access_token"]
    except (ValueError, KeyError, TypeError):
        raise OAuthFlowError("the identity provider's answer has no assertion in it") from None
    return str(assertion)


def identity_assertion(url: str, config: OAuthConfig, storage: CredentialStorage, assert_: Assert) -> httpx2.Auth:
    """The authentication of a server with `xaa`."""
    if not (config.client_id and config.client_secret and config.issuer):
        raise OAuthFlowError("cross-app access needs clientId, clientSecret and issuer under oauth")
    return IdentityAssertionOAuthProvider(
        url, storage, config.client_id, config.client_secret, config.issuer, assert_, config.scope
    )
