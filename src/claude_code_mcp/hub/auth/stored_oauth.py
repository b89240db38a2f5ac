"""The base of both kinds of OAuth: stored tokens and the client id.

The client id for an authorization server is, in this order: the configured one; the URL of a Client ID Metadata
Document, if the authorization server supports it; a registration, which is created when needed and stored.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    create_oauth_metadata_request,
    handle_auth_metadata_response,
    issuers_match,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
)
from pydantic import AnyUrl

from ..config_entry import OAuthConfig
from ..streams import OAuthProvider
from .credentials import Credentials, CredentialStorage

CLIENT_NAME = "claude-code-mcp"
FORGOTTEN_CLIENT = frozenset({"invalid_client", "unauthorized_client"})
"""The errors with which an authorization server reports that it does not know the client."""

Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
ShowAddress = Callable[[str], Awaitable[None]]
"""Opens a URL for a person in a browser, or shows it."""


class NeedsAuth(OAuthFlowError):
    """A person must sign in. With `step_up` only to grant a wider scope: the connection stays usable. `token` is the
    insufficient access token, if any."""

    def __init__(self, message: str, token: str | None = None, *, step_up: bool = False) -> None:
        super().__init__(message)
        self.token = token
        self.step_up = step_up


class ForgottenClient(OAuthFlowError):
    """The authorization server does not know our client registration (any more)."""


class StoredOAuth(OAuthProvider):
    """Reads everything from storage, including the expiry and the endpoints, which the SDK's provider does not
    store."""

    def __init__(
        self, url: str, config: OAuthConfig, storage: CredentialStorage, redirect_uri: str, **options: object
    ) -> None:
        metadata = OAuthClientMetadata(
            client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect_uri)], scope=config.scope
        )
        super().__init__(url, metadata, storage, **options)  # type: ignore[arg-type] # passed on by name
        self._config = config
        self._storage = storage

    async def load_context(self) -> None:
        self._take(await self._storage.load())
        self.context.current_tokens = await self._storage.get_tokens()
        if self.context.current_tokens is not None:
            self.context.update_token_expiry(self.context.current_tokens)

    def _take(self, stored: Credentials) -> None:
        context = self.context
        context.client_info = self._client_info(stored.client)
        context.oauth_metadata = stored.metadata
        context.protected_resource_metadata = stored.resource
        context.auth_server_url = stored.authorization_server

    def _client_info(self, stored: OAuthClientInformationFull | None) -> OAuthClientInformationFull | None:
        config = self._config
        if config.client_id is None or (stored is not None and stored.client_id == config.client_id):
            return stored
        return OAuthClientInformationFull(
            client_id=config.client_id,
            client_secret=config.client_secret,
            redirect_uris=self.context.client_metadata.redirect_uris,
        )

    def prepare_token_request(self) -> None:
        """Choose how to send a client secret without a known method, for example from the configuration: in the header,
        unless the metadata supports only the body."""
        client, metadata = self.context.client_info, self.context.oauth_metadata
        if client is None or client.client_secret is None or client.token_endpoint_auth_method is not None:
            return
        taken = metadata.token_endpoint_auth_methods_supported if metadata is not None else None
        only_in_body = taken is not None and "client_secret_basic" not in taken and "client_secret_post" in taken
        method = "client_secret_post" if only_in_body else "client_secret_basic"
        self.context.client_info = client.model_copy(update={"token_endpoint_auth_method": method})


async def discover(issuer: str, send: Send) -> OAuthMetadata:
    """The metadata of an authorization server, from its well-known addresses. OAuthFlowError if there is none, or if it
    belongs to another server."""
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
        goes_on, metadata = await handle_auth_metadata_response(await send(create_oauth_metadata_request(url)))
        if metadata is not None:
            if not issuers_match(str(metadata.issuer), issuer):
                raise OAuthFlowError(f"the metadata of {issuer} names another issuer, {metadata.issuer}")
            return metadata
        if not goes_on:
            break
    raise OAuthFlowError(f"{issuer} has no authorization server metadata")


def body_of(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object in a response whose body was read; empty if there is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def error_of(response: httpx2.Response) -> str | None:
    """The error code in the answer of a token endpoint, whose body was read."""
    error = body_of(response).get("error")
    return error if isinstance(error, str) else None
