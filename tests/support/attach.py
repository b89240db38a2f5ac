"""A program that has a warm helper run `claude-code-mcp` on its own descriptors, and ends as that ends.

Started as `python -I -S attach.py SOCKET ARGUMENT...`, it costs twenty milliseconds instead of half a second. Signals
to end are passed on; SIGKILL ends only this program, and the command then sees its input end. Whoever wants to kill the
command finds its process id in the file that the variable ATTACHED_PID_FILE names.
"""

import json
import os
import signal
import socket
import sys
from types import FrameType

_LENGTH = 8
"""Bytes of a number, as `warm_commands` has it."""


def main() -> None:
    address, *arguments = sys.argv[1:]
    pid_file = os.environ.pop("ATTACHED_PID_FILE", None)
    request = json.dumps([arguments, dict(os.environ), os.getcwd(), False]).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [len(request).to_bytes(_LENGTH, "big")], (0, 1, 2))
    connection.sendall(request)
    for descriptor in (0, 1, 2):
        os.close(descriptor)  # so that the command alone decides when they are closed
    pid = int.from_bytes(connection.recv(_LENGTH), "big", signed=True)

    if pid_file is not None:
        with open(pid_file, "w", encoding="ascii") as file:
            file.write(str(pid))

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = int.from_bytes(connection.recv(_LENGTH), "big", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
