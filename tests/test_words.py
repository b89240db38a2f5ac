"""Identifiers are words of the trade, every module and public class has a name of its own, and spelling is American.

An everyday word such as `told` or `one` says nothing about a value. A better name says what the value is: `text`,
`report`, `arguments`, `session`, `line`.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "claude_code_mcp"

NEVER = {
    "around", "hear", "heard", "hears", "nobody", "patience", "said", "somebody", "stranger", "strangers", "tell",
    "teller", "telling", "tells", "told", "untold", "whoever", "wish", "wished", "wishes",
}  # fmt: skip
"""Not even as a part of an identifier: neither `told` nor `told_progress`."""

NOT_ALONE = {"about", "given", "means", "one", "way", "words"}
"""Fine as a part, such as in `one_line`, but not as a whole identifier."""

ALLOWED: dict[tuple[str, str], str] = {
    ("core/policy/shell.py", "words"): "the words of a shell command",
    ("core/policy/rules.py", "words"): "the words of a shell command",
    ("core/policy/shell.py", "Words"): "the words of a shell command",
    ("core/policy/rules.py", "Words"): "the words of a shell command",
    ("core/policy/harmless_commands.py", "words"): "the words of a shell command",
    ("core/policy/harmless_commands.py", "Words"): "the words of a shell command",
    ("core/policy/git_commands.py", "words"): "the words of a shell command",
}
"""An identifier in a module, and why it is the right one there."""

SHARED_MODULE_NAMES: dict[str, str] = {
    "app": "a server, and a gateway of a fleet",
    "plugin": "the extension points, and what each plug-in extends",
    "commands": "the commands of each plug-in that has some",
    "tables": "the tables of each plug-in that has some",
    "settings": "the settings of each plug-in that has some",
    "interface": "what a plug-in publishes for another one",
    "installation": "of this package, and of the plug-in of Claude Code in terminals",
    "doctor": "the checks of a server, and those of each plug-in that has some",
    "provider": "of hubs, and of access tokens",
    "prompts": "of the server, and at a terminal",
    "config": "the settings, and the command of that name",
    "sessions": "the session tools, and the command of that name",
    "transcripts": "those on this machine's disk, and those in the fleet's stream",
}

_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that a module makes or uses: variables, attributes, parameters, functions, classes and aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


@cache
def is_everyday(identifier: str) -> bool:
    parts = [part.lower() for part in _PART.findall(identifier)]
    return bool(NEVER.intersection(parts)) or (len(parts) == 1 and parts[0] in NOT_ALONE)


@cache
def names() -> dict[str, tuple[set[str], list[str]]]:
    """The identifiers of every module of the product and the classes that it makes, from its path in the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        found[path.relative_to(ROOT).as_posix()] = set(identifiers(tree)), classes
    return found


@cache
def offenders() -> dict[str, set[str]]:
    """The everyday identifiers of each package or top-level module, as `module: identifier`."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, (identifiers_of_module, _) in names().items():
        package = module.partition("/")[0].removesuffix(".py")
        for name in identifiers_of_module:
            if is_everyday(name) and (module, name) not in ALLOWED:
                found[package].add(f"{module}: {name}")
    return found


def test_no_identifier_is_an_everyday_word() -> None:
    assert {package: sorted(found) for package, found in offenders().items()} == {}


def test_allowed_exceptions_exist() -> None:
    assert [module for module, _ in ALLOWED if not (ROOT / module).exists()] == []
    stems = Counter(path.stem for path in ROOT.rglob("*.py"))
    assert [name for name in SHARED_MODULE_NAMES if stems[name] < 2] == []


def test_everyday_words_are_found_in_every_place_where_a_name_can_stand() -> None:
    source = """
import a as told
def tell(heard, *, patience=1): self.wished = wish(given=2)
class Stranger: pass
for one in range(3): pass
match x:
    case [whoever, *somebody]: pass
try: pass
except E as nobody: pass
"""
    found = {name for name in identifiers(ast.parse(source)) if is_everyday(name)}
    assert found == {
        "told", "tell", "heard", "patience", "wished", "wish", "given", "Stranger", "one", "whoever", "somebody",
        "nobody",
    }  # fmt: skip
    assert [name for name in ("told_progress", "_refusals_told", "_PATIENCE", "_one") if not is_everyday(name)] == []
    assert [name for name in ("one_line", "given_names", "_backtrack", "toldo") if is_everyday(name)] == []


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.stem for path in ROOT.rglob("*.py") if path.stem not in {"__init__", "__main__"})
    assert {name for name, count in names.items() if count > 1} <= set(SHARED_MODULE_NAMES)


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, (_, classes) in names().items():
        for name in classes:
            if not name.startswith("_"):
                places[name].append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


_BRITISH = re.compile(
    r"(?i)catalogue|colour|organis(e|ation)|enrolment|acknowledgement|behaviour|licence|labell(?!edby)|honour|misspelt"
    r"|\bspelt\b|signall|flavour|\bcentre|neighbour|favour|\bgrey\b|towards"
    r"|(recogn|normal|initial|serial|summar|synchron|optim)is(e|ed|es|ing|ation)\b"
)
_WRITTEN = ("src", "web", "tests", "docs", "benchmarks", "tools", "examples", "conformance", "deploy")
_SUFFIXES = {".py", ".ts", ".tsx", ".md", ".css", ".html", ".toml", ".sh"}


def test_spelling_is_american() -> None:
    root = ROOT.parent.parent
    files = [path for name in _WRITTEN for path in (root / name).rglob("*") if path.suffix in _SUFFIXES]
    files = [path for path in (*files, *root.glob("*.md")) if path != Path(__file__) and "static" not in path.parts]
    found = {
        f"{path.relative_to(root)}: {hit.group()}"
        for path in files
        for hit in _BRITISH.finditer(path.read_text(encoding="utf-8"))
    }
    assert not found, f"Write these words as in American English: {sorted(found)}"
    assert len(files) > 1000
