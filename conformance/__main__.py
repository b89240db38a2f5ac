"""`make conformance`: both eras of the official suite against this server on loopback, and a table of the findings."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from claude_code_mcp.testing import Sandbox
from tests.scenarios.real_clients.packages import install
from tests.scenarios.real_clients.serving import serve_http
from tests.support.npm import Unavailable

from .suite import ERAS, Verdict, run_suite, run_task_scenarios

_NOWHERE = "http://127.0.0.1:9"  # no session is started, so that no model is needed


def main() -> int:
    try:
        packages = install()
    except Unavailable as error:
        print(f"The suite cannot run here: {error}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        sandbox = Sandbox(Path(directory), _NOWHERE)
        with serve_http(sandbox.root, sandbox.environment()) as served:
            assert served.url is not None
            verdicts = [run_suite(packages, served.url, era, sandbox.root / era) for era in ERAS]
        environment = sandbox.environment(PYTHONPATH=str(Path(__file__).parents[1]))
        with serve_http(sandbox.root, environment, program=(sys.executable, "-m", "conformance.task_tools")) as served:
            assert served.url is not None
            verdicts.append(run_task_scenarios(packages, served.url, sandbox.root / "tasks"))
    for verdict in verdicts:
        _print_verdict(verdict)
    complaints = [f"{verdict.era}  {text}" for verdict in verdicts for text in verdict.complaints]
    print("\n".join(complaints) or "Everything that applies passes.")
    return 1 if complaints else 0


def _print_verdict(verdict: Verdict) -> None:
    scenarios = sorted({check.scenario for check in verdict.checks})
    outcomes = {scenario: verdict.outcome(scenario) for scenario in scenarios}
    width = max(map(len, scenarios), default=0)
    print(f"\n{verdict.era}")
    for scenario, outcome in outcomes.items():
        print(f"  {scenario:{width}}  {outcome:14}  {'; '.join(verdict.reasons(scenario))}".rstrip())
    counted = ", ".join(f"{number} {outcome}" for outcome, number in Counter(outcomes.values()).most_common())
    checks = Counter(check.status for check in verdict.checks)
    print(f"  {len(scenarios)} scenarios: {counted}; {checks['SUCCESS']} checks passed, {checks['SKIPPED']} skipped\n")


if __name__ == "__main__":
    sys.exit(main())
