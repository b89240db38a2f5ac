"""Parses shell commands.

There are two kinds of parsing. `read_strictly` accepts a small subset of the language in which bash, dash and zsh
agree, and returns the simple commands of a line, or nothing; allow rules use it. `fragments` and `read_loosely` guess;
deny rules use them, because a wrong match does no harm there.

`read_strictly` accepts only:

- words of letters, digits and the characters of `_PLAIN`, `'…'`, `"…"` without `$`, backtick and `!` (the first two are
  accepted after `\\`), and `\\` before punctuation; nothing that could be a comment, a home directory, an assignment or
  a reserved word
- `*` and `?` outside quotes, except in the name of a program; such a word is a `FileGlob`
- no words that a builtin command of the shell would evaluate
- `;`, `&`, `|`, `|&`, `&&`, `||` after a command, and line ends
- `2>&1` and similar, and redirections to and from `/dev/null`, at the end of a command: `sh` parses `a &>/dev/null b`
  as two commands

A command of more than `MAX_COMMAND` characters counts as unclear, and only its beginning is split into fragments. So
the time to judge a command is bounded, and linear in its length below that limit.

`fragments` splits a text at everything that could begin a command. `read_loosely` lists everything in a text that might
be run as a command, including arguments of programs that run others. A command that it misses still causes a question,
because `harmless_commands.py` does not know it as harmless.
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
"""Not accepted at the beginning of a piece, not even after quotes: zsh expands `""~` to a directory."""
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
"""Shell builtins that evaluate some of their words: `test -v 'a[$(rm x)]'` runs `rm`."""
_EVALUATED = re.compile(r"[$`]")
_BREAKS = re.compile(r"[;&|\n`(){}<>$]+")
_WITHOUT_QUOTES = str.maketrans("", "", "'\"\\")

Words = tuple[str, ...]


class FileGlob(str):
    """A word that the shell replaces by the names of matching files; it stays as it is if there are none."""

    __slots__ = ()


def read_strictly(text: str) -> list[Words] | None:
    """The simple commands in a text, without variable assignments; None if anything is unclear."""
    # Invisible characters may be separators to one shell and letters to another.
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
                return None  # zsh parses the number of `1&>` as a descriptor
            redirected = True
            position = redirection.end()
        elif found := _OPERATOR.match(text, position):
            if words:
                commands.append(tuple(words))
                operator = found[0]
            elif found[0] != "\n":
                return None  # an operator without a command before it
            words, redirected = [], False
            position = found.end()
        else:
            # A word after a redirection is an argument to some shells and another command to others.
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
    """The word that begins here and its end; None if its meaning is unclear."""
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
    """Whether the first word names a program, and it does not evaluate the other words."""
    name = command[0]
    if not name or "=" in name or name in _RESERVED or isinstance(name, FileGlob):
        return False
    return name not in _EVALUATING or not any(isinstance(word, FileGlob) or _EVALUATED.search(word) for word in command)


def fragments(text: str) -> list[Words]:
    """The beginning of a text, split at everything that could begin a command, ignoring quotes and escapes."""
    # To the shell, a line with a continuation is one command; splitting there could split a name.
    pieces = _BREAKS.split(text[:MAX_COMMAND].replace("\\\n", ""))
    return [tuple(piece.translate(_WITHOUT_QUOTES).split()) for piece in pieces]


# -- programs ----------------------------------------------------------------------------------------------------------


_DEPTH = 3
"""Maximum levels of quoted commands that are read."""
_MAX_WORDS = 50
"""Maximum words that are searched for another program after a program that may run one."""

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
"""Programs that run commands from their input, or from arguments in their own syntax."""
_CODE = frozenset({"eval", "trap", "source", ".", "alias", "hash", "watch", "flock"})
"""Builtins and programs that take shell code as an argument, or store it for later."""
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
"""Programs that run the command that follows their own options."""
_RUN_OTHERS = _SHELLS | _OPAQUE | _CODE | _WRAPPERS
_READ_WORDS = _SHELLS | _OPAQUE | _CODE | {"env"}
"""Programs that may treat one word as a whole command."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_NO_WORD = re.compile(r"\W")


def read_loosely(text: str, depth: int = _DEPTH) -> list[Words]:
    """Everything in a text that might be run as a command: the program without its path, and the words after it.

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
    # A program that runs another one may take any options, with values, before the other's name.
    begins = (number for number in range(start + 1, len(words)) if not words[number].startswith("-"))
    runs += [_named(words[begin : begin + _MAX_WORDS]) for begin in begins]
    # Bounded: each level of quoting is read again, and real commands have few levels.
    if depth > 0 and any(run[0] in _READ_WORDS for run in runs):
        joined = next((" ".join(run[1:]) for run in runs if run[0] == "eval"), "")
        quoted = [word for word in words if _NO_WORD.search(word)]
        runs += [inner for text in (joined, *quoted) for inner in read_loosely(text, depth - 1)]
    return runs


def _named(words: Words) -> Words:
    """The words with the program's bare name: `rm` for `/bin/rm`, `rm.exe` and, as on case-insensitive file systems,
    `RM`."""
    name = words[0].rpartition("/")[2].casefold()
    return (name.removesuffix(".exe"), *words[1:])
