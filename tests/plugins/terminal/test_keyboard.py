"""The terminal of a process is found, and whether somebody types there."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from claude_code_mcp.plugins.terminal.keyboard import device_of, is_used
from tests.support.waiting import until

_READ = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); sys.stdin.read()"


@contextmanager
def terminal() -> Iterator[tuple[int, str, int]]:
    """A process that reads from a terminal of its own: the process, the device, and the side of the keyboard."""
    keyboard, theirs = pty.openpty()
    launch = [sys.executable, "-c", _READ]
    with subprocess.Popen(launch, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        device = os.ttyname(theirs)
        os.close(theirs)
        try:
            yield process.pid, device, keyboard
        finally:
            process.kill()
            os.close(keyboard)


def test_a_terminal_that_was_opened_after_the_first_look_is_found() -> None:
    with terminal() as (first, device, _):
        assert device_of(first) == device
        with terminal() as (second, later, keyboard):
            assert device_of(second) == later
            os.utime(later, (0, 0))
            assert not is_used(later)
            os.write(keyboard, b"key\n")
            until(lambda: is_used(later))


def test_without_a_terminal_no_one_types() -> None:
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(["sleep", "1000"], stdin=nowhere, stdout=nowhere, stderr=nowhere) as process:
        assert device_of(process.pid) is None
        process.kill()
    assert device_of(process.pid) is None
    assert not is_used(None)
