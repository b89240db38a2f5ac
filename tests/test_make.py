"""`make help` is the list of what can be made."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_help_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    command = ["make", "--no-print-directory", "help"]  # the tests may themselves be run by make
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = [re.fullmatch(r"make ([\w-]+) +\S.*", line) for line in shown.splitlines()]
    assert [line and line[1] for line in listed] == targets.split()
