"""The conformance suite finds nothing unexplained, its scores are those in docs/conformance.md, and findings are judged
strictly."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox
from conformance.authorization import (
    own_authorization_server,
    resource_server,
    run_authorization_server,
    run_with_access_token,
)
from conformance.suite import (
    ERAS,
    SERVER,
    Check,
    Exemption,
    Suite,
    Verdict,
    load_exemptions,
    read_table,
    scores_of,
    table,
)
from tests.conftest import RUN
from tests.support.npm import Unavailable

from .packages import Packages
from .serving import Served, serve_http

ROOT = Path(__file__).parents[3]
EXEMPT = {"prompts/list": Exemption("the server has none", "Method not found")}


@pytest.fixture(scope="module")
def suite(packages: Packages) -> Suite:
    return Suite(packages)


@pytest.fixture(scope="module")
def with_repository(common: Sandbox) -> dict[str, str]:
    """The environment of programs that import `conformance`."""
    return common.environment(**{RUN: os.environ[RUN], "PYTHONPATH": str(ROOT)})


@pytest.fixture(scope="module")
def address(common: Sandbox, with_repository: dict[str, str]) -> Iterator[Served]:
    """Our server with what the suite asks for by name, without a token: the suite shows none."""
    with serve_http(common.project, with_repository, program=SERVER) as served:
        yield served


def check_page(suite: Suite, verdict: Verdict) -> None:
    version, scores = read_table((ROOT / "docs" / "conformance.md").read_text(encoding="utf-8"))
    assert version == suite.version
    assert scores_of(verdict).items() <= scores.items()


LATER = pytest.mark.parametrize(
    "era", [pytest.param(era, marks=pytest.mark.soak) if era == ERAS[0] else era for era in ERAS]
)
"""The earlier era has more scenarios, with a program each, and goes to the soak; `make conformance` has both too."""


@LATER
def test_the_server_passes_every_scenario(suite: Suite, address: Served, tmp_path: Path, era: str) -> None:
    assert address.url is not None
    verdict = suite.run_server(address.url, era, tmp_path)
    assert verdict.complaints == []
    check_page(suite, verdict)


@LATER
async def test_the_authorization_server_passes_every_scenario(
    suite: Suite, tmp_path: Path, common: Sandbox, era: str
) -> None:
    (tmp_path / "served").mkdir()
    async with own_authorization_server(tmp_path / "served", common.model_url) as (served, device):
        verdict = await run_authorization_server(suite, served, device, era, tmp_path / era)
    assert verdict.complaints == []
    assert verdict.expected == {"authorization-server-metadata-endpoint", "authorization-code-grant"}
    check_page(suite, verdict)


@pytest.mark.soak  # the scenarios of the server once more; tests/plugins/team has clients with tokens
async def test_a_server_with_a_provider_passes_every_scenario_too(
    suite: Suite, common: Sandbox, with_repository: dict[str, str], tmp_path: Path
) -> None:
    try:
        with resource_server(common, with_repository) as (url, provider):
            verdicts = [await run_with_access_token(suite, url, provider, common, era, tmp_path / era) for era in ERAS]
    except Unavailable as reason:
        pytest.skip(str(reason))
    for verdict in verdicts:
        assert verdict.complaints == []
        check_page(suite, verdict)


@pytest.mark.soak  # a program for each scenario; tests/server/test_tasks.py shows the same
def test_every_scenario_of_tasks_passes(suite: Suite, address: Served, tmp_path: Path) -> None:
    assert address.url is not None
    verdict = suite.run_tasks(address.url, tmp_path)
    assert verdict.complaints == []
    assert len(verdict.expected) == 10
    # The suite does not check notifications yet; tests/server/test_tasks.py does.
    assert [name for name in verdict.expected if verdict.outcome(name) == "skipped"] == ["tasks-status-notifications"]
    check_page(suite, verdict)


@pytest.mark.soak  # a hub for each scenario
@pytest.mark.time_limit(1200)
@pytest.mark.parametrize("era", ERAS)
def test_the_hub_passes_every_scenario_of_a_client(
    suite: Suite, with_repository: dict[str, str], tmp_path: Path, era: str
) -> None:
    verdict = suite.run_client(era, tmp_path, with_repository)
    assert verdict.complaints == []
    check_page(suite, verdict)


# -- the judging ------------------------------------------------------------------------------------------------


def judged(*checks: Check, expected: str = "prompts") -> Verdict:
    return Verdict("server", "2025-11-25", checks, EXEMPT, frozenset({expected}), frozenset({expected}))


def test_what_is_listed_and_found_is_no_complaint_and_no_point() -> None:
    verdict = judged(Check("prompts", "list", "FAILURE", "Failed: Method not found"))
    assert verdict.complaints == []
    assert verdict.outcome("prompts") == "not applicable"
    assert scores_of(verdict) == {("Server", "2025-11-25"): "0/1"}


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        (Check("prompts", "list", "FAILURE", "timed out"), "prompts/list: timed out"),
        (Check("prompts", "get", "FAILURE", "Method not found"), "prompts/get: Method not found"),
        (Check("prompts", "get", "WARNING", "not so good"), "prompts/get: not so good"),
        (Check("prompts", "list", "SUCCESS", ""), "prompts/list is listed as not applicable"),
        (Check("tools", "list", "SUCCESS", ""), "prompts was not run"),
    ],
)
def test_other_values_are_refused(check: Check, complaint: str) -> None:
    assert any(complaint in item for item in judged(check).complaints)


def test_a_scenario_that_was_not_run_is_no_point() -> None:
    assert scores_of(judged(Check("tools", "list", "SUCCESS", ""))) == {("Server", "2025-11-25"): "0/1"}


def test_the_table_is_read_as_it_is_written() -> None:
    scores = {("Server", ERAS[0]): "30/30", ("Server", ERAS[1]): "37/37", ("Server: tasks extension", ERAS[1]): "9/9"}
    assert read_table("\n".join(["# Title", "", *table("1.2.3", scores), "", "| another | table |"])) == (
        "1.2.3",
        scores,
    )


def test_no_check_is_exempt_without_a_reason() -> None:
    exemptions = [
        value
        for subject in ("server", "client")
        for era in ERAS
        for value in load_exemptions(f"{subject} {era}").values()
    ]
    assert exemptions
    assert all(value.why and re.compile(value.says).search("") is None for value in exemptions)
