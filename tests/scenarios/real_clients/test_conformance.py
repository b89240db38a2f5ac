"""The official conformance suite finds nothing that is not explained, and the judging of its findings is strict."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox
from conformance.suite import ERAS, Check, Exemption, Verdict, load_exemptions, run_suite, run_task_scenarios
from tests.conftest import RUN

from .packages import Packages
from .serving import Served, serve_http

EXEMPT = {"prompts/list": Exemption("the server has none", "Method not found")}


@pytest.fixture(scope="module")
def open_address(common: Sandbox) -> Iterator[Served]:
    """A server without a token: the suite shows none."""
    with serve_http(common.project, common.environment(**{RUN: os.environ[RUN]})) as served:
        yield served


@pytest.mark.parametrize("era", [pytest.param(ERAS[0], marks=pytest.mark.soak), *ERAS[1:]])
def test_every_scenario_that_applies_passes(packages: Packages, open_address: Served, tmp_path: Path, era: str) -> None:
    assert open_address.url is not None
    verdict = run_suite(packages, open_address.url, era, tmp_path)
    assert verdict.complaints == []
    assert verdict.outcome("tools-list") == "passed"


REPOSITORY = Path(__file__).parents[3]
TASK_TOOLS = (sys.executable, "-m", "conformance.task_tools")


@pytest.mark.soak  # a program for each scenario; tests/server/test_tasks.py shows the same
def test_every_scenario_of_tasks_passes(packages: Packages, common: Sandbox, tmp_path: Path) -> None:
    environment = common.environment(**{RUN: os.environ[RUN], "PYTHONPATH": str(REPOSITORY)})
    with serve_http(tmp_path, environment, program=TASK_TOOLS) as served:
        assert served.url is not None
        verdict = run_task_scenarios(packages, served.url, tmp_path / "findings")
    assert verdict.complaints == []
    assert len(verdict.expected) == 10
    # The suite does not check notifications yet; tests/server/test_tasks.py does.
    skipped = {check.scenario for check in verdict.checks if check.status == "SKIPPED"}
    assert skipped == {"tasks-status-notifications"}


def judged(*checks: Check, expected: str = "prompts") -> Verdict:
    return Verdict("2025-11-25", checks, EXEMPT, frozenset({expected}))


def test_what_is_listed_and_found_is_no_complaint() -> None:
    verdict = judged(Check("prompts", "list", "FAILURE", "Failed: Method not found"))
    assert verdict.complaints == []
    assert verdict.outcome("prompts") == "not applicable"


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
def test_anything_else_is_a_complaint(check: Check, complaint: str) -> None:
    assert any(complaint in item for item in judged(check).complaints)


@pytest.mark.parametrize("era", ERAS)
def test_no_check_is_exempt_without_a_reason(era: str) -> None:
    exemptions = load_exemptions(era)
    assert exemptions
    assert all(value.why and re.compile(value.says).search("") is None for value in exemptions.values())
