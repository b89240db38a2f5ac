"""`make soak`: random commands, read by the policy and run by real shells.

What the policy allows is given to bash, dash and zsh: they may run exactly the commands that were read, and write no
file. What it would let pass beside a denied program is run too: the denied program must not be called.

The inputs come in parts, each made from the seed and its own number: `--seed 7 --start 120` goes on where an earlier
run has stopped.
"""

import argparse
import random
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from claude_code_mcp.policy.rules import Decision, Rule, ToolCall, judge, parse_rule
from claude_code_mcp.policy.shell import read_strictly

from .shell_commands import DENIED, hidden_commands, plain_commands
from .shells import MAIN, SHELLS, Shell, Trap, effects, scratch_directory

PART = 4000
"""Inputs that are made from one seed."""
HIDDEN_PART = 200
"""Further inputs of a part, which hide a denied program: running them takes longer."""
RULES = [
    parse_rule(f"Bash({pattern})") for pattern in ("git diff *", "git log:*", "ls *", "echo *", "test *", "printf *")
]
DENY = [parse_rule(f"Bash({DENIED} *)")]
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


def is_allowed(command: str) -> bool:
    call = ToolCall("Bash", {"command": command}, "/", lambda path: path)
    return judge(call, RULES, []).decision is Decision.ALLOW


def may_pass(command: str, denied: Sequence[Rule] = DENY) -> bool:
    """Whether a command is run with nobody asked, where all but the denied programs are allowed."""
    call = ToolCall("Bash", {"command": command}, "/", lambda path: path)
    return judge(call, ANY, denied).decision is Decision.ALLOW


def problems_in(commands: Sequence[str], shells: Sequence[Shell]) -> list[str]:
    """What these commands, all of them allowed, do in these shells beside what was read."""
    found = []
    with scratch_directory() as place:
        for shell in shells:
            for start in range(0, len(commands), _BATCH):
                batch = commands[start : start + _BATCH]
                for command, effect in zip(batch, effects(shell, batch, place), strict=True):
                    unread = effect.calls - set(read_strictly(command) or ())
                    if unread or effect.files:
                        found.append(f"{shell.name}: {command!r} calls {sorted(unread)}, writes {list(effect.files)}")
    return found


def try_hidden(seed: int, number: int, size: int = HIDDEN_PART, shells: Sequence[Shell] = MAIN) -> Count:
    """Commands that hide the denied program: of those that pass, which call it all the same."""
    with scratch_directory() as place:
        trap = Trap(place, DENIED)
        commands = list(hidden_commands(random.Random(f"{seed}/{number}/hidden"), size, str(trap.programs)))
        passing = list(dict.fromkeys(filter(may_pass, commands)))
        problems = [
            f"{shell.name}: {command!r} calls {DENIED}"
            for command in passing
            for shell in shells
            if trap.catches(shell, command)
        ]
    return Count(size, len(passing), len(passing) * len(shells), problems)


def try_plain(seed: int, number: int, size: int = PART, shells: Sequence[Shell] = MAIN) -> Count:
    """Commands that may be allowed: of those that are, which do more than was read."""
    generator = random.Random(f"{seed}/{number}/plain")
    commands = [command for command, allowed in plain_commands(generator, size, is_allowed) if allowed]
    unique = list(dict.fromkeys(commands))
    return Count(size, len(commands), len(unique) * len(shells), problems_in(unique, shells))


def try_part(seed: int, number: int, shells: Sequence[Shell]) -> Count:
    """One part of the inputs, and what was found."""
    count = try_plain(seed, number, shells=shells)
    count.add(try_hidden(seed, number, shells=[shell for shell in shells if shell in MAIN]))
    return count


def available() -> list[Shell]:
    return [shell for shell in SHELLS if shell.path is not None]


def run_parts(seed: int, start: int, inputs: int, seconds: float, workers: int) -> tuple[Count, int]:
    """As many parts as are wanted or fit into the time; the second value is the number of the next part."""
    until = time.monotonic() + seconds
    total = Count()
    numbers = iter(range(start, start + -(-inputs // (PART + HIDDEN_PART))))
    shells = available()
    done = start
    with ProcessPoolExecutor(workers) as pool:
        while time.monotonic() < until and (some := list(islice(numbers, 2 * workers))):
            # Each part goes to the main shells, and one in turn of the others.
            chosen = [[shell for shell in shells if shell in MAIN or shell is shells[n % len(shells)]] for n in some]
            for count in pool.map(try_part, [seed] * len(some), some, chosen):
                total.add(count)
                for problem in count.problems:
                    print(f"PROBLEM: {problem}", flush=True)
            done = some[-1] + 1
            if done % 20 < len(some):
                print(f"{total.inputs} read, {total.allowed} allowed, {len(total.problems)} problems", flush=True)
    return total, done


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shell_fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (default: 1000000)")
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin no part after this time (default: 1800)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="repeats an earlier choice")
    parser.add_argument("--start", type=int, default=0, help="the number of the first part (default: 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes at the same time (default: 2)")
    options = parser.parse_args(arguments)
    absent = [shell.name for shell in SHELLS if shell.path is None]
    print(
        f"seed {options.seed}; shells: {', '.join(shell.name for shell in available())}; absent: {absent}", flush=True
    )
    began = time.perf_counter()
    count, following = run_parts(options.seed, options.start, options.inputs, options.seconds, options.workers)
    print(
        f"{count.inputs} commands read, {count.allowed} of them allowed, {count.runs} runs in shells, "
        f"{len(count.problems)} problems, {time.perf_counter() - began:.0f} s; the next part is {following}"
    )
    return 1 if count.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
