"""Which programs run others, so that a denied command is found behind them.

For refusals only, so a guess too many does no harm, and one too few is asked about: `harmless.py` knows what runs
nothing. `read_loosely` lists everything in a text that might be run as a command.
"""

import re

from .shell import Words, fragments, read_strictly

_DEPTH = 3
"""How many levels of quoted commands are read."""
_LONGEST = 50
"""Words of a command behind another program that are looked at."""

_SHELLS = frozenset(
    {
        *("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "yash", "fish", "csh", "tcsh", "rbash", "rzsh"),
        *("nu", "xonsh", "elvish", "posh", "oksh", "hush"),
    }
)
_OPAQUE = frozenset(
    {
        *(
            "su",
            "runuser",
            "sg",
            "newgrp",
            "login",
            "script",
            "at",
            "batch",
            "crontab",
            "systemd-run",
            "parallel",
            "ssh",
        ),
        *("cmd", "powershell", "pwsh", "wsl"),
        *("screen", "tmux", "xterm", "expect", "socat", "entr", "pee", "chroot", "unshare", "nsenter", "capsh"),
        *("firejail", "bwrap", "proot", "fakeroot", "gdb", "ed", "ex", "vi", "vim", "nvim", "emacs", "m4", "dc"),
        *("sqlite3", "psql", "mysql", "gnuplot", "octave", "irb", "iex", "erl", "ghci", "jshell"),
        *("fc", "enable", "compgen", "complete", "bind", "mapfile", "readarray", "emulate", "sched", "zmodload"),
    }
)
"""They run commands that they find in their input or in arguments of an order of their own."""
_CODE = frozenset({"eval", "trap", "source", ".", "alias", "hash", "watch", "flock"})
"""They take code for a shell as an argument, or remember it."""
_WRAPPERS = frozenset(
    {
        *("sudo", "doas", "pkexec", "gosu", "env", "command", "builtin", "exec", "nohup", "nice", "ionice", "chrt"),
        *("time", "timeout", "xargs", "stdbuf", "unbuffer", "setsid", "setpriv", "setarch", "taskset", "numactl"),
        *("prlimit", "cpulimit", "busybox", "toybox", "strace", "ltrace", "valgrind", "perf", "find", "fd"),
        *("caffeinate", "run-parts", "start-stop-daemon", "chronic", "ifne", "dbus-run-session", "xvfb-run"),
        *("coproc", "do", "then", "else", "if", "elif", "while", "until", "!", "{", "repeat", "noglob", "nocorrect"),
        "-",
    }
)
"""They run the command that follows their own options."""
_RUN_OTHERS = _SHELLS | _OPAQUE | _CODE | _WRAPPERS
_READ_WORDS = _SHELLS | _OPAQUE | _CODE | {"env"}
"""They may take one word for a whole command."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_NO_WORD = re.compile(r"\W")


def read_loosely(text: str, depth: int = _DEPTH) -> list[Words]:
    """Everything in a text that might be run as a command: the program without its path, and what follows it.

    Quoted commands are read a few levels deep; the time is linear in the length of the text.
    """
    commands = read_strictly(text)
    if commands is None:
        commands = fragments(text)
    return [run for words in commands for run in _runs(words, depth)]


def _runs(words: Words, depth: int) -> list[Words]:
    start = next((number for number, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    runs = [_named(words[start:])] if words[start:] else []
    if not runs or runs[0][0] not in _RUN_OTHERS:
        return runs
    # A program that runs another may have any options, with values, before the other's name.
    begins = (number for number in range(start + 1, len(words)) if not words[number].startswith("-"))
    runs += [_named(words[begin : begin + _LONGEST]) for begin in begins]
    if depth > 0 and any(run[0] in _READ_WORDS for run in runs):
        joined = next((" ".join(run[1:]) for run in runs if run[0] == "eval"), "")
        quoted = [word for word in words if _NO_WORD.search(word)]
        runs += [inner for text in (joined, *quoted) for inner in read_loosely(text, depth - 1)]
    return runs


def _named(words: Words) -> Words:
    """With the program's bare name: `rm` for `/bin/rm`, `rm.exe` and, as some file systems have it, `RM`."""
    name = words[0].rpartition("/")[2].casefold()
    return (name.removesuffix(".exe"), *words[1:])
