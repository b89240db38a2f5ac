"""Programs that run nothing else and write no file, whatever their words are.

Where a rule denies commands, a line runs without a question only if every command in it is one of these;
`doubt_about` names the first that is not. Where a rule denies to read files, each of them must also read only the files
that the line names: `doubt_about_reading`. A program belongs here if none of its options, in any usual implementation,
runs a program, writes a file or takes a script. `grep` is the exception: Claude Code puts ugrep in its place, which has
options that run programs, so its options are listed. All other programs are asked about.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .shell import FileGlob, Words

IsDenied = Callable[[str], bool]
"""Whether a rule denies some commands of the program with this name."""

UNREADABLE = "the command line cannot be read with certainty"
TOO_LONG = "the command line is too long to be judged"
_SYSTEM = re.compile(r"/(?:usr/)?bin/([^/]+)\Z")
_SHOWN = 60
"""Characters of a program's name in a reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program of the table."""

    options: re.Pattern[str] | None = None
    """What every word that begins with `-` must look like; None if it can be anything."""
    reads: bool = True
    """Whether it prints the contents of the files that its operands name, or may do so."""


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
    # `du` too: with `--files0-from` it prints the contents of a file as names that do not exist.
    **dict.fromkeys(("cat", "head", "tail", "wc", "cut", "tr", "du"), _FILES),
    **dict.fromkeys(("ls", "stat", "basename", "dirname", "realpath", "pwd", "cd", "whoami"), _NAMES),
    **dict.fromkeys(("echo", "true", "false"), _NAMES),
    "grep": _GREP,
}


def doubt_about(commands: Sequence[Words], is_denied: IsDenied) -> str:
    """What of a line is not known to be harmless, as half a sentence; empty if nothing is. The time is linear in the
    number of words."""
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
    """What of a line may read other files than those that it names as operands, as half a sentence; empty if nothing
    does. The operands themselves are not judged."""
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
    """Whether a path may lead to /proc or /dev, where a file has another meaning for each process."""
    names = [name for name in word.split("/") if name not in ("", ".")]
    if not {"proc", "dev"} & {*names}:
        return False
    return ".." in names or (word.startswith("/") and names[0] in ("proc", "dev"))


def named_files(commands: Sequence[Words]) -> list[str]:
    """The words of a line that name files which a program of the table prints. Of `grep` the first one is a pattern."""
    found: list[str] = []
    for words in commands:
        name = system_name(words[0])
        program = PROGRAMS.get(name)
        if program is not None and program.reads:
            operands = [word for word in words[1:] if not word.startswith("-")]
            found += operands[1:] if program is _GREP else operands
    return found


def _is_known(word: str, options: re.Pattern[str]) -> bool:
    """Whether a word is no option, or one that fits. A pattern of file names may turn into any option."""
    if isinstance(word, FileGlob) and word[0] in "*?-":
        return False
    return not word.startswith("-") or options.fullmatch(word) is not None


def system_name(name: str) -> str:
    """`ls` for `/bin/ls` and `/usr/bin/ls`; in other directories anything may have that name."""
    match = _SYSTEM.match(name)
    return name if match is None else match[1]
