"""OAuth on a connection: tokens are used and renewed without a person, and NeedsAuth says when that is not enough.

Tokens are renewed once for all processes that share them. Many authorization servers take a refresh token for stolen
when it comes a second time, and revoke everything. So whoever renews holds a lock of all processes, looks first whether
somebody else was faster, and looks once more before giving up. A renewal goes on when its caller is cancelled: the old
token is used up by then, and nobody would have the new one.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, union_scopes
from mcp.shared.auth import OAuthMetadata
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from ..config_entry import OAuthConfig, TlsConfig
from ..transports.http import tls_context
from .credentials import Credentials, CredentialStorage
from .stored_oauth import FORGOTTEN_CLIENT, NeedsAuth, StoredOAuth, discover, error_of

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
                await self.reload()
        for is_last in (False, True):
            used = self._usable
            if self._is_stale(refused):
                used = await self._renewed(refused)
            request.headers.pop("Authorization", None)
            if used is not None:
                self.add_bearer(request)
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
            raise NeedsAuth("the server wants somebody to sign in", tried)
        wanted = self._missing_scope(response)
        if wanted is not None:
            await self._storage.update(wanted_scope=wanted)
            raise NeedsAuth(f"the server wants a sign-in for more: {wanted}", step_up=True)

    def _missing_scope(self, response: httpx2.Response) -> str | None:
        """What was granted and what the server wants beside it, where it refuses for that reason."""
        if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
            return None
        granted = self.context.current_tokens.scope if self.context.current_tokens else None
        return union_scopes(granted, extract_scope_from_www_auth(response)) or ""

    # -- renewing ---------------------------------------------------------------------------------------------

    async def _renewed(self, refused: str | None) -> str | None:
        """The token to use instead. A new one is used whatever time it is said to last."""
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
            raise OAuthFlowError(f"the tokens cannot be renewed from here: {error.strerror}") from None
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
            raise NeedsAuth(
                "the authorization server does not know the client id of the configuration", self._stored_token
            )
        await self._storage.update(client=None, tokens=None, expires_at=None)
        raise NeedsAuth("the authorization server has forgotten us; a sign-in registers anew", self._stored_token)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        async with httpx2.AsyncClient(verify=tls_context(self._tls), timeout=_REQUEST_TIMEOUT) as client:
            return await client.send(request)


def check_passing(answer: httpx2.Response) -> None:
    """Raises OAuthFlowError for an answer that says nothing of the tokens: the endpoint is overloaded or broken."""
    if answer.status_code >= 500 or answer.status_code == 429:
        raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")
