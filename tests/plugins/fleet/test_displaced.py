"""A runner whose key is used by another process ends, and says so in one sentence."""

import shutil
from pathlib import Path

import pytest

from tests.support.program import OURS, started
from tests.support.waiting import HANG_SECONDS

from .test_fleet_command import environment, running

pytestmark = pytest.mark.programs


def test_displaced_runner_exits_silently(tmp_path: Path) -> None:
    server, laptop, copy = tmp_path / "server", tmp_path / "laptop", tmp_path / "copy"
    with running(server, "fleet", "up", "--listen", "127.0.0.1:0", "--name", "server") as up:
        up.until_said("--join ")
        ticket = up.output.split("--join ")[1].split()[0]
        joining = [OURS, "runner", "--join", ticket, "--name", "laptop"]
        with started(joining, environment(laptop), real=True, exit_codes=(4,)) as first:
            first.until_said("laptop (")
            key = Path("state") / "fleet" / "machine.json"
            (copy / key).parent.mkdir(parents=True, mode=0o700)
            shutil.copy2(laptop / key, copy / key)
            with running(copy, "runner", "--name", "copy") as second:
                second.until_said("copy (")
                assert first.process.wait(HANG_SECONDS) != 0
    assert "Another process has written the entry of machine" in first.errors
    assert "Task was destroyed" not in first.errors
    assert "Traceback" not in first.errors
