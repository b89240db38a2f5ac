"""A known secret that is spread over fragments is in none of them, nor in all of them together."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.redaction import MARK, Redactor
from claude_code_mcp.server.tools.streamed_redaction import Fragments
from tests.support.tables import every_row

SECRET, OTHER = "opaque-secret-12345", "12345-and-another-one"
redactor = Redactor([SECRET, OTHER])
FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
STOP = {"type": "stream_event", "event": {"type": "content_block_stop", "index": 0}}


def fragment(text: str, kind: str = "text_delta", index: int = 0) -> dict[str, Any]:
    delta = {"type": kind, FIELDS[kind]: text}
    return {
        "type": "stream_event",
        "uuid": "u",
        "event": {"type": "content_block_delta", "index": index, "delta": delta},
    }


def sent_texts(fragments: Fragments, *messages: dict[str, Any]) -> list[str]:
    """The texts that are sent, as they are sent."""
    sent = [redactor.data(item) for message in messages for item in fragments.take(message)]
    deltas = [message["event"]["delta"] for message in sent if "delta" in message["event"]]
    return [delta[FIELDS[delta["type"]]] for delta in deltas]


@every_row("kind", FIELDS)
@every_row("cut", range(1, len(SECRET)))
def test_a_secret_in_two_fragments(kind: str, cut: int) -> None:
    parts = [fragment(f"a {SECRET[:cut]}", kind), fragment(f"{SECRET[cut:]} b", kind)]
    assert sent_texts(Fragments(redactor), *parts, STOP) == ["a ", f"{MARK} b"]


def test_what_turns_out_to_be_no_secret_comes_with_the_next_fragment() -> None:
    assert sent_texts(Fragments(redactor), fragment("an opaque-"), fragment("looking glass"), STOP) == [
        "an ",
        "opaque-looking glass",
    ]


def test_withheld_text_appears_at_the_end_of_the_block() -> None:
    fragments = Fragments(redactor)
    assert sent_texts(fragments, fragment("it is o")) == ["it is "]
    *left, stop = fragments.take(STOP)
    assert [item["event"]["delta"]["text"] for item in left] == ["o"]
    assert left[0]["uuid"] != "u"
    assert stop is STOP
    assert fragments.flush() == []


def test_blocks_are_distinguished() -> None:
    parts = fragment("opaque-", index=0), fragment("secret-12345", index=1)
    assert sent_texts(Fragments(redactor), *parts, STOP) == ["", "secret-", "opaque-", "12345"]


def test_events_between_fragments_do_not_split_a_secret() -> None:
    ping = {"type": "stream_event", "event": {"type": "ping"}}
    of_agent = {**STOP, "parent_tool_use_id": "agent"}
    parts = [fragment(SECRET[:4]), ping, fragment(SECRET[4:9]), of_agent, fragment(SECRET[9:])]
    assert "".join(sent_texts(Fragments(redactor), *parts, STOP)) == MARK


def test_a_message_without_a_secret_s_beginning_passes_as_it_is() -> None:
    message = fragment("nothing of this kin")
    assert Fragments(redactor).take(message) == [message]


@given(
    st.lists(
        st.sampled_from([SECRET, OTHER, "12345", "opaque-", " and ", "x", SECRET[:6], SECRET + OTHER[5:]]), max_size=6
    ),
    st.lists(st.integers(1, 7), min_size=1, max_size=40),
)
def test_however_the_text_is_cut_no_secret_is_left_and_nothing_else_is_lost(pieces: list[str], cuts: list[int]) -> None:
    text, at = "".join(pieces), 0
    parts: list[dict[str, Any]] = []
    while at < len(text):
        size = cuts[len(parts) % len(cuts)]
        parts.append(fragment(text[at : at + size]))
        at += size
    whole = "".join(sent_texts(Fragments(redactor), *parts, STOP))
    assert SECRET not in whole
    assert OTHER not in whole
    if MARK not in redactor.text(text):
        assert whole == text
