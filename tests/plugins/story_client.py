"""The core story, told by a client of the MCP SDK over stdio: a session is created, asks, is answered and ends.

Arguments: the directory and the prompt. Prints what the client saw, as JSON.
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(directory: str, prompt: str) -> None:
    server = StdioServerParameters(
        command=sys.executable, args=["-W", "error", "-m", "claude_code_mcp"], env=dict(os.environ)
    )
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()

        async def call(name: str, **arguments: object) -> dict[str, object]:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result.content
            assert result.structured_content is not None
            return dict(result.structured_content)

        created = await call("claude_create_session", prompt=prompt, workingDirectory=directory)
        session_id = created["sessionId"]
        asking = await call("claude_get_status", sessionId=session_id, waitSeconds=50)
        pending = asking["pendingInputs"]
        assert isinstance(pending, list)
        question = pending[0]
        answered = await call(
            "claude_respond", sessionId=session_id, inputId=question["inputId"], decision="allow", waitSeconds=50
        )
        listed = await call("claude_list_sessions")
    sessions = listed["sessions"]
    assert isinstance(sessions, list)
    seen = {
        "asked": asking["status"],
        "status": answered["status"],
        "result": answered.get("result"),
        "listed": len(sessions),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
