"""Sends requests to addresses chosen by others, without reaching what only this server can reach. The connection goes
to exactly the address that was checked (`server/outbound_urls.py`). Redirects and proxies of the environment are not
used, and only the head of the answer is read."""

import asyncio
import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from ...server.outbound_urls import NotPublic, check_url, looked_up

_TIMEOUT = 15.0


class SendFailed(Exception):
    """The request got no answer; the text says why."""


@dataclass(frozen=True, slots=True)
class PushReply:
    """A receiver's answer."""

    status: int
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, private: bool, timeout: float = _TIMEOUT
) -> PushReply:
    """Sends a request. Raises SendFailed without an answer in time, or if the address is not public and `private` is
    not set; InvalidArgument for an invalid address."""
    parts = check_url(url, private=private)
    try:
        async with asyncio.timeout(timeout):
            address = await looked_up(parts, private)
            request = httpx2.Request(
                "POST",
                httpx2.URL(url).copy_with(host=address),
                headers={"Host": parts.netloc, "User-Agent": "claude-code-mcp", "Connection": "close", **headers},
                content=body,
                # The certificate is checked against the name, although the connection goes to the address.
                extensions={"sni_hostname": parts.hostname},
            )
            # A bare transport: a client would log the address, which is a secret, and use the environment's proxies.
            # Created in a thread, because the first use reads every certificate that this machine trusts.
            async with await asyncio.to_thread(_transport) as transport:
                response = await transport.handle_async_request(request)
                await response.aclose()
    except TimeoutError:
        raise SendFailed("it timed out") from None
    except NotPublic as problem:
        raise SendFailed(str(problem)) from None
    except (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        cause: BaseException = error
        while (earlier := cause.__cause__ or cause.__context__) is not None:
            cause = earlier  # the first error names the cause: a refused connection or an invalid certificate
        raise SendFailed(str(cause) or type(cause).__name__) from None
    wait = response.headers.get("retry-after", "")
    seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 8 else None
    return PushReply(response.status_code, seconds)


def _transport() -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(verify=_trust(), trust_env=False)


@functools.cache
def _trust() -> ssl.SSLContext:
    """The trusted certificates for receivers, read once. Blocks on the disk."""
    return ssl.create_default_context()
