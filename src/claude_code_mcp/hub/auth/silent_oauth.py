"""OAuth with stored credentials on a connection, without asking a person.

Tokens are renewed once for all processes that share them, because many authorization servers treat a reused refresh
token as stolen and revoke everything. So a renewal holds a lock across all processes, first checks whether another
process was faster, and checks again before failing. A renewal continues when its caller is cancelled: the old token is
used up by then, and the new one would be lost.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_scope_from_www_auth,
    union_scopes,
)
from mcp.shared.auth import OAuthMetadata
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from ..config_entry import OAuthConfig, TlsConfig
from ..transports.http_client import tls_context
from .credentials import Credentials, CredentialStorage
from .stored_oauth import (
    FORGOTTEN_CLIENT,
    NeedsAuth,
    StoredOAuth,
    discover,
    error_of,
)

_UNUSED_REDIRECT = "http://127.0.0.1/callback"
"""The redirect URI registered by a provider that never redirects a person."""
_REQUEST_TIMEOUT = 20.0
_MAX_RENEWAL = 45.0
"""Maximum seconds for which the lock is held; shorter than `LOCK_TIMEOUT`."""


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
        """The authorization server's metadata if it was discovered here, because the storage has none."""

    async def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: str | None = None
        if not self.context_loaded:
            async with self.context.lock:
                # Most servers need no sign-in. A server that does refuses the request, and the read failure is reported
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
            # Read now: another request may have renewed it by the time of the answer.
            tried = self._stored_token
            response = yield request  # without the lock: a long call must not block others
            if is_last or not await self._can_raise_scope(response, used):
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

    async def _can_raise_scope(self, response: httpx2.Response, used: str | None) -> bool:
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
        # Only the first request of a connection renews the token; the others find the new one.
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
        # First: if the endpoint fails, nothing is known about the tokens, which are kept.
        check_passing(answer)
        if error_of(answer) in FORGOTTEN_CLIENT:
            if self._config.client_id is not None:
                raise NeedsAuth("the authorization server does not know the configured client id", self._stored_token)
            await self._storage.update(client=None, tokens=None, expires_at=None)
            raise NeedsAuth(
                "the authorization server no longer knows this client; sign in again to register", self._stored_token
            )
        # Another program, which does not use our lock, may have been faster.
        await self.reload()
        tokens = self.context.current_tokens
        if tokens is not None and tokens.refresh_token == used:
            await self._storage.update(tokens=None, expires_at=None)
            await self.reload()  # the other program's tokens apply now
        if self._is_stale(refused) or self._usable is None:
            raise NeedsAuth("the sign-in has expired", expired)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        async with httpx2.AsyncClient(verify=tls_context(self._tls), timeout=_REQUEST_TIMEOUT) as client:
            return await client.send(request)


def check_passing(answer: httpx2.Response) -> None:
    """Raise OAuthFlowError if the endpoint is overloaded or broken: its response then says nothing about the tokens."""
    if answer.status_code >= 500 or answer.status_code == 429:
        raise OAuthFlowError(f"the token endpoint answered with HTTP {answer.status_code}")
