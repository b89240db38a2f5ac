"""What the log holds of a model's stream, where the frames are such as Claude Code would never write."""

from typing import Any

import pytest

from claude_code_mcp.core.claude.protocol import StreamEvent, parse_frame
from claude_code_mcp.core.json_text import encode
from claude_code_mcp.core.model.events import PartialRun
from claude_code_mcp.core.sessions.live.event_writer import EventWriter
from claude_code_mcp.core.transcripts.event_log import EventLog


def fragment(text: Any) -> StreamEvent:
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    frame = parse_frame(encode({"type": "stream_event", "event": delta}))
    assert isinstance(frame, StreamEvent)
    return frame


@pytest.mark.parametrize("forged", [["a", "list"], {"an": "object"}, 7, None, True], ids=str)
def test_a_fragment_that_is_no_text_spoils_no_reading_of_the_log(forged: Any) -> None:
    log = EventLog(100, 1 << 20)
    writer = EventWriter(log)
    assert [writer.write_stream_event(fragment(text)) for text in ("one ", forged, "two")] == [True, False, True]
    assert "".join(event.text for event in log.after(0) if isinstance(event, PartialRun)) == "one two"
