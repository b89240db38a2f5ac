"""Remote servers over HTTP: streamable, or with server-sent events as before 2025."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ..configuration import HttpConfig, SseConfig, SseIdeConfig
from ..streams import Streams, Trouble
from .carrier import Carrier

_LARGEST_EVENT = 64 << 20


@asynccontextmanager
async def http(
    config: HttpConfig, headers: Mapping[str, str], auth: httpx2.Auth | None, trouble: Trouble
) -> AsyncIterator[Streams]:
    async with (
        Carrier(trouble, headers, config.tls, auth) as carrier,
        streamable_http_client(config.url, http_client=carrier, max_sse_event_size=_LARGEST_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(
    config: SseConfig | SseIdeConfig,
    own_headers: Mapping[str, str],
    own_auth: httpx2.Auth | None,
    trouble: Trouble,
    lose: Callable[[], None],
) -> AsyncIterator[Streams]:
    """Answers come on the one stream, so a refused POST leaves its call waiting for ever unless all of it ends."""

    def carrier(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> Carrier:
        return Carrier(trouble, own_headers, config.tls, own_auth, on_refusal=lose)

    async with sse_client(config.url, httpx_client_factory=carrier) as streams:
        yield streams
