"""Memory of the machine and of children, read from the system."""

import subprocess
import sys

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.processes.memory import machine, trees

_PARENT = """
import subprocess, sys
mine = bytearray(40 << 20)
child = "mine = bytearray(60 << 20); print('ready', flush=True); input()"
subprocess.run([sys.executable, "-c", child])
"""


def test_a_child_counts_with_all_that_it_started() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        measured = trees([child.pid])[child.pid]
        child.communicate(b"\n")
    assert measured is not None
    assert 100 << 20 < measured < 200 << 20


def test_ended_process_has_no_data() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert trees([child.pid]) == {child.pid: None}


def test_the_machine_has_more_memory_than_is_available() -> None:
    found = machine()
    assert found is not None
    assert 0 < found.available <= found.total * 2  # a container may be given less than is available outside


@pytest.mark.parametrize(
    ("text", "limit"),
    [("50%", 500), ("100%", 1000), ("123", 123), ("2KiB", 2048), ("3M", 3 << 20), ("4GB", 4 << 30), ("off", None)],
)
def test_the_limit_is_a_share_an_amount_or_none(text: str, limit: int | None) -> None:
    assert load_settings({"CLAUDE_CODE_MCP_MEMORY_LIMIT": text}).memory_limit_bytes(1000) == limit


def test_a_share_of_what_is_not_known_is_no_limit() -> None:
    assert load_settings({}).memory_limit_bytes(None) is None


@pytest.mark.parametrize("text", ["0", "0%", "101%", "-5", "1.5GiB", "lots", "5 apples", "9" * 40])
def test_invalid_memory_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="MEMORY_LIMIT"):
        load_settings({"CLAUDE_CODE_MCP_MEMORY_LIMIT": text})
