"""Reads a shell command as far as can be done with certainty.

Two readings, for two uses. The strict one gives the simple commands that a line consists of, or nothing if it holds
anything whose effect is not plain from its words: expansions, substitutions, redirections, escapes, globs. What an
allowance rests on must be read like this. The loose one lists everything that might be run, and guesses; it serves
refusals, where a guess too many does no harm.

A command of more than `LONGEST_COMMAND` characters is unclear as a whole: the strict reading gives nothing, and the
loose one covers its beginning. Both take time in proportion to the length, and go down into quoted commands a few
levels only.
"""

import re

LONGEST_COMMAND = 64 << 10
SEPARATORS = ("&&", "||", ";", "|&", "|", "&", "\n")
_HARMLESS_REDIRECTION = re.compile(r"(?:[12]?>&[12]|(?:[012]|&)?[<>]>?[ \t]*/dev/null)(?=[\s;&|]|$)")
_UNCLEAR = frozenset("$`(){}<>\\!*?[]")
_UNCLEAR_START = re.compile(r"[#~]|[^'\" \t\n;&|]*[=:]~")
_LONGEST = 50
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_WRAPPERS = frozenset(
    {
        *("sudo", "doas", "env", "command", "builtin", "exec", "nohup", "nice", "ionice", "chrt", "time", "timeout"),
        *("xargs", "stdbuf", "setsid", "busybox", "toybox", "strace", "unshare", "chroot", "flock", "watch"),
        *("parallel", "find", "fd", "caffeinate", "script", "ssh", "coproc", "trap"),
        *("do", "then", "else", "if", "elif", "while", "until", "!", "{"),
    }
)
_INTERPRETERS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "eval", "su", "source", "."})
_RUN_OTHERS = _WRAPPERS | _INTERPRETERS
_NO_WORD = re.compile(r"\W")
_BREAKS = re.compile(r"[;&|\n`(){}<>$]+")
_WITHOUT_QUOTES = str.maketrans("", "", "'\"\\")

Words = tuple[str, ...]


def read_strictly(text: str) -> list[Words] | None:
    """The simple commands in a text, none of them with variables set before it; None if anything is unclear."""
    if len(text) > LONGEST_COMMAND or not text.replace("\n", "").replace("\t", "").isprintable():
        return None
    commands: list[Words] = []
    words: list[str] = []
    position = 0
    while position < len(text):
        separator = next((mark for mark in SEPARATORS if text.startswith(mark, position)), None)
        redirection = _HARMLESS_REDIRECTION.match(text, position)
        if redirection is not None:
            position = redirection.end()
        elif separator is not None:
            commands.append(tuple(words))
            words = []
            position += len(separator)
        elif text[position] in " \t":
            position += 1
        else:
            found = _word(text, position)
            if found is None:
                return None
            word, position = found
            words.append(word)
    found_commands = [command for command in (*commands, tuple(words)) if command]
    unclear = any(_ASSIGNMENT.match(command[0]) for command in found_commands)
    return None if unclear else found_commands


def _word(text: str, position: int) -> tuple[str, int] | None:
    """The word that begins here and where it ends; None if it is unclear what it means."""
    if _UNCLEAR_START.match(text, position):
        return None
    parts: list[str] = []
    while position < len(text) and text[position] not in " \t\n;&|":
        character = text[position]
        if character in "'\"":
            end = text.find(character, position + 1)
            inside = text[position + 1 : end]
            if end < 0 or (character == '"' and set(inside) & set("$`\\!")):
                return None
            parts.append(inside)
            position = end + 1
        elif character in _UNCLEAR:
            return None
        else:
            parts.append(character)
            position += 1
    return "".join(parts), position


def read_loosely(text: str, depth: int = 3) -> list[Words]:
    """Everything in a text that might be run as a command: the program without its path, and what follows it."""
    commands = read_strictly(text)
    if commands is None:
        commands = _fragments(text[:LONGEST_COMMAND])
    return [run for words in commands for run in _runs(words, depth)]


def _fragments(text: str) -> list[Words]:
    """The text cut at everything that could begin a command, quotes and escapes ignored."""
    pieces = _BREAKS.split(text.replace("\\\n", ""))
    return [tuple(piece.translate(_WITHOUT_QUOTES).split()) for piece in pieces]


def _runs(words: Words, depth: int) -> list[Words]:
    start = next((number for number, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    runs = [_named(words[start:])] if words[start:] else []
    if not runs or runs[0][0] not in _RUN_OTHERS:
        return runs
    # A program that runs another may have any options, with values, before the other's name.
    begins = (number for number in range(start + 1, len(words)) if not words[number].startswith("-"))
    runs += [_named(words[begin : begin + _LONGEST]) for begin in begins]
    if depth and any(run[0] in _INTERPRETERS for run in runs):
        runs += [inner for word in words if _NO_WORD.search(word) for inner in read_loosely(word, depth - 1)]
    return runs


def _named(words: Words) -> Words:
    """With the program's bare name: `rm` for `/bin/rm` and `rm.exe`."""
    name = words[0].rpartition("/")[2]
    return (name[:-4] if name[-4:].lower() == ".exe" else name, *words[1:])
