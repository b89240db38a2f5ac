"""Whether a path fits a pattern of a rule. Pure: callers resolve the path before."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ..model.paths import HERE, PathRules

Resolve = Callable[[str], str]
"""A path → where it really is: absolute, `~` expanded, symlinks followed as far as they exist."""

LONGEST_PATH = 4096
"""Characters. A longer path is refused: no usual system opens it, and resolving it name by name takes long."""
_ANY_DEPTH = "**"


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
    name_at = part_at = 0
    # Where to go back to: the first name behind those that the last `**` took, and the part behind that `**`.
    retry_name = retry_part = -1
    while name_at < len(names):
        if part_at < len(expected) and expected[part_at] == _ANY_DEPTH:
            part_at += 1
            retry_name, retry_part = name_at, part_at
        elif part_at < len(expected) and _name_fits(names[name_at], expected[part_at]):
            name_at, part_at = name_at + 1, part_at + 1
        elif retry_part >= 0:
            retry_name += 1
            name_at, part_at = retry_name, retry_part
        else:
            return False
    return all(part == _ANY_DEPTH for part in expected[part_at:])


def _name_fits(name: str, pattern: str) -> bool:
    """`*` and `?` are wildcards; brackets, which fnmatch would read as a set, are themselves."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
