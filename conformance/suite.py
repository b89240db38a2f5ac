"""Runs the official suite on our server and on our hub, judges its findings, and scores them as the SDKs are scored.

The score counts the scenarios that a revision of the protocol requires: the list is in the package of the suite. All
others that apply to the revision are run too. What is not passed must be listed in `not_applicable.toml`, and the list
is checked both ways: a finding that is not listed fails the run, and so does a listed one that is no longer found, or
that is now found for another reason.
"""

import asyncio
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.scenarios.real_clients.packages import Packages

ERAS = ("2025-11-25", "2026-07-28")
LIST = Path(__file__).parent / "not_applicable.toml"
SERVER = (sys.executable, "-m", "conformance.suite_server")
"""Our server with what the suite asks for by name; the address is added."""
HUB = (sys.executable, "-m", "conformance.hub_client")
AUTHORIZATION = "authorization server"
WITH_TOKEN = "server with access tokens"
EXTENSION = "extension"
"""Stands where the suite names the eras of a scenario, for those of an extension."""
_PACKAGE = ("@modelcontextprotocol", "conformance")
_SECONDS = 240
_CLIENT_SECONDS = 150
_EVERYWHERE = "wire-schema-valid"  # stands in every scenario, whatever else the scenario is about
_SCENARIO_LINE = re.compile(r"^ +- (\S+) \[(.+)\]$", re.MULTILINE)
_RESULT_DIRECTORY = re.compile(r"(?:authorization-server-|server-)?(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


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
    """What became of one run: of the server, or of the hub as a client, in one era."""

    subject: str
    era: str
    checks: tuple[Check, ...]
    exemptions: Mapping[str, Exemption]
    expected: frozenset[str]
    required: frozenset[str] = frozenset()
    """Those of the expected scenarios that the era requires, and the score counts."""

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

    def score(self, scenarios: Collection[str]) -> str:
        """How many of these scenarios passed, and how many there are."""
        return f"{sum(self.outcome(scenario) == 'passed' for scenario in scenarios)}/{len(scenarios)}"

    def _explained(self, check: Check) -> bool:
        exemption = self.exemptions.get(check.key)
        return exemption is not None and exemption.explains(check)

    def _stale(self, wrong: Mapping[str, Check]) -> list[str]:
        return sorted(self.exemptions.keys() - wrong.keys())

    def outcome(self, scenario: str) -> str:
        """`passed`, `FAILED`, `skipped` by the suite itself, or what of it does not apply."""
        own = [check for check in self.checks if check.scenario == scenario and check.name != _EVERYWHERE]
        wrong = [check for check in own if check.wrong]
        if not own or any(not self._explained(check) for check in wrong):
            return "FAILED"
        if all(check.status == "SKIPPED" for check in own):
            return "skipped"
        if not wrong:
            return "passed"
        return "passed in part" if any(check.status == "SUCCESS" for check in own) else "not applicable"

    def reasons(self, scenario: str) -> list[str]:
        """Why parts of a scenario do not apply."""
        exemptions = self.exemptions.items()
        return list(dict.fromkeys(entry.why for key, entry in exemptions if key.rpartition("/")[0] == scenario))


@dataclass(frozen=True, slots=True)
class Suite:
    """The suite as it is installed."""

    packages: Packages

    @property
    def version(self) -> str:
        manifest = self.packages.script(*_PACKAGE, "package.json").read_text(encoding="utf-8")
        return str(json.loads(manifest)["version"])

    def run_server(self, url: str, era: str, output: Path, *, subject: str = "server") -> Verdict:
        """Every scenario of an era against a server; `output` is where the suite leaves its findings."""
        # The exit code says only that something was found; the files say what.
        self._run("server", "--url", url, "--suite", "all", "--spec-version", era, output=output)
        return self._verdict("server", era, output, self._scenarios("--server", era), subject)

    async def run_authorization(
        self,
        issuer: str,
        client_id: str,
        resource: str,
        port: int,
        era: str,
        output: Path,
        allow: Callable[[str], Awaitable[None]],
    ) -> Verdict:
        """Every scenario of an era against an authorization server. `allow` gets the address at which a person has to
        allow the client, and leads their browser back to `/callback` on this port."""
        asked = ("--url", issuer, "--client-id", client_id, "--resource", resource, "--port", str(port))
        program = self._program("authorization", *asked, "--spec-version", era, output=output)
        process = await asyncio.create_subprocess_exec(
            *program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_SECONDS):
                async for line in process.stdout:
                    if line.startswith(f"{issuer}/".encode()):
                        await allow(line.decode().strip())
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        expected = await asyncio.to_thread(self._scenarios, "--authorization", era)
        return Verdict(AUTHORIZATION, era, tuple(_findings(output)), {}, expected, expected)

    def run_tasks(self, url: str, output: Path) -> Verdict:
        """The scenarios of the tasks extension, which no era has and which are run one by one for that reason."""
        expected = frozenset(name for name in self._scenarios("--server", EXTENSION) if name.startswith("tasks-"))
        for scenario in sorted(expected):
            self._run(
                *("server", "--url", url, "--force", "--scenario", scenario, "--spec-version", ERAS[-1]), output=output
            )
        return Verdict("tasks", EXTENSION, tuple(_findings(output)), {}, expected)

    def run_client(self, era: str, output: Path, environment: Mapping[str, str]) -> Verdict:
        """Every scenario of an era against our hub, which the suite starts in this environment. One by one: together,
        the suite starts all of them at the same moment, and the SDK's probe waits 10 s for an answer and no longer."""
        expected = self._scenarios("--client", era)
        command = ("client", "--command", shlex.join(HUB), "--timeout", str(1000 * _CLIENT_SECONDS))
        for scenario in sorted(expected):
            self._run(
                *(*command, "--scenario", scenario, "--spec-version", era), output=output, environment=environment
            )
        return self._verdict("client", era, output, expected)

    def _verdict(
        self, role: str, era: str, output: Path, expected: frozenset[str], subject: str | None = None
    ) -> Verdict:
        required = self.required(role, era)
        assert required <= expected, required - expected
        exemptions = load_exemptions(f"{role} {era}")
        return Verdict(subject or role, era, tuple(_findings(output)), exemptions, expected, required)

    def required(self, subject: str, era: str) -> frozenset[str]:
        """The scenarios that an era requires of a server or client."""
        text = self.packages.script(*_PACKAGE, "requirements", f"{era}.yaml").read_text(encoding="utf-8")
        [block] = re.findall(rf"^{subject}:\n((?:  - \S+\n)+)", text, re.MULTILINE)
        return frozenset(re.findall(r"- (\S+)", block))

    def _scenarios(self, kind: str, era: str) -> frozenset[str]:
        listing = self._run("list", kind)
        found = frozenset(name for name, eras in _SCENARIO_LINE.findall(listing) if era in eras.split(","))
        assert found, listing
        return found

    def _program(self, *arguments: str, output: Path | None = None) -> list[str]:
        program = [str(self.packages.node), str(self.packages.script(*_PACKAGE, "dist", "index.js")), *arguments]
        return [*program, *(["--output-dir", str(output)] if output is not None else [])]

    def _run(self, *arguments: str, output: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            self._program(*arguments, output=output),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return done.stdout


def load_exemptions(run: str, path: Path = LIST) -> dict[str, Exemption]:
    """The checks that do not apply in a run, which is named like `server 2025-11-25`, by scenario and name."""
    groups: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["exemption"]
    return {key: Exemption(group["why"], group["says"]) for group in groups for key in group.get(run, ())}


def _findings(output: Path) -> Iterable[Check]:
    """Scenarios of clients have a slash in their names, and so their findings are one directory deeper."""
    for file in sorted(output.rglob("checks.json")):
        named = _RESULT_DIRECTORY.fullmatch(file.parent.relative_to(output).as_posix())
        assert named, file
        for finding in json.loads(file.read_text(encoding="utf-8")):
            message = finding.get("errorMessage") or finding.get("description") or ""
            yield Check(named[1], finding["id"], finding["status"], " ".join(message.split()))


Scores = Mapping[tuple[str, str], str]
"""By the name of a row and the era."""
_TITLE = "[MCP conformance suite](https://github.com/modelcontextprotocol/conformance)"


def scores_of(verdict: Verdict) -> Scores:
    """In the rows that the SDKs publish theirs in."""
    if verdict.subject == "server":
        return {("Server", verdict.era): verdict.score(verdict.required)}
    if verdict.subject == WITH_TOKEN:
        return {("Server, with access tokens of a provider", verdict.era): verdict.score(verdict.required)}
    if verdict.subject == AUTHORIZATION:
        return {("Authorization server (`--oauth`)", verdict.era): verdict.score(verdict.required)}
    if verdict.subject == "client":
        signing_in = {scenario for scenario in verdict.required if scenario.startswith("auth/")}
        return {
            ("Client (the hub): core", verdict.era): verdict.score(verdict.required - signing_in),
            ("Client (the hub): authorization", verdict.era): verdict.score(signing_in),
        }
    judged = {scenario for scenario in verdict.expected if verdict.outcome(scenario) != "skipped"}
    return {("Server: tasks extension", ERAS[-1]): verdict.score(judged)}


def table(version: str, scores: Scores) -> list[str]:
    """The table of docs/conformance.md for this version of the suite."""
    rows = dict.fromkeys(row for row, _ in scores)
    return [
        f"| {_TITLE} {version} | {' | '.join(ERAS)} |",
        f"| --- |{' --- |' * len(ERAS)}",
        *(f"| {row} | {' | '.join(scores.get((row, era), '–') for era in ERAS)} |" for row in rows),
    ]


def read_table(text: str) -> tuple[str, Scores]:
    """The version and the scores in a text that has the table."""
    lines = iter(text.splitlines())
    [version] = next(found for line in lines if (found := re.findall(rf"^\| {re.escape(_TITLE)} (\S+) \|", line)))
    next(lines)
    scores: dict[tuple[str, str], str] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        row, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        scores |= {(row, era): cell for era, cell in zip(ERAS, cells, strict=True) if cell != "–"}
    return version, scores
