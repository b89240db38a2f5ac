"""The systemd protocols: socket activation and readiness notification.

A socket-activated server (`serve --http systemd`) uses the socket that systemd bound. Clients that connect while it
starts or restarts wait there and are not refused. The variables are removed from the environment: sessions and MCP
servers must not act as the service.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

from ...core.errors import InvalidArgument

ADDRESS = "systemd"
"""The value of `--http` that selects systemd's socket."""
_FIRST = 3
"""The descriptor of the first passed socket."""


def inherited_listener(environment: MutableMapping[str, str] | None = None) -> socket.socket:
    """The listening socket that this process was started for. InvalidArgument if there is none, more than one, or one
    that HTTP clients cannot reach."""
    environment = os.environ if environment is None else environment
    handed_over = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    # Compare the pid: an intermediate process may have passed on the variables but not the sockets.
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
    """Reports the service's state to systemd; a no-op if it was not started by systemd."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.pop("NOTIFY_SOCKET", "")
        # A name that starts with @ is an abstract socket, which starts with a zero byte.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def send(self, *states: str) -> None:
        """Send states such as `READY=1`. Failures are ignored, because the service manager notices a missing state."""
        if self._address and hasattr(socket, "AF_UNIX"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
                notifying.sendto("\n".join(states).encode(), self._address)
