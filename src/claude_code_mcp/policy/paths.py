"""Paths: whether one lies below another, and whether it fits a pattern. Whoever asks has resolved them before."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ..model.paths import HERE, PathRules

Resolve = Callable[[str], str]
"""A path → where it really is: absolute, `~` expanded, symlinks followed as far as they exist."""

LONGEST_PATH = 4096
"""No longer one is looked up: no usual system opens it, and following it name by name takes its time."""
_ANY_DEPTH = "**"


def lies_below(path: str, root: str, rules: PathRules = HERE) -> bool:
    """Whether a resolved path is a resolved root or below it."""
    return rules.below(path, root) is not None


def fits(path: str, pattern: str, cwd: str, rules: PathRules = HERE) -> bool:
    """Whether an absolute path fits a pattern: `**` for any depth, `*` and `?` within a name.

    A pattern that is not absolute starts at `cwd`; one without a wildcard includes what lies below it. The time is
    linear in the length of the path.
    """
    names: list[str] = rules.parts(path)
    if ".." in names:
        return False
    absolute = rules.pattern_start(pattern, cwd)
    if absolute is None:
        below = rules.below(path, cwd)
        if below is None:
            return False
        names = names[-len(below) :] if below else ["."]
    expected = rules.parts(absolute or pattern)
    if not set("*?") & set(pattern):
        return names[: len(expected)] == expected
    return _fit(names, expected)


def _fit(names: Sequence[str], expected: Sequence[str]) -> bool:
    """Name by name. Where one does not fit, the last `**` takes one name more; an earlier one never needs to."""
    at = wanted = 0
    taken = after = -1
    while at < len(names):
        if wanted < len(expected) and expected[wanted] == _ANY_DEPTH:
            wanted += 1
            taken, after = at, wanted
        elif wanted < len(expected) and _name_fits(names[at], expected[wanted]):
            at, wanted = at + 1, wanted + 1
        elif after >= 0:
            taken += 1
            at, wanted = taken, after
        else:
            return False
    return all(part == _ANY_DEPTH for part in expected[wanted:])


def _name_fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))
