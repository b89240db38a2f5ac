"""Notebooks, which have a tool of their own: rules for files hold for it, wherever a path leads."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import options, run

ROWS = json.loads(Path(__file__).with_name("notebooks.json").read_text())
CELL: dict[str, Any] = {
    "cell_type": "code",
    "id": "a",
    "source": "1",
    "metadata": {},
    "outputs": [],
    "execution_count": None,
}
NOTEBOOK = json.dumps({"cells": [CELL], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
PROFILE = Profile(
    tools=("Read", "NotebookEdit"),
    roots=(".",),
    allow=(parse_rule("Read"),),
    deny=(parse_rule("Edit(secret/**)"),),
)


def test_the_table_has_one_notebook_that_may_be_changed() -> None:
    assert [row["attack"] for row in ROWS if "changes" in row] == ["no attack: a notebook that may be changed"]


def plant(project: Path) -> None:
    """Every notebook of the table, and the links to some of them."""
    for row in ROWS:
        if "link" not in row:
            place = Path(os.path.normpath(project / row["path"]))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(NOTEBOOK)
    (project / ".claude" / "n.ipynb").write_text(NOTEBOOK)
    for link, target in (row["link"] for row in ROWS if "link" in row):
        (project / link).symlink_to(Path(os.path.normpath(project / target)))


def changed_below(root: Path) -> set[Path]:
    files = [path.resolve() for path in root.rglob("*") if path.is_file() and path.suffix in (".ipynb", ".json")]
    return {path for path in files if '"cells"' in (text := path.read_text()) and "evil" in text}


async def test_the_table_of_notebooks(start_service: StartService, sandbox: Sandbox) -> None:
    project = sandbox.project
    await asyncio.to_thread(plant, project)
    service = await start_service(policy=Policy(PROFILE), default_cwd=str(project))
    calls = []
    for row in ROWS:
        # Claude Code changes no notebook that it has not read, and tells that before it asks anybody.
        calls.append(tool("Read", file_path=str(project / row["path"])))
        calls.append(tool("NotebookEdit", notebook_path=str(project / row["path"]), new_source="evil", cell_id="a"))
    work = options(sandbox, permission_mode="acceptEdits", ask=False)
    _, outcome = await run(service, script("work", *calls, "done"), work)
    assert outcome.result == "done"
    assert changed_below(sandbox.root) == {project / "work" / "n.ipynb"}
