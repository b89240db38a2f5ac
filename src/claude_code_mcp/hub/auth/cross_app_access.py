"""Cross-app access: tokens for a server in exchange for assertions of the identity provider.

A person signs in once at the identity provider (`identity_provider.py`). For each server, an assertion is fetched from
there and exchanged for a token at the server's authorization server. That authorization server is configured, not
discovered: the assertion and the client secret never go to an address that only the server named.
"""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE
from mcp.shared.auth_utils import resource_url_from_server_url

from ..config_entry import OAuthConfig, TlsConfig
from .credentials import CredentialStorage
from .silent_oauth import Renewals, SilentOAuth, check_passing
from .stored_oauth import discover, error_of

GetAssertion = Callable[[str, str], Awaitable[str]]
"""Called with the authorization server's issuer and the resource; returns an assertion for them."""


class AssertionOAuth(SilentOAuth):
    """Exchanges assertions for tokens if the token is missing, expired, refused or has too narrow a scope."""

    def __init__(
        self,
        url: str,
        config: OAuthConfig,
        storage: CredentialStorage,
        tls: TlsConfig,
        renewals: Renewals,
        get_assertion: GetAssertion,
    ) -> None:
        """Raises OAuthFlowError for an incomplete entry."""
        super().__init__(url, config, storage, tls, renewals)
        if not (config.client_id and config.client_secret and config.issuer):
            raise OAuthFlowError("cross-app access needs clientId, clientSecret and issuer under oauth")
        self._client = {"client_id": config.client_id, "client_secret": config.client_secret}
        self._issuer = config.issuer
        self._resource = resource_url_from_server_url(url)
        self._get_assertion = get_assertion

    @property
    def _renewable(self) -> bool:
        return True

    async def _can_raise_scope(self, response: httpx2.Response, used: str | None) -> bool:
        wanted = self._missing_scope(response)
        if wanted is not None:
            await self._storage.update(wanted_scope=wanted)
        return wanted is not None or response.status_code == 401

    async def _renew_alone(self, refused: str | None) -> None:
        if self._discovered is None:
            self._discovered = await discover(self._issuer, self._send)
        endpoint = str(self._discovered.token_endpoint)
        if _origin(endpoint) != _origin(self._issuer):
            raise OAuthFlowError(f"the token endpoint {endpoint} is not at the issuer {self._issuer}")
        scope = union_scopes(self._config.scope, (await self._storage.load()).wanted_scope)
        assertion = await self._get_assertion(self._issuer, self._resource)
        form = {
            **self._client,
            "grant_type": JWT_BEARER_GRANT_TYPE,
            "assertion": assertion,
            "resource": self._resource,
            **({"scope": scope} if scope else {}),
        }
        answer = await self._send(httpx2.Request("POST", endpoint, data=form))
        check_passing(answer)
        if answer.status_code != 200:
            reason = error_of(answer) or f"HTTP {answer.status_code}"
            raise OAuthFlowError(f"the authorization server rejected the assertion: {reason}")
        self.context.client_metadata.scope = scope  # granted unless the response names another
        await self.save_tokens(answer)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
