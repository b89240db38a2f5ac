"""Which versions of Claude Code this package works with. `tests/versions` runs the same conversations on several."""

import re

MINIMUM_VERSION = (2, 1, 0)
"""The oldest version that the contract tests run on."""

TESTED_VERSION = (2, 1, 325)
"""The version that all other tests run on: the one that the extra `cli` brings."""

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


def read_version(text: str) -> tuple[int, int, int] | None:
    """The version in what `claude --version` prints, such as `2.1.325 (Claude Code)`; None if there is none."""
    found = _VERSION.match(text.strip())
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def version_text(version: tuple[int, int, int]) -> str:
    """The version as it is written."""
    return ".".join(map(str, version))
