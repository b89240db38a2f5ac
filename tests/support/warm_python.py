"""Programs that stand in for others, so that what they would load is forked from the helper process of `warm_commands`:
the interpreter of a command that starts a shared server, and `claude-code-mcp` itself for clients that start it.

The process that is forked gets the arguments, environment and descriptors that this one was given.
"""

import json
import os
import signal
import socket
import sys

_SERVER = ["-P", "-m", "claude_code_mcp", "shared", "run"]
_INHERITED = (0, 1, 2, 3, 4)
_NOT_READ_AT_START = ("PYTHON_KEYRING_BACKEND", "PYTHONUNBUFFERED")
PID_FILE = "TEST_PID_FILE"
"""The variable with the path of a file for the process id of the program, which is not that of its stand-in."""


def interpreter(address: str, python: str) -> None:
    """Starts a shared server, which nobody waits for; everything else is left to the real interpreter, `python`.
    `address` is the socket of the helper process."""
    arguments = sys.argv[1:]
    if arguments[: len(_SERVER)] != _SERVER or _read_at_start():
        os.execv(python, [python, *arguments])
    _fork(address, python, arguments[3:], _INHERITED)


def program(address: str, python: str) -> None:
    """Runs `claude-code-mcp` and ends as it does; signals are passed on."""
    arguments = sys.argv[1:]
    if _read_at_start():
        os.execv(python, [python, "-m", "claude_code_mcp", *arguments])
    pid_file = os.environ.pop(PID_FILE, None)
    connection, pid = _fork(address, python, arguments, (0, 1, 2))
    if pid_file is not None:
        with open(pid_file, "w", encoding="ascii") as file:
            file.write(str(pid))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # so that the other end sees when the program closes its own
    code = int.from_bytes(connection.recv(8), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _read_at_start() -> bool:
    """Whether the environment has variables that Python itself reads when it starts."""
    return any(name.startswith("PYTHON") and name not in _NOT_READ_AT_START for name in os.environ)


def _fork(address: str, python: str, arguments: list[str], descriptors: tuple[int, ...]) -> tuple[socket.socket, int]:
    """The connection on which the exit code will come, and the process, which has all that it needs."""
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "terminal": False,
        "interpreter": python,
    }
    body = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [len(body).to_bytes(8, "big")], descriptors)
    connection.sendall(body)
    return connection, int.from_bytes(connection.recv(8), "big", signed=True)
