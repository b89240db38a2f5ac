"""OAuth with stored credentials: silently on a connection, or interactively with a browser.

Tokens are renewed once for all processes that share them. Many authorization servers treat a reused refresh token as
stolen and revoke everything. So a renewal holds a lock across all processes, first checks whether another process was
faster, and checks again before failing. A renewal continues when its caller is cancelled: the old token is used up by
then, and the new one would be lost.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_scope_from_www_auth,
    handle_auth_metadata_response,
    should_use_client_metadata_url,
    union_scopes,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import Field

from ..config_entry import OAuthConfig, TlsConfig
from ..transports.http_client import tls_context
from .credentials import (
    FORGOTTEN_CLIENT,
    Credentials,
    CredentialStorage,
    ForgottenClient,
    NeedsAuth,
    Send,
    ShowAddress,
    StoredOAuth,
    discover,
    error_of,
)

_UNUSED_REDIRECT = "http://127.0.0.1/callback"
"""The redirect URI registered by a provider that never redirects a person."""
_REQUEST_TIMEOUT = 20.0
_MAX_RENEWAL = 45.0
"""Maximum seconds for which the lock is held; others wait longer than that."""


class Renewals:
    """The running renewals, which callers cannot cancel."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, renewal: Coroutine[Any, Any, None]) -> None:
        """Run a renewal to its end even if the caller is cancelled. Raises its exceptions."""
        task = asyncio.ensure_future(renewal)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone, and no one else needs the exception

    async def done(self) -> None:
        """Wait for the running renewals."""
        if self._running:
            await asyncio.wait(self._running)


class SilentOAuth(StoredOAuth):
    """Uses the stored tokens, and renews them: in advance when expired, and once when refused."""

    def __init__(
        self, url: str, config: OAuthConfig, storage: CredentialStorage, tls: TlsConfig, renewals: Renewals
    ) -> None:
        super().__init__(url, config, storage, _UNUSED_REDIRECT)
        self._tls = tls
        self._renewals = renewals
        self._discovered: OAuthMetadata | None = None
        """Of the authorization server, where the storage has none."""

    async def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: str | None = None
        if not self.context_loaded:
            async with self.context.lock:
                # Most servers need no sign-in. If one does, it refuses the request, and the read failure is reported
                # then; the failure is not cached, so that the next request tries again.
                with suppress(OAuthFlowError):
                    await self.reload()
        for is_last in (False, True):
            used = self._usable
            if self._is_stale(refused):
                used = await self._renewed(refused)
            request.headers.pop("Authorization", None)
            if used is not None:
                self.add_bearer(request)
            # Noted now: by the time of the answer another request may have renewed it.
            tried = self._stored_token
            response = yield request  # without the lock: a long call must not block others
            if is_last or not await self._can_do_better(response, used):
                break
            refused = used
        await self._check_refusal(response, tried)

    def _take(self, stored: Credentials) -> None:
        super()._take(stored)
        if stored.metadata is None:
            self.context.oauth_metadata = self._discovered
            # Another program's sign-in does not record whether it named the resource; the protocol requires it.
            self.context.protocol_version = LATEST_HANDSHAKE_VERSION

    @property
    def _stored_token(self) -> str | None:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens is not None else None

    @property
    def _usable(self) -> str | None:
        """The access token, unless it has expired."""
        return self._stored_token if self.context.is_token_valid() else None

    @property
    def _renewable(self) -> bool:
        return self.context.can_refresh_token()

    def _is_stale(self, refused: str | None) -> bool:
        return self._renewable and self._usable in (None, refused)

    async def _can_do_better(self, response: httpx2.Response, used: str | None) -> bool:
        """Whether to repeat the request: there is a new token, or one can be obtained."""
        if response.status_code != 401:
            return False
        async with self.context.lock:
            await self.reload()
        return self._usable != used or self._renewable

    async def _check_refusal(self, response: httpx2.Response, tried: str | None) -> None:
        """Raise NeedsAuth if the server requires a sign-in, or one with a wider scope, which is stored for it."""
        if response.status_code == 401:
            raise NeedsAuth("the server requires a sign-in", tried)
        wanted = self._missing_scope(response)
        if wanted is not None:
            await self._storage.update(wanted_scope=wanted)
            raise NeedsAuth(f"the server requires more permissions: {wanted}. Sign in again", step_up=True)

    def _missing_scope(self, response: httpx2.Response) -> str | None:
        """The granted and the missing scope, if the server refused for that reason."""
        if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
            return None
        granted = self.context.current_tokens.scope if self.context.current_tokens else None
        return union_scopes(granted, extract_scope_from_www_auth(response)) or ""

    # -- renewing ---------------------------------------------------------------------------------------------

    async def _renewed(self, refused: str | None) -> str | None:
        """The token to use instead. A new one is used whatever its lifetime."""
        # One renewal for all requests of a connection: later ones find the new token.
        async with self.context.lock:
            if self._is_stale(refused):
                await self._renewals.run(self._renew(refused))
            return self._stored_token

    async def _renew(self, refused: str | None) -> None:
        """Replace expired or refused tokens. Raises NeedsAuth, or OAuthFlowError if a later attempt may succeed."""
        try:
            async with self._storage.lock():
                with anyio.fail_after(_MAX_RENEWAL):
                    await self.reload()
                    if self._is_stale(refused):  # no other process was faster
                        await self._renew_alone(refused)
        except TimeoutError:
            raise OAuthFlowError("renewing the tokens took too long") from None
        except OSError as error:
            raise OAuthFlowError(f"the tokens cannot be renewed here: {error.strerror}") from None
        except httpx2.TransportError as error:
            raise OAuthFlowError(f"the authorization server cannot be reached: {error}") from None

    async def _renew_alone(self, refused: str | None) -> None:
        if self.context.oauth_metadata is None and self.context.auth_server_url is not None:
            self._discovered = self.context.oauth_metadata = await discover(self.context.auth_server_url, self._send)
        assert self.context.current_tokens is not None
        used, expired = self.context.current_tokens.refresh_token, self._stored_token
        answer = await self._send(await self.refresh_request())
        if answer.status_code == 200 and await self.save_refreshed_tokens(answer):
            return
        # First: a failing endpoint says nothing about the tokens, which are kept.
        check_passing(answer)
        if error_of(answer) in FORGOTTEN_CLIENT:
            await self._forget_registration()
        # Another program, which does not know our lock, may have been faster.
        await self.reload()
        tokens = self.context.current_tokens
        if tokens is not None and tokens.refresh_token == used:
            await self._storage.update(tokens=None, expires_at=None)
            await self.reload()  # the other program's tokens apply now
        if self._is_stale(refused) or self._usable is None:
            raise NeedsAuth("the sign-in has expired", expired)

    async def _forget_registration(self) -> None:
        if self._config.client_id is not None:
            raise NeedsAuth("the authorization server does not know the configured client id", self._stored_token)
        await self._storage.update(client=None, tokens=None, expires_at=None)
        raise NeedsAuth(
            "the authorization server no longer knows this client; sign in again to register", self._stored_token
        )

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        async with httpx2.AsyncClient(verify=tls_context(self._tls), timeout=_REQUEST_TIMEOUT) as client:
            return await client.send(request)


def check_passing(answer: httpx2.Response) -> None:
    """Raise OAuthFlowError for a response that says nothing about the tokens: the endpoint is overloaded or broken."""
    if answer.status_code >= 500 or answer.status_code == 429:
        raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")


# -- interactive oauth ------------------------------------------------------------------------------------------------


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

    With `authServerMetadataUrl`, that metadata chooses the authorization server, whatever the server says.
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
            # If only a wider scope is needed, this registration was accepted just now.
            self._kept = context.client_info if stored.wanted_scope is None else None

    def _fits(self, stored: Credentials, scope: str | None) -> bool:
        """Whether the stored registration can be reused: not if it covers less than needed now, if our metadata
        document can be used instead, or if it is an outdated document."""
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
        """Whether the authorization server has forgotten our registration. It would report that only to the person in
        the browser; so this requests tokens for an invalid code, which fails first on an unknown client."""
        try:
            answer = await self._send(await self.code_exchange_request(secrets.token_urlsafe(), "x" * 43))
        except httpx2.TransportError:
            return False  # the flow finds out what is wrong
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
        """Raises ForgottenClient, and OAuthTokenError where the code was refused for another reason."""
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
