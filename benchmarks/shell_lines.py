"""Random lines that try to run a denied command, made from a grammar of tricks; the same ones for the same seed.

A line is one to four commands with something between them. A command is a known program with any of its options (those
that are known to be harmless with hostile values, and those that run or write something), an ordinary line, a known
attack, or a program that runs others; words are quoted in various ways, assignments, redirections and substitutions
come in between, and some lines are changed at random afterwards.
"""

import random
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from claude_code_mcp.policy.harmless_commands import GIT, PROGRAMS, Program
from claude_code_mcp.policy.shell import option_list

from .shell_commands import changed, hidden_commands

_DATA = Path(__file__).parent.parent / "tests" / "policy"
_ESCAPES = str.maketrans({"␤": "\n", "␉": "\t", "␍": "\r", "␀": "\0", "␠": "\u00a0"})

NOT_ENDING = frozenset({"-f", "-F", "--follow", "--retry"})
"""Options with which `tail` does not end."""
OPERANDS = (
    *("f", "f", "x", "dir", "src", "src/m.py", "a", "b", ".", "*", "?", "-*", "*.py", "src/*", "./*", "--", "-"),
    *("e.*", "'1e rm x'", "e.sed", "e.awk", "evil", "'rm x'", '"rm x"', "HEAD", "HEAD~1", "v1", "'a[$(rm x)]'", "1"),
    *("5", "+1", "'\\;'", "'!rm x'", "run.sh", "Makefile", "'|rm x'", "`rm x`", "$(rm x)", "{rm,x}", "~", "=rm"),
    *("list", "show"),
)
VALUES = (
    *("1", "f", "x", "rm", "'rm x'", "\"sh -c 'rm x'\"", "'|rm x'", "'!rm x'", "'%G?'", "'%(signature)'", "main"),
    *("a", "','", "-1", "--", "-e", "*", "'`rm x`'", "'$(rm x)'", '"$(rm x)"', "/bin/rm", "e.sed", "1e", "s/a/b/e"),
)
SED = (
    *("p", "1p", "'1,2p'", "'$d'", "s/a/b/", "s/a/b/g", "'s|a|b|p'", "'/a/d'", "'/a/,/b/p'", "'s/[a-c]/x/;p'"),
    *("'1!p'", "'1e rm x'", "1e", "e", "'e rm x'", "'s/a/rm x/e'", "'s/.*/rm x/ge'", "'w x'", "'s/a/b/w x'", "'r f'"),
    *("'1~2p'", "'/[/]e rm x/p'", "'s/[/]/e rm x/e'", "'{p;e rm x\n}'", "'p;e rm x'", "'p\ne rm x'"),
    *("'a\\\nx\n1e rm x'", "'#n'", "'s/a/b/;w x'", "'s,a,b,;1e rm x'", "'y/a/b/'", "'s/a\\/b/c/e'"),
    *("'/a\\/e rm x/p'", "'\\%a%e rm x'", "'0,/a/e rm x'"),
)
AWK = (
    *("'{print $1}'", "'NR>1'", "'NR>1{print}'", "'/a/{n++} END{print n}'", "'$1 == \"a\" || NR < 2'"),
    *("'BEGIN{print 1}'", "'BEGIN{system(\"rm x\")}'", "'{print > \"x\"}'", "'{print | \"rm x\"}'"),
    *("'BEGIN{\"rm x\" | getline}'", "'@load \"x\"'", "'NR>1{print > \"x\"}'", "'{print $1 >\"x\"}'"),
    *('\'BEGIN{f="system"; @f("rm x")}\'', "'BEGIN{sys\\\ntem(\"rm x\")}'", "'1>2{print}{print>\"x\"}'"),
    *("'/>/{print}'", '\'BEGIN{printf "rm x" |& "sh"}\'', "'{ print ||| \"rm x\" }'"),
)
FIND = (
    *("-name f", "-name '*.py'", "-type f", "-maxdepth 1", "-o", "-not", "\\( -name a \\)", "-print", "-size -1k"),
    *("-newer f", "-exec rm x ';'", "-exec rm {} +", "-execdir rm x \\;", "-ok rm x ';'", "-delete", "-fprint x"),
    *("-fls x", "-fprintf x %p", "-name -delete", "-name", "-printf '%p\\n'", "-files0-from f", "-mtime -1"),
    *("-perm -u+x", "-ls"),
)
DANGEROUS = {
    "sed": (
        *("-i", "-i.bak", "--in-place", "-ie", "-ne", "-f e.sed", "--file=e.sed", "--in-pl", "-fe.sed", "-n -i"),
        "-s -i",
    ),
    "awk": ("-f e.awk", "--source", "-i inplace", "-l x", "-o", "-W exec", "--exec e.awk", "-E e.awk", "-p"),
    "sort": (
        *("-o x", "-ox", "--output=x", "--output x", "--compress-program=rm", "--compress-prog=rm -S1"),
        "-S 1k -T dir",
    ),
    "uniq": ("f x", "- x", "-c f x"),
    "diff": ("-l", "--paginate", "-D A", "--from-file=f", "-ul"),
    "rg": ("--pre rm", "--pre=rm", "-z", "--hostname-bin=rm", "--search-zip", "--pre-glob '*'"),
    "tree": ("-o x", "-ox", "-R", "-H . -R -L 1", "--fromfile"),
    "date": ("-s 1", "--set=1", "-f f", "010100001970"),
    "file": ("-C -m f", "-z", "-m f", "-f f"),
    "base64": ("-o x", "-i f -o x"),
    "jq": ("-f e.awk", "-L .", "--rawfile a f", "-i", "--args"),
    "grep": ("--filter=rm", "--pager=rm", "-f f", "-z", "--save-config", "-Q"),
    "tail": ("--pid=1",),
    "cat": ("--pager=rm", "--paging=always"),
    "env": ("rm x", "-S 'rm x'", "A=b rm x", "-i"),
    "hostname": ("x", "-F f"),
    "command": ("rm x", "-p rm x", "-v rm", "-v ls", "-vp rm"),
    "test": ("-v 'a[$(rm x)]'", "'a[$(rm x)]' -eq 1", "-f f", "-n x", "a = b", "-t 'a[$(rm x)]'", "-R 'a[$(rm x)]'"),
    "printf": (
        *("'%s\\n' a", "-v 'a[$(rm x)]' b", "%d 'a[$(rm x)]'", "'%*s' 'a[$(rm x)]' b", "%s 'a[$(rm x)]'", "-- %s a"),
    ),
    "cd": ("evil", "dir", "-", "src", "/", "-P dir", ".."),
    "type": ("rm", "-a ls", "-P ls"),
    "git": (
        *("-c alias.q='!rm x' q", "-c core.fsmonitor='rm x' status", "-C evil status", "--git-dir=evil status"),
        *("-p log", "--exec-path=. status", "z", "commit --allow-empty -m x", "push", "checkout -b q", "add ."),
        *("stash", "stash -p list", "fetch", "bisect run rm x", "rebase -x 'rm x' HEAD", "submodule foreach 'rm x'"),
        *("difftool -y HEAD", "help log", "gc", "branch q", "tag q", "tag -s q", "config alias.w '!rm x'"),
        *("config --edit", "remote update", "worktree add q", "reflog expire --all", "config --get-regexp . --edit"),
        *("var GIT_EDITOR", "archive --remote=x HEAD", "ls-remote", "branch --contains -- -D main"),
        *("log --author -- --output=x", "shortlog --group -- --output=x", "grep -e -- -Orm"),
    ),
}
"""Words of known programs that run a program, write a file, or come close to it."""
GIT_DANGEROUS = (
    *("--output=x", "--output x", "--ext-diff", "--textconv", "--show-signature", "-Orm", "-O 'rm x'", "--edit"),
    *("-D main", "--open-files-in-pager=rm", "--exec=rm", "--upload-pack=rm", "--submodule=diff", "--dirty"),
    *("--unset a", "--add a b", "--format='%G?'", "--pretty=%GG", "--format '%(signature)'", "-d main", "-m a b"),
    *("--delete", "-f", "-o x", "--outp=x"),
)
_LANGUAGES = {"sed": ("sed", SED), "find": ("find", FIND), **dict.fromkeys(("awk", "gawk", "mawk"), ("awk", AWK))}
"""Programs with words that are a language: the name of their options here, and scripts."""
OTHERS = (
    *("dd of=zz", "tee zz", "tee Makefile", "split --filter='rm x' f", "split -b1 f", "cp f zz", "mv f zz"),
    *("ln -s f zz", "sh zz", "bash /dev/stdin", "bash /dev/./fd/0", "bash /dev//fd//0", "setarch -R", "linux64"),
    *("x86_64", "i386", "make", "perl '-MPOSIX X=>qx/rm x/' /dev/null", "perl e.pl", "python3 src/m.py", "sh run.sh"),
    *("./run.sh", "source run.sh", ". ./run.sh", "env rm x", "nice rm x", "xargs rm", "xargs -I{} rm {}", "xargs sh"),
    *("xargs cat", "xargs -n1 echo", "timeout 5 cat f", "timeout 5 rm x", "timeout 5 sh run.sh", "busybox rm x"),
    *("tar cf /dev/null --to-command='rm x' f", "base64 -d", "sleep 0", "cmp f a", "rev f", "unlink x", "shred x"),
    *("truncate -s0 x", "install f x", "ed x", "ex x", "eval 'rm x'", "trap 'rm x' EXIT", "alias q='rm x'"),
    *("q() { rm x; }", "hash -p /bin/rm q", "enable -f x y", "coproc rm x", "exec rm x", "read -r a", "declare -a a"),
    *("export PATH=.", "set -- rm x", "shopt -s extglob", "let 'a[$(rm x)]'", "time ls", "! ls"),
    *("case a in a) rm x;; esac", "for i in x; do rm $i; done", "select a in b; do rm x; done", "repeat 2 rm x"),
    *("[[ -v a[$(rm x)] ]]", "((a[$(rm x)]))", "[ -v 'a[$(rm x)]' ]", "noglob rm x", "- rm x"),
    "if ls; then rm x; fi",
)
ASSIGNMENTS = (
    *("PATH=.", "IFS=x", "BASH_ENV=run.sh", "ENV=run.sh", "GIT_PAGER='rm x'", "GIT_EXTERNAL_DIFF='rm x'"),
    *("GIT_DIR=evil", "LD_PRELOAD=./x.so", "LESSOPEN='|rm x'", "PAGER='rm x'", "A=b", "a[0]=$(rm x)"),
    *("PS4='$(rm x)'", "PROMPT_COMMAND='rm x'"),
)
BETWEEN = (";", " ; ", " && ", " || ", " | ", "\n", " & ", " |& ", "|", "&&")
AFTER = (
    *("2>&1", ">/dev/null", "2>/dev/null", "> zz", ">x", "< f", "<f", ">> zz", ">|x", "<<< rm", "<<E\nrm x\nE\n"),
    *("<(rm x)", "&", "#"),
)


def recorded(name: str) -> list[tuple[str, str]]:
    """The decisions and lines of a file of data beside the tests. Characters that cannot stand in a line are written
    with their pictures: ␤ for a line end."""
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    entries = (line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    return [(decision, line.translate(_ESCAPES)) for decision, line in entries]


def attack_lines(generator: random.Random, count: int) -> Iterator[str]:
    """So many lines, no two alike."""
    ordinary = [line for _, line in recorded("shell_ordinary.txt")]
    attacks = [line for _, line in recorded("shell_attacks.txt")]
    seen: set[str] = set()
    while len(seen) < count:
        line = _line(generator, ordinary, attacks)
        if line not in seen:
            seen.add(line)
            yield line


def table_lines() -> Iterator[str]:
    """Each option of the table by itself: with hostile values, and before a `--` that it must not take for its value,
    so that a dangerous word follows as an option after all."""
    entries = [(name, entry, DANGEROUS.get(name, ())) for name, entry in PROGRAMS.items() if isinstance(entry, Program)]
    entries += [(f"git {name}", entry, ("--output=x", "-Orm", "-D main")) for name, entry in GIT.items()]
    for name, entry, dangerous in entries:
        known = option_list(entry.options)
        scripts = _LANGUAGES[name][1] if name in _LANGUAGES else ("f",)
        for option in sorted({*(f"-{letter}" for letter in known.short | known.attached), *known.long} - NOT_ENDING):
            yield f"{name} {option} {scripts[0]} f"
            yield from (f"{name} {option} -- {word}" for word in dangerous)
        values = ("'rm x'", "x")
        for option in sorted(
            {*(f"-{letter} " for letter in known.valued), *(f"{long}=" for long in known.long_valued)}
        ):
            yield from (f"{name} {option}{value} {scripts[0]} f" for value in values)
        yield from (f"{name} {option}={value} {scripts[0]} f" for option in sorted(known.long) for value in values)


def _line(generator: random.Random, ordinary: Sequence[str], attacks: Sequence[str]) -> str:
    parts: list[str] = []
    for _ in range(generator.choice((1, 1, 1, 1, 1, 2, 2, 3, 4))):
        parts += [generator.choice(BETWEEN), _command(generator, ordinary, attacks)]
    line = "".join(parts[1:])
    for _ in range(generator.choice((0, 0, 0, 0, 0, 1, 1, 2))):
        line = changed(generator, line)
    return line


def _command(generator: random.Random, ordinary: Sequence[str], attacks: Sequence[str]) -> str:
    kind = generator.random()
    if kind < 0.68:
        command = _known(generator)
    elif kind < 0.82:
        command = generator.choice(ordinary)
    elif kind < 0.88:
        command = generator.choice(OTHERS)
    elif kind < 0.95:
        command = generator.choice(attacks)
    else:
        command = next(hidden_commands(generator, 1))
    if generator.random() < 0.04:
        command = f"{generator.choice(ASSIGNMENTS)} {command}"
    if generator.random() < 0.1:
        command = f"{command} {generator.choice(AFTER)}"
    return command


def _known(generator: random.Random) -> str:
    """A program of the table with words that it may have or not. Half of them are plain but for one dangerous word, as
    among many others it would make no difference."""
    name = generator.choice((*PROGRAMS, *(["git"] * 20), *(["sed", "awk", "find"] * 6)))
    words = [name if generator.random() < 0.95 else generator.choice(("/bin/", "/usr/bin/", "./", "\\")) + name]
    if generator.random() < 0.5:
        return " ".join([*words, *_one_step_away(generator, name)])
    words += _words_of(generator, name)
    if name not in ("test", "command", "cd"):
        words += generator.choices(OPERANDS, k=generator.choice((0, 1, 1, 2)))
    if generator.random() < 0.15:
        at = generator.randrange(len(words))
        words[at] = _quoted(generator, words[at])
    return " ".join(words)


def _one_step_away(generator: random.Random, name: str) -> list[str]:
    """One dangerous word, a plain operand, and perhaps an option that does nothing."""
    if name == "git":
        if generator.random() < 0.4:
            return [generator.choice(DANGEROUS["git"])]
        subcommand = generator.choice(list(GIT))
        plain = [generator.choice(("HEAD", "f", "")), generator.choice(("", "", "--", "-p", "--all"))]
        words = [generator.choice(GIT_DANGEROUS), *plain]
        return [subcommand, *generator.sample(words, k=len(words))]
    if name in _LANGUAGES:
        options = generator.choice((*DANGEROUS.get(_LANGUAGES[name][0], ()), "", "", "", ""))
        script = generator.choice(_LANGUAGES[name][1])
        return [".", script] if name == "find" else generator.choice(([options, script, "f"], [script, "f", options]))
    words = [generator.choice((*DANGEROUS.get(name, ()), *OPERANDS)), generator.choice(("f", "f", "x", "dir", ""))]
    return generator.sample(words, k=2)


def _words_of(generator: random.Random, name: str) -> list[str]:
    entry = PROGRAMS[name]
    if name == "git":
        subcommand = generator.choice(list(GIT))
        return [subcommand, *_options(generator, GIT[subcommand], GIT_DANGEROUS)]
    if name == "find":
        return [generator.choice(OPERANDS), *generator.choices(FIND, k=generator.randint(0, 4))]
    if isinstance(entry, Program):
        kind, scripts = _LANGUAGES.get(name, (name, ()))
        script = [generator.choice(scripts)] if scripts else []
        return [*_options(generator, entry, DANGEROUS.get(kind, ())), *script]
    return [generator.choice(DANGEROUS.get(name, OPERANDS))]


def _options(generator: random.Random, program: Program, dangerous: Sequence[str]) -> list[str]:
    words = []
    for _ in range(generator.choice((0, 1, 1, 2, 3))):
        if dangerous and generator.random() < 0.15:
            words.append(generator.choice(dangerous))
        elif (option := _listed_option(generator, program)) not in NOT_ENDING:
            words.append(option)
    return words


def _listed_option(generator: random.Random, program: Program) -> str:
    """An option of the table, with a hostile value if it takes one."""
    known = option_list(program.options)
    plain = [*(f"-{letter}" for letter in known.short), *known.long]
    valued = [*(f"-{letter}" for letter in known.valued | known.attached), *(f"{name}=" for name in known.long_valued)]
    valued += [f"{name}=" for name in known.long] + [f"{name} " for name in known.long_valued]
    some = sorted(plain if generator.random() < 0.6 and plain else valued) or ["-5"]
    option = generator.choice(some)
    return option if option in plain else option + generator.choice((*VALUES, *(f" {value}" for value in VALUES)))


def _quoted(generator: random.Random, word: str) -> str:
    bare = re.sub(r"['\"]", "", word)
    cut = generator.randint(0, len(bare))
    return generator.choice(
        (
            shlex.quote(bare),
            f'"{bare}"',
            f"$'{bare}'",
            f'$"{bare}"',
            f"{bare[:cut]}''{bare[cut:]}",
            f"{bare[:cut]}\\{bare[cut:]}",
            f"{bare[:cut]}\\\n{bare[cut:]}",
            f"{bare[:cut]}${{IFS}}{bare[cut:]}",
            f"{bare[:cut]}$@{bare[cut:]}",
            f"{bare}␠{bare}".translate(_ESCAPES),
        )
    )
