"""The first program in a sandbox whose only network is the proxy: opens the proxy's port there and passes it to the
server.

A socket belongs to the network it was created in. This program creates a listening socket on the sandbox's loopback,
sends it to the server through a Unix socket, waits until the server has it, and becomes the sandbox's command. The
server then accepts connections from inside, without a process in between. Run as a script, by path, with the standard
library only. Arguments: the path of the Unix socket, the port, and the command.
"""

import os
import socket
import sys

BACKLOG = 128


def main() -> None:
    """Exits with a message and code 1 if the server does not take the socket; then the command does not run."""
    path, port, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect(path)
        socket.send_fds(channel, [b"L"], [listener.fileno()])
        # Waits, so that the command does not start before the proxy is reachable: its first request would fail.
        if channel.recv(1) != b"K":
            sys.exit("the server's proxy could not open its port")
    listener.close()
    os.execv(command[0], command)  # noqa: S606 - it is what the sandbox is for


if __name__ == "__main__":
    main()
