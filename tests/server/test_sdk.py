"""Private parts of the MCP SDK are used in one module of the server and one of the hub, and nowhere else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import claude_code_mcp

ROOT = Path(claude_code_mcp.__file__).parent
ALLOWED = {"server/sdk.py", "hub/streams.py"}
"""What the server uses, and what the hub uses."""


def private_imports(path: Path) -> Iterator[str]:
    """What a file imports of the SDK under a name that begins with an underscore, in any part."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first in ("mcp", "mcp_types") and any(part.startswith("_") for part in rest):
                yield name


def private_attributes(path: Path) -> Iterator[str]:
    """Attributes that begin with an underscore of anything that is called `session`, as the SDK's connections are."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in ("session", "_session"):
                yield ast.unparse(node)


def test_private_parts_of_the_sdk_are_used_in_one_place_each() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("server", "hub", "greeting")
        for path in (ROOT / folder).rglob("*.py")
        if [*private_imports(path), *private_attributes(path)]
    }
    assert users == ALLOWED
