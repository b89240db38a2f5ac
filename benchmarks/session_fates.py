"""`make soak`: many sessions meet many fates at random moments; none may leave a process or lose its session.

Then rounds of concurrent callers of one session, each of whom must get the answer to their own message.
"""

import argparse
import asyncio
import secrets
import sys
import time
import uuid
from collections.abc import Sequence

from .callers import run_callers
from .common import Place, temporary_place
from .trial import Fate, Finding, plan, run_trial


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.session_fates", description=__doc__)
    parser.add_argument("--trials", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seconds", type=float, default=900.0, help="begin no trial after this time (default: 900)")
    parser.add_argument("--seed", type=int, default=None, help="repeats the trials of an earlier run")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    print(f"{options.trials} trials with seed {seed}", flush=True)
    began = time.perf_counter()
    with temporary_place() as place:
        findings = asyncio.run(meet_fates(place, seed, options.trials, options.seconds))
        wrong = asyncio.run(crowds(place, seed, len(findings) // 5))
    _report(findings, time.perf_counter() - began)
    return 1 if wrong or any(finding.problem for finding in findings) else 0


async def crowds(place: Place, seed: int, rounds: int) -> int:
    """Concurrent callers of one session, round after round; tells how many got another answer than their own."""
    wrong = 0
    for number in range(seed, seed + rounds):
        found = await run_callers(place, number)
        wrong += len(found)
        for mistake in found:
            print(f"WRONG ANSWER in round {number}: {mistake}", flush=True)
    print(f"{rounds} rounds of concurrent callers: {wrong} wrong answers", flush=True)
    return wrong


async def meet_fates(place: Place, seed: int, trials: int, seconds: float) -> list[Finding]:
    """One after the other: a new service sweeps up after dead ones, and must not hide what a trial has left."""
    run, end = uuid.uuid4().hex, time.monotonic() + seconds
    findings: list[Finding] = []
    for trial in plan(seed, trials):
        if time.monotonic() > end:
            print(f"{len(findings)} trials were begun within {seconds:.0f} s", flush=True)
            break
        findings.append(await run_trial(place, trial, run))
        if findings[-1].problem:
            print(f"PROBLEM in {trial}: {findings[-1].problem}", flush=True)
    return findings


def _report(findings: Sequence[Finding], seconds: float) -> None:
    print(f"{'':16}{'trials':>8}{'resumed':>9}{'no transcript yet':>19}{'problems':>10}")
    for fate in Fate:
        _print_row(str(fate), [finding for finding in findings if finding.trial.fate is fate])
    _print_row("all", findings)
    print(f"{seconds:.0f} s")


def _print_row(name: str, findings: Sequence[Finding]) -> None:
    problems = sum(1 for finding in findings if finding.problem)
    resumed = sum(1 for finding in findings if finding.resumed)
    early = len(findings) - resumed - problems
    print(f"{name:16}{len(findings):>8}{resumed:>9}{early:>19}{problems:>10}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
