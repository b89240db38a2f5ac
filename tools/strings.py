"""Prints every text that users read, with its place, as one list to review. `make strings` runs it.

A text is a string in the source that has at least two words and is not a docstring: descriptions of tools and settings,
results, errors, notices, questions, forms, push messages, `--help`, doctor, the terminal interface and logs. The list
also has the texts of the console, and those that clients and catalogs show: manifests, the plugin and its skill.
Parts that are inserted appear as `{}`. `--area errors` prints one area; the areas are the first column.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "claude_code_mcp"
_REPOSITORY = PACKAGE.parent.parent
_WEB = _REPOSITORY / "web" / "src"
_CLAUDE_PLUGIN = PACKAGE / "plugins" / "terminal" / "claude_plugin"
_LOG_METHODS = {"debug", "info", "warning", "error", "exception"}
_AREAS = {
    "add_argument": "help",
    "add_argument_group": "help",
    "add_parser": "help",
    "Field": "parameters",
    "Tool": "tools",
}
"""The area of the texts in a call, by the name of what is called."""
_ERROR = re.compile(r"[A-Z]\w*(Error|Argument|Denied|Failed|Reached|Busy|NotFound|Refused|Unavailable)")
_TEXT = re.compile(r"[A-Za-z]{2,}[ ,:']+\S*[A-Za-z]")
_NOT_FOR_PEOPLE = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|PRAGMA|DROP|WITH|BEGIN)\b|^\S+ (> )?\S* ?\{ [a-z-]+: "
)
"""SQL, and the styles of the terminal interface."""


@dataclass(frozen=True, order=True)
class UserText:
    """One text, where it is, and the area that it belongs to."""

    area: str
    file: str
    line: int
    text: str


def texts_of_package() -> Iterator[UserText]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from _Reader(str(path.relative_to(PACKAGE))).read(tree)


def texts_of_console() -> Iterator[UserText]:
    """The texts of the console's page: quoted strings and text between tags, of several words."""
    for path in sorted(_WEB.rglob("*.ts*")):
        source = re.sub(r"(?m)^[ \t]*(//|/?\*|import ).*$", "", path.read_text(encoding="utf-8"))
        for found in re.finditer(r'"((?:[^"\\\n]|\\.)+)"|`((?:[^`\\]|\\.)+)`|>([^<>{}"`=;]+)(?=[<{])', source):
            text = " ".join((found[1] or found[2] or found[3]).split())
            if re.search(r"[A-Za-z]{2,} [a-z]", text) and not re.search(r"=>|\\u|^void |^\S+ \S*[({]$", text):
                line = source.count("\n", 0, found.start()) + 1
                yield UserText("console", f"web/{path.relative_to(_WEB)}", line, text)


def texts_of_manifests() -> Iterator[UserText]:
    """The texts in manifests for clients and catalogs, and the skill that Claude reads."""
    for path in sorted([*(_REPOSITORY / "deploy").rglob("*.json"), *_CLAUDE_PLUGIN.rglob("*.json")]):
        for text in _strings(json.loads(path.read_text(encoding="utf-8"))):
            if _TEXT.search(text):
                yield UserText("manifests", str(path.relative_to(_REPOSITORY)), 1, text)
    for path in sorted(_CLAUDE_PLUGIN.rglob("*.md")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _TEXT.search(line):
                yield UserText("manifests", str(path.relative_to(_REPOSITORY)), number, line.strip())


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for below in value.values():
                yield from _strings(below)
        case list():
            for below in value:
                yield from _strings(below)


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file

    def read(self, tree: ast.Module) -> Iterator[UserText]:
        yield from self._below(tree, "")

    def _below(self, node: ast.AST, area: str) -> Iterator[UserText]:
        area = self._area(node) or area
        for index, child in enumerate(ast.iter_child_nodes(node)):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                # Docstrings are for maintainers, except the ones below the fields of a settings class.
                if not (isinstance(node, ast.ClassDef) and index and "Settings" in node.name):
                    continue
                area_of_child = "settings"
            else:
                area_of_child = area
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "cast" and index == 1:
                continue  # a type
            if isinstance(child, ast.Constant | ast.JoinedStr):
                if (text := _text(child)) is not None:
                    yield UserText(area_of_child or self._usual_area(), self._file, child.lineno, text)
            else:
                yield from self._below(child, area_of_child)

    def _area(self, node: ast.AST) -> str:
        """The area of the texts below a node; empty for the area of its parent."""
        if isinstance(node, ast.Raise):
            return "errors"
        if not isinstance(node, ast.Call):
            return ""
        name = ast.unparse(node.func)
        method = name.rpartition(".")[2]
        if name.startswith(("log.", "logger.", "logging.")) and method in _LOG_METHODS:
            return "logs"
        return _AREAS.get(method) or ("errors" if _ERROR.fullmatch(method) else "")

    def _usual_area(self) -> str:
        for part, area in (
            ("doctor", "doctor"),
            ("plugins/push", "push"),
            ("plugins/tui", "terminal"),
            ("questions", "questions"),
            ("cli/", "commands"),
            ("commands", "commands"),
            ("plugins/console", "console"),
        ):
            if part in self._file:
                return area
        return "results"


def _text(node: ast.Constant | ast.JoinedStr) -> str | None:
    """The text with `{}` for what is inserted; None if it is not for people."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    elif isinstance(node.value, str):
        text = node.value
    else:
        return None
    text = " ".join(text.split())
    return text if _TEXT.search(text) and not _NOT_FOR_PEOPLE.match(text) else None


def user_texts() -> list[UserText]:
    return sorted([*texts_of_package(), *texts_of_console(), *texts_of_manifests()])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--area", help="print one area only")
    chosen = parser.parse_args().area
    for found in user_texts():
        if chosen in (None, found.area):
            print(f"{found.area:10} {found.file}:{found.line}: {found.text}")


if __name__ == "__main__":
    main()
