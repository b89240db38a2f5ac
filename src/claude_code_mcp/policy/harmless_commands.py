"""Programs that are known to run nothing else and to write no file, with the options of which that is known.

Where a rule denies commands, a line is allowed only if everything in it is in this table: `doubt_about` says what is
not. The entries are from the programs' manuals (POSIX, GNU coreutils, findutils, grep, sed, git, ripgrep); an option is
left out if it runs a program or writes a file in any usual implementation, or if it means something else in another.
Claude Code puts implementations of its own in the place of `grep` and `find` (ugrep and bfs): an option that is not
listed is not understood, whatever the usual manual says. `mkdir` and `touch` write names, but no contents.

What a program does by its configuration is not the line's doing: git runs the filters and monitors that a repository is
configured with. That configuration is not the session's: it is asked before it writes it, and does not choose another
repository (`git_variables`).
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .shell import FileGlob, ProgramArguments, Words, read_arguments

IsDenied = Callable[[str], bool]
"""Whether a rule denies some commands of the program with this name."""

UNREADABLE = "the command line cannot be read with certainty"
TOO_LONG = "the command line is too long to be judged"
_SYSTEM = re.compile(r"/(?:usr/)?bin/([^/]+)\Z")
_SHOWN = 60
"""Characters of a program's name in a reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is known to be harmless of one program."""

    options: str = ""
    """Written as `shell.py` says."""
    operands: int | None = None
    """The most operands, if more of them would do more."""
    any_names: bool = False
    """No option of it, listed or not, runs a program or writes a file: file names that look like options may follow."""
    check: Callable[[ProgramArguments], bool] | None = None
    """What else must be true of its words."""

    def takes(self, words: Sequence[str]) -> bool:
        """Whether these words, behind its name, are all understood."""
        arguments = read_arguments(words, self.options, any_names=self.any_names)
        if arguments is None:
            return False
        # A pattern may stand for any number of files, and so for more operands than are allowed.
        globs = any(isinstance(word, FileGlob) for word in arguments.operands)
        if self.operands is not None and (globs or len(arguments.operands) > self.operands):
            return False
        open_values = any(isinstance(value, FileGlob) for _, value in arguments.options)
        return self.check is None or (not open_values and self.check(arguments))


def doubt_about(commands: Sequence[Words], is_denied: IsDenied) -> str:
    """What of a line is not known to be harmless, as half a sentence; empty if nothing is. The time is linear in the
    number of words."""
    moved = False
    for words in commands:
        doubt = _doubt(words, is_denied, moved)
        if doubt:
            return doubt
        # Only for what follows: the commands before it still run in the directory that was judged.
        moved = moved or words[0] == "cd"
    return ""


def _doubt(words: Words, is_denied: IsDenied, moved: bool) -> str:
    name = _system_name(words[0])
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
    doubt = ""
    if any(isinstance(word, FileGlob) for word in words) and is_denied(name):
        doubt = f"some commands of {shown!r} are denied, and file names could make this one of them"
    elif name == "git" and moved:
        doubt = "git runs what a repository is configured with, and the line goes to another directory before"
    elif name in _WRAPPERS:
        # One level only: the recursion must not become as deep as a line is long.
        inner = _WRAPPERS[name](words[1:])
        if inner is not None and inner[0] not in _WRAPPERS and not (name == "xargs" and is_denied(inner[0])):
            return _doubt(inner, is_denied, moved)
        doubt = f"the words of {shown!r} are not all known to be harmless"
    elif (program := PROGRAMS.get(name)) is None:
        doubt = f"it is not known that {shown!r} runs no other program and writes no file"
    elif not program.takes(words[1:]):
        doubt = f"the words of {shown!r} are not all known to be harmless"
    return doubt


def _system_name(name: str) -> str:
    """`ls` for `/bin/ls` and `/usr/bin/ls`; in other directories anything may have that name."""
    match = _SYSTEM.match(name)
    return name if match is None else match[1]


# -- programs that run the program behind their options --------------------------------------------------------

_DURATION = re.compile(r"\d+(?:\.\d+)?[smhd]?\Z")


def _behind_timeout(words: Sequence[str]) -> Words | None:
    arguments = read_arguments(words, "-ks: -v --foreground --preserve-status --kill-after= --signal=", leading=True)
    if arguments is None or len(arguments.operands) < 2 or not _DURATION.match(arguments.operands[0]):
        return None
    return arguments.operands[1:]


def _behind_xargs(words: Sequence[str]) -> Words | None:
    """The program gets words from a pipe, so only one that takes any words will do."""
    options = "-0rt -nPLI: --null --no-run-if-empty --max-args= --max-procs= --max-lines="
    arguments = read_arguments(words, options, leading=True)
    if arguments is None:
        return None
    inner = arguments.operands or ("echo",)
    program = PROGRAMS.get(inner[0])
    replaced = any(place in inner[0] for place in arguments.values("-I"))
    return inner if program is not None and program.any_names and not replaced else None


_WRAPPERS: Mapping[str, Callable[[Sequence[str]], Words | None]] = {
    "timeout": _behind_timeout,
    "xargs": _behind_xargs,
}


# -- programs whose words are a language of their own -----------------------------------------------------------

_SED_PLACE = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[]|\\[^\n]|\[\^?\]?[^\]\\\n/]*+\])*+/I?)"
_SED_BEFORE = re.compile(rf"[ \t\n;]*+(?:{_SED_PLACE}(?:,(?:{_SED_PLACE}|[+~]\d+))?)?[ \t]*+!?")
_SED_END = r"[ \t]*+(?=[;\n]|\Z)"
_SED_COMMAND = re.compile(rf"(?:[=dDgGhHlnNpPx]|[qQ]\d*+){_SED_END}")
_SED_NOTHING = re.compile(r"[ \t\n;]*+\Z")


@functools.cache
def _sed_replacement(delimiter: str) -> re.Pattern[str]:
    # No reference to a group that was matched before: Python before 3.11.5 reads it wrongly in what takes nothing back.
    end = re.escape(delimiter)
    pattern = rf"(?:[^\\\n\[{end}]|\\[^\n]|\[\^?\]?[^\]\\\n{end}]*+\])*+"
    text = rf"(?:[^\\\n{end}]|\\[^\n])*+"
    return re.compile(rf"s{end}{pattern}{end}{text}{end}[gpIi\d]*+{_SED_END}")


def _only_edits(script: str) -> bool:
    """Whether a script of sed only chooses, prints and replaces lines. The commands `e`, `w`, `W` and `r` and the flags
    `e` and `w` of `s` run programs or open files."""
    at = 0
    while not _SED_NOTHING.match(script, at):
        before = _SED_BEFORE.match(script, at)
        assert before is not None  # it matches the empty text too
        start = before.end()
        replaces = re.match(r"s([/|#,:@!%_])", script[start : start + 2])
        command = _sed_replacement(replaces[1]) if replaces is not None else _SED_COMMAND
        found = command.match(script, start)
        if found is None:
            return False
        at = found.end()
    return True


def _sed(arguments: ProgramArguments) -> bool:
    scripts = arguments.values("-e", "--expression") or list(arguments.operands[:1])
    return arguments.options_first and all(
        not isinstance(script, FileGlob) and _only_edits(script) for script in scripts
    )


_AWK_RUNS = re.compile(r"[|>@]|system|getline|\\\n")
_AWK_PATTERN = re.compile(r'[^{"/\\]*+')


def _awk(arguments: ProgramArguments) -> bool:
    """A program of awk runs others with `system` and `|`, reads and writes files with `getline` and `>`, which is a
    comparison before the first block."""
    program = arguments.operands[0] if arguments.operands else FileGlob()
    if not arguments.options_first or isinstance(program, FileGlob):
        return False
    compared = _AWK_PATTERN.sub(lambda pattern: pattern[0].replace(">", " "), program, count=1)
    return _AWK_RUNS.search(compared.replace("||", " ")) is None


_FIND_PLAIN = frozenset(
    {
        *("-H", "-L", "-P", "-a", "-and", "-o", "-or", "-not", "!", "(", ")", "-print", "-print0", "-ls", "-prune"),
        *(
            "-quit",
            "-empty",
            "-true",
            "-false",
            "-xdev",
            "-mount",
            "-readable",
            "-writable",
            "-executable",
            "-daystart",
        ),
    }
)
_FIND_VALUED = frozenset(
    {
        *("-name", "-iname", "-path", "-ipath", "-wholename", "-iwholename", "-lname", "-ilname", "-regex", "-iregex"),
        *("-type", "-xtype", "-size", "-perm", "-user", "-group", "-links", "-inum", "-samefile", "-maxdepth"),
        *("-mindepth", "-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin", "-newer", "-anewer", "-cnewer"),
        *("-newermt", "-regextype", "-printf"),
    }
)
_FIND_VALUE = re.compile(r"(?!-)|-\d+[A-Za-z]?\Z|-[ugoa]*[=+][rwxst]+\Z")


def _find(words: Sequence[str]) -> bool:
    """Places and tests. What begins like a test and is none of these may run a program, write or delete."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if isinstance(word, FileGlob) and word[0] in "*?-":
            return False
        if word in _FIND_VALUED:
            if at == len(words) or isinstance(words[at], FileGlob) or not _FIND_VALUE.match(words[at]):
                return False
            at += 1
        elif word.startswith("-") and word not in _FIND_PLAIN:
            return False
    return True


_TEST_ONE = frozenset({"-d", "-e", "-f", "-h", "-L", "-n", "-r", "-s", "-w", "-x", "-z"})


def _test(words: Sequence[str]) -> bool:
    """Other tests evaluate their words as arithmetic in some shells, and that can run commands."""
    if any(set("[$`") & set(word) for word in words):
        return False
    if len(words) == 2:
        return words[0] in _TEST_ONE
    return len(words) == 3 and words[1] in ("=", "!=") and not words[0].startswith("-")


_PRINTF = re.compile(r"(?!-)(?:[^%\\]|%%|%-?\d*s|\\[^\n])*+\Z")


def _printf(words: Sequence[str]) -> bool:
    """zsh evaluates what is printed as a number; `-v` evaluates a name."""
    return bool(words) and _PRINTF.match(words[0]) is not None


def _command(words: Sequence[str]) -> bool:
    return len(words) > 1 and words[0] in ("-v", "-V") and not any(word.startswith("-") for word in words[1:])


@dataclass(frozen=True, slots=True)
class Language:
    """A program whose words are read by a function."""

    reads: Callable[[Sequence[str]], bool]
    any_names: bool = False

    def takes(self, words: Sequence[str]) -> bool:
        return self.reads(words)


def _any(_: Sequence[str]) -> bool:
    return True


# -- git ----------------------------------------------------------------------------------------------------------

_DIFF = """-abpsuwzR -BCMX? -SGU: --stat --shortstat --numstat --name-only --name-status --summary --patch --no-patch
 --raw --minimal --patience --histogram --color --no-color --word-diff --color-words --no-renames --find-renames --check
 --full-index --abbrev --binary --text --ignore-space-at-eol --ignore-space-change --ignore-all-space
 --ignore-blank-lines --function-context --exit-code --quiet --no-ext-diff --no-textconv --no-prefix --relative
 --compact-summary --dirstat --patch-with-stat --unified= --diff-filter= --diff-algorithm= --inter-hunk-context="""
_LOG = f"""{_DIFF} -N -EFPgic -nL: --oneline --graph --decorate --no-decorate --all --branches --tags --remotes --merges
 --no-merges --first-parent --reverse --follow --pretty --abbrev-commit --no-abbrev-commit --topo-order --date-order
 --full-history --simplify-by-decoration --left-right --cherry-pick --cherry-mark --source --no-notes --walk-reflogs
 --all-match --invert-grep --count --boundary --no-walk --format= --date= --author= --committer= --grep= --since=
 --after= --until= --before= --max-count= --skip="""
_REFS = "--contains= --no-contains= --merged= --no-merged= --points-at= --sort= --format= --color --no-color --column"
_VERIFIES = re.compile(r"%[-+ ]?G|signature")


def _no_signature(arguments: ProgramArguments) -> bool:
    """A format or an order can ask for signatures, which another program verifies."""
    return not any(map(_VERIFIES.search, arguments.values("--format", "--pretty", "--sort")))


def _lists_refs(arguments: ProgramArguments) -> bool:
    """An operand without these is the name of something to be made."""
    listing = arguments.has("--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at")
    return _no_signature(arguments) and (listing or not arguments.operands)


def _lists_tags(arguments: ProgramArguments) -> bool:
    return _lists_refs(arguments) or (_no_signature(arguments) and arguments.has("-l"))


def _gets_setting(arguments: ProgramArguments) -> bool:
    return arguments.has("--get", "--get-all", "--get-regexp", "--list", "-l")


_CONFIG = "-z --global --local --system --show-origin --show-scope --name-only"

GIT: Mapping[str, Program] = {
    "blame": Program("-bceflnpstw -CM? -L: --date= --show-email --show-name --show-number --porcelain --root"),
    "branch": Program(
        f"-airv {_REFS} --list --all --remotes --show-current --verbose --ignore-case", check=_lists_refs
    ),
    "cat-file": Program("-epst --batch-check --batch-all-objects"),
    "check-ignore": Program("-nqvz --verbose --quiet --no-index --non-matching"),
    "config": Program(f"-l {_CONFIG} --get --get-all --get-regexp --list", check=_gets_setting),
    "config get": Program(f"{_CONFIG} --all --regexp"),
    "config list": Program(_CONFIG),
    "describe": Program("--all --tags --long --always --exact-match --first-parent --abbrev --match= --exclude="),
    "diff": Program(f"{_DIFF} --cached --staged --merge-base --no-index"),
    "for-each-ref": Program(f"{_REFS} --count= --ignore-case", check=_no_signature),
    "grep": Program(
        """-acEFGhHiIlLnopPqvwW -N -ABCem: --cached --untracked --no-index --line-number --ignore-case --count --column
        --files-with-matches --name-only --word-regexp --extended-regexp --fixed-strings --perl-regexp --break --heading
        --show-function --color --no-color --and --or --not --all-match --max-depth= --context= --max-count="""
    ),
    "log": Program(_LOG, check=_no_signature),
    "ls-files": Program(
        """-cdikmostuvz --cached --deleted --modified --others --ignored --stage --unmerged --exclude-standard
        --full-name --error-unmatch --abbrev --deduplicate --directory --eol"""
    ),
    "ls-tree": Program("-dlrtz --name-only --name-status --long --full-name --full-tree --object-only --abbrev"),
    "merge-base": Program("-a --all --octopus --is-ancestor --independent"),
    "reflog": Program(_LOG, operands=0, check=_no_signature),
    "reflog show": Program(_LOG, check=_no_signature),
    "remote": Program("-v --verbose", operands=0),
    "remote get-url": Program("--all --push"),
    "rev-list": Program(f"{_LOG} --objects --timestamp", check=_no_signature),
    "rev-parse": Program(
        """-q --abbrev-ref --short --verify --quiet --show-toplevel --show-prefix --show-cdup --git-dir --git-common-dir
        --absolute-git-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository --symbolic-full-name --all
        --branches --tags --remotes --show-superproject-working-tree --symbolic --sq"""
    ),
    "shortlog": Program(
        """-cens --numbered --summary --email --all --no-merges --since= --until= --author= --format= --group=""",
        check=_no_signature,
    ),
    "show": Program(_LOG, check=_no_signature),
    "show-ref": Program("-dhqs --head --heads --tags --branches --hash --verify --quiet --dereference --abbrev"),
    "stash list": Program(_LOG, check=_no_signature),
    "stash show": Program(_DIFF),
    "status": Program(
        """-bsvz -u? --short --branch --porcelain --long --verbose --untracked-files --ignored --no-renames --show-stash
        --ahead-behind --no-ahead-behind --find-renames"""
    ),
    "tag": Program(f"-il -n? {_REFS} --list --ignore-case", check=_lists_tags),
    "version": Program("--build-options", operands=0),
    "worktree list": Program("-vz --porcelain --verbose"),
}
"""The subcommands of git that change nothing and call no hook, editor, pager or transport."""
_GIT_SETTINGS = {"safe.bareRepository": "explicit", "diff.autoRefreshIndex": "false"}
_GIT_OPTIONS = "-P --no-pager --no-optional-locks --literal-pathspecs --no-replace-objects --version"


def _git(words: Sequence[str]) -> bool:
    arguments = read_arguments(words, _GIT_OPTIONS, leading=True)
    if arguments is None:
        return False
    if not arguments.operands:
        return True
    name, *rest = arguments.operands
    # `--` does not end the options of every subcommand: `git blame -- HEAD --output=x` writes a file.
    behind = rest[rest.index("--") + 1 :] if "--" in rest else []
    if any(word.startswith("-") or (isinstance(word, FileGlob) and word[0] in "*?") for word in behind):
        return False
    if rest and (program := GIT.get(f"{name} {rest[0]}")) is not None:
        return program.takes(rest[1:])
    return name in GIT and " " not in name and GIT[name].takes(rest)


def git_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables, beside those of an environment, with which what is said of git here is true.

    Git then takes no directory for a repository that only looks like one (a session could write it, with a program in
    its configuration), and does not write the index when it is asked for a state, which would call a hook.
    """
    # Behind those that are there: the operator's own settings stay, and ours come last and count.
    inherited = environment.get("GIT_CONFIG_COUNT", "")
    count = int(inherited) if inherited.isascii() and inherited.isdigit() and len(inherited) < 5 else 0
    variables = {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": str(count + len(_GIT_SETTINGS))}
    for number, (name, value) in enumerate(_GIT_SETTINGS.items(), count):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


# -- the table ------------------------------------------------------------------------------------------------------

_SUMS = Program(
    "-bctwz --binary --check --tag --text --zero --ignore-missing --quiet --status --strict", any_names=True
)
_GREP = Program(
    """-abcEFGhHiIlLnoPqrRsUvwx -N -ABCefm: --ignore-case --no-ignore-case --invert-match --word-regexp --line-regexp
    --count --color --colour --files-with-matches --files-without-match --only-matching --quiet --silent --no-messages
    --byte-offset --with-filename --no-filename --line-number --line-buffered --text --recursive --extended-regexp
    --fixed-strings --basic-regexp --perl-regexp --regexp= --file= --max-count= --after-context= --before-context=
    --context= --include= --exclude= --exclude-dir= --binary-files="""
)
_SED = Program(
    "-Enrsuz -e: --expression= --quiet --silent --regexp-extended --null-data --separate --posix", check=_sed
)
_AWK = Program("-Fv:", check=_awk)
_NOTHING = Program(operands=0)

PROGRAMS: Mapping[str, Program | Language] = {
    # Built into shells
    **dict.fromkeys((":", "true", "false", "echo"), Language(_any, any_names=True)),
    "cd": Program("-LP", operands=1),
    "command": Language(_command),
    "printf": Language(_printf),
    "pwd": Program("-LP", operands=0),
    "test": Language(_test),
    "type": Program("-at"),
    # Of files
    "cat": Program("-AbeEnstTuv --number --number-nonblank --show-all --show-ends --show-tabs", any_names=True),
    "cmp": Program("-bls -n: --bytes= --print-bytes --quiet --silent --verbose"),
    "comm": Program("-123z --check-order --nocheck-order --total"),
    "cut": Program("-nsz -bcdf: --bytes= --characters= --delimiter= --fields= --output-delimiter= --complement"),
    "diff": Program(
        """-abBcdeEHiNpqrstTuwyZ -CUWxI: --brief --recursive --unified --context --side-by-side --ignore-case
        --ignore-all-space --ignore-space-change --ignore-blank-lines --new-file --text --minimal --color
        --strip-trailing-cr --suppress-common-lines --report-identical-files --width= --exclude="""
    ),
    "head": Program("-qvz -N -cn: --bytes= --lines= --quiet --silent --verbose", any_names=True),
    "hexdump": Program("-bcCdovx -ns:"),
    "join": Program("-iz -12aejotv: --ignore-case --header"),
    "nl": Program("-p -bdfhilnsvw:"),
    "od": Program("-abcdfiloSsvx -AjNt: -w? --address-radix= --format= --read-bytes= --skip-bytes="),
    "paste": Program("-sz -d: --delimiters= --serial"),
    "sort": Program(
        """-bcCdfghimMnrRsuVz -kt: --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort
        --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse --version-sort --check --merge --stable
        --unique --zero-terminated --key= --field-separator="""
    ),
    "tac": Program("-br -s: --before --regex --separator="),
    "tail": Program("-fFqrvz -N -cn: --bytes= --lines= --follow --quiet --silent --verbose --retry", any_names=True),
    "tr": Program("-cCdst --complement --delete --squeeze-repeats --truncate-set1"),
    "uniq": Program("-cdDiuz -fsw: --count --repeated --unique --ignore-case --skip-fields= --skip-chars=", operands=1),
    "wc": Program("-clLmw --bytes --chars --lines --words --max-line-length", any_names=True),
    **dict.fromkeys(("md5sum", "sha1sum", "sha256sum", "sha512sum", "cksum"), _SUMS),
    "base64": Program("-d -w: --decode --wrap=", operands=1),
    "jq": Program(
        """-acCejMnrRsS --ascii-output --color-output --compact-output --exit-status --join-output --monochrome-output
        --null-input --raw-input --raw-output --slurp --sort-keys --tab"""
    ),
    # What matches
    **dict.fromkeys(("awk", "gawk", "mawk"), _AWK),
    "find": Language(_find),
    **dict.fromkeys(("grep", "egrep", "fgrep"), _GREP),
    "rg": Program(
        """-abcFhHiIlLnNoPqsSuUvwx -ABCegjmtT: --case-sensitive --color= --column --context= --after-context=
        --before-context= --count --count-matches --files --files-with-matches --files-without-match --fixed-strings
        --follow --glob= --heading --hidden --iglob= --ignore-case --invert-match --json --line-number --max-count=
        --max-depth= --multiline --no-filename --no-heading --no-ignore --no-ignore-vcs --no-line-number --no-messages
        --only-matching --pcre2 --quiet --smart-case --sort= --stats --text --trim --type= --type-list --type-not=
        --vimgrep --with-filename --word-regexp"""
    ),
    "sed": _SED,
    # Of directories and names
    "basename": Program("-az -s: --multiple --zero --suffix=", any_names=True),
    "df": Program("-ahHiklmPT --all --human-readable --inodes --si --total --print-type"),
    "dirname": Program("-z --zero", any_names=True),
    "du": Program(
        """-abcDhHkLlmPsSx0 -d: --all --bytes --total --human-readable --summarize --max-depth= --exclude=
        --apparent-size"""
    ),
    "file": Program("-bhikL --brief --mime --mime-type --mime-encoding --dereference --no-dereference"),
    "ls": Program(
        """-aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1 --all --almost-all --author --classify --color --directory --file-type
        --full-time --group-directories-first --human-readable --inode --literal --no-group --numeric-uid-gid
        --quote-name --recursive --reverse --si --size --format= --sort= --time= --time-style= --indicator-style=
        --hide= --ignore=""",
        any_names=True,
    ),
    "mkdir": Program("-pv -m: --parents --verbose --mode="),
    "readlink": Program("-efmnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline"),
    "realpath": Program("-eLmPqsz --canonicalize-existing --canonicalize-missing --relative-to= --relative-base="),
    "stat": Program("-fLt -c: --dereference --file-system --terse --format= --printf="),
    "touch": Program("-acfhm -drt: --no-create --date= --reference= --time="),
    "tree": Program(
        """-aCdDfFghilnNpqrstuvx -ILP: --dirsfirst --du --filelimit= --gitignore --ignore-case --noreport --prune
        --si --sort="""
    ),
    # Of the system
    "date": Program(
        "-uR -I? -d: --utc --universal --iso-8601 --rfc-3339= --rfc-email --date=",
        operands=1,
        check=lambda arguments: all(operand.startswith("+") for operand in arguments.operands),
    ),
    **dict.fromkeys(("env", "hostname", "nproc", "whoami"), _NOTHING),
    "git": Language(_git),
    "id": Program("-gGnruz --group --groups --name --real --user --zero"),
    "printenv": Program("-0"),
    "ps": Program("-aAdefFHjlLMTwx -oCp: --forest --no-headers --sort="),
    "seq": Program("-w -N -fs: --equal-width --format= --separator="),
    "sleep": Program(),
    "uname": Program("-aimnoprsv --all --kernel-name --machine --nodename"),
    "which": Program("-as"),
}
