"""The way out of one sandbox: what the sandbox is given so that its programs find the proxy, and the proxy itself.

The sandbox has no network but its own loopback. `start_in_sandbox` runs first in it, opens a port there and sends the
listening socket here, through a Unix socket that takes one connection and is gone then. It runs before anything of the
session does, on the interpreter of this server, which the sandbox is given to read.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Mapping
from pathlib import Path

from ..model.network import CERTIFICATES, SOCKET, STARTER, Audit, NetworkRules
from ..private_files import bind_below
from . import start_in_sandbox
from .http_exchange import PIECE
from .interception import RunAuthority
from .proxy import ProxyNotes, SandboxProxy

log = logging.getLogger(__name__)

_TAKEN = b"K"


class WayOut:
    """The proxy of one process in a sandbox, from `open` to `close`."""

    def __init__(
        self,
        rules: NetworkRules,
        environment: Mapping[str, str],
        authority: RunAuthority | None,
        audit: Audit,
        who: str,
        session_id: str | None,
    ) -> None:
        self._rules = rules
        self._authority = authority
        self.proxy = SandboxProxy(rules, environment, authority, ProxyNotes(audit, who, session_id))
        self._loop = asyncio.get_running_loop()
        self._door: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Future[None] | None = None
        self._closed = False

    async def open(self, directory: Path) -> list[tuple[str, str]]:
        """Waits for the sandbox from now on. Returns what it is to be given, as pairs of a path here and one there.
        Raises OSError."""
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            door.setblocking(False)
            bind_below(door, directory, "network.sock")
            door.listen(1)
            visible = [(str(directory / "network.sock"), SOCKET), (str(Path(start_in_sandbox.__file__)), STARTER)]
            if self._rules.credentials:
                assert self._authority is not None
                bundle = directory / "network-certificates.pem"
                content = await asyncio.to_thread(self._authority.bundle)
                await asyncio.to_thread(bundle.write_bytes, content)
                visible.append((str(bundle), CERTIFICATES))
        except BaseException:
            door.close()
            raise
        self._door = door
        self._loop.add_reader(door.fileno(), self._arrived)
        return visible

    def close(self) -> None:
        """Ends every connection; nothing is accepted any more."""
        # First: `_listen` may be about to finish, and must not report a port as open that is being closed.
        self._closed = True
        self._close_door()
        self._close_channel()
        if self._opening is not None:
            self._opening.cancel()
        if self._server is not None:
            self._server.close()
        self.proxy.close()

    # -- the port of the sandbox ----------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """Accepts the connection of the sandbox, and closes the door: no second connection is accepted."""
        assert self._door is not None
        try:
            channel, _ = self._door.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("the proxy of a sandbox cannot be opened: %s", error)
            self._close_door()
            return
        # At once: commands of the session reach the same path, and only the first connection is from before them.
        self._close_door()
        channel.setblocking(False)
        self._channel = channel
        self._loop.add_reader(channel.fileno(), self._received)

    def _received(self) -> None:
        assert self._channel is not None
        try:
            _, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            descriptors = []
        self._loop.remove_reader(self._channel.fileno())
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if len(listeners) == 1 and _is_listening(listeners[0]):
            self._opening = asyncio.ensure_future(self._listen(listeners[0]))
        else:
            for listener in listeners:
                listener.close()
            self._close_channel()

    async def _listen(self, listener: socket.socket) -> None:
        try:
            listener.setblocking(False)
            self._server = await asyncio.start_server(self.proxy.connected, sock=listener, limit=PIECE)
        except OSError as error:
            log.warning("the proxy of a sandbox cannot be opened: %s", error)
            listener.close()
        else:
            if self._channel is not None and not self._closed:
                with contextlib.suppress(OSError):  # the sandbox is gone
                    self._channel.send(_TAKEN)
        self._close_channel()

    def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            self._loop.remove_reader(door.fileno())
            door.close()

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.remove_reader(channel.fileno())
            channel.close()


def _is_listening(listener: socket.socket) -> bool:
    is_stream = listener.family == socket.AF_INET and listener.type == socket.SOCK_STREAM
    return is_stream and bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
