"""The fast way in: talks to the client on stdin and stdout until the server is loaded, then makes room for it."""

import _signal  # type: ignore[import-not-found]  # `signal` itself takes a while to import
import os
import select
import sys
from stat import S_ISFIFO, S_ISSOCK

from .manifest import find
from .protocol import GreetedInput, Greeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Serve = Callable[[list[str], GreetedInput], int]

SWITCH = "CLAUDE_CODE_MCP_GREETING"
"""The variable that turns the greeting off: the server then loads first and speaks later."""

FOR_PEOPLE = b"""\
claude-code-mcp waits for an MCP client on standard input; a client starts it by itself.
To register it with one: claude-code-mcp config CLIENT. Ctrl-C ends it.
"""
"""What a person is told who starts the server in a terminal."""

_QUIET_MS = 20
"""How long the client must be silent before loading may take the processor away from it."""
_TURN = 0.0005
"""Seconds that the loading thread keeps the interpreter when the client has something to say."""


def greet(argv: list[str], load: "Callable[[], Serve]") -> int:
    """Serves MCP on stdio. `load` imports the server and returns the function that runs it, in this thread."""
    _fill_gaps()
    if sys.platform != "win32":
        _signal.signal(_signal.SIGINT, _leave_at_once)
    if os.environ.get(SWITCH) == "off" or not on_pipes():
        if os.isatty(0) and not any(one.startswith("--ht") for one in argv):
            os.write(2, FOR_PEOPLE)
        return load()(argv, GreetedInput())
    manifest, leave_manifest = find(argv)
    if manifest is None:
        return load()(argv, GreetedInput(leave_manifest=leave_manifest))
    greeting = Greeting(manifest)
    with _Loading(load) as loading:
        try:
            _converse(greeting, loading)
        except (BrokenPipeError, ConnectionError):
            loading.leave(0)
    return load()(argv, greeting.heard())


def _leave_at_once(*_: object) -> "NoReturn":
    """Ctrl-C until the server has signals in hand: nothing is there yet that would have to be closed. A
    KeyboardInterrupt can be lost in callbacks that may not raise, such as those of the import system."""
    os._exit(130)


def _fill_gaps() -> None:
    """A standard descriptor that is closed would soon be somebody else's file: nothing is put there instead."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one


def on_pipes() -> bool:
    """Whether a client is at the other end of two pipes: not a terminal, a file, or one socket for both ways."""
    if sys.platform == "win32":
        return False
    try:
        ways = os.fstat(0), os.fstat(1)
    except OSError:
        return False
    same = (ways[0].st_dev, ways[0].st_ino) == (ways[1].st_dev, ways[1].st_ino)
    return not same and all(S_ISFIFO(way.st_mode) or S_ISSOCK(way.st_mode) for way in ways)


class _Loading:
    """The import of the server in a thread of its own; it makes `fd` readable when it is done."""

    def __init__(self, load: "Callable[[], Serve]") -> None:
        self._load = load
        self.started = False

    def __enter__(self) -> "_Loading":
        self.fd, self._done = os.pipe()
        self._interval = sys.getswitchinterval()
        return self

    def __exit__(self, *_: object) -> None:
        if self.started:
            self._thread.join()
            sys.setswitchinterval(self._interval)
        os.close(self.fd)
        os.close(self._done)

    def start(self) -> None:
        """Begins, if it has not begun. `threading` must be imported here: it takes its importer for the main thread."""
        if self.started:
            return
        import threading  # noqa: PLC0415 - not before the first answer

        self.started = True
        sys.setswitchinterval(_TURN)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._load()
        except BaseException:  # noqa: S110 - the main thread repeats the import, and meets it there
            pass
        finally:
            os.write(self._done, b".")

    def leave(self, code: int) -> "NoReturn":
        """Ends the process: there is nothing to clean up, and a thread in mid-import would not survive a usual end."""
        if self.started:
            os._exit(code)
        sys.exit(code)


def _converse(greeting: Greeting, loading: _Loading) -> None:
    """Answers until the server is loaded, or ends the process when the client leaves with nothing to wait for."""
    sources = select.poll()
    sources.register(0, select.POLLIN)
    sources.register(loading.fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in sources.poll(None if loading.started else _QUIET_MS)]
        if loading.fd in ready:
            return
        if 0 in ready and not _listen(greeting):
            if greeting.satisfied:
                loading.leave(0)
            sources.unregister(0)
            loading.start()
        if not ready or greeting.waiting or greeting.listed:
            loading.start()


def _listen(greeting: Greeting) -> bool:
    """Reads and answers once; whether there is more to read."""
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
