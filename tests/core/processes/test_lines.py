"""Whatever way the bytes arrive, the same lines come out."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from claude_code_mcp.core.processes.line_splitter import MAX_LINE, LineSplitter, Oversized

bytes_with_newlines = st.lists(st.sampled_from([b"\n", b"a", b"{}", b"\r", b"\xff", b"\0", b"longer words"])).map(
    b"".join
)


def split(stream: bytes, sizes: list[int], limit: int = MAX_LINE) -> list[bytes | Oversized]:
    """The lines of a stream that arrives in pieces of these sizes, and the rest in one."""
    splitter, lines, start = LineSplitter(limit), [], 0
    for size in [*sizes, len(stream)]:
        lines += splitter.feed(stream[start : start + size])
        start += size
    return lines + splitter.close()


@given(bytes_with_newlines, st.lists(st.integers(0, 7)), st.integers(1, 20))
@example(b"aaaaaaa\nb\n", [1, 1, 1], 3)
def test_any_split_of_any_stream_gives_the_same_lines(stream: bytes, sizes: list[int], limit: int) -> None:
    assert split(stream, sizes, limit) == split(stream, [], limit)


@given(bytes_with_newlines, st.lists(st.integers(0, 7)))
def test_the_lines_are_those_of_the_stream_without_the_blank_ones(stream: bytes, sizes: list[int]) -> None:
    assert split(stream, sizes) == [line for line in stream.split(b"\n") if line]


@given(bytes_with_newlines, st.lists(st.integers(0, 7)), st.integers(1, 20))
def test_every_line_over_the_limit_is_reported_in_its_place(stream: bytes, sizes: list[int], limit: int) -> None:
    expected = [
        line if len(line) <= limit else Oversized(len(line), line[:limit]) for line in stream.split(b"\n") if line
    ]
    assert split(stream, sizes, limit) == expected


def test_a_giant_line_in_many_pieces_is_whole() -> None:
    line = b"x" * (20 << 20)
    assert split(line + b"\nnext\n", [64 << 10] * 400) == [line, b"next"]


def test_a_line_over_the_default_limit_is_skipped_and_the_next_one_is_read() -> None:
    splitter, piece = LineSplitter(), b"y" * (1 << 20)
    for _ in range(65):
        assert splitter.feed(piece) == []
    assert splitter.feed(b"\nnext\n") == [Oversized(65 << 20, b"y" * 200), b"next"]


def test_a_line_over_the_limit_is_not_kept_in_memory() -> None:
    splitter = LineSplitter(limit=1000)
    for _ in range(100):
        splitter.feed(b"z" * 100)
    assert sum(map(len, splitter._pieces)) <= 200


def test_a_line_of_exactly_the_limit_is_kept() -> None:
    assert split(b"12345\n", [], limit=5) == [b"12345"]


@pytest.mark.parametrize("stream", [b"", b"\n", b"\n\n\n"])
def test_nothing_and_blank_lines_are_no_lines(stream: bytes) -> None:
    assert split(stream, [1]) == []
