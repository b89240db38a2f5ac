"""docs/design.md names only files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "claude_code_mcp"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def sections(text: str, level: str) -> dict[str, str]:
    """The text below each heading of a level."""
    parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def files_in(text: str) -> set[str]:
    """The files and directories that are named in a text, in backticks."""
    return set(re.findall(r"`([\w./-]+(?:\.(?:py|md|toml|txt|jsonl)|/))`", text))


def exists(name: str) -> bool:
    return (PACKAGE / name).exists() or (ROOT / name).exists()


PATHS = {title: body.split("\n## ")[0] for title, body in sections(DESIGN, "###").items()}
CHANGES = [
    line.strip("|").split("|") for line in sections(DESIGN, "##")["To change X, go to Y"].splitlines() if "`" in line
]


def test_every_file_that_is_named_exists() -> None:
    assert {name for name in files_in(DESIGN) if not exists(name)} == set()


def test_every_file_that_a_module_names_exists() -> None:
    names = {path.name for path in PACKAGE.rglob("*.py")}
    wrong = [
        f"{path.relative_to(PACKAGE)}: {named}"
        for path in PACKAGE.rglob("*.py")
        for named in re.findall(r"[`(]([\w/]+\.py)[`)]", path.read_text("utf-8"))
        if Path(named).name not in names
    ]
    assert wrong == []


@pytest.mark.parametrize("title", PATHS)
def test_the_hops_of_a_data_path_are_numbered_and_name_files(title: str) -> None:
    hops = re.split(r"^(\d+)\. ", PATHS[title], flags=re.MULTILINE)
    assert [int(number) for number in hops[1::2]] == list(range(1, len(hops) // 2 + 1))
    assert len(hops) > 1
    assert files_in(PATHS[title])


def test_every_likely_change_leads_to_a_file() -> None:
    assert CHANGES
    assert [change for change, where, *_ in CHANGES if not files_in(where)] == []


def test_no_change_is_listed_twice() -> None:
    names = [change.strip() for change, *_ in CHANGES]
    assert sorted(names) == sorted(set(names))


def test_the_prose_is_plain() -> None:
    dialect = r"\b(told|tells?|whoever|heard|hears?|somebody|nobody|patience|strangers?)\b"
    assert re.findall(dialect, DESIGN, re.IGNORECASE) == []
