"""The start on stdio: first answers from a manifest while the server is imported.

Importing this module must stay cheap (a few built-in modules; a test counts them), since it comes before the first
answer. The server takes over when it is loaded: it gets every byte that was not answered, see `GreetedInput`.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself takes a while to import
import os
import select
import sys
from stat import S_ISFIFO, S_ISSOCK

from .first_answers import GreetedInput, Greeting, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Serve = Callable[[list[str], GreetedInput], int]

SWITCH = "CLAUDE_CODE_MCP_GREETING"
"""The variable that disables the greeting: the server then loads first."""

_TERMINAL_HINT = b"""\
claude-code-mcp waits for an MCP client on standard input; a client starts it by itself.
To register it with one: claude-code-mcp config CLIENT. Ctrl-C ends it.
"""
"""Written to stderr when the server is started in a terminal."""

_QUIET_MS = 20
"""How long the client must be silent before loading may use the processor."""
_SWITCH_INTERVAL = 0.0005
"""Seconds for which the loading thread keeps the interpreter while the main thread has a request to answer."""


def greet(argv: list[str], load: "Callable[[], Serve]") -> int:
    """Serves MCP on stdio; returns the exit code. `load` imports the server and returns the function that runs it. It
    is called in a thread while requests are answered here, and again in this thread to get its result: a failed import
    is repeated and raises here. Without pipes or a manifest the server is loaded first."""
    _open_missing_streams()
    if sys.platform != "win32":
        _signal.signal(_signal.SIGINT, exit_on_interrupt)
    if os.environ.get(SWITCH) == "off" or not on_pipes():
        if os.isatty(0) and not any(argument.startswith("--ht") for argument in argv):
            os.write(2, _TERMINAL_HINT)
        return load()(argv, GreetedInput(argv=argv))
    manifest, leave_manifest = find(argv)
    if manifest is None:
        return load()(argv, GreetedInput(leave_manifest=leave_manifest, argv=argv))
    greeting = Greeting(manifest)
    with _Loading(load) as loading:
        try:
            _answer_until_loaded(greeting, loading)
        except (BrokenPipeError, ConnectionError):
            loading.exit(0)
    greeted = greeting.handover()
    greeted.leave_manifest, greeted.argv = leave_manifest, argv
    return load()(argv, greeted)


def exit_on_interrupt(*_: object) -> "NoReturn":
    """Handles Ctrl-C until the server installs its own handler: nothing needs to be closed yet. A KeyboardInterrupt
    could be lost in callbacks that may not raise, such as those of the import system."""
    os._exit(130)


def _open_missing_streams() -> None:
    """Opens the null device in place of closed standard streams; otherwise the next file would take their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def on_pipes() -> bool:
    """Whether stdin and stdout are two pipes, rather than a terminal, a file, or one socket for both directions."""
    if sys.platform == "win32":
        return False
    try:
        stdin, stdout = os.fstat(0), os.fstat(1)
    except OSError:
        return False
    if (stdin.st_dev, stdin.st_ino) == (stdout.st_dev, stdout.st_ino):
        return False
    return all(S_ISFIFO(stream.st_mode) or S_ISSOCK(stream.st_mode) for stream in (stdin, stdout))


class _Loading:
    """Imports the server in a separate thread; makes `fd` readable when it is done."""

    def __init__(self, load: "Callable[[], Serve]") -> None:
        self._load = load
        self.started = False

    def __enter__(self) -> "_Loading":
        self.fd, self._done = os.pipe()
        self._interval = sys.getswitchinterval()
        return self

    def __exit__(self, *_: object) -> None:
        if self.started:
            # Before the descriptors are closed: the thread writes to one of them as its last act.
            self._thread.join()
            sys.setswitchinterval(self._interval)
        os.close(self.fd)
        os.close(self._done)

    def start(self) -> None:
        """Starts the import once. `threading` must be imported here, because it takes its importer for the main
        thread."""
        if self.started:
            return
        import threading  # noqa: PLC0415 - not before the first answer

        self.started = True
        # Before the thread begins: with the usual interval it would keep the interpreter while a request waits.
        sys.setswitchinterval(_SWITCH_INTERVAL)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._load()
        except BaseException:  # noqa: S110 - the main thread repeats the import, and it is raised there
            pass
        finally:
            # Also when the import fails: the main thread waits for this.
            os.write(self._done, b".")

    def exit(self, code: int) -> "NoReturn":
        """Ends the process: nothing needs to be cleaned up, and a thread in mid-import would not survive a regular
        exit."""
        if self.started:
            os._exit(code)
        sys.exit(code)


def _answer_until_loaded(greeting: Greeting, loading: _Loading) -> None:
    """Answers until the server is loaded; exits if the client closes its end with all requests answered. Loading begins
    when the client is silent for a moment, has the list of tools, or waits for the server."""
    sources = select.poll()
    sources.register(0, select.POLLIN)
    sources.register(loading.fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in sources.poll(None if loading.started else _QUIET_MS)]
        if loading.fd in ready:
            return
        if 0 in ready and not _read_and_answer(greeting):
            if greeting.satisfied:
                loading.exit(0)
            # Every poll would report the end of a pipe: a busy loop during the import.
            sources.unregister(0)
            loading.start()
        if not ready or greeting.waiting or greeting.listed:
            loading.start()


def _read_and_answer(greeting: Greeting) -> bool:
    """Reads once and writes the answers; returns whether more may be read here."""
    try:
        data = os.read(0, 1 << 16)
    except BlockingIOError:
        return True
    _write(greeting.receive(data) if data else greeting.end())
    return bool(data) and not greeting.full


def _write(data: bytes) -> None:
    while data:
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(1, select.POLLOUT)
            writable.poll()
