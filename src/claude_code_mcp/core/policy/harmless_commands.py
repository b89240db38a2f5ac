"""Programs that run no other program and write no file, whatever their arguments.

If rules deny commands, a line runs without a question only if every command in it is one of these programs;
`doubt_about` names the first that is not. If rules deny reading files, each command must also read only the files that
the line names: `doubt_about_reading`. A program belongs here if none of its options, in any common implementation, runs
a program, writes a file or takes a script. `grep` is an exception: Claude Code replaces it with ugrep, which has
options that run programs, so its harmless options are listed. All other programs cause a question.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .shell import FileGlob, Words

IsDenied = Callable[[str], bool]
"""Whether a rule denies some commands of the program with this name."""

UNREADABLE = "the command line cannot be parsed reliably"
TOO_LONG = "the command line is too long to be judged"
_SYSTEM = re.compile(r"/(?:usr/)?bin/([^/]+)\Z")
_SHOWN = 60
"""Maximum characters of a program's name in a reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the table."""

    options: re.Pattern[str] | None = None
    """Pattern of all words that begin with `-`; None if any are harmless."""
    reads: bool = True
    """Whether it may print the contents of the files that its operands name."""


_NAMES = Program(reads=False)
_FILES = Program()
_GREP = Program(
    re.compile(
        r"-[EFGHILPRUVabchilnoqrsvwx]*(?:[ABCm]\d*|e.*)?"
        r"|--(?:colou?r|include|exclude|exclude-dir|max-count|after-context|before-context|context)(?:=.*)?"
        r"|--(?:count|ignore-case|invert-match|line-number|recursive|word-regexp|only-matching|quiet|fixed-strings"
        r"|extended-regexp|files-with-matches|files-without-match|with-filename|no-filename|no-messages)"
    )
)
PROGRAMS: Mapping[str, Program] = {
    # Includes `du`: with `--files0-from` it prints a file's contents as names of missing files.
    **dict.fromkeys(("cat", "head", "tail", "wc", "cut", "tr", "du"), _FILES),
    **dict.fromkeys(("ls", "stat", "basename", "dirname", "realpath", "pwd", "cd", "whoami"), _NAMES),
    **dict.fromkeys(("echo", "true", "false"), _NAMES),
    "grep": _GREP,
}


def doubt_about(commands: Sequence[Words], is_denied: IsDenied) -> str:
    """The part of a line that is not known to be harmless, as a sentence fragment; empty if all is harmless. The time
    is linear in the number of words."""
    for words in commands:
        name = system_name(words[0])
        shown = repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")
        program = PROGRAMS.get(name)
        if program is None:
            return f"{shown} may run other programs or write files"
        if is_denied(name) and any(isinstance(word, FileGlob) for word in words):
            return f"some commands of {shown} are denied, and a wildcard could turn this into one of them"
        if program.options is not None and not all(_is_known(word, program.options) for word in words[1:]):
            return f"some options of {shown} are not known to be harmless"
    return ""


def doubt_about_reading(commands: Sequence[Words]) -> str:
    """The part of a line that may read files other than its operands, as a sentence fragment; empty if there is none.
    The operands themselves are not checked."""
    for words in commands:
        name = system_name(words[0])
        shown = repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")
        program = PROGRAMS.get(name)
        if program is None or program is _GREP:
            return f"{shown} may read files that must not be read"
        if name == "cd":
            return "the line changes the directory, so the files that it reads are not known"
        for word in words[1:] if program.reads else ():
            if isinstance(word, FileGlob):
                return f"wildcards in the arguments of {shown} may match files that must not be read"
            if (word.startswith("--") and "=" in word) or _may_be_of_kernel(word):
                return f"the files that {shown} reads are not known"
    return ""


def _may_be_of_kernel(word: str) -> bool:
    """Whether a path may lead to /proc or /dev, where the same path means something else in each process."""
    names = [name for name in word.split("/") if name not in ("", ".")]
    if not {"proc", "dev"} & {*names}:
        return False
    return ".." in names or (word.startswith("/") and names[0] in ("proc", "dev"))


def named_files(commands: Sequence[Words]) -> list[str]:
    """The words of a line that name files which a program of the table prints; without the pattern of `grep`."""
    found: list[str] = []
    for words in commands:
        name = system_name(words[0])
        program = PROGRAMS.get(name)
        if program is not None and program.reads:
            operands = [word for word in words[1:] if not word.startswith("-")]
            found += operands[1:] if program is _GREP else operands
    return found


def _is_known(word: str, options: re.Pattern[str]) -> bool:
    """Whether a word is not an option, or matches `options`. A file name pattern may expand to any option."""
    if isinstance(word, FileGlob) and word[0] in "*?-":
        return False
    return not word.startswith("-") or options.fullmatch(word) is not None


def system_name(name: str) -> str:
    """`ls` for `/bin/ls` and `/usr/bin/ls`; other paths stay, because any program may have that name there."""
    match = _SYSTEM.match(name)
    return name if match is None else match[1]
