"""Reads the words of one program by a list of the options that it may have.

A list is a text such as `-abc -kt: -u? -N --all --sort=`: short options; those with a value, attached or in the next
word; those with a value that can only be attached; a number; long options; long options with a value. What is not in
the list is not understood, an abbreviation of a long option included.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .shell import FileGlob

_NUMBER = re.compile(r"-\d+\Z")
_ANY_NUMBER = "-N"


@dataclass(frozen=True, slots=True)
class OptionList:
    """The options that a program may have."""

    short: frozenset[str]
    valued: frozenset[str]
    attached: frozenset[str]
    long: frozenset[str]
    long_valued: frozenset[str]
    number: bool


@dataclass(frozen=True, slots=True)
class ProgramArguments:
    """The words of a program: options by name with their values, and operands."""

    options: tuple[tuple[str, str], ...]
    operands: tuple[str, ...]
    options_first: bool
    """No option behind an operand: programs differ in whether they take that for an option."""

    def values(self, *names: str) -> list[str]:
        """The values of these options, in order."""
        return [value for name, value in self.options if name in names]

    def has(self, *names: str) -> bool:
        """Whether one of these options is there."""
        return any(name in names for name, _ in self.options)


@lru_cache(maxsize=200)
def option_list(text: str) -> OptionList:
    """The list that a text describes."""
    entries = text.split()
    long = [entry for entry in entries if entry.startswith("--")]
    short = [entry for entry in entries if not entry.startswith("--") and entry != _ANY_NUMBER]
    return OptionList(
        short=_letters(entry for entry in short if entry[-1] not in ":?"),
        valued=_letters(entry[:-1] for entry in short if entry[-1] == ":"),
        attached=_letters(entry[:-1] for entry in short if entry[-1] == "?"),
        long=frozenset(entry for entry in long if not entry.endswith("=")),
        long_valued=frozenset(entry[:-1] for entry in long if entry.endswith("=")),
        number=_ANY_NUMBER in entries,
    )


def _letters(entries: Iterable[str]) -> frozenset[str]:
    return frozenset("".join(entry[1:] for entry in entries))


def read_arguments(
    words: Sequence[str], text: str, *, any_names: bool = False, leading: bool = False
) -> ProgramArguments | None:
    """The words behind the name of a program, read by the option list `text`; None if one is not understood.

    A pattern of file names that could turn into an option is not understood, unless `any_names` says that no option
    does harm. With `leading`, the first operand ends the options.
    """
    known = option_list(text)
    options: list[tuple[str, str]] = []
    operands: list[str] = []
    options_first = True
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            operands += words[at:]
            break
        if not word.startswith("-") or word == "-":
            if isinstance(word, FileGlob) and word[0] in "*?" and not any_names:
                return None
            operands.append(word)
            if leading:
                operands += words[at:]
                break
            continue
        options_first = options_first and not operands
        found = _option(word, known)
        if found is None or (isinstance(word, FileGlob) and not word.startswith("--")):
            return None
        names, value = found
        if value is None:
            # The next word is the value, whatever it looks like, and `--` too: one that looks like an option is not
            # understood. Without a next word the program fails.
            value = words[at] if at < len(words) else ""
            at += 1
            if isinstance(value, FileGlob) or not _is_value(value):
                return None
        elif isinstance(word, FileGlob):
            value = FileGlob(value)  # all names that fit `--include=*.py` begin with that option
        options += [*((name, "") for name in names[:-1]), (names[-1], value)]
    return ProgramArguments(tuple(options), tuple(operands), options_first)


def _is_value(word: str) -> bool:
    return not word.startswith("-") or _NUMBER.match(word) is not None


def _option(word: str, known: OptionList) -> tuple[list[str], str | None] | None:
    """The names in a word of options, and the value of the last; None for a value if that is the next word."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        if name not in known.long and name not in known.long_valued:
            return None
        return [name], value if equals or name in known.long else None
    if known.number and _NUMBER.match(word):
        return [word], ""
    return _short_options(word, known)


def _short_options(word: str, known: OptionList) -> tuple[list[str], str | None] | None:
    names: list[str] = []
    for at, letter in enumerate(word[1:], 2):
        names.append(f"-{letter}")
        if letter in known.valued:
            return names, word[at:] or None
        if letter in known.attached:
            return names, word[at:]
        if letter not in known.short:
            return None
    return names, ""
