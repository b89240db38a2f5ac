"""A server in a process of its own, for tests that kill it: starts one session and says who runs it.

Its one argument is JSON: the environment of the CLI, where state and project are, the prompt. It prints the first
word of the command that ties the CLI to it, then the id of the CLI's process, and then waits to be killed.
"""

import asyncio
import json
import sys

from claude_code_mcp.claude.tether import tether
from claude_code_mcp.config import load_settings
from claude_code_mcp.model.events import ProcessChanged
from claude_code_mcp.model.options import SessionOptions
from claude_code_mcp.service import Service


async def main(given: dict[str, str], environment: dict[str, str]) -> None:
    settings = load_settings({}, state_dir=given["state_dir"], claude_path=given["claude_path"])
    async with Service(settings, environment) as service:
        options = SessionOptions(cwd=given["cwd"], allowed_tools=("Bash",))
        session, _ = await service.create(given["prompt"], options)
        with service.watch(session.id, after=0) as events:
            async for event in events:
                if isinstance(event, ProcessChanged):
                    print(tether([])[0], event.pid, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    asyncio.run(main(described["given"], described["environment"]))
