"""OAuth with a person and a browser."""

import secrets
from collections.abc import AsyncGenerator

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    handle_auth_metadata_response,
    should_use_client_metadata_url,
    union_scopes,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata
from pydantic import Field

from ..config_entry import OAuthConfig
from .credentials import Credentials, CredentialStorage
from .stored_oauth import (
    FORGOTTEN_CLIENT,
    ForgottenClient,
    Send,
    ShowAddress,
    StoredOAuth,
    error_of,
)

_METADATA_PATHS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class _ScopedMetadata(OAuthClientMetadata):
    """Adds scopes to the one that the flow chooses, for the registration and the request."""

    added_scope: str | None = Field(None, exclude=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope" and (value is None or isinstance(value, str)):
            value = union_scopes(value, self.added_scope)
        super().__setattr__(name, value)


class InteractiveOAuth(StoredOAuth):
    """The interactive flow. Ignores stored tokens.

    With `authServerMetadataUrl`, the authorization server comes from that metadata, not from the server's.
    """

    def __init__(
        self,
        url: str,
        config: OAuthConfig,
        storage: CredentialStorage,
        redirect_uri: str,
        send: Send,
        show: ShowAddress,
        **options: object,
    ) -> None:
        """`send` sends requests outside the flow; `show` opens a URL for the person."""
        super().__init__(url, config, storage, redirect_uri, redirect_handler=self._show_if_known, **options)
        self._send = send
        self._show = show
        self._configured: OAuthMetadata | None = None
        self._kept: OAuthClientInformationFull | None = None
        """The registration of an earlier sign-in, which may be forgotten by now."""

    async def load_context(self) -> None:
        stored = await self._storage.load()
        self._take(stored)
        context = self.context
        context.clear_tokens()
        wanted = union_scopes(self._config.scope, stored.wanted_scope)
        context.client_metadata = _ScopedMetadata(
            added_scope=wanted, **context.client_metadata.model_dump(exclude={"scope"})
        )
        if self._config.client_id is None:
            if not self._fits(stored, wanted):
                context.client_info = None
            # Not checked if only a wider scope is needed: the registration was accepted just now.
            self._kept = context.client_info if stored.wanted_scope is None else None

    def _fits(self, stored: Credentials, scope: str | None) -> bool:
        """Whether the stored registration can be reused: not if its scope is too narrow, if our metadata document can
        be used instead, or if it is an outdated document."""
        client, document = stored.client, self.context.client_metadata_url
        if client is None:
            return False
        if client.scope is not None and not set((scope or "").split()) <= set(client.scope.split()):
            return False
        if client.client_id == document:
            return True
        return not (
            client.client_id.startswith("https://") or should_use_client_metadata_url(stored.metadata, document)
        )

    async def _show_if_known(self, address: str) -> None:
        """Open the authorization server for the person. ForgottenClient, without opening anything, if it has forgotten
        the registration of an earlier sign-in. If the flow found a different server than before, the registration is
        new and is not checked."""
        if self._kept is not None and self.context.client_info == self._kept and await self._is_forgotten():
            raise ForgottenClient("the authorization server does not know this client")
        await self._show(address)

    async def _is_forgotten(self) -> bool:
        """Whether the authorization server has forgotten our registration. In the sign-in flow, only the person in the
        browser would see that. So this requests tokens for an invalid code: the server rejects an unknown client before
        it checks the code."""
        try:
            answer = await self._send(await self.code_exchange_request(secrets.token_urlsafe(), "x" * 43))
        except httpx2.TransportError:
            return False  # the sign-in flow reports the failure
        return error_of(answer) in FORGOTTEN_CLIENT

    async def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        url, answer = self._config.auth_server_metadata_url, b""
        if url is not None:
            response = yield httpx2.Request("GET", url, headers={"Accept": "application/json"})
            answer = await response.aread()
            _, self._configured = await handle_auth_metadata_response(response)
            if self._configured is None:
                raise OAuthFlowError(f"there is no metadata at authServerMetadataUrl: HTTP {response.status_code}")
        flow = super().authenticate(request)
        try:
            sent = await anext(flow)
            while True:
                asks_for_metadata = sent.method == "GET" and any(path in sent.url.path for path in _METADATA_PATHS)
                if self._configured is not None and asks_for_metadata:
                    received = httpx2.Response(200, content=answer, request=sent)
                else:
                    received = yield sent
                sent = await flow.asend(received)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def select_authorization_server(self, advertised: list[str]) -> str:
        return super().select_authorization_server(advertised) if self._configured is None else self.expected_issuer()

    def expected_issuer(self) -> str:
        return super().expected_issuer() if self._configured is None else str(self._configured.issuer)

    async def save_tokens(self, response: httpx2.Response) -> None:
        """Raises ForgottenClient, and OAuthTokenError if the code was refused for another reason."""
        await response.aread()
        if error_of(response) in FORGOTTEN_CLIENT:
            raise ForgottenClient("the authorization server does not know this client")
        await super().save_tokens(response)
        context = self.context
        await self._storage.update(
            metadata=context.oauth_metadata,
            resource=context.protected_resource_metadata,
            authorization_server=context.auth_server_url,
            wanted_scope=None,
        )
