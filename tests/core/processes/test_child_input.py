"""What is known of a child's input: whether it has read what was written to it."""

import asyncio
import sys

from claude_code_mcp.core.processes.child import ChildProcess, Exit
from tests.support.waiting import HANG_SECONDS


class Owner:
    def output_received(self, data: bytes) -> None:
        self.received = data

    def output_ended(self) -> None:
        pass

    def input_closed(self) -> None:
        pass

    def child_ended(self, exit_: Exit) -> None:
        pass


async def test_a_child_whose_input_is_closed_has_not_read_it() -> None:
    child = ChildProcess(Owner(), "reader")
    await child.start([sys.executable, "-c", "import sys; sys.stdin.read()"], cwd=None, environment={})
    before = child.has_read_input
    child.close_input()
    await asyncio.wait_for(child.exited, HANG_SECONDS)
    assert (before, child.has_read_input) == (True, False)
    await child.cleaned.wait()
