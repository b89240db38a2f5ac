"""The way from a sandbox without network to the model, and to nothing else: a Unix socket that Claude Code speaks HTTP
to, and that this server forwards to the model's API.

The credentials stay here. Claude Code is given placeholders, and the forwarder puts the real ones in their place, in
the head of each request and only where the placeholder was the whole of it. So a session can use the API as long as it
runs, but cannot learn the key.

Every connection carries one request: the heads of request and answer say that it is the last one, and the rest is
passed on as it comes. A connection ends when either side closes it.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ..private_files import bind_below

log = logging.getLogger(__name__)

INSIDE = "/run/model.sock"
"""Where a sandbox finds the socket."""
_ENDPOINT = "https://api.anthropic.com"
_CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_LONGEST_HEAD = 64 << 10
_CONNECT_SECONDS = 30.0
_PIECE = 64 << 10


def reachable_by_socket(environment: Mapping[str, str]) -> bool:
    """Whether Claude Code speaks to its provider through the socket in this environment."""
    return not any(environment.get(f"CLAUDE_CODE_USE_{cloud}") for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"))


class ModelSocket:
    """Forwards to the API that an environment names, with the credentials that it has."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._endpoint = urlsplit(environment.get("ANTHROPIC_BASE_URL") or _ENDPOINT)
        self._secrets = {_placeholder(name): environment[name] for name in _CREDENTIALS if environment.get(name)}
        self._names = frozenset(name for name in _CREDENTIALS if environment.get(name))
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def variables(self) -> dict[str, str]:
        """What Claude Code is started with instead of the address and the credentials."""
        inside = self._endpoint._replace(scheme="http").geturl()
        placeholders = {name: _placeholder(name) for name in self._names}
        return {**placeholders, "ANTHROPIC_BASE_URL": inside, "ANTHROPIC_UNIX_SOCKET": INSIDE}

    async def open(self, directory: Path) -> Path:
        """Listens in this directory, until `close`; returns the path of the socket. OSError if that is not possible."""
        if self._endpoint.scheme == "https":
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads all certificates of the system
        listening = socket.socket(socket.AF_UNIX)
        try:
            bind_below(listening, directory, "model.sock")
            self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=_LONGEST_HEAD)
        except BaseException:
            listening.close()
            raise
        return directory / "model.sock"

    def close(self) -> None:
        """Takes no more requests, and drops those that run."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.warning("a request of a session to the model could not be forwarded: %s", error or type(error).__name__)
        except asyncio.CancelledError:
            pass  # the session is gone
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        port = self._endpoint.port or (443 if self._tls is not None else 80)
        connecting = asyncio.open_connection(self._endpoint.hostname, port, ssl=self._tls)
        remote_reader, remote_writer = await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        try:
            remote_writer.write(forwarded_head(head, self._secrets))
            there, back = _pump(reader, remote_writer), _answer(remote_reader, writer)
            transfers = [asyncio.ensure_future(there), asyncio.ensure_future(back)]
            try:
                await asyncio.wait(transfers, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for transfer in transfers:
                    transfer.cancel()
                await asyncio.wait(transfers)
        finally:
            remote_writer.close()


async def _answer(remote: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # it was closed, or is no answer
        writer.write(closing(await remote.readuntil(b"\r\n\r\n")))
        await _pump(remote, writer)


def forwarded_head(head: bytes, secrets: Mapping[str, str]) -> bytes:
    """The head of a request with the credentials in place of their placeholders, and the connection to be closed."""
    lines = closing(head).split(b"\r\n")
    return b"\r\n".join(_with_secret(line, secrets) for line in lines)


def closing(head: bytes) -> bytes:
    """The head of a request or an answer that is the last one of its connection."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


def _with_secret(line: bytes, secrets: Mapping[str, str]) -> bytes:
    name, _, value = line.partition(b":")
    for placeholder, secret in secrets.items():
        if name.lower() == b"x-api-key" and value.strip() == placeholder.encode():
            return name + b": " + secret.encode()
        if name.lower() == b"authorization" and value.strip() == b"Bearer " + placeholder.encode():
            return name + b": Bearer " + secret.encode()
    return line


def _placeholder(name: str) -> str:
    return f"sk-ant-placeholder-{name.lower().replace('_', '-')}"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
