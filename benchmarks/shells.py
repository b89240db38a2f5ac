"""What real shells run for a command: the yardstick of the policy's reading of commands.

Many commands are given to one process of a shell, each in a subshell of its own, in an empty directory and with nothing
on the path. Every program that the commands could name is a function that writes its words down; what is called and
does not exist is written down too. Programs succeed and fail in turn, so that `&&` and `||` both lead on. Run by root,
the shells run as nobody.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = ("git", "ls", "echo", "touch", "rm", "cat", "diff", "log", "head", "X", "a", "b", "true")
"""What the generated commands may call."""

_LINE, _BEGIN, _BETWEEN = "\x1d", "\x1e", "\x1f"
_TIMEOUT = 120.0
_NOBODY = 65534
_NOT_FOUND = re.compile(r": ([^:\n]*): (?:command )?not found|: not found: ")

Argv = tuple[str, ...]


@dataclass(frozen=True)
class Shell:
    """A shell, the arguments that keep it from reading any file of the user, and what it is told first."""

    name: str
    argv: Sequence[str]
    settings: str = ""

    @property
    def path(self) -> str | None:
        return shutil.which(self.argv[0])


SHELLS = (
    Shell("bash", ["bash", "--norc", "--noprofile"]),
    Shell("dash", ["dash"]),
    Shell("zsh", ["zsh", "-f"]),
    Shell("zsh with options", ["zsh", "-f"], "setopt extended_glob rc_quotes interactive_comments sh_word_split"),
    Shell("bash, POSIX mode", ["bash", "--norc", "--noprofile", "--posix"], "shopt -s extglob"),
    Shell("busybox", ["busybox", "sh"]),
)
MAIN = SHELLS[:3]


@dataclass(frozen=True)
class Effect:
    """What a command did: the programs it called, and whether it left a file."""

    calls: frozenset[Argv]
    files: tuple[str, ...] = ()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory that the shells may write to."""
    with tempfile.TemporaryDirectory(prefix="shells-") as name:
        place = Path(name) / "here"
        place.mkdir()
        if os.geteuid() == 0:
            Path(name).chmod(0o755)
            os.chown(place, _NOBODY, _NOBODY)
        yield place


def effects(shell: Shell, commands: Sequence[str], place: Path) -> list[Effect]:
    """What each command does, in order. Where it is not plain which of many did something, each is run alone."""
    calls, doubtful = _run(shell, commands, place)
    files = _taken_away(place)
    if (files or doubtful) and len(commands) > 1:
        return [effects(shell, [command], place)[0] for command in commands]
    unknown = {("?",)} if doubtful else set()
    return [Effect(frozenset(found | unknown), files) for found in calls]


def _run(shell: Shell, commands: Sequence[str], place: Path) -> tuple[list[set[Argv]], bool]:
    """The calls of each command, and whether something was called that does not exist and could not be written down."""
    lines = [
        f"I={number}\n( eval {shlex.quote(command)}\nwait ) </dev/null >/dev/null 2>&8\n"
        for number, command in enumerate(commands)
    ]
    done = subprocess.run(
        [shell.path or shell.name, *shell.argv[1:], _script(place, _prelude(shell) + "".join(lines))],
        cwd=place,
        env={"PATH": "/nonexistent", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT,
        check=False,
        **_unprivileged(),
    )
    calls: list[set[Argv]] = [set() for _ in commands]
    for record in done.stdout.decode("utf-8", "replace").split(_BEGIN)[1:]:
        number, *argv = record.split(_BETWEEN)[:-1]
        calls[int(number)].add(tuple(word.replace(_LINE, "\n") for word in argv))
    return calls, _NOT_FOUND.search(done.stderr.decode("utf-8", "replace")) is not None


def _unprivileged() -> dict[str, Any]:
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _prelude(shell: Shell) -> str:
    # These two write every line by itself, and what runs at the same time could come in between.
    one_line = 'set -- "${@//$LINE/$MARK}"; ' if shell.argv[0] in ("bash", "zsh") else ""
    note = f'note() {{ {one_line}printf \'%s\\037\' "$BEGIN$I" "$@" >&9; }}\n'
    unknown = "".join(
        f'{handler}() {{ note "$@"; }}\n' for handler in ("command_not_found_handle", "command_not_found_handler")
    )
    known = "".join(f'{name}() {{ note {name} "$@"; return $((I % 2)); }}\n' for name in PROGRAMS)
    marks = "LINE='\n'\nMARK=$(printf '\\035')\nBEGIN=$(printf '\\036')\n"
    return f"{shell.settings}\nexec 9>&1 8>&2\n{marks}{note}{unknown}{known}"


def _script(place: Path, text: str) -> str:
    path = place.parent / "script"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _taken_away(place: Path) -> tuple[str, ...]:
    """The names of the files that were left, which are removed."""
    names = tuple(sorted(os.listdir(place)))
    for name in names:
        shutil.rmtree(place / name) if (place / name).is_dir() else (place / name).unlink()
    return names
