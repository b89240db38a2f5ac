"""How a server's transport shows who we are: a configured header, OAuth, an assertion, or an IDE's token.

OAuth has two providers that share stored credentials. `SilentOAuth` serves a connection: it uses and refreshes tokens
without a person, and raises NeedsAuth where that is not enough. `InteractiveOAuth` is the flow with a person and a
browser, which `sign_in` runs. `http_auth` chooses what a configured server gets.
"""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl, Field

from ..config_entry import IdeConfig, OAuthConfig, OAuthServerConfig, ServerConfig
from ..dependencies import HubDeps
from ..sdk import OAuthProvider
from .credentials import CredentialStorage
from .cross_app_access import assertion_auth

CLIENT_NAME = "claude-code-mcp"
_UNUSED_REDIRECT = "http://127.0.0.1/callback"
"""Registered by a provider that never sends a person anywhere."""


class NeedsAuth(OAuthFlowError):
    """A person has to sign in; with `step_up` only to grant more than before, and the connection stays usable."""

    def __init__(self, message: str, *, step_up: bool = False) -> None:
        super().__init__(message)
        self.step_up = step_up


class _StoredOAuth(OAuthProvider):
    """Reads everything from storage, the expiry and the endpoints too, which the SDK's provider would forget."""

    def __init__(
        self, url: str, config: OAuthConfig, storage: CredentialStorage, redirect_uri: str, **callbacks: object
    ) -> None:
        metadata = OAuthClientMetadata(
            client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect_uri)], scope=config.scope
        )
        super().__init__(url, metadata, storage, **callbacks)  # type: ignore[arg-type] # passed on by name
        self._config = config
        self._storage = storage

    async def load_context(self) -> None:
        stored = await self._storage.load()
        context = self.context
        context.current_tokens = await self._storage.get_tokens()
        if context.current_tokens is not None:
            context.update_token_expiry(context.current_tokens)
        context.client_info = self._client_info(stored.client)
        context.oauth_metadata = stored.metadata
        context.protected_resource_metadata = stored.resource
        context.auth_server_url = stored.authorization_server

    def _client_info(self, stored: OAuthClientInformationFull | None) -> OAuthClientInformationFull | None:
        config = self._config
        if config.client_id is None:
            return stored
        return OAuthClientInformationFull(
            client_id=config.client_id,
            client_secret=config.client_secret,
            redirect_uris=self.context.client_metadata.redirect_uris,
            token_endpoint_auth_method="client_secret_post" if config.client_secret else "none",
        )


class SilentOAuth(_StoredOAuth):
    """Uses what is stored, and refreshes it: ahead of time when it has expired, and once when it is refused."""

    def __init__(self, url: str, config: OAuthConfig, storage: CredentialStorage) -> None:
        super().__init__(url, config, storage, _UNUSED_REDIRECT)

    async def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: str | None = None
        if not self.context_loaded:
            async with self.context.lock:
                await self.reload()
        while True:
            if self._is_stale(refused):
                async with self.context.lock:
                    await self.reload()  # another call, or another process, may have refreshed it meanwhile
                    if self._is_stale(refused):
                        answer = yield await self.refresh_request()
                        if answer.status_code >= 500:
                            raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")
                        if not await self.save_refreshed_tokens(answer):
                            raise NeedsAuth("the sign-in has expired")
            used = self._bearer
            request.headers.pop("Authorization", None)
            if self.context.is_token_valid():
                self.add_bearer(request)
            response = yield request  # without the lock: a long call must not hold up the others
            if response.status_code != 401 or used == refused or not self.context.can_refresh_token():
                break
            refused = used
        await self._check_refusal(response)

    @property
    def _bearer(self) -> str | None:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens else None

    def _is_stale(self, refused: str | None) -> bool:
        if not self.context.can_refresh_token():
            return False
        return not self.context.is_token_valid() or (refused is not None and self._bearer == refused)

    async def _check_refusal(self, response: httpx2.Response) -> None:
        """Raises NeedsAuth where the server wants a sign-in, or one for a wider scope, which is noted for it."""
        if response.status_code == 401:
            raise NeedsAuth("the server wants somebody to sign in")
        if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
            granted = self.context.current_tokens.scope if self.context.current_tokens else None
            wanted = union_scopes(granted, extract_scope_from_www_auth(response))
            await self._storage.update(wanted_scope=wanted)
            raise NeedsAuth(f"the server wants a sign-in for more: {wanted}", step_up=True)


class _ScopedMetadata(OAuthClientMetadata):
    """Adds scopes to whatever scope the flow decides on, for the registration and for the request."""

    added_scope: str | None = Field(None, exclude=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope" and (value is None or isinstance(value, str)):
            value = union_scopes(value, self.added_scope)
        super().__setattr__(name, value)


def _covers(client: OAuthClientInformationFull | None, scope: str | None) -> bool:
    return client is None or client.scope is None or set((scope or "").split()) <= set(client.scope.split())


class InteractiveOAuth(_StoredOAuth):
    """The whole flow with a person: discovery, registration, PKCE. Starts with no tokens, whatever is stored."""

    async def load_context(self) -> None:
        await super().load_context()
        context = self.context
        context.clear_tokens()
        wanted = union_scopes(self._config.scope, (await self._storage.load()).wanted_scope)
        context.client_metadata = _ScopedMetadata(
            added_scope=wanted, **context.client_metadata.model_dump(exclude={"scope"})
        )
        if self._config.client_id is None and not _covers(context.client_info, wanted):
            context.client_info = None  # registered for less than what is wanted now

    async def save_tokens(self, response: httpx2.Response) -> None:
        await super().save_tokens(response)
        context = self.context
        await self._storage.update(
            metadata=context.oauth_metadata,
            resource=context.protected_resource_metadata,
            authorization_server=context.auth_server_url,
            wanted_scope=None,
        )


IDE_HEADER = "X-Claude-Code-Ide-Authorization"


def has_oauth(config: ServerConfig) -> bool:
    """Whether a person can sign in to the server."""
    return isinstance(config, OAuthServerConfig) and not config.oauth.xaa


def credential_storage(name: str, config: OAuthServerConfig, deps: HubDeps) -> CredentialStorage:
    """Tokens belong to a name and an address: an entry that now leads elsewhere must not take them there."""
    return CredentialStorage(deps.vault, f"{name} {config.url}")


def http_auth(name: str, config: OAuthServerConfig, deps: HubDeps) -> httpx2.Auth | None:
    """What adds tokens to requests; None where a header is configured for that. Raises OAuthFlowError."""
    if any(header.lower() == "authorization" for header in config.headers):
        return None
    storage = credential_storage(name, config, deps)
    if not config.oauth.xaa:
        return SilentOAuth(config.url, config.oauth, storage)
    if deps.get_assertion is None:
        raise OAuthFlowError("cross-app access is asked for, but there is no identity provider")
    return assertion_auth(config.url, config.oauth, storage, deps.get_assertion)


def ide_headers(config: IdeConfig, claude_directory: Path) -> dict[str, str]:
    """The headers for an IDE: those configured, and its token, which may stand in the lock file of its port."""
    token = config.auth_token or _token_of_lock_file(config.url, claude_directory)
    return {**config.headers, IDE_HEADER: token} if token else dict(config.headers)


def _token_of_lock_file(url: str, claude_directory: Path) -> str | None:
    port = urlsplit(url).port
    try:
        lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = lock.get("authToken") if isinstance(lock, dict) else None
    return token if isinstance(token, str) else None
