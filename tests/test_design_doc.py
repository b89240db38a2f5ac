"""docs/design.md names every module of the package, and no file that does not exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "claude_code_mcp"
TEXT = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
TREE = TEXT.split("```text\n", 1)[1].split("```", 1)[0]
WIDTH = 120
COLUMN = 26
LIKELY_CHANGES = 20
_ENTRY = re.compile(r"(?P<indent>(?:  )*)(?P<name>\w+(?:\.py|/)) +(?P<description>\S.*)")


def entries() -> dict[str, str]:
    """The paths of the tree, relative to the package, with their descriptions; packages end with a slash."""
    found: dict[str, str] = {}
    parents: list[str] = []
    for line in TREE.splitlines():
        entry = _ENTRY.fullmatch(line)
        assert entry is not None, f"not an entry of the tree: {line!r}"
        depth = len(entry["indent"]) // 2
        assert depth <= len(parents), f"indented below nothing: {line!r}"
        del parents[depth:]
        path = "".join(parents) + entry["name"]
        assert path not in found, f"listed twice: {path}"
        found[path] = entry["description"]
        if path.endswith("/"):
            parents.append(entry["name"])
    return found


def modules() -> set[str]:
    """What the tree must list: packages with a slash, modules, and the `__init__` of the root."""
    files = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    packages = {f"{path.parent.as_posix()}/" for path in files if path.name == "__init__.py" and path.parent.parts}
    return packages | {path.as_posix() for path in files if path.name != "__init__.py"} | {"__init__.py"}


def sections(level: str) -> dict[str, str]:
    """The text below each heading of a level."""
    parts = re.split(rf"^{level} (.+)$", TEXT, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def files_in(text: str) -> set[str]:
    """The files and directories that are named in a text, in backticks."""
    return set(re.findall(r"`([\w./-]+(?:\.(?:py|md|toml|txt|jsonl)|/))`", text))


def exists(name: str) -> bool:
    return (PACKAGE / name).exists() or (ROOT / name).exists()


PATHS = {title: body.split("\n## ")[0] for title, body in sections("###").items()}
CHANGES = [line.strip("|").split("|") for line in sections("##")["To change X, go to Y"].splitlines() if "`" in line]


def test_the_tree_lists_every_module_and_nothing_else() -> None:
    listed = set(entries())
    assert {"missing": modules() - listed, "gone": listed - modules()} == {"missing": set(), "gone": set()}


def test_every_entry_of_the_tree_is_one_aligned_line() -> None:
    lines = TREE.splitlines()
    assert len(lines) == len(entries())
    assert [line for line in lines if len(line) > WIDTH] == []
    assert [line for line in lines if line[COLUMN - 1] != " " or line[COLUMN] == " "] == []
    assert [path for path, description in entries().items() if description.endswith(".")] == []


def test_every_file_that_is_named_exists() -> None:
    assert {name for name in files_in(TEXT) if not exists(name)} == set()


@pytest.mark.parametrize("title", PATHS)
def test_the_hops_of_a_data_path_are_numbered_and_name_files(title: str) -> None:
    hops = re.split(r"^(\d+)\. ", PATHS[title], flags=re.MULTILINE)
    assert [int(number) for number in hops[1::2]] == list(range(1, len(hops) // 2 + 1))
    assert len(hops) > 1
    assert files_in(PATHS[title])


def test_every_likely_change_leads_to_a_file() -> None:
    assert len(CHANGES) >= LIKELY_CHANGES
    assert [change for change, where, *_ in CHANGES if not files_in(where)] == []


def test_no_change_is_listed_twice() -> None:
    names = [change.strip() for change, *_ in CHANGES]
    assert sorted(names) == sorted(set(names))


def test_the_prose_is_plain() -> None:
    dialect = r"\b(told|tells?|whoever|heard|hears?|somebody|nobody|patience|strangers?)\b"
    assert re.findall(dialect, TEXT, re.IGNORECASE) == []
