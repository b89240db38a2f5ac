"""The index of files in docs/files.md, made from the docstrings of the modules.

    python -m tests.support.file_index

renews it. The layers are in the order of `tests/test_architecture.py`: each imports only from those before it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import ROOT as PACKAGE
from tests.test_architecture import ROWS

PAGE = Path(__file__).parents[2] / "docs" / "files.md"
BEGIN, END = "<!-- the index begins -->\n", "<!-- the index ends -->\n"


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def files() -> Iterator[Path]:
    """Every module, layer by layer; in a package its `__init__` first, which says what the package is."""
    layers = [layer for row in ROWS for layer in sorted(row) if "." not in layer]
    yield PACKAGE / "__init__.py"
    for layer in layers:
        single = PACKAGE / f"{layer}.py"
        found = [single] if single.exists() else sorted((PACKAGE / layer).rglob("*.py"), key=_place)
        yield from found


def _place(path: Path) -> tuple[tuple[str, ...], bool, str]:
    return path.parent.parts, path.name != "__init__.py", path.name


def index() -> str:
    lines = []
    for path in files():
        name = path.relative_to(PACKAGE).as_posix()
        if name.endswith("/__init__.py"):
            lines.append(f"\n**`{name.removesuffix('__init__.py')}`** {summary(path)}\n")
        else:
            lines.append(f"- `{name}`: {summary(path)}")
    return "\n".join(lines) + "\n"


def page_with(text: str, made: str) -> str:
    """The page with another index between its marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{made}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), index()), "utf-8")
