"""OAuth with stored credentials: silently on a connection, or with a person and a browser.

Tokens are renewed once for all processes that share them. Many authorization servers take a refresh token for stolen
when it comes a second time, and revoke everything. So whoever renews holds a lock of all processes, looks first whether
somebody else was faster, and looks once more before giving up. A renewal goes on when its caller is cancelled: the old
token is used up by then, and nobody would have the new one.
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
from ..transports import tls_context
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
"""Registered by a provider that never sends a person anywhere."""
_REQUEST_TIMEOUT = 20.0
_LONGEST_RENEWAL = 45.0
"""Seconds for which the lock is held at most; others wait for longer than that."""


class Renewals:
    """The renewals under way, which no caller can cancel."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, renewal: Coroutine[Any, Any, None]) -> None:
        """Runs to its end, also when the caller is cancelled. Raises what it raises."""
        task = asyncio.ensure_future(renewal)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone, and nobody else wants to know

    async def done(self) -> None:
        """Waits for those that are under way."""
        if self._running:
            await asyncio.wait(self._running)


class SilentOAuth(StoredOAuth):
    """Uses what is stored, and renews it: ahead of time when it has expired, and once when it is refused."""

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
                # Most servers want no sign-in. One that does refuses, and then it is told that tokens cannot be read;
                # nothing is kept of the failure, so that the next request looks again.
                with suppress(OAuthFlowError):
                    await self.reload()
        for is_last in (False, True):
            used = self._usable
            if self._is_stale(refused):
                used = await self._renewed(refused)
            request.headers.pop("Authorization", None)
            if used is not None:
                self.add_bearer(request)
            # Noted now: when the answer is there, another request may have renewed it.
            tried = self._stored_token
            response = yield request  # without the lock: a long call must not hold up the others
            if is_last or not await self._can_do_better(response, used):
                break
            refused = used
        await self._check_refusal(response, tried)

    def _take(self, stored: Credentials) -> None:
        super()._take(stored)
        if stored.metadata is None:
            self.context.oauth_metadata = self._discovered
            # The sign-in of another program does not say whether it named the resource; the protocol wants it named.
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
        """Whether the request is worth repeating: there is another token by now, or one can be had."""
        if response.status_code != 401:
            return False
        async with self.context.lock:
            await self.reload()
        return self._usable != used or self._renewable

    async def _check_refusal(self, response: httpx2.Response, tried: str | None) -> None:
        """Raises NeedsAuth where the server wants a sign-in, or one for a wider scope, which is noted for it."""
        if response.status_code == 401:
            raise NeedsAuth("the server requires a sign-in", tried)
        wanted = self._missing_scope(response)
        if wanted is not None:
            await self._storage.update(wanted_scope=wanted)
            raise NeedsAuth(f"the server requires more permissions: {wanted}. Sign in again", step_up=True)

    def _missing_scope(self, response: httpx2.Response) -> str | None:
        """What was granted and what the server wants beside it, where it refuses for that reason."""
        if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
            return None
        granted = self.context.current_tokens.scope if self.context.current_tokens else None
        return union_scopes(granted, extract_scope_from_www_auth(response)) or ""

    # -- renewing ---------------------------------------------------------------------------------------------

    async def _renewed(self, refused: str | None) -> str | None:
        """The token to use instead. A new one is used whatever time it is said to last."""
        # One renewal for all requests of a connection: those behind it find the new token.
        async with self.context.lock:
            if self._is_stale(refused):
                await self._renewals.run(self._renew(refused))
            return self._stored_token

    async def _renew(self, refused: str | None) -> None:
        """Gets other tokens than those that have expired or were refused. Raises NeedsAuth, or OAuthFlowError where
        trying again later may help."""
        try:
            async with self._storage.lock():
                with anyio.fail_after(_LONGEST_RENEWAL):
                    await self.reload()
                    if self._is_stale(refused):  # nobody else was faster
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
        # First: an endpoint that fails says nothing about the tokens, which are kept.
        check_passing(answer)
        if error_of(answer) in FORGOTTEN_CLIENT:
            await self._forget_registration()
        # Another program, which does not know our lock, may have been faster.
        await self.reload()
        tokens = self.context.current_tokens
        if tokens is not None and tokens.refresh_token == used:
            await self._storage.update(tokens=None, expires_at=None)
            await self.reload()  # what another program has counts now
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
    """Raises OAuthFlowError for an answer that says nothing of the tokens: the endpoint is overloaded or broken."""
    if answer.status_code >= 500 or answer.status_code == 429:
        raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")


# -- interactive oauth ------------------------------------------------------------------------------------------------


_METADATA_PATHS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


class _ScopedMetadata(OAuthClientMetadata):
    """Adds scopes to whatever scope the flow decides on, for the registration and for the request."""

    added_scope: str | None = Field(None, exclude=True)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "scope" and (value is None or isinstance(value, str)):
            value = union_scopes(value, self.added_scope)
        super().__setattr__(name, value)


class InteractiveOAuth(StoredOAuth):
    """The whole flow. Starts with no tokens, whatever is stored.

    With `authServerMetadataUrl` the metadata there says which authorization server is used, whatever the server says.
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
        """`send` sends requests beside the flow; `show` brings the person to an address."""
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
            # Where only more is wanted than was granted, a token for this registration was taken just now.
            self._kept = context.client_info if stored.wanted_scope is None else None

    def _fits(self, stored: Credentials, scope: str | None) -> bool:
        """Whether the stored registration is one to use again: not one for less than is wanted now, nor one in place of
        our document where that is taken, nor a document that is ours no more."""
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
        """Brings the person to the authorization server. ForgottenClient, and nobody is brought anywhere, if that has
        forgotten the registration of an earlier sign-in. It is the server that the flow has found meanwhile; where that
        is another one than before, the registration is new and nothing is asked."""
        if self._kept is not None and self.context.client_info == self._kept and await self._is_forgotten():
            raise ForgottenClient("the authorization server does not know this client")
        await self._show(address)

    async def _is_forgotten(self) -> bool:
        """Whether the authorization server has forgotten our registration. It would tell that the person alone, in the
        browser; so it is asked for tokens for a code that it has not given, and says first whom it does not know."""
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
