"""The examples of the cookbook, run with the real Claude Code on the scripted model."""

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from claude_code_mcp import Answer, Question, Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import plan, script, structured, tool

from .test_docs import place

__all__ = ["place"]

ROOT = Path(__file__).parent.parent
COOKBOOK = ROOT / "examples" / "cookbook"


def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"cookbook_{name}", COOKBOOK / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


async def test_fan_out(place: Sandbox) -> None:
    directories = [place.project / name for name in ("shop", "blog", "docs", "api")]
    for directory in directories:
        directory.mkdir()
    task = script(
        "Write it.",
        tool("Write", file_path="${cwd}/NEW.md", content="new"),
        tool("Bash", command="sh -c 'touch x'"),
        "Done.",
    )
    async with Service() as service:
        outcomes = await example("fan_out").fan_out(service, task, [str(directory) for directory in directories])
    assert [outcome.result for outcome in outcomes.values()] == ["Done."] * 4
    assert all((directory / "NEW.md").read_text() == "new" for directory in directories)
    assert not any((directory / "x").exists() for directory in directories)  # nobody was there to allow it


async def test_write_and_review(place: Sandbox) -> None:
    file = str(place.project / "cart.py")
    write = tool("Write", file_path=file, content="total = 1\n")
    edit = tool("Edit", file_path=file, old_string="1", new_string="2")
    task = script("Write the cart.", write, "Written.", edit, "Changed.")
    reviews = structured({"approved": False, "comments": "Two."}), structured({"approved": True, "comments": "Good."})
    criteria = script("Review it.", reviews[0], "I have comments.", reviews[1], "Fine.")
    async with Service() as service:
        comments = await example("write_and_review").write_and_review(service, str(place.project), task, criteria)
    assert comments == ["Two.", "Good."]
    assert (place.project / "cart.py").read_text() == "total = 2\n"


async def test_answer_by_rule(place: Sandbox) -> None:
    inside, outside = place.project / "a.py", place.root / "b.py"
    task = script(
        "Fix it.",
        tool("Write", file_path=str(inside), content="a"),
        tool("Write", file_path=str(outside), content="b"),
        tool("Bash", command="touch c"),
        "Done.",
    )
    asked: list[Mapping[str, Any]] = []

    async def ask(question: Question) -> Answer:
        asked.append(question.tool_input)
        return Answer(allow=True)

    async with Service() as service:
        outcome = await example("answer_by_rule").run(service, str(place.project), task, ask)
    assert outcome.result == "Done."
    assert (inside.exists(), outside.exists(), (place.project / "c").exists()) == (True, False, True)
    assert [each["command"] for each in asked] == ["touch c"]


async def test_plan_first(place: Sandbox) -> None:
    write = tool("Write", file_path=str(place.project / "NOTES.md"), content="notes")
    task = script("Plan it.", plan("1. Write"), plan("1. Write\n2. Date"), write, "Done.")
    judged: list[str] = []

    async def judge(text: str) -> str:
        judged.append(text)
        return "" if "Date" in text else "Add a date."

    async with Service() as service:
        outcome = await example("plan_first").plan_first(service, str(place.project), task, judge)
    assert outcome.result == "Done."
    assert judged == ["1. Write", "1. Write\n2. Date"]
    assert (place.project / "NOTES.md").read_text() == "notes"


async def test_over_mcp(place: Sandbox) -> None:
    task = script("Fix it.", tool("Bash", command="touch a"), tool("Bash", command="touch b"), "Done.")

    def decide(question: Mapping[str, Any]) -> bool:
        return bool(question["toolInput"]["command"] == "touch a")

    program = str(Path(sys.executable).with_name("claude-code-mcp"))
    report = await example("over_mcp").delegate(str(place.project), task, decide, program)
    assert (report["status"], report["result"]) == ("completed", "Done.")
    assert ((place.project / "a").exists(), (place.project / "b").exists()) == (True, False)


def test_every_example_is_on_the_page_and_is_tested() -> None:
    page = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"examples/cookbook/(\w+)\.py", page))
    here = set(re.findall(r'example\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert shown == here == {path.stem for path in COOKBOOK.glob("*.py")}
    for block in re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        name, text = block
        assert text in (COOKBOOK / f"{name}.py").read_text(encoding="utf-8"), name


@pytest.mark.parametrize("path", sorted(COOKBOOK.glob("*.py")), ids=lambda path: path.stem)
def test_examples_say_how_to_start_them(path: Path) -> None:
    assert f"python {path.name}" in path.read_text(encoding="utf-8")
