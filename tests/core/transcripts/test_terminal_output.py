"""What a command has printed, as a conversation keeps it: without what steers a terminal, and as it was."""

from claude_code_mcp.core.model.text import has_mark
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.core.transcripts.conversation import Item, frame_items
from claude_code_mcp.core.transcripts.conversation_pages import shortened
from claude_code_mcp.core.transcripts.transcript_export import item_without_secrets

SECRET = "correct-horse-battery-staple"


def printed(text: str) -> Item:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
    (item,) = frame_items({"type": "user", "uuid": "u", "message": {"role": "user", "content": [block]}})
    return item


def test_a_result_is_kept_without_sequences_and_as_it_was_printed() -> None:
    item = printed("\x1b[1;31mred\x1b[0m\x1b]0;title\x07 10%\r20%\nend\ud800")
    assert item.result == "red 10%20%\nend�"
    assert item.output == "\x1b[1;31mred\x1b[0m\x1b]0;title\x07 10%\r20%\nend�"


def test_plain_result_is_stored_once() -> None:
    assert printed("one\r\ntwo\tthree").output == ""
    assert printed("one\r\ntwo\tthree").result == "one\ntwo\tthree"


def test_a_secret_that_is_interrupted_by_colors_is_not_shown() -> None:
    item = printed(f"\x1b[32m{SECRET[:9]}\x1b[31m{SECRET[9:]}\x1b[0m")
    shown = item_without_secrets(item, Redactor([SECRET]).data)
    assert SECRET not in shown.result
    assert shown.output == ""


def test_a_long_output_is_cut_as_the_result_is() -> None:
    short = shortened(printed("\x1b[32m" + "x" * 10_000), 1000)
    assert short.cut
    assert has_mark(short.output)
    assert len(short.output) < 1500
