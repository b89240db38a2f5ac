"""Random commands for the policy's reading of commands, with the same seed the same ones.

`plain_commands` are made of a few allowed programs and of everything that means something to a shell, pieced together
at random or from earlier ones that were allowed, with something changed. The other tables hide the call of one program
in others that run it, in quotes, in code and in pipes.
"""

import random
from collections.abc import Callable, Iterator

ALLOWED = (
    "git diff",
    "git diff a",
    "git log",
    "ls",
    "echo a",
    "echo 'b c'",
    "ls HEAD~1",
    'git diff "a b"',
    "test -v a",
    "printf -v a b",
)
WORDS = (
    "git",
    "diff",
    "log",
    "ls",
    "echo",
    "touch",
    "X",
    "rm",
    "a",
    "b",
    "--stat",
    "HEAD^",
    "1",
    "2",
    "0",
    "é",
    "x=y",
    "-v",
)
QUOTED = (
    "'a b'",
    '"a b"',
    "''",
    '""',
    "'a;b'",
    '"a&b"',
    "'$a'",
    '"$a"',
    "'`'",
    "'\n'",
    '"\n"',
    "$'a'",
    '$"a"',
    "'",
    '"',
)
OPERATORS = (
    ";",
    "&",
    "&&",
    "||",
    "|",
    "|&",
    "&|",
    "&!",
    ";;",
    ";&",
    "\n",
    "\n\n",
    "&\n",
    "(",
    ")",
    "{",
    "}",
    "{ ",
    " }",
)
REDIRECTIONS = (
    *(">/dev/null", "</dev/null", "2>&1", "&>/dev/null", ">&2", "1>&2", "> /dev/null", "&>>/dev/null", "2>/dev/null"),
    *("<>/dev/null", ">|/dev/null", "2>&-", ">&", "<", ">", ">>", "<<", "<<<", "<(", ">(", "3>&1", ">X", "<&0"),
)
SPECIALS = (
    *("$", "`", "\\", "\\\n", "!", "#", "~", "=", "*", "?", "[", "]", "^", "%", "@", "+", ":", ",", "-", "/", "\t"),
    *("\r", "\x00", "\x01", "\x7f", "\u00a0", "\u202e", "\u2028", "{a,b}", "$(", "${", "$((", "a[0]=", "a+=", "=ls"),
)
RESERVED = (
    *("if", "then", "fi", "do", "done", "while", "for", "in", "case", "esac", "time", "coproc", "function", "[[", "]]"),
    *("noglob", "nocorrect", "repeat", "end", "exec", "eval", "command", "builtin", "trap", "source", ".", "alias"),
)
_KINDS = (WORDS, WORDS, OPERATORS, OPERATORS, REDIRECTIONS, QUOTED, SPECIALS, RESERVED, (" ", "  "))
_POOL = 500


def plain_commands(
    generator: random.Random, count: int, is_allowed: Callable[[str], bool]
) -> Iterator[tuple[str, bool]]:
    """So many commands, each with whether it is allowed."""
    pool = list(ALLOWED)
    for _ in range(count):
        kind = generator.random()
        if kind < 0.2:
            command = _pieced(generator)
        elif kind < 0.4:
            command = generator.choice(pool) + _joint(generator) + generator.choice(pool)
        else:
            command = generator.choice(pool)
            for _ in range(generator.choice((1, 1, 1, 2, 3))):
                command = changed(generator, command)
        allowed = is_allowed(command)
        if allowed and len(command) < 80:
            if len(pool) >= _POOL:
                pool.pop(generator.randrange(len(pool)))
            pool.append(command)
        yield command, allowed


def _pieced(generator: random.Random) -> str:
    parts = [generator.choice(ALLOWED)]
    for _ in range(generator.randint(1, 8)):
        parts += [generator.choice(("", " ", " ")), piece(generator)]
    return "".join(parts)


def piece(generator: random.Random) -> str:
    return generator.choice(generator.choice(_KINDS))


def _joint(generator: random.Random) -> str:
    blank = generator.choice(("", " "))
    return blank + generator.choice(generator.choice((OPERATORS, OPERATORS, REDIRECTIONS, SPECIALS))) + blank


def changed(generator: random.Random, command: str) -> str:
    """A command with something put in, taken out, doubled or exchanged."""
    at = generator.randint(0, len(command))
    end = min(len(command), at + generator.choice((0, 0, 0, 1, 1, 2, 4)))
    new = generator.choice((piece(generator), piece(generator), f" {piece(generator)} ", command[at:end] * 2, ""))
    return command[:at] + new + command[end:]


# -- one program hidden in others -----------------------------------------------------------------------------

DENIED = "rm"

BEHIND = (
    *("env", "env A=b", "env -u A", "env -i", "nice", "nice -n 5", "timeout 5", "timeout -k 1 5", "nohup", "setsid -w"),
    *("stdbuf -o0", "command", "command -p", "exec", "exec -a x", "builtin command", "time", "time -p", "busybox env"),
    *("ionice", "ionice -c 3", "taskset 1", "chrt -o 0", "prlimit", "prlimit --nofile=64", "setarch -R", "flock f"),
    *("setpriv", "setpriv --no-new-privs", "xargs", "xargs -n1", "xargs -r", "strace -f", "sudo", "sudo -u nobody"),
    *(
        "runuser -u nobody --",
        "unshare -r",
        "find . -maxdepth 0 -exec",
        "echo x | xargs",
        "true;",
        "true &&",
        "false ||",
    ),
    *("true |", "true &", "ls\n", "coproc", "noglob", "-", "!", "if true; then", "script -q /dev/null -c"),
)
"""What the program stands behind as it is."""

AROUND = (
    *(
        "sh -c {}",
        "bash -c {}",
        "dash -c {}",
        "zsh -fc {}",
        "bash -lc {}",
        "bash -o pipefail -c {}",
        "busybox sh -c {}",
    ),
    *("eval {}", "eval 'eval {}'", "trap {} EXIT", "trap {} 0", "trap -- {} EXIT", "echo {} | sh", "echo {} | bash -s"),
    *("echo {} | dash /dev/stdin", "echo {} | bash -", "printf %s {} | sh", "echo {} | . /dev/stdin", "echo {} | zsh"),
    *("env -S {}", "env '-S'{}", "env --split-string={}", "env -iS {}", "script -qc {} /dev/null", "script -c {} f"),
    *("echo {} | xargs env", "echo {} | xargs -I@ sh -c @", "echo {} | xargs nice", "echo {} | xargs busybox env"),
    *(
        "find . -maxdepth 0 -exec sh -c {} ';'",
        "git -c alias.z='!'{} z",
        "git -c core.pager={} -p help",
        "flock f -c {}",
    ),
    *("echo | sed 1e{}", "echo | sed '1e '{}", "echo a | sed 's/a/'{}'/e'", "echo {} | tee f; sh f", "sh <<< {}"),
    *(
        "su -c {}",
        "runuser -c {}",
        "echo {} | sed 's/^/ /' | sh",
        "make --eval=x:';'{} x",
        "split --filter={} /dev/null",
    ),
    *("tar cf /dev/null --checkpoint=1 --checkpoint-action=exec={} .", "echo {} | busybox ash", "watch -t {}", "$({})"),
    *("`{}`", "({})", "{{ {}; }}", "cat <({})", "git submodule foreach {}", "git bisect run {}", "echo '!'{} | ed"),
    *(
        "alias z={}",
        "mapfile -C {} -c 1",
        "compgen -C {}",
        "bash -ic {}",
        "bash --rcfile /dev/stdin -i",
        "setsid sh -c {}",
    ),
    *("nice sh -c {}", "timeout 5 bash -c {}", "xargs -a /dev/null sh -c {}", "echo {} | command sh", "exec sh -c {}"),
)
"""What takes the whole command as one word."""

IN_CODE = (
    """python3 -c 'import os; os.system("{}")'""",
    """echo 'import os; os.system("{}")' | python3""",
    """echo 'import os; os.system("{}")' | python3 -""",
    """python3 -Ic 'import os; os.system("{}")'""",
    """python3 -W ignore -c 'import os; os.system("{}")'""",
    """python3 -m timeit -n1 -r1 'import os; os.system("{}")'""",
    """perl -e 'system("{}")'""",
    """perl -we 'system "{}"'""",
    """perl -ne 'BEGIN {{ system("{}") }}' /dev/null""",
    """echo 'system("{}")' | perl""",
    """awk 'BEGIN {{ system("{}") }}'""",
    """awk 'BEGIN {{ "{}" | getline }}'""",
    """awk 'BEGIN {{ print | "{}" }}'""",
    """busybox awk 'BEGIN {{ system("{}") }}'""",
    """nice awk 'BEGIN {{ system("{}") }}'""",
    """echo x | xargs awk 'BEGIN {{ system("{}") }}'""",
)
"""What has it in a program of another language."""

SPELLINGS = (
    *("rm", "'rm'", "r''m", 'r""m', "\\rm", "r\\m", "$'rm'", "$'\\x72m'", "/bin/rm", "/bin/./rm", "/usr/bin/r?"),
    *("{rm,x}", "r${z}m", "r$@m", "=rm", "/bin/r[m]"),
)
