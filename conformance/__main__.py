"""`make conformance`: the official suite on our server and on our hub, in both eras; the findings and the score."""

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from claude_code_mcp.testing import Sandbox
from tests.scenarios.real_clients.packages import install
from tests.scenarios.real_clients.serving import serve_http
from tests.support.npm import Unavailable

from .authorization import (
    own_authorization_server,
    resource_server,
    run_authorization_server,
    run_with_access_token,
)
from .suite import ERAS, SERVER, Suite, Verdict, scores_of, table

ROOT = Path(__file__).parents[1]
_NOWHERE = "http://127.0.0.1:9"  # no session is started, so that no model is needed


def main() -> int:
    try:
        suite = Suite(install())
    except Unavailable as error:
        print(f"The suite cannot run here: {error}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        sandbox = Sandbox(Path(directory), _NOWHERE)
        environment = sandbox.environment(PYTHONPATH=str(ROOT))
        findings = sandbox.root / "findings"
        with serve_http(sandbox.root, environment, program=SERVER) as served:
            assert served.url is not None
            verdicts = [suite.run_server(served.url, era, findings / era) for era in ERAS]
            verdicts.append(suite.run_tasks(served.url, findings / "tasks"))
        verdicts += asyncio.run(_run_authorization(suite, sandbox, environment, findings))
        verdicts += [suite.run_client(era, findings / f"client-{era}", environment) for era in ERAS]
    for verdict in verdicts:
        _print_verdict(verdict)
    complaints = [f"{verdict.subject} {verdict.era}  {text}" for verdict in verdicts for text in verdict.complaints]
    print("\n".join(complaints) or "Everything that applies passes.", end="\n\n")
    scores = {cell: score for verdict in verdicts for cell, score in scores_of(verdict).items()}
    print("\n".join(table(suite.version, scores)))
    return 1 if complaints else 0


async def _run_authorization(
    suite: Suite, sandbox: Sandbox, environment: dict[str, str], findings: Path
) -> list[Verdict]:
    """The scenarios on servers that want access tokens: of a provider, and of the authorization server in this one."""
    root = sandbox.root / "authorization"
    root.mkdir()
    with resource_server(sandbox, environment) as (url, provider):
        verdicts = [
            await run_with_access_token(suite, url, provider, sandbox, era, findings / f"token-{era}") for era in ERAS
        ]
    async with own_authorization_server(root, _NOWHERE) as (served, device):
        for era in ERAS:
            output = findings / f"authorization-{era}"
            verdicts.append(await run_authorization_server(suite, served, device, era, output))
    return verdicts


def _print_verdict(verdict: Verdict) -> None:
    scenarios = sorted({check.scenario for check in verdict.checks})
    outcomes = {scenario: verdict.outcome(scenario) for scenario in scenarios}
    width = max(map(len, scenarios), default=0)
    print(f"\n{verdict.subject} {verdict.era}")
    for scenario, outcome in outcomes.items():
        print(f"  {scenario:{width}}  {outcome:14}  {'; '.join(verdict.reasons(scenario))}".rstrip())
    counted = ", ".join(f"{number} {outcome}" for outcome, number in Counter(outcomes.values()).most_common())
    checks = Counter(check.status for check in verdict.checks)
    print(f"  {len(scenarios)} scenarios: {counted}; {checks['SUCCESS']} checks passed, {checks['SKIPPED']} skipped\n")


if __name__ == "__main__":
    sys.exit(main())
