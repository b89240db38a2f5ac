"""Which messages files can be taken back to, read from transcripts of any kind."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from claude_code_mcp.core.transcripts.checkpoints import checkpoints_of

TEXT = st.text(max_size=5)
ANYTHING = st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2) | st.dictionaries(TEXT, TEXT, max_size=2)
LINES = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "file-history-snapshot", "other"])},
    optional={"messageId": ANYTHING, "uuid": ANYTHING, "timestamp": ANYTHING, "message": ANYTHING, "isMeta": ANYTHING},
)

THEN = "2026-11-10T10:00:00.000Z"


def typed(message_id: str, text: str) -> dict[str, Any]:
    return {"type": "user", "uuid": message_id, "timestamp": THEN, "message": {"content": text}}


def noted(message_id: str) -> dict[str, Any]:
    return {"type": "file-history-snapshot", "messageId": message_id}


def test_only_messages_of_a_person_that_were_noted_count_and_the_last_are_kept() -> None:
    lines = [typed("1", "one"), noted("1"), typed("2", "two"), noted("3"), typed("3", "x" * 900), noted("1")]
    found = checkpoints_of(lines, 5)
    assert [(point.message_id, point.prompt, point.at) for point in found] == [
        ("1", "one", THEN),
        ("3", "x" * 200, THEN),
    ]
    assert checkpoints_of(lines, 1) == found[1:]


@settings(max_examples=60, deadline=None)
@given(st.lists(LINES, max_size=6))
def test_nothing_in_a_transcript_breaks_the_reader(lines: list[dict[str, Any]]) -> None:
    assert len(checkpoints_of(lines, 2)) <= 2
