"""What systemd hands to a service and is told by it: the socket that it listens on, and that it is ready.

A server that is started for a socket (`serve --http systemd`) takes over the one that systemd has bound. Clients that
come while it starts or is restarted wait there and are not refused. All of this is in the environment, and is taken
out of it: sessions and MCP servers must not speak for the service.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

from ...core.errors import InvalidArgument

ADDRESS = "systemd"
"""What stands for the socket of systemd where an address is expected."""
_FIRST = 3
"""The descriptor of the first socket that is handed over."""


def inherited_listener(environment: MutableMapping[str, str] | None = None) -> socket.socket:
    """The listening socket that this process was started for. InvalidArgument if there is none, or several, or one that
    no client of HTTP could come to."""
    environment = os.environ if environment is None else environment
    handed_over = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    # The number says for whom they are: a process in between may have passed the variables on, and not the sockets.
    if handed_over["LISTEN_PID"] != str(os.getpid()) or handed_over["LISTEN_FDS"] != "1":
        raise InvalidArgument(
            f"--http {ADDRESS}: systemd passed no socket or more than one. Start it with a socket unit that has one "
            "`ListenStream=`, as in deploy/systemd.",
            field="http",
        )
    os.set_inheritable(_FIRST, False)
    listener = socket.socket(fileno=_FIRST)
    if listener.type != socket.SOCK_STREAM or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.close()
        raise InvalidArgument(f"--http {ADDRESS}: `ListenStream=` must be an address with a port.", field="http")
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Notifier:
    """Tells systemd how the service stands; does nothing where it was not started by systemd."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.pop("NOTIFY_SOCKET", "")
        # A name that begins with @ is no file, and for the kernel it begins with a zero.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def send(self, *states: str) -> None:
        """Such as `READY=1`. Nobody depends on it here: a failure is the service manager's to notice."""
        if self._address and hasattr(socket, "AF_UNIX"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
                notifying.sendto("\n".join(states).encode(), self._address)
