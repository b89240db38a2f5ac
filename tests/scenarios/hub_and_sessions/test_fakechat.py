"""Anthropic's own channel for tries, `fakechat`, on the hub: what a person writes in its page reaches Claude with what
the channel knows of it, and Claude answers there.

It is no package: FAKECHAT names the directory with its `server.ts` and `node_modules`, in which there is a `bun`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from claude_code_mcp.testing.script import script, tool
from tests.support.ports import free_port

from .conftest import Rig, StartRig, until
from .test_channel_relay import prompts

pytestmark = pytest.mark.skipif("FAKECHAT" not in os.environ, reason="FAKECHAT names no directory of fakechat")


async def test_a_message_and_a_file_reach_claude_and_its_reply_reaches_the_page(start_rig: StartRig) -> None:
    place, port = Path(os.environ["FAKECHAT"]), free_port()
    [bun] = await asyncio.to_thread(lambda: list(place.glob("node_modules/@oven/bun-*/bin/bun*")))
    entry: dict[str, Any] = {
        "command": str(bun),
        "args": [str(place / "server.ts")],
        "env": {"FAKECHAT_PORT": f"{port}"},
    }
    rig: Rig = await start_rig({"fakechat": entry}, channels="fakechat")
    session, _ = await rig.first("hello", allowed_tools=("mcp__fakechat",))
    await rig.hub.connect()
    async with connect(f"ws://127.0.0.1:{port}/ws") as page:
        text = script("Anybody there?", tool("mcp__fakechat__reply", text="I am", reply_to="u1"), "done")
        await page.send(json.dumps({"id": "u1", "text": text}))
        reply = json.loads(await page.recv())
        assert (reply["from"], reply["text"], reply["replyTo"]) == ("assistant", "I am", "u1")
        await until(lambda: len(prompts(session)) == 2 and not session.busy)
        assert prompts(session)[1].startswith(
            '<channel source="fakechat" chat_id="web" message_id="u1" user="web" ts="'
        )
        async with httpx2.AsyncClient() as browser:
            await browser.post(
                f"http://127.0.0.1:{port}/upload", data={"id": "u2"}, files={"file": ("notes.txt", b"what I wrote")}
            )
        await until(lambda: len(prompts(session)) == 3 and not session.busy)
        file = prompts(session)[2].partition('file_path="')[2].partition('"')[0]
        assert await asyncio.to_thread(Path(file).read_bytes) == b"what I wrote"
