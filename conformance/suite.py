"""Runs the official suite and judges its findings against the list of what does not apply.

The list is checked both ways: a finding that is not listed fails the run, and so does a listed one that is no longer
found, or that is now found for another reason.
"""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scenarios.real_clients.packages import Packages

ERAS = ("2025-11-25", "2026-07-28")
LIST = Path(__file__).parent / "not_applicable.toml"

_PROGRAM = ("@modelcontextprotocol", "conformance", "dist", "index.js")
_SECONDS = 120
_EVERYWHERE = "wire-schema-valid"  # stands in every scenario, whatever else the scenario is about
EXTENSION = "extension"
"""Stands where the suite names the eras of a scenario, for those of an extension."""
_SCENARIO_LINE = re.compile(r"^ +- (\S+) \[(.+)\]$", re.MULTILINE)
_RESULT_DIRECTORY = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@dataclass(frozen=True, slots=True)
class Check:
    """One finding of the suite."""

    scenario: str
    name: str
    status: str
    message: str

    @property
    def key(self) -> str:
        return f"{self.scenario}/{self.name}"

    @property
    def wrong(self) -> bool:
        """A warning counts: what the specification only recommends is explained too, or done."""
        return self.status in {"FAILURE", "WARNING"}


@dataclass(frozen=True, slots=True)
class Exemption:
    """Why a check does not apply, and what the suite says when it is for that reason."""

    why: str
    says: str

    def explains(self, check: Check) -> bool:
        return re.search(self.says, check.message) is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one era."""

    era: str
    checks: tuple[Check, ...]
    exemptions: Mapping[str, Exemption]
    expected: frozenset[str]

    @property
    def complaints(self) -> list[str]:
        """Everything that fails the run."""
        wrong = {check.key: check for check in self.checks if check.wrong}
        missing = sorted(self.expected - {check.scenario for check in self.checks})
        return [
            *(f"{scenario} was not run" for scenario in missing),
            *(f"{key}: {check.message}" for key, check in wrong.items() if not self._explained(check)),
            *(f"{key} is listed as not applicable, but nothing is wrong with it" for key in self._stale(wrong)),
        ]

    def _explained(self, check: Check) -> bool:
        exemption = self.exemptions.get(check.key)
        return exemption is not None and exemption.explains(check)

    def _stale(self, wrong: Mapping[str, Check]) -> list[str]:
        return sorted(self.exemptions.keys() - wrong.keys())

    def outcome(self, scenario: str) -> str:
        """`passed`, `FAILED`, or what of it does not apply."""
        own = [check for check in self.checks if check.scenario == scenario and check.name != _EVERYWHERE]
        wrong = [check for check in own if check.wrong]
        if any(not self._explained(check) for check in wrong):
            return "FAILED"
        if not wrong:
            return "passed"
        return "passed in part" if any(check.status == "SUCCESS" for check in own) else "not applicable"

    def reasons(self, scenario: str) -> list[str]:
        """Why parts of a scenario do not apply."""
        exemptions = self.exemptions.items()
        return list(dict.fromkeys(entry.why for key, entry in exemptions if key.partition("/")[0] == scenario))


def load_exemptions(era: str, path: Path = LIST) -> dict[str, Exemption]:
    """The checks that do not apply in an era, by scenario and name."""
    groups: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["exemption"]
    return {key: Exemption(group["why"], group["says"]) for group in groups for key in group.get(era, ())}


def run_suite(packages: Packages, url: str, era: str, output: Path) -> Verdict:
    """Runs every scenario of an era against a server; `output` is where the suite leaves its findings."""
    expected = _scenarios(packages, era)
    program = [str(packages.node), str(packages.script(*_PROGRAM)), "server", "--url", url, "--suite", "all"]
    # The exit code tells only that something was found; the files tell what.
    subprocess.run(
        [*program, "--spec-version", era, "--output-dir", str(output)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=_SECONDS,
        check=False,
    )
    return Verdict(era, tuple(_findings(output)), load_exemptions(era), expected)


def run_task_scenarios(packages: Packages, url: str, output: Path) -> Verdict:
    """Runs the scenarios of the tasks extension against a server that has the tools they call (task_tools.py)."""
    expected = frozenset(name for name in _scenarios(packages, EXTENSION) if name.startswith("tasks-"))
    program = [str(packages.node), str(packages.script(*_PROGRAM)), "server", "--url", url, "--force"]
    for scenario in sorted(expected):
        subprocess.run(
            [*program, "--scenario", scenario, "--spec-version", ERAS[-1], "--output-dir", str(output)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    return Verdict(EXTENSION, tuple(_findings(output)), {}, expected)


def _scenarios(packages: Packages, era: str) -> frozenset[str]:
    argv = [str(packages.node), str(packages.script(*_PROGRAM)), "list", "--server"]
    listing = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    found = frozenset(name for name, eras in _SCENARIO_LINE.findall(listing) if era in eras.split(","))
    assert found, listing
    return found


def _findings(output: Path) -> Iterable[Check]:
    for file in sorted(output.glob("*/checks.json")):
        named = _RESULT_DIRECTORY.fullmatch(file.parent.name)
        assert named, file
        for finding in json.loads(file.read_text(encoding="utf-8")):
            message = finding.get("errorMessage") or finding.get("description") or ""
            yield Check(named[1], finding["id"], finding["status"], " ".join(message.split()))
