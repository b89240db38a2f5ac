"""Ports of loopback that a test may use, and nobody else gets meanwhile."""

import atexit
import socket

_kept: list[socket.socket] = []


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
