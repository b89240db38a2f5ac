"""Sends reports to the server that shows the terminals, with a token or an OAuth sign-in."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
from mcp.client.auth import OAuthFlowError

from ...core import json_text
from ...core.errors import PermissionDenied, UpstreamUnavailable
from ...core.private_files import private_directory
from ...hub.auth.credentials import CredentialStorage, FileVault
from ...hub.auth.sign_in import sign_in
from ...hub.auth.silent_oauth import Renewals, SilentOAuth
from ...hub.config_entry import HttpConfig, OAuthConfig, TlsConfig
from ...hub.transports.http_client import tls_context
from .forwarding_messages import PATH, POLL_SECONDS, Report, ReportReply
from .forwarding_target import MCP_PATH, ForwardingPlace, ForwardingTarget

_MAX_REPLY = 20 << 20
_CONNECT_TIMEOUT = 10.0
_READ_TIMEOUT = POLL_SECONDS + 15.0
_SEND_TIMEOUT = 180.0
"""For a report and its answer as a whole: a server may send a byte now and then."""
_SIGN_IN_TIMEOUT = 300.0
_UNAUTHORIZED = 401


def storage(place: ForwardingPlace, target: ForwardingTarget) -> CredentialStorage:
    """Where the tokens of a sign-in are stored."""
    return CredentialStorage(FileVault(place.credentials), f"terminals {target.url}")


async def sign_in_at(place: ForwardingPlace, target: ForwardingTarget, show: Callable[[str], Awaitable[None]]) -> None:
    """Sign in with a browser, and store the tokens. Raises PermissionDenied."""
    config = HttpConfig(type="http", url=f"{target.url}{MCP_PATH}")
    await asyncio.to_thread(private_directory, place.directory)
    try:
        needed = await sign_in(config, storage(place, target), show, _SIGN_IN_TIMEOUT)
    except OAuthFlowError as error:
        raise PermissionDenied(f"Signing in at {target.host} failed: {error}") from None
    if not needed:
        raise PermissionDenied(f"{target.host} has no sign-in; pass a token.")


class ForwardingConnection:
    """Sends reports to a target. An asynchronous context manager."""

    def __init__(self, place: ForwardingPlace, target: ForwardingTarget) -> None:
        self._target = target
        self._storage = storage(place, target) if target.token is None else None
        self._renewals = Renewals()
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> "ForwardingConnection":
        headers, auth = {}, None
        if self._storage is not None:
            url = f"{self._target.url}{MCP_PATH}"
            auth = SilentOAuth(url, OAuthConfig(), self._storage, TlsConfig(), self._renewals)
        else:
            headers["Authorization"] = f"Bearer {self._target.token}"
        # Not compressed: a small reply could become very large.
        headers |= {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        # In a thread: the first use reads every certificate that this machine trusts.
        verify = await asyncio.to_thread(tls_context, TlsConfig())
        timeout = httpx2.Timeout(_CONNECT_TIMEOUT, read=_READ_TIMEOUT, write=_READ_TIMEOUT)
        # Redirects are errors: they could send the token elsewhere.
        self._client = httpx2.AsyncClient(headers=headers, auth=auth, verify=verify, timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.aclose()
        await self._renewals.done()

    async def send(self, report: Report) -> ReportReply:
        """The answer to a report. Raises PermissionDenied if the server does not accept the token, and
        UpstreamUnavailable if there is no usable answer."""
        assert self._client is not None
        host = self._target.host
        try:
            # In threads: both may have megabytes.
            content = await asyncio.to_thread(lambda: json_text.encode(report.as_json()))
            async with (
                asyncio.timeout(_SEND_TIMEOUT),
                self._client.stream("POST", f"{self._target.url}{PATH}", content=content) as response,
            ):
                if response.status_code == _UNAUTHORIZED:
                    raise PermissionDenied(f"{host} does not accept the token.")
                if response.status_code != httpx2.codes.OK:
                    raise UpstreamUnavailable(f"{host} does not accept the report: HTTP {response.status_code}.")
                body = bytearray()
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > _MAX_REPLY:
                        raise UpstreamUnavailable(f"The answer of {host} is too long.")
            return await asyncio.to_thread(lambda: ReportReply.read(json_text.decode(bytes(body))))
        except OAuthFlowError as error:
            raise PermissionDenied(f"{host} does not accept the sign-in: {error}.") from None
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            raise UpstreamUnavailable(f"{host} cannot be reached: {str(error) or type(error).__name__}.") from None
        except (ValueError, RecursionError):
            raise UpstreamUnavailable(f"The answer of {host} is not valid.") from None
