"""The examples of the library as a program of a user, checked by mypy as strictly as it can."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp import Service
from claude_code_mcp.core.config import load_settings

ROOT = Path(__file__).parents[1]


@pytest.mark.soak  # mypy from nothing; that they run: test_docs.py
def test_the_examples_of_the_library_pass_mypy_strict_as_they_are_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(examples) >= 3
    files = []
    for number, example in enumerate(examples):
        # An example has its `async with` at the top, as in a notebook; a program has it in a function.
        top, at, rest = example.partition("async with ")
        body = "".join(f"    {line}\n" if line else "\n" for line in (at + rest).splitlines())
        file = tmp_path / f"example_{number}.py"
        file.write_text(f"{top}\n\nasync def main() -> None:\n{body}")
        files.append(str(file))
    # From elsewhere: the settings of this repository must not count.
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", *files]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.stdout.startswith("Success: no issues found"), checked.stdout + checked.stderr


async def test_a_service_that_was_not_entered_says_so(tmp_path: Path) -> None:
    service = Service(load_settings({}, state_dir=tmp_path))
    with pytest.raises(RuntimeError, match="async with Service"):
        await service.create("Never.")
