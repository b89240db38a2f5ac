"""A server over a WebSocket, which the SDK has no transport for: one JSON-RPC message in each text message."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
from mcp.shared.message import SessionMessage
from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from ..config_entry import TlsConfig
from ..streams import CallbackInbox, CallbackOutbox, Streams, TransportFailure, parse_message, render_message
from .http import tls_context

_LARGEST_MESSAGE = 64 << 20
_CLOSE_TIMEOUT = 2.0


@asynccontextmanager
async def websocket(
    url: str, headers: Mapping[str, str], tls: TlsConfig, failure: TransportFailure
) -> AsyncIterator[Streams]:
    url = url.replace("http", "ws", 1) if url.startswith("http") else url
    connecting = connect(
        url,
        additional_headers=dict(headers),
        subprotocols=[Subprotocol("mcp")],
        ssl=tls_context(tls) if url.startswith("wss:") else None,
        max_size=_LARGEST_MESSAGE,
        open_timeout=None,
        close_timeout=_CLOSE_TIMEOUT,
    )
    try:
        async with connecting as socket:
            messages = MessageSocket(socket, failure)
            yield CallbackInbox(messages.receive), CallbackOutbox(messages.send)
    except InvalidStatus as error:
        if error.response.status_code in {401, 403}:
            failure.needs_auth = f"HTTP {error.response.status_code}: the server wants other credentials"
        raise


class MessageSocket:
    """JSON-RPC messages on an open WebSocket; text that is no message is skipped."""

    def __init__(self, socket: Connection, failure: TransportFailure) -> None:
        self._socket = socket
        self._failure = failure

    async def receive(self) -> SessionMessage:
        try:
            while True:
                message = parse_message(await self._socket.recv())
                if message is not None:
                    return message
        except ConnectionClosed as error:
            self._failure.reason = f"the WebSocket closed: {error}"
            raise anyio.EndOfStream from None

    async def send(self, message: SessionMessage) -> None:
        try:
            await self._socket.send(render_message(message))
        except ConnectionClosed:
            raise anyio.BrokenResourceError from None
