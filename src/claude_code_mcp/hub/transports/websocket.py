"""WebSockets as a transport to an MCP server: one JSON-RPC message in each text message.

The MCP SDK has no such transport. This module is imported when the first server of this type is connected.
"""

import logging
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
from .failure_reasons import status_reason
from .http_client import tls_context

_MAX_MESSAGE = 64 << 20
_CLOSE_TIMEOUT = 2.0


# The library logs the contents of frames at debug level; our logs must not contain them.
_logger = logging.getLogger(__name__)
_logger.setLevel(logging.INFO)


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
        max_size=_MAX_MESSAGE,
        open_timeout=None,
        close_timeout=_CLOSE_TIMEOUT,
        logger=_logger,
    )
    try:
        async with connecting as socket:
            messages = MessageSocket(socket, failure)
            yield CallbackInbox(messages.receive), CallbackOutbox(messages.send)
    except InvalidStatus as error:
        status = error.response.status_code
        headers = {name.lower(): value for name, value in error.response.headers.raw_items()}
        failure.reason = status_reason(status, headers, bytes(error.response.body or b""))
        if status in {401, 403}:
            failure.needs_auth = failure.reason
        raise


class MessageSocket:
    """JSON-RPC messages on an open WebSocket; text that is not a message is skipped."""

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
