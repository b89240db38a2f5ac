"""What `make` runs, and that `make help` lists all of it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

ROOT = Path(__file__).parent.parent


def make(*arguments: str) -> str:
    command = ["make", "--no-print-directory", *arguments]  # the tests may themselves be run by make
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    listed = [re.fullmatch(r"make ([\w-]+) +\S.*", line) for line in make("help").splitlines()]
    assert [line and line[1] for line in listed] == targets.split()


def test_a_quick_run_of_any_layer_also_checks_the_manifest() -> None:
    test = "test_the_shipped_manifest_is_what_the_server_says"
    assert f"tests/server tests/startup/greeting/test_manifest.py::{test} " in make(
        "--dry-run", "test-quick", "LAYER=server"
    )


@pytest.mark.parametrize("target", ["test", "test-quick", "test-python", "test-newest", "parity"])
def test_every_run_of_tests_has_a_limit(target: str) -> None:
    commands = make("--dry-run", target)
    assert "python -m tests.support.run " in commands
    assert "-m pytest" not in commands
