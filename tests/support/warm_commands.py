"""Commands as processes of their own that need not load: each is forked from a process that has imported everything.

A command that is run to its end costs mostly imports. Here a helper process imports once and then forks for every
command: the child gets the arguments, environment, directory and pipes that it would have in a shell, runs the entry
point and exits as usual. Tests of the start itself, of terminals and of signals start the real program instead.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

LAZY = ("httpx2", "keyring", "mcp.client.sse", "prompt_toolkit", "uvicorn", "websockets.asyncio.client")
"""Packages that commands import when they need them."""
PATIENCE = 90.0
"""Seconds after which a command counts as one that does not end."""
_LENGTH = 8


def run(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """`claude-code-mcp` with these arguments and `text` on its standard input, to its end; started anew where the
    environment has variables that Python itself reads when it starts."""
    read_at_start = [name for name in environment if name.startswith("PYTHON") and name != "PYTHON_KEYRING_BACKEND"]
    if os.name == "posix" and not read_at_start:
        return helper().run(arguments, environment, cwd, text)
    command = [sys.executable, "-m", "claude_code_mcp", *arguments]
    given = {"env": environment, "cwd": cwd, "input": text, "timeout": PATIENCE}
    return subprocess.run(command, capture_output=True, text=True, check=False, **given)  # type: ignore[call-overload,no-any-return]


@functools.cache
def helper() -> "WarmCommands":
    """The one of this process, started when it is first needed."""
    return WarmCommands()


def close() -> None:
    """Ends the helper process, if there is one."""
    if helper.cache_info().currsize:
        helper().close()
        helper.cache_clear()


def command() -> list[str]:
    """What to start in place of `claude-code-mcp`, where somebody else starts it: with these words and its arguments, a
    program that has the helper run it. Its process id is not that of the command."""
    if os.name != "posix":
        return [sys.executable, "-m", "claude_code_mcp"]
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("attach.py")), helper().address]


class WarmCommands:
    """The helper process; it ends with `close`, or with the process that has made it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="warm-")
        self.address = str(Path(self._directory.name) / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(64)
        kept = ("PATH", "LANG", "LC_ALL", "TEST_RUN_OF_THIS_SUITE")
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            env={name: os.environ[name] for name in kept if name in os.environ},
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,  # its end is the sign to stop
            stdout=subprocess.PIPE,  # pipes, as the commands have them
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
        )
        listener.close()

    def close(self) -> None:
        self._process.communicate()
        self._directory.cleanup()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """`claude-code-mcp` with these arguments and `text` on its standard input, to its end."""
        process = self.open(arguments, environment, cwd)
        try:
            output, errors = process.communicate(text.encode())
            return subprocess.CompletedProcess(list(arguments), process.wait(), output.decode(), errors.decode())
        finally:
            process.kill()

    def open(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> "WarmProcess":
        """The command, running on three pipes."""
        (their_input, our_input), (our_output, their_output), (our_errors, their_errors) = (os.pipe() for _ in range(3))
        streams = (their_input, their_output, their_errors)
        process = self.start(arguments, environment, cwd, streams)
        for descriptor in streams:
            os.close(descriptor)
        process.stdin, process.stdout = os.fdopen(our_input, "wb"), os.fdopen(our_output, "rb")
        process.stderr = os.fdopen(our_errors, "rb")
        return process

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path | None,
        streams: tuple[int, int, int],
        terminal: bool = False,
    ) -> "WarmProcess":
        """The command, running on these descriptors, of which the caller closes its own copies; with `terminal`, they
        are one that becomes the command's own."""
        request = json.dumps([list(arguments), dict(environment), str(cwd or Path.cwd()), terminal]).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        socket.send_fds(connection, [len(request).to_bytes(_LENGTH, "big")], streams)
        connection.sendall(request)
        return WarmProcess(connection)


class WarmProcess:
    """One command: what `subprocess.Popen` tells of a child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self.pid = self._number(PATIENCE)

    def _number(self, timeout: float) -> int:
        self._connection.settimeout(timeout)
        data = self._connection.recv(_LENGTH)
        assert data, "the helper process is gone"
        return int.from_bytes(data, "big", signed=True)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code, or minus the signal that has ended it."""
        if self.returncode is None:
            try:
                self.returncode = self._number(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired("claude-code-mcp", timeout) from None
            self._connection.close()
        return self.returncode

    def communicate(self, data: bytes = b"", timeout: float = PATIENCE) -> tuple[bytes, bytes]:
        """Writes this, closes the input, and reads what else is said until the command ends."""
        assert self.stdin is not None
        assert self.stdout is not None
        assert self.stderr is not None
        reading = [_Reader(self.stdout), _Reader(self.stderr)]
        with contextlib.suppress(BrokenPipeError), self.stdin:  # it need not read all of it
            self.stdin.write(data)
        output, errors = (reader.everything() for reader in reading)
        self.wait(timeout)
        return output, errors

    def poll(self) -> int | None:
        readable = self.returncode is None and select.select([self._connection], [], [], 0)[0]
        return self.wait() if readable else self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Nothing of it is left afterwards."""
        self.send_signal(signal.SIGKILL)
        self.wait()


class _Reader(threading.Thread):
    """Reads a pipe to its end, however late the other is read."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._read = b""
        self.start()

    def run(self) -> None:
        with self._pipe:
            self._read = self._pipe.read()

    def everything(self) -> bytes:
        self.join(PATIENCE)
        assert not self.is_alive(), "the command does not end"
        return self._read


# -- the helper process --------------------------------------------------------------------------------------------


def _import_everything() -> None:
    from claude_code_mcp import commands  # noqa: PLC0415 - the tests themselves do not need it

    for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    for name in LAZY:
        importlib.import_module(name)


def _next_command(listener: socket.socket) -> list[str] | None:
    """Returns in a new process for each command, with its arguments; in this one, None when it is to stop."""
    while True:
        readable, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in readable:
            return None
        connection, _ = listener.accept()
        while _reaped():
            pass
        if os.fork() == 0:  # the parent of the command, which tells how it ended
            listener.close()
            command = os.fork()
            if command == 0:
                return _take_over(connection)
            connection.sendall(command.to_bytes(_LENGTH, "big", signed=True))
            code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
            connection.sendall(code.to_bytes(_LENGTH, "big", signed=True))
            os._exit(0)
        connection.close()


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _take_over(connection: socket.socket) -> list[str]:
    """Makes this process what a shell would have started; the value is its arguments."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    body = b""
    while len(body) < int.from_bytes(head, "big"):
        body += connection.recv(1 << 16)
    connection.close()
    arguments, environment, directory, terminal = json.loads(body)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if terminal:
        import fcntl  # noqa: PLC0415 - this module is imported where there are none, too
        import termios  # noqa: PLC0415

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as Python does it on a terminal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    return list(arguments)


def main() -> int:
    """Serves on the socket whose descriptor is the argument."""
    _import_everything()
    gc.freeze()  # so that no command looks through it again
    arguments = _next_command(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return 0
    from claude_code_mcp.cli import main as command  # noqa: PLC0415

    sys.argv = ["claude-code-mcp", *arguments]
    return command()


if __name__ == "__main__":
    sys.exit(main())
