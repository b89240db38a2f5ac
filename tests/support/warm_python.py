"""Stands in for the interpreter of a command that starts a shared server: the server is forked from the helper process
of `warm_commands`, with the arguments, environment and descriptors that this process was given. Everything else is run
by the real interpreter.
"""

import os
import sys

_SERVER = ["-P", "-m", "claude_code_mcp", "shared", "run"]
_INHERITED = (0, 1, 2, 3, 4)


def main(address: str, python: str) -> None:
    """`address` is the socket of the helper process, `python` the real interpreter."""
    arguments = sys.argv[1:]
    read_at_start = [name for name in os.environ if name.startswith("PYTHON")]
    if arguments[: len(_SERVER)] != _SERVER or read_at_start:
        os.execv(python, [python, *arguments])
    import json  # noqa: PLC0415 - only a server is worth it
    import socket  # noqa: PLC0415

    request = {
        "arguments": arguments[3:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "terminal": False,
        "interpreter": python,
    }
    body = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(body).to_bytes(8, "big")], _INHERITED)
        connection.sendall(body)
        connection.recv(8)  # its process id: it runs, and has all that it needs
