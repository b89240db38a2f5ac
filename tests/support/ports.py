"""Ports of loopback that a test may use, and nobody else gets meanwhile; addresses of clients there."""

import atexit
import socket
import sys
from itertools import count

_kept: list[socket.socket] = []
_numbers = count(256)


@atexit.register
def _release() -> None:
    for kept in _kept:
        kept.close()


def free_port() -> int:
    """A port that nobody listens on. It stays bound in this process until its end, so that the kernel gives it to
    nobody who asks for any port; a server that is told this one can listen on it, as servers set SO_REUSEADDR."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _kept.append(kept)
    port: int = kept.getsockname()[1]
    return port


def client_address() -> str:
    """An address of loopback that no other client of this process has: what a server counts by address, it counts for
    this client alone. Linux has all of them; elsewhere it is the usual one."""
    number = next(_numbers)
    return f"127.1.{number >> 8}.{number & 255}" if sys.platform == "linux" else "127.0.0.1"
