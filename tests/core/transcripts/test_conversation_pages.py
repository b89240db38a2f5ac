"""A conversation from its end backwards: no page loses, repeats or tears anything, and each is as long as it may be."""

from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.transcripts.conversation_pages import ConversationPage, Extent, read_page_before, whole_item
from claude_code_mcp.core.transcripts.outline import read_outline

from .test_conversation import answer, call, prompt, result, written


def conversation(tmp_path: Path) -> str:
    """Three turns: of one text, of ten texts of 1,000 characters each, and of a call with a long result."""
    texts = [f"{number}" * 1000 for number in range(10)]
    return written(
        tmp_path,
        prompt("a", None, "first"),
        answer("b", "a", "one"),
        prompt("c", "b", "second"),
        answer("d", "c", *texts),
        prompt("e", "d", "third"),
        answer("f", "e", call("Read", file_path="x")),
        result("g", "f", "Read", "r" * 60_000),
    )


def read(path: str, before: str | None, extent: Extent, redact: Any = lambda value: value) -> ConversationPage:
    return read_page_before(path, read_outline(path), before, extent, redact)


def shown(page: ConversationPage) -> list[str]:
    """The beginning of everything on a page."""
    texts: list[str] = []
    for part in page.parts:
        prompts = [] if part.turn.prompt is None else [part.turn.prompt]
        texts += [f"{part.number}:{text[:6]}" for text in (*prompts, *(i.text or i.name for i in part.turn.items))]
    return texts


EVERYTHING = ["1:first", "1:one", "2:second", *(f"2:{str(number) * 6}" for number in range(10)), "3:third", "3:Read"]


def pages(path: str, extent: Extent) -> list[ConversationPage]:
    found = [read(path, None, extent)]
    while (before := found[-1].previous) is not None:
        found.append(read(path, before, extent))
    return found


@pytest.mark.parametrize("size", [1, 1300, 2500, 12_000, 70_000, 10**6])
@pytest.mark.parametrize("most_turns", [None, 1, 2, 50])
def test_pages_one_before_the_other_are_the_whole(tmp_path: Path, size: int, most_turns: int | None) -> None:
    found = pages(conversation(tmp_path), Extent(size, most_turns))
    assert [text for page in reversed(found) for text in shown(page)] == EVERYTHING
    assert all(page.parts for page in found)


def test_a_long_turn_is_divided_where_that_is_wanted_and_nowhere_else(tmp_path: Path) -> None:
    path = conversation(tmp_path)
    divided, whole = pages(path, Extent(2500)), pages(path, Extent(2500, most_turns=50))
    assert max(len(shown(page)) for page in divided) == 4  # the beginning of a turn and the one before it
    assert [[part.number for part in page.parts] for page in whole] == [[3], [2], [1]]
    assert all(part.turn.prompt for page in whole for part in page.parts)


def test_a_page_ends_before_the_turn_with_a_number(tmp_path: Path) -> None:
    path = conversation(tmp_path)
    assert shown(read(path, "2", Extent(10**6))) == EVERYTHING[:2]
    assert shown(read(path, "2.2", Extent(10**6))) == EVERYTHING[:4]
    assert shown(read(path, "99", Extent(10**6))) == EVERYTHING
    assert read(path, "1", Extent(10**6)) == ConversationPage((), None)
    assert read(path, "0", Extent(10**6)) == ConversationPage((), None)


@pytest.mark.parametrize("before", ["", ".", "x", "-1", "1.", ".1", "1.2.3", "²", "1.²", "1" * 10])
def test_invalid_position_is_refused(tmp_path: Path, before: str) -> None:
    with pytest.raises(ValueError, match="position"):
        read(conversation(tmp_path), before, Extent(1000))


def test_a_long_result_is_cut_with_a_mark_and_whole_by_its_id(tmp_path: Path) -> None:
    path = conversation(tmp_path)
    (part,) = read(path, None, Extent(1, longest_result=8000)).parts
    (item,) = part.turn.items
    assert item.cut
    assert len(item.result) < 8200
    whole = whole_item(path, read_outline(path), 3, item.id, lambda value: value)
    assert whole is not None
    assert (len(whole.result), whole.cut) == (60_000, False)


def test_secret_is_redacted_before_text_is_cut(tmp_path: Path) -> None:
    secret = "s3cret-" * 4
    path = written(
        tmp_path,
        prompt("a", None, "x" * 99_990 + secret),
        answer("b", "a", call("Read")),
        result("c", "b", "Read", "x" * 7990 + secret),
    )

    def redact(value: Any) -> Any:
        return value.replace(secret, "[gone]") if isinstance(value, str) else value

    page = read(path, None, Extent(10**6, longest_result=8000), redact)
    assert "s3cret" not in str(page)
    assert "[gone]" in str(page)
