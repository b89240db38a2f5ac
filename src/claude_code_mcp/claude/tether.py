"""Ties a child to the life of this process, so that a killed server leaves no CLI behind.

On Linux the kernel sends the child SIGTERM when the thread that started it ends: through `setpriv` where
util-linux has it, else through this file run as a small launcher. Elsewhere the child sees its stdin close and
ends after its turn, and the next server sweeps up what is left.
"""

import functools
import os
import shutil
import subprocess
import sys

_SET_PARENT_DEATH_SIGNAL = 1


def tether(argv: list[str]) -> list[str]:
    """The command that runs `argv` tethered to this process."""
    if sys.platform != "linux":
        return argv
    return [*_launcher(), *argv]


@functools.cache
def _launcher() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    if setpriv and _is_util_linux(setpriv):
        return (setpriv, "--pdeathsig", "TERM", "--")
    return (sys.executable, "-I", "-S", __file__)


def _is_util_linux(setpriv: str) -> bool:
    from ..child_environment import child_environment  # noqa: PLC0415 - this file is run as a program of its own, too

    command, environment = [setpriv, "--version"], child_environment(os.environ)
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "util-linux" in answer.stdout


def _run_tethered(argv: list[str]) -> None:
    import ctypes  # noqa: PLC0415 - only the launcher needs it
    import signal  # noqa: PLC0415

    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    os.execv(argv[0], argv)  # noqa: S606 - becoming the child is the purpose


if __name__ == "__main__":
    _run_tethered(sys.argv[1:])
