"""`make soak`: random commands, read by the policy and run by real shells.

Commands that are read as a few simple ones are given to bash, dash, zsh and others: they may run exactly what was read,
and write no file.

The inputs come in parts, each made from the seed and its own number: `--seed 7 --start 120` goes on where an earlier
run has stopped.
"""

import argparse
import random
import re
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from claude_code_mcp.core.policy.git_commands import git_variables
from claude_code_mcp.core.policy.rules import Decision, Rule, ToolCall, judge, parse_rule
from claude_code_mcp.core.policy.shell import read_strictly

from .sealed_shells import DENIED, sealed_shells
from .shell_commands import plain_commands
from .shells import MAIN, PROGRAMS, SHELLS, Shell, effects, scratch_directory

PART = 4000
"""Inputs that are made from one seed."""
RULES = [
    parse_rule(f"Bash({pattern})") for pattern in ("git diff *", "git log:*", "ls *", "echo *", "test *", "printf *")
]
DENY = [parse_rule(f"Bash({DENIED} *)"), parse_rule("Bash(git push *)")]
ANY = [parse_rule("Bash")]
_BATCH = 500


@dataclass
class Count:
    """How much was tried, and what was found."""

    inputs: int = 0
    allowed: int = 0
    runs: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Count") -> None:
        self.inputs += other.inputs
        self.allowed += other.allowed
        self.runs += other.runs
        self.problems += other.problems


def is_read(command: str) -> bool:
    """Whether a command is allowed by its words, or is read as programs that the shells write down."""
    call = ToolCall("Bash", {"command": command}, "/", lambda path: path)
    if judge(call, RULES, []).decision is Decision.ALLOW:
        return True
    commands = read_strictly(command)
    return commands is not None and all(words[0] in PROGRAMS for words in commands)


def decide(command: str, denied: Sequence[Rule] = DENY) -> Decision:
    """The decision on a command, where all but the denied ones are allowed."""
    return judge(ToolCall("Bash", {"command": command}, "/", lambda path: path), ANY, denied).decision


def is_expansion(call: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a call is the command that was read, where a word may stand for the names of files, of any number, that
    begin as it does: `/*` or, in zsh with its options, `/^a`."""
    places = {0}
    for word in words:
        start = re.match(r"[^*?^~]*", word)
        assert start is not None
        following = {place + 1 for place in places if place < len(call) and call[place] == word}
        if start[0] != word:
            for place in places:
                end = place
                while end < len(call) and call[end].startswith(start[0]):
                    end += 1
                following |= set(range(place, end + 1))
        places = following
    return len(call) in places


def problems_in(commands: Sequence[str], shells: Sequence[Shell]) -> list[str]:
    """What these commands, all of them read, do in these shells beside what was read."""
    found = []
    with scratch_directory() as place:
        for shell in shells:
            for start in range(0, len(commands), _BATCH):
                batch = commands[start : start + _BATCH]
                for command, effect in zip(batch, effects(shell, batch, place), strict=True):
                    read = read_strictly(command) or ()
                    unread = {call for call in effect.calls if not any(is_expansion(call, words) for words in read)}
                    if unread or effect.files:
                        found.append(f"{shell.name}: {command!r} calls {sorted(unread)}, writes {list(effect.files)}")
    return found


def try_plain(seed: int, number: int, size: int = PART, shells: Sequence[Shell] = MAIN) -> Count:
    """Commands that may be read: of those that are, which do more than was read."""
    generator = random.Random(f"{seed}/{number}/plain")
    commands = [command for command, allowed in plain_commands(generator, size, is_read) if allowed]
    unique = list(dict.fromkeys(commands))
    return Count(size, len(commands), len(unique) * len(shells), problems_in(unique, shells))


def lines_that_do_harm(lines: Sequence[str], shells: Sequence[str]) -> list[str]:
    """Which of these lines, all of them allowed, call the denied program, change a file or do not end."""
    found = []
    with sealed_shells() as sealed:
        for shell in shells:
            for line, effect in zip(lines, sealed.effects(shell, lines, git_variables({})), strict=True):
                if effect.called or effect.changed or effect.endless:
                    found.append(f"{shell}: {line!r}: {effect}")
    return found


def available() -> list[Shell]:
    return [shell for shell in SHELLS if shell.path is not None]


def run_plain(seed: int, start: int, inputs: int, seconds: float, workers: int) -> tuple[Count, int]:
    """As many parts as are wanted or fit into the time; the second value is the number of the next part."""
    until = time.monotonic() + seconds
    total = Count()
    numbers = iter(range(start, start + -(-inputs // PART)))
    shells = available()
    done = start
    with ProcessPoolExecutor(workers) as pool:
        while time.monotonic() < until and (some := list(islice(numbers, 2 * workers))):
            # Each part goes to the main shells, and one in turn of the others.
            chosen = [[shell for shell in shells if shell in MAIN or shell is shells[n % len(shells)]] for n in some]
            sizes = [PART] * len(some)
            for count in pool.map(try_plain, [seed] * len(some), some, sizes, chosen):
                total.add(count)
                _show_problems(count)
            done = some[-1] + 1
            if done % 20 < len(some):
                print(f"{total.inputs} read, {total.allowed} allowed, {len(total.problems)} problems", flush=True)
    return total, done


def _show_problems(count: Count) -> None:
    for problem in count.problems:
        print(f"PROBLEM: {problem}", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shell_fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="commands to be read (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin no part after this time (default: 1800)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats an earlier choice")
    parser.add_argument("--start", type=int, default=0, help="the number of the first part (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes at the same time (default: 2)")
    options = parser.parse_args(arguments)
    absent = [shell.name for shell in SHELLS if shell.path is None]
    names = ", ".join(shell.name for shell in available())
    print(f"seed {options.seed}; shells: {names}; absent: {absent}", flush=True)
    began = time.perf_counter()
    count, following = run_plain(options.seed, options.start, options.inputs, options.seconds, options.workers)
    print(
        f"{count.inputs} commands read, {count.allowed} of them allowed, {count.runs} runs in shells, "
        f"{len(count.problems)} problems, {time.perf_counter() - began:.0f} s; the next part is {following}"
    )
    return 1 if count.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
