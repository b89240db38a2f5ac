"""What programs do with their words: which run others, and which may run what their words do not show.

For refusals only, so a guess too many does no harm. `read_loosely` lists everything in a text that might be run as a
command. `may_hide` says whether a line may run something that is not in that list: code for a shell or another language
that cannot be read, code that comes from a pipe, or a mention of what is looked for in the words of a program of which
nothing is known. What a file contains is not read: a script or a makefile may do what it likes.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from .shell import WITHOUT_QUOTES, Words, fragments, read_strictly

Mentions = Callable[[str], bool]
"""Whether a text mentions what is refused."""

_DEPTH = 3
"""How many levels of quoted commands are read."""
_LONGEST = 50
"""Words of a command behind another program that are looked at."""
_LONGEST_NAME = 64
_MOST_BEGINS = 16
"""Places where the program behind a wrapper may begin; with more of them it is unclear what is run."""

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
_RUNNERS = frozenset(
    {
        *("npx", "bunx", "uvx", "pipx", "uv", "poetry", "pipenv", "hatch", "conda", "bundle", "npm", "pnpm", "yarn"),
        *("docker", "podman", "kubectl"),
    }
)
"""They run the command behind a word such as `run` or `exec`, or something else of that name."""
_RUN_OTHERS = _SHELLS | _OPAQUE | _CODE | _WRAPPERS
_READ_WORDS = _SHELLS | _OPAQUE | _CODE | {"env"}
"""They may take one word for a whole command."""
_CODE_OPTIONS = {
    **dict.fromkeys(("python", "pypy", "jython", "ipython", "tclsh", "wish"), "c"),
    **dict.fromkeys(("perl", "julia"), "eE"),
    **dict.fromkeys(("ruby", "lua", "luajit", "rscript", "r", "osascript", "elixir", "ghc", "swift", "groovy"), "e"),
    **dict.fromkeys(("node", "nodejs", "bun", "deno", "tsx", "ts-node"), "ep"),
    "php": "rRBE",
}
"""Languages, and their short options that are followed by code."""
_CODE_WORDS = ("--eval", "--exec", "--print", "--run", "--command")
_CODE_MODULES = ("code", "timeit", "pdb", "asyncio", "runpy", "IPython")
"""Modules of Python that run code from their arguments or their input."""
_INERT = frozenset(
    {
        *("echo", "printf", "cat", "ls", "cd", "pwd", "head", "tail", "wc", "grep", "egrep", "fgrep", "test", "true"),
        *("false", ":", "mkdir", "rmdir", "touch", "chmod", "chown", "stat", "file", "du", "df", "diff"),
        *("cmp", "cut", "tr", "uniq", "tee", "basename", "dirname", "realpath", "readlink", "date", "sleep", "kill"),
        *("whoami", "id", "uname", "hostname", "which", "type", "tree", "jq", "base64", "md5sum", "sha256sum", "seq"),
    }
)
"""They run nothing, whatever their words are."""
_INERT_GIT = frozenset(
    {
        *("add", "blame", "branch", "cat-file", "checkout", "cherry-pick", "commit", "describe", "diff", "init", "log"),
        *("ls-files", "merge", "mv", "reset", "restore", "revert", "rev-parse", "rm", "show", "stash", "status"),
        *("switch", "tag"),
    }
)
_PIPE = re.compile(r"(?:.*/)?(?:dev/(?:stdin|fd|tty|pts)|proc/|stdin\Z)|\d+\Z", re.DOTALL)
"""Files that are not files but pipes, also from a directory near them."""
_VALUE_FOLLOWS = re.compile(r"[-+][A-Za-z]*[oO]\Z|--(?:rcfile|init-file|emulate)\Z")
"""Options of shells that are followed by a value."""
_AWK_RUNS = re.compile(r"system|getline|@|\|")
_TAKES_CODE = {
    "env": re.compile(r"-[^-]*S|--s"),
    "sudo": re.compile(r"-[A-Za-z]*[si]|--[sl]"),
    "doas": re.compile(r"-[A-Za-z]*s"),
    "xargs": re.compile(r"-[A-Za-z0-9]*[IiJ]|--replace"),
}
"""Options of wrappers by which one word becomes a whole command, or input a part of it."""
_FIND_RUNS = ("-exec", "-ok", "-x", "-X", "--exec")
_SED_OPTION = re.compile(r"-[nErszu]*(?:i[\w.]*)?|--(?:quiet|silent|regexp-extended|in-place(?:=[\w.]*)?|sandbox)")
_SED_PART = r"(?:\\[^\n;]|(?!\1)[^\n\\;])*"
_SED_SAFE = re.compile(
    r"(?:(?:\d+|\$)(?:,(?:\d+|\$|\+\d+))?|/[^/\n;\\]*/)?(?:[pdqgGhHxnN=]|"
    + rf"s([/|#,:@]){_SED_PART}\1{_SED_PART}\1[gpIi\d]*)?"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_NO_WORD = re.compile(r"\W")
_NUMBER = re.compile(r"\.?\d[\d.]*[smhd]?\Z")
_WILDCARD = re.compile(r"[*?\[]")
_TOKEN = re.compile(r"[\w.+*?\[\]-]+")
_VERSION = "0123456789."
_EXPANSION = frozenset("$`\\")


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


# -- what the words do not show -------------------------------------------------------------------------------


def may_hide(text: str, names: Sequence[str]) -> bool:
    """Whether a text may run, unseen by `read_loosely`, one of these programs. Names may hold wildcards and are in
    lower case; with none of them there is nothing to hide."""

    exactly = frozenset(names)
    patterns = [name.replace("[", "[[]") for name in exactly if _WILDCARD.search(name)]

    def mentions(part: str) -> bool:
        return any(
            token in exactly
            or any(fnmatchcase(token, pattern) for pattern in patterns)
            or (_WILDCARD.search(token) is not None and any(_stands_for(token, name) for name in exactly))
            for token in _tokens(part)
        )

    return bool(names) and _line_hides(text, mentions, _DEPTH)


def _line_hides(text: str, mentions: Mentions, depth: int) -> bool:
    commands = read_strictly(text) if depth > 0 else None
    if commands is None or any(_hides(words, mentions, depth) for words in commands):
        return True
    return len(commands) > 1 and _runs_what_is_written(commands, mentions)


def _runs_what_is_written(commands: Sequence[Words], mentions: Mentions) -> bool:
    """Whether one of these may run what another has written: to a file, or as the arguments of `xargs`."""
    running: list[Words] = []
    others: list[Words] = []
    for words in commands:
        (running if _runs_files(words) else others).append(words)
    if not running:
        return False
    files = {_base(word) for words in running for word in words if not word.startswith("-")}
    written = (_base(word) for words in others if _named(words)[0] not in _INERT - {"tee"} for word in words[1:])
    return any(map(files.__contains__, written)) or any(mentions(word) for words in others for word in words[1:])


def _runs_files(words: Words) -> bool:
    """Whether a command runs a file, as a program or as code, or whatever is given to `xargs`."""
    if any(run[0] in _SHELLS or run[0] in _CODE or _code_options(run) is not None for run in _runs(words, 0)):
        return True
    name = _named(words)[0]
    if name == "xargs" and any(_named(words[at:])[0] not in _INERT for at in _programs_behind(name, words)):
        return True
    return any("/" in word for word in (words if name in _WRAPPERS else words[:1]))


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _hides(words: Words, mentions: Mentions, depth: int) -> bool:
    """Whether one command may run what its words do not show."""
    name, *arguments = _named(words)
    if name in _INERT or name in _OPAQUE:
        return name in _OPAQUE
    if name in _WRAPPERS or (name in _RUNNERS and _wrapper_hides(name, words, mentions, depth)):
        return name in _RUNNERS or _wrapper_hides(name, words, mentions, depth)
    if name in _SHELLS or name in _CODE:
        return (_shell_hides if name in _SHELLS else _code_hides)(words, mentions, depth)
    options = _code_options(words)
    known = _language_hides(arguments, options) if options is not None else _KNOWN.get(name, _unknown)(arguments)
    return any(_is_code(word) or mentions(word) for word in arguments) if known is None else known


def _unknown(_: Sequence[str]) -> None:
    """Nothing is known of a program: its words decide."""


def _is_code(word: str) -> bool:
    """Whether a word could be meant for a shell: something in it is expanded, or a shell is named."""
    return bool(_EXPANSION & set(word)) or any(token in _SHELLS for token in _TOKEN.findall(word))


def _shell_hides(words: Words, mentions: Mentions, depth: int) -> bool:
    """`sh -c CODE` is read; `sh FILE` runs what the file says; everything else reads its code from elsewhere."""
    arguments = words[1:]
    options = [word for word in arguments if word.startswith(("-", "+"))]
    operands = [
        word
        for word, before in zip(arguments, ("", *arguments), strict=False)
        if not word.startswith(("-", "+")) and not _VALUE_FOLLOWS.match(before)
    ]
    if not operands or _PIPE.match(operands[0]) is not None or any(word in ("-", "-s", "+s") for word in options):
        return True
    if any("c" in word for word in options):
        return any(_line_hides(word, mentions, depth - 1) for word in operands)
    return any("s" in word for word in options if not word.startswith("--"))


def _code_hides(words: Words, mentions: Mentions, depth: int) -> bool:
    name, *arguments = _named(words)
    operands = [word for word in arguments if not word.startswith("-")]
    if name in ("source", "."):
        return not operands or _PIPE.match(operands[0]) is not None
    if name == "eval":
        return _line_hides(" ".join(arguments), mentions, depth - 1)
    if name == "trap":
        return bool(operands) and _line_hides(operands[0], mentions, depth - 1)
    return any(mentions(word) or _line_hides(word, mentions, depth - 1) for word in arguments)


def _wrapper_hides(name: str, words: Words, mentions: Mentions, depth: int) -> bool:
    if name in _TAKES_CODE and any(map(_TAKES_CODE[name].match, words[1:])):
        return True
    begins = list(islice(_programs_behind(name, words), _MOST_BEGINS + 1))
    if depth <= 0 or len(begins) > _MOST_BEGINS or (name == "xargs" and any(_takes_more(words[at:]) for at in begins)):
        return True
    return any(_hides(_up_to_end(name, words[begin:]), mentions, depth - 1) for begin in begins)


def _up_to_end(name: str, words: Words) -> Words:
    """For `find`, the command ends with `;` or `+`."""
    end = next((number for number, word in enumerate(words) if word in (";", "+")), len(words))
    return words[:end] if name == "find" and end else words


def _takes_more(words: Words) -> bool:
    """Whether further arguments could make a command run others."""
    name = _named(words)[0]
    return name in _RUN_OTHERS or name in _KNOWN or name == "tar" or _code_options(words) is not None


def _programs_behind(name: str, words: Words) -> Iterator[int]:
    """Where the program may begin that a wrapper runs. A word behind an option may be the option's value, and one word
    may be for the wrapper: a number of processors, a file to lock."""
    if name in ("find", "fd"):
        yield from (number for number in range(2, len(words)) if words[number - 1].startswith(_FIND_RUNS))
        return
    certain = 0
    for number in range(1, len(words)):
        if words[number].startswith("-") or _ASSIGNMENT.match(words[number]) or _NUMBER.match(words[number]):
            continue
        yield number
        certain += not words[number - 1].startswith("-")
        if certain == 2:
            return


def _git_hides(arguments: Sequence[str]) -> bool | None:
    """Git runs what its settings say; None if it depends on the words."""
    if not arguments or arguments[0] in _INERT_GIT:
        return False
    if any(word.startswith(("-c", "--config", "--exec-path")) for word in arguments):
        return True
    setting = arguments[0] == "config" and not any(word in ("--get", "--list", "-l") for word in arguments)
    return True if setting and not any(word.startswith("user.") for word in arguments) else None


def _code_options(words: Words) -> str | None:
    """The options that are followed by code, if the program is a language; None if it is none."""
    name = _named(words)[0]
    return _CODE_OPTIONS.get(name, _CODE_OPTIONS.get(name.rstrip(_VERSION)))


def _language_hides(arguments: Sequence[str], options: str) -> bool:
    """Whether code comes in an argument or from a pipe. Options end with a word that is not the value of one."""
    if any(set("();`") & set(word) or word in ("-", "eval") for word in arguments):
        return True
    if not arguments or any(map(_PIPE.match, (arguments[0], *(word for word in arguments if "/" in word)))):
        return True
    if options == "c" and any(word == "-i" or word.removeprefix("-m") in _CODE_MODULES for word in arguments):
        return True
    before = ""
    for word in arguments:
        short = word.startswith("-") and not word.startswith("--")
        if (short and set(word) & set(options)) or word.startswith(_CODE_WORDS):
            return True
        if (short and options == "c" and "m" in word) or not (word.startswith("-") or before.startswith("-")):
            return False
        before = word
    return not any(not word.startswith("-") or word.lower().startswith(("-v", "--v", "--h")) for word in arguments)


def _awk_hides(arguments: Sequence[str]) -> bool:
    options = [word for word in arguments if word.startswith("-") and not word.startswith(("-F", "-v"))]
    return bool(options) or any(_AWK_RUNS.search(word.replace("||", "")) for word in arguments)


def _sed_hides(arguments: Sequence[str]) -> bool:
    """GNU sed runs commands with `e`: only scripts of the simplest kinds are known not to."""
    scripts = [word for word, before in zip(arguments, ("", *arguments), strict=False) if before.endswith("e")]
    options = [word for word in arguments if word.startswith("-")]
    if any(not _SED_OPTION.fullmatch(word.removesuffix("e") if word[:2] != "--" else word) for word in options):
        return True
    if not any(word.endswith("e") for word in options):
        scripts = [word for word in arguments if not word.startswith("-")][:1]
    return any(not _SED_SAFE.fullmatch(part.strip()) for script in scripts for part in script.split(";"))


def _make_hides(arguments: Sequence[str]) -> bool | None:
    from_input = any(word in ("-", "-f-") or "/dev/" in word or "/proc/" in word for word in arguments)
    return True if from_input else None


_KNOWN: Mapping[str, Callable[[Sequence[str]], bool | None]] = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "original-awk"), _awk_hides),
    **dict.fromkeys(("sed", "gsed"), _sed_hides),
    **dict.fromkeys(("make", "gmake"), _make_hides),
    "git": _git_hides,
}
"""Programs whose arguments say whether they run others; None if that is left to the words."""


def _tokens(text: str) -> Iterator[str]:
    """The names in a text, in whatever quotes, and with and without the option before it."""
    plain = text.translate(WITHOUT_QUOTES).casefold()
    yield from _TOKEN.findall(plain)
    if plain.startswith("-"):
        yield from _TOKEN.findall(plain[2:])


def _stands_for(token: str, name: str) -> bool:
    """Whether a pattern of file names may mean this program."""
    return len(token) <= _LONGEST_NAME and fnmatchcase(name, token)
