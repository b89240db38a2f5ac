"""`make soak`: everything that takes too long for `make test`, part after part, with one table at the end.

A part that fails does not keep the others from running; the exit code is 0 only if all of them passed. The output of
each part is kept below build/soak, and the last lines of one that failed are printed. `make soak PARTS='rules kills'`
runs these alone; `SEED=…` repeats the order of the tests that an earlier run has printed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "soak"
_LAST_LINES = 40
_STOP_SECONDS = 60.0
_PYTEST = ("tests.support.run", "-q")
_RUN_MINUTES = "240"  # the limit of each run of tests: it only guards against a hang


@dataclass(frozen=True, slots=True)
class Part:
    """One command of the soak, as arguments of `python -m`."""

    name: str
    about: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """How a part ended; a negative exit code is the signal that ended it."""

    part: Part
    exit_code: int
    seconds: float
    last_line: str


def parts(seed: int, cli_versions: str) -> list[Part]:
    """All parts in the order in which they run: tests first, since what they find is found soonest."""
    contract = "tests/scenarios/cli_versions"
    return [
        Part("order", "all tests in another order", (*_PYTEST, "-n", "4", "--shuffle", str(seed))),
        Part("cases", "tests marked soak", (*_PYTEST, "-n", "2", "-m", "soak", "--ignore", contract)),
        Part("examples", "ten times the examples", (*_PYTEST, "-n", "2", "-m", "hypothesis"), {"EXAMPLES": "400"}),
        Part("wires", "all wires of the server", (*_PYTEST, "-n", "2", "tests/server"), {"EVERY_WIRE": "1"}),
        Part("tokens", "tokens renewed", (*_PYTEST, "tests/hub/test_token_renewal.py"), {"TOKEN_SOAK": "1"}),
        Part("versions", "versions of the CLI", (*_PYTEST, contract, "-m", ""), {"TEST_CLI_VERSIONS": cli_versions}),
        Part("fates", "sessions meet random fates", ("benchmarks.session_fates",)),
        Part("kills", "server and CLI killed", ("benchmarks.containment",)),
        Part("shared", "the shared server killed", ("benchmarks.shared_soak",)),
        Part("crowd", "150 sessions at once", ("benchmarks.many_sessions",)),
        Part("fleet", "parts of a fleet killed", ("benchmarks.fleet_rounds",)),
        Part("machines", "200 sessions over machines", ("benchmarks.fleet_sessions",)),
        Part("rules", "commands against the rules", ("benchmarks.shell_fuzz", "--seconds", "900")),
        Part("linear", "time by length of text", ("benchmarks.linear_time",)),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help="only these")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="the order of the tests")
    parser.add_argument("--cli-versions", default="", help="with commas between them; those of the tests without")
    options = parser.parse_args(arguments)
    known = parts(options.seed, options.cli_versions)
    if unknown := sorted(set(options.names) - {part.name for part in known}):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(part.name for part in known)}")
    print(f"The tests are in the order of SEED={options.seed}; output is kept below {OUTPUT}.", flush=True)
    results = run([part for part in known if not options.names or part.name in options.names])
    for line in table(results):
        print(line)
    return 1 if any(result.exit_code for result in results) else 0


def run(chosen: Sequence[Part]) -> list[Result]:
    """Each part in turn. Ctrl-C ends the part that is running, which then counts as failed, and starts no other."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for part in chosen:
        print(f"… {part.name}: {part.about}", flush=True)
        result = _run_part(part)
        results.append(result)
        print(f"  {_verdict(result)} after {result.seconds:.0f} s: {result.last_line}", flush=True)
        if result.exit_code == -signal.SIGINT:
            break
    return results


def _run_part(part: Part) -> Result:
    log = OUTPUT / f"{part.name}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        command = [sys.executable, "-m", *part.arguments]
        # A process group of its own: Ctrl-C reaches this process alone, which then decides when the part has ended.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"TEST_RUN_MINUTES": _RUN_MINUTES, **os.environ, **part.variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            exit_code = process.wait()
        except KeyboardInterrupt:
            _stop(process)
            exit_code = -signal.SIGINT
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if exit_code:
        print("\n".join(lines[-_LAST_LINES:]), flush=True)
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    return Result(part, exit_code, time.monotonic() - began, last_line)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would, so that the part can end what it has started; killed where it does not in a minute."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def table(results: Sequence[Result]) -> list[str]:
    """A line for each part that ran, and one for all."""
    lines = [f"{'part':10} {'result':10} {'seconds':>8}  last line"]
    for result in results:
        lines.append(f"{result.part.name:10} {_verdict(result):10} {result.seconds:>8.0f}  {result.last_line}")
    failed = sum(1 for result in results if result.exit_code)
    seconds = sum(result.seconds for result in results)
    lines.append(f"{len(results) - failed} parts passed, {failed} failed, {seconds / 60:.0f} minutes")
    return lines


def _verdict(result: Result) -> str:
    return f"exit {result.exit_code}" if result.exit_code else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
