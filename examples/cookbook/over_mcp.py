"""Delegate a task over MCP, as an agent does: start the server, start a session, answer its questions, get the result.

python over_mcp.py ~/src/shop "Fix the failing test"
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

WAIT = 50  # below the 60 seconds after which many clients end a call


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        raise RuntimeError("\n".join(block.text for block in result.content if block.type == "text"))
    return dict(result.structured_content)


async def delegate(
    directory: str, task: str, decide: Callable[[Mapping[str, Any]], bool], command: str = "claude-code-mcp"
) -> dict[str, Any]:
    """Runs the task and returns the last report; `decide` says whether a call of a tool is allowed."""
    server = StdioServerParameters(command=command, args=[], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        report = await call(client, "claude_create_session", prompt=task, workingDirectory=directory)
        session = report["sessionId"]
        while True:
            report = await call(client, "claude_get_status", sessionId=session, waitSeconds=WAIT)
            if report["status"] not in ("running", "waiting_for_input"):
                return report
            for question in report.get("pendingInputs", ()):
                decision = "allow" if decide(question) else "deny"
                await call(client, "claude_respond", sessionId=session, inputId=question["inputId"], decision=decision)


def ask_person(question: Mapping[str, Any]) -> bool:
    print(f"\n{question['description']}\n{question.get('toolInput')}")
    return input("Allow? [y/N] ").strip().lower() == "y"


async def main(directory: str, task: str) -> None:
    report = await delegate(directory, task, ask_person)
    print(report["status"], report.get("result"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
