"""Commands as processes of their own that need not load: each is forked from a process that has imported everything.

A command that is run to its end costs mostly imports. Here a helper process imports once and then forks for every
command: the child gets the arguments, environment, directory and pipes that it would have in a shell, runs the entry
point, and ends with its exit code, without taking apart everything that is imported. Tests of the start itself, of
terminals and of signals start the real program instead.

A command whose environment has WARM_SERVERS starts a shared server, if it has to, in the same way, and there is a
`program` for clients that start one: see `warm_python.py`.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
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
from typing import IO, Any, NoReturn

from tests.support import tls_context, tool_schemas
from tests.support.waiting import HANG_SECONDS

LAZY = (
    "claude_code_mcp.app",
    "claude_code_mcp.server.server",
    "claude_code_mcp.server.transports.http",
    "claude_code_mcp.serving",
    "claude_code_mcp.plugins.console.console",
    "httpx2",
    "keyring",
    "mcp.client.sse",
    "prompt_toolkit",
    "uvicorn",
    "websockets.asyncio.client",
)
"""Packages that commands import when they need them."""
OF_A_FLEET = ("claude_code_mcp.plugins.fleet.app", "claude_code_mcp.plugins.fleet.host")
"""The same, where the extra `fleet` is installed."""
PATIENCE = HANG_SECONDS
WARM_SERVERS = "TEST_WARM_SERVERS"
"""The variable that makes a command fork the shared server that it starts; the command itself never sees it."""
HELD = "TEST_LOADING_IS_HELD"
"""The variable with a FIFO: a server on stdio is loaded when a byte can be read from it, and greets until then."""
_STOP_SECONDS = 30
_ENCODING = "PYTHONIOENCODING"
_UNBUFFERED = "PYTHONUNBUFFERED"
_NOT_READ_AT_START = ("PYTHON_KEYRING_BACKEND", _ENCODING, _UNBUFFERED)
"""Read later, or easily done after the start."""
_LENGTH = 8
RARELY = (50_000, 20, 20)
"""After how many new objects Python looks for garbage, here and in the tests: by default it looks so often that what
only reads and compares takes a sixth longer."""


def run(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """`claude-code-mcp` with these arguments and `text` on its standard input, to its end; started anew where the
    environment has variables that Python itself reads when it starts."""
    read_at_start = [name for name in environment if name.startswith("PYTHON") and name not in _NOT_READ_AT_START]
    if os.name == "posix" and not read_at_start:
        return helper().run(arguments, environment, cwd, text)
    command = [sys.executable, "-m", "claude_code_mcp", *arguments]
    given = {"env": environment, "cwd": cwd, "input": text, "timeout": PATIENCE}
    return subprocess.run(command, capture_output=True, text=True, check=False, **given)  # type: ignore[call-overload,no-any-return]


def program() -> str:
    """The path of `claude-code-mcp` for a client that starts it."""
    return helper().program if os.name == "posix" else str(Path(sys.executable).parent / "claude-code-mcp")


@functools.cache
def helper() -> "WarmCommands":
    """The one of this process, started when it is first needed."""
    return WarmCommands()


def close() -> None:
    """Ends the helper process, if there is one."""
    if helper.cache_info().currsize:
        helper().close()
        helper.cache_clear()


class WarmCommands:
    """The helper process; it ends with `close`, or with the process that has made it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="warm-")
        self._address = str(Path(self._directory.name) / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen(64)
        self._python = self._stand_in("python", "interpreter")
        self.program = str(self._stand_in("claude-code-mcp", "program"))
        """An executable for clients that start the program themselves."""
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

    def _stand_in(self, name: str, function: str) -> Path:
        """An executable that runs a function of `warm_python`."""
        path = Path(self._directory.name) / name
        start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import warm_python"
        run = f"warm_python.{function}({self._address!r}, {sys.executable!r})"
        path.write_text(f"#!{sys.executable} -IS\n{start}\n{run}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def close(self) -> None:
        """Ends the helper. Its output is not read to the end: a command that a test has left running holds the pipe."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None, text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """`claude-code-mcp` with these arguments and `text` on its standard input, to its end."""
        process = self.open(arguments, environment, cwd)
        try:
            output, errors = process.communicate(text.encode())
            encoding = environment.get(_ENCODING, "utf-8")
            said, complained = output.decode(encoding), errors.decode(encoding)
            return subprocess.CompletedProcess(list(arguments), process.wait(), said, complained)
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
        request = {"arguments": list(arguments), "environment": dict(environment), "directory": str(cwd or Path.cwd())}
        interpreter = str(self._python) if WARM_SERVERS in environment else sys.executable
        body = json.dumps({**request, "terminal": terminal, "interpreter": interpreter}).encode()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        socket.send_fds(connection, [len(body).to_bytes(_LENGTH, "big")], streams)
        connection.sendall(body)
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
        if not self.stdin.closed:
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

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Nothing of it is left afterward."""
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
    from claude_code_mcp import cli as commands  # noqa: PLC0415 - the tests themselves do not need it

    for module in pkgutil.walk_packages(commands.__path__, f"{commands.__name__}."):
        importlib.import_module(module.name)
    for name in (*LAZY, *(OF_A_FLEET if importlib.util.find_spec("nats") else ())):
        importlib.import_module(name)
    tls_context.share()
    tool_schemas.share()
    tool_schemas.make_all()


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
            with contextlib.suppress(ConnectionError):  # nobody waits for a server
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
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH, 5)
    body = b""
    while len(body) < int.from_bytes(head, "big"):
        body += connection.recv(1 << 16)
    connection.close()
    request = json.loads(body)
    environment: dict[str, str] = request["environment"]
    for number, descriptor in enumerate(_out_of_the_way(descriptors)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["terminal"]:
        import fcntl  # noqa: PLC0415 - this module is imported where there are none, too
        import termios  # noqa: PLC0415

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as Python does it on a terminal
    elif len(descriptors) > 3:
        os.setsid()  # a server that is nobody's child
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    environment.pop(WARM_SERVERS, None)
    if fifo := environment.pop(HELD, None):
        _hold_loading(fifo)
    for stream in (sys.stdin, sys.stdout, sys.stderr) if _ENCODING in environment else ():
        stream.reconfigure(encoding=environment[_ENCODING])  # type: ignore[union-attr]
    for stream in (sys.stdout, sys.stderr) if environment.get(_UNBUFFERED) else ():
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # whole lines, at once
    sys.executable = request["interpreter"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["directory"])
    return list(request["arguments"])


def _hold_loading(fifo: str) -> None:
    from claude_code_mcp.cli import main as cli  # noqa: PLC0415 - the tests themselves do not need it

    load = cli._load

    @functools.cache
    def held() -> None:
        with open(fifo, "rb", buffering=0) as gate:
            gate.read(1)

    def load_later() -> Any:
        held()
        return load()

    cli._load = load_later


def _out_of_the_way(descriptors: list[int]) -> list[int]:
    """The same files under numbers that none of them is to get."""
    import fcntl  # noqa: PLC0415 - this module is imported where there are none, too

    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return moved


def main() -> int:
    """Serves on the socket whose descriptor is the argument."""
    gc.disable()
    _import_everything()
    gc.freeze()  # so that no command looks through it again
    gc.set_threshold(*RARELY)
    gc.enable()
    arguments = _next_command(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return 0
    from claude_code_mcp.cli.main import main as command  # noqa: PLC0415

    sys.argv = ["claude-code-mcp", *arguments]
    try:
        code = command()
    except SystemExit as exit_:
        if not isinstance(exit_.code, int):
            raise
        code = exit_.code
    return _end(code)


def _end(code: int) -> NoReturn:
    """Does what Python does at its end, in the same order, but for taking all modules apart, which takes longer than
    most commands. What nobody refers to any more is collected, so that it can complain."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
