"""A program that starts one child through `ChildProcess` and then waits to be killed. Its argument is the command."""

import asyncio
import os
import sys

from claude_code_mcp.core.processes.child import ChildProcess, Exit
from claude_code_mcp.core.processes.environment import MARK
from claude_code_mcp.core.processes.leftovers import new_mark


class Listener:
    def output_received(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def output_ended(self) -> None: ...

    def input_closed(self) -> None: ...

    def child_ended(self, exit_: Exit) -> None: ...


async def main() -> None:
    child = ChildProcess(Listener(), "the child")
    await child.start(["/bin/sh", "-c", sys.argv[1]], cwd=None, environment={**os.environ, MARK: new_mark()})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
