"""Images that go with a message: the model sees them, and nothing else can be had that way."""

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.core.sessions.support import parked

from .conftest import StartCaller, ToolCaller


def png(red: int = 255) -> bytes:
    """A small picture of one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((red, 0, 0)) * 16 for _ in range(16))
    header = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def seen(caller: ToolCaller, report: dict[str, Any]) -> list[bytes]:
    """The pictures in the last request to the model."""
    body = caller.requests(report)[-1].body
    assert body is not None
    messages = body["messages"]
    blocks = [block for one in messages if isinstance(one["content"], list) for block in one["content"]]
    return [base64.b64decode(block["source"]["data"]) for block in blocks if block["type"] == "image"]


@pytest.mark.soak  # tests/plugins/console/browser/test_messages.py
async def test_the_model_sees_images_from_files_and_from_data(caller: ToolCaller) -> None:
    (caller.sandbox.project / "red.png").write_bytes(png())
    first = await caller.ok(
        "claude_create_session",
        prompt=script("Look", "a picture"),
        workingDirectory=str(caller.sandbox.project),
        images=["red.png", url(png(9))],
        waitSeconds=50,
    )
    assert (first["status"], seen(caller, first)) == ("completed", [png(), png(9)])
    again = await caller.ok(
        "claude_code_reply", sessionId=first["sessionId"], prompt=script("More", "seen"), images=[url(png(7))]
    )
    assert len(seen(caller, again)) == 3
    await parked(caller.session(first))
    path = str(caller.sandbox.project / "red.png")
    sent = await caller.ok(
        "claude_send_message", sessionId=first["sessionId"], message=script("And", "ok"), images=[path], waitSeconds=50
    )
    assert (sent["status"], len(seen(caller, first))) == ("completed", 4)


@pytest.mark.soak  # tests/plugins/console/browser/test_messages.py
async def test_the_model_reads_a_pdf_document(caller: ToolCaller) -> None:
    document = b"%PDF-1.4\n%%EOF\n"
    (caller.sandbox.project / "manual.pdf").write_bytes(document)
    report = await caller.ok(
        "claude_create_session",
        prompt=script("Read", "a manual"),
        workingDirectory=str(caller.sandbox.project),
        images=["manual.pdf"],
        waitSeconds=50,
    )
    body = caller.requests(report)[-1].body
    assert body is not None
    blocks = [block for one in body["messages"] if isinstance(one["content"], list) for block in one["content"]]
    (sent,) = [block["source"] for block in blocks if block["type"] == "document"]
    assert (sent["media_type"], base64.b64decode(sent["data"])) == ("application/pdf", document)


async def test_invalid_image_is_refused_before_the_turn_starts(caller: ToolCaller) -> None:
    (caller.sandbox.project / "text.png").write_text("a secret text")
    os.mkfifo(caller.sandbox.project / "pipe.png")
    for source in (
        "no-such-file.png",
        "text.png",
        ".",
        "pipe.png",
        "x\0.png",
        "data:image/png,plain",
        "data:image/png;base64,!!!!",
        url(b"no picture"),
        url(png() + bytes(6 << 20)),
    ):
        code, message = await caller.refused("claude_code", prompt="Look", images=[source])
        assert code == "INVALID_ARGUMENT"
        assert message.startswith("images")
        assert "secret" not in message
    assert caller.service.sessions() == []
    assert (await caller.refused("claude_code", prompt="Look", images=[url(png())] * 21))[0] == "INVALID_ARGUMENT"


async def test_only_images_within_the_roots_can_be_sent(start_caller: StartCaller, sandbox: Sandbox) -> None:
    outside, kept = sandbox.root / "outside.png", sandbox.project / "kept.png"
    outside.write_bytes(png())
    kept.write_bytes(png())
    (sandbox.project / "link.png").symlink_to(outside)
    policy = f'[profiles.mine]\nbase = "local"\nroots = ["{sandbox.project}"]\ndeny = ["Read(//{str(kept)[1:]})"]'
    caller: ToolCaller = await start_caller(policy=parse_policy(policy, "policy.toml", "mine"))
    escaping = f"{sandbox.project}/../{Path(outside).name}"
    for path in (str(outside), "link.png", "../outside.png", escaping, "kept.png"):
        code, message = await caller.refused("claude_code", prompt="Look", images=[path])
        assert (code, message.startswith("images")) == ("PERMISSION_DENIED", True), message
