"""Reads a shell command as far as can be done with certainty.

Two readings, for two uses. `read_strictly` takes a small part of the language in which bash, dash and zsh agree, and
gives the simple commands of a line, or nothing: what an allowance rests on must be read like this. `fragments` cuts a
text at everything that could begin a command, and guesses; it serves refusals, where a guess too many does no harm.

What is read strictly, with everything else left out on purpose:

- words of letters, digits and the characters of `_PLAIN`, `'…'`, `"…"` without `$`, backtick and `!` (behind `\\` the
  first two may stand), and `\\` before punctuation; nothing that could be a comment, a home directory, an assignment or
  a reserved word
- `*` and `?` outside of quotes, except in the name of a program; such a word is a `FileGlob`
- no words that a command of the shell itself would evaluate
- `;`, `&`, `|`, `|&`, `&&`, `||` behind a command, and line ends
- `2>&1` and its like, and redirections to and from `/dev/null`, at the end of a command: `sh` takes `a &>/dev/null b`
  for two commands

A command of more than `MAX_COMMAND` characters, which no person would read either, is unclear as a whole, and only
its beginning is cut into fragments. So what a command costs to judge is bounded, and below that in proportion to its
length.

`read_loosely` lists everything in a text that might be run as a command, also behind programs that run others. It is
for refusals only: a guess too many does no harm, and one too few is asked about, since `harmless_commands.py` knows
what runs nothing.
"""

import re

MAX_COMMAND = 16 << 10
_PLAIN = r"A-Za-z0-9_./,:=+@%^~*?\-"
_PIECE = re.compile(
    rf"""(?P<plain>(?:[{_PLAIN}]|[^\W\x00-\x7f])+)|'(?P<single>[^']*)'(?!')"""
    r"""|"(?P<double>(?:[^"$`\\!]|\\[^!\n])*+)"|\\(?P<escaped>[!-/:-@\[-`{-~])"""
)
_UNESCAPED = re.compile(r"\\([\"$`\\])")
_GLOB = re.compile(r"[*?]")
_NO_START = frozenset("~^=")
"""Not at the beginning of a piece, behind quotes too: zsh takes `""~` for a directory."""
_HOME = re.compile(r"[=:]~")
_BLANKS = re.compile(r"[ \t]+")
_OPERATOR = re.compile(r"&&|\|\||\|&|[;&|\n]")
_WANTS_MORE = ("&&", "||", "|", "|&")
_REDIRECTION = re.compile(r"(?:[12]?>&[12]|0?<[ \t]*/dev/null|(?:[12]|&)?>>?[ \t]*/dev/null)(?=[ \t\n;&|]|\Z)")
_RESERVED = frozenset(
    {
        *("if", "then", "else", "elif", "fi", "for", "in", "while", "until", "do", "done", "case", "esac", "select"),
        *("function", "coproc", "repeat", "foreach", "end", "always", "nocorrect", "noglob", "-"),
    }
)
_EVALUATING = frozenset(
    {
        *(
            "test",
            "[",
            "printf",
            "print",
            "read",
            "let",
            "declare",
            "typeset",
            "local",
            "export",
            "readonly",
            "integer",
        ),
        *("float", "unset", "set", "shift", "wait", "getopts", "mapfile", "readarray", "ulimit", "return", "exit"),
        *("break", "continue", "compgen", "vared", "zparseopts", "zstyle"),
    }
)
"""Built into shells, they evaluate some of their words: `test -v 'a[$(rm x)]'` runs `rm`."""
_EVALUATED = re.compile(r"[$`]")
_BREAKS = re.compile(r"[;&|\n`(){}<>$]+")
_WITHOUT_QUOTES = str.maketrans("", "", "'\"\\")

Words = tuple[str, ...]


class FileGlob(str):
    """A word in place of which the shell puts the names of files that fit; itself, if there are none."""

    __slots__ = ()


def read_strictly(text: str) -> list[Words] | None:
    """The simple commands in a text, none of them with variables set before it; None if anything is unclear."""
    # Characters that do not show may be separators to one shell and letters to another.
    if len(text) > MAX_COMMAND or not text.replace("\n", "").replace("\t", "").isprintable():
        return None
    commands: list[Words] = []
    words: list[str] = []
    operator = ""
    redirected = False
    position = 0
    while position < len(text):
        if blanks := _BLANKS.match(text, position):
            position = blanks.end()
        elif words and (redirection := _REDIRECTION.match(text, position)):
            if text[position - 1] not in " \t":
                return None  # zsh takes the number of `1&>` for that of a descriptor
            redirected = True
            position = redirection.end()
        elif found := _OPERATOR.match(text, position):
            if words:
                commands.append(tuple(words))
                operator = found[0]
            elif found[0] != "\n":
                return None  # an operator with no command before it
            words, redirected = [], False
            position = found.end()
        else:
            # A word behind a redirection is an argument to some shells and another command to others.
            word = None if redirected else _word(text, position)
            if word is None:
                return None
            words.append(word[0])
            position = word[1]
    if words:
        commands.append(tuple(words))
    elif operator in _WANTS_MORE:
        return None
    return commands if all(_is_simple(command) for command in commands) else None


def _word(text: str, position: int) -> tuple[str, int] | None:
    """The word that begins here and where it ends; None if it is unclear what it means."""
    parts: list[str] = []
    is_glob = False
    while position < len(text) and text[position] not in " \t\n;&|":
        piece = _PIECE.match(text, position)
        if piece is None or text[position] in _NO_START:
            return None
        part = piece[piece.lastgroup or 0]
        if piece.lastgroup == "double":
            part = _UNESCAPED.sub(r"\1", part)
        elif piece.lastgroup == "plain":
            if _HOME.search(part):
                return None
            is_glob = is_glob or _GLOB.search(part) is not None
        parts.append(part)
        position = piece.end()
    word = "".join(parts)
    return (FileGlob(word) if is_glob else word), position


def _is_simple(command: Words) -> bool:
    """Whether the first word names a program, and the others are only words to it."""
    name = command[0]
    if not name or "=" in name or name in _RESERVED or isinstance(name, FileGlob):
        return False
    return name not in _EVALUATING or not any(isinstance(word, FileGlob) or _EVALUATED.search(word) for word in command)


def fragments(text: str) -> list[Words]:
    """The beginning of a text cut at everything that could begin a command, quotes and escapes ignored."""
    # A line that goes on in the next one is one command to the shell; cut there, its name could be in two pieces.
    pieces = _BREAKS.split(text[:MAX_COMMAND].replace("\\\n", ""))
    return [tuple(piece.translate(_WITHOUT_QUOTES).split()) for piece in pieces]


# -- programs ---------------------------------------------------------------------------------------------------------


_DEPTH = 3
"""How many levels of quoted commands are read."""
_MAX_WORDS = 50
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
    runs += [_named(words[begin : begin + _MAX_WORDS]) for begin in begins]
    # Bounded: each level of quoting is read once more, and nobody writes many of them.
    if depth > 0 and any(run[0] in _READ_WORDS for run in runs):
        joined = next((" ".join(run[1:]) for run in runs if run[0] == "eval"), "")
        quoted = [word for word in words if _NO_WORD.search(word)]
        runs += [inner for text in (joined, *quoted) for inner in read_loosely(text, depth - 1)]
    return runs


def _named(words: Words) -> Words:
    """With the program's bare name: `rm` for `/bin/rm`, `rm.exe` and, as some file systems have it, `RM`."""
    name = words[0].rpartition("/")[2].casefold()
    return (name.removesuffix(".exe"), *words[1:])
