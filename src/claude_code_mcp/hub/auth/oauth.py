"""OAuth towards a remote server, in two parts that share stored credentials.

While connected, `SilentOAuth` uses and refreshes tokens, and never asks anybody: where that is not enough, it says
so with NeedsAuth. Signing in, with a person and a browser, is a flow of its own (`sign_in`).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from pydantic import AnyUrl, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from ..config_entry import OAuthConfig
from .credentials import CredentialStorage

CLIENT_NAME = "claude-code-mcp"


NOWHERE = "http://127.0.0.1/callback"


class NeedsAuth(OAuthFlowError):
    """Somebody has to sign in; with `step_up` only for more than what was granted so far."""

    def __init__(self, message: str, *, step_up: bool = False) -> None:
        super().__init__(message)
        self.step_up = step_up


class _OAuth(OAuthClientProvider):
    def __init__(
        self, url: str, config: OAuthConfig, storage: CredentialStorage, redirect_uri: str, **asking: object
    ) -> None:
        metadata = OAuthClientMetadata(
            client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect_uri)], scope=config.scope
        )
        super().__init__(url, metadata, storage, **asking)  # type: ignore[arg-type] # passed on by name
        self._config = config
        self._storage = storage

    async def _initialize(self) -> None:
        """Everything from storage, with the expiry and the endpoints, which the SDK would forget."""
        stored = await self._storage.load()
        context = self.context
        context.current_tokens = await self._storage.get_tokens()
        if context.current_tokens is not None:
            context.update_token_expiry(context.current_tokens)
        context.client_info = self._client_info(stored.client)
        context.oauth_metadata = stored.metadata
        context.protected_resource_metadata = stored.resource
        context.auth_server_url = stored.authorization_server
        self._initialized = True

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


class SilentOAuth(_OAuth):
    """Uses what is stored, and refreshes it: ahead of time when it has expired, and once when it is refused."""

    def __init__(self, url: str, config: OAuthConfig, storage: CredentialStorage) -> None:
        super().__init__(url, config, storage, NOWHERE)

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: str | None = None
        if not self._initialized:
            async with self.context.lock:
                await self._initialize()
        while True:
            if self._is_stale(refused):
                async with self.context.lock:
                    await self._initialize()  # another call, or another process, may have refreshed it meanwhile
                    if self._is_stale(refused):
                        answer = yield await self._refresh_token()
                        await self._take(answer)
            used = self._bearer
            response = yield self._signed(request)  # without the lock: a long call must not hold up the others
            if response.status_code != 401 or used == refused or not self.context.can_refresh_token():
                break
            refused = used
        await self._judge(response)

    @property
    def _bearer(self) -> str | None:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens else None

    def _is_stale(self, refused: str | None) -> bool:
        if not self.context.can_refresh_token():
            return False
        return not self.context.is_token_valid() or (refused is not None and self._bearer == refused)

    def _signed(self, request: httpx2.Request) -> httpx2.Request:
        request.headers.pop("Authorization", None)
        if self.context.is_token_valid():
            self._add_auth_header(request)
        return request

    async def _take(self, answer: httpx2.Response) -> None:
        if answer.status_code >= 500:
            raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")
        if not await self._handle_refresh_response(answer):
            raise NeedsAuth("the sign-in has expired")

    async def _judge(self, response: httpx2.Response) -> None:
        if response.status_code == 401:
            raise NeedsAuth("the server wants somebody to sign in")
        if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
            granted = self.context.current_tokens.scope if self.context.current_tokens else None
            wanted = union_scopes(granted, extract_scope_from_www_auth(response))
            await self._storage.update(wanted_scope=wanted)
            raise NeedsAuth(f"the server wants a sign-in for more: {wanted}", step_up=True)


class _Metadata(OAuthClientMetadata):
    """Whatever scope the flow decides on, to register and to ask for, these are in it too."""

    also: str | None = Field(None, exclude=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope" and (value is None or isinstance(value, str)):
            value = union_scopes(value, self.also)
        super().__setattr__(name, value)


def _covers(client: OAuthClientInformationFull | None, scope: str | None) -> bool:
    return client is None or client.scope is None or set((scope or "").split()) <= set(client.scope.split())


class SigningIn(_OAuth):
    """The whole flow with a person: discovery, registration, PKCE. Starts with no tokens, whatever is stored."""

    async def _initialize(self) -> None:
        await super()._initialize()
        context = self.context
        context.clear_tokens()
        wanted = union_scopes(self._config.scope, (await self._storage.load()).wanted_scope)
        context.client_metadata = _Metadata(also=wanted, **context.client_metadata.model_dump(exclude={"scope"}))
        if self._config.client_id is None and not _covers(context.client_info, wanted):
            context.client_info = None  # registered for less than what is wanted now

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        context = self.context
        await self._storage.update(
            metadata=context.oauth_metadata,
            resource=context.protected_resource_metadata,
            authorization_server=context.auth_server_url,
            wanted_scope=None,
        )


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
