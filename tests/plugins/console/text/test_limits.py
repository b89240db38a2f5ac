"""What the page makes of texts that are meant to make it slow, deep or blind."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import npm

from .page_text import Draw, node_command

FUZZ = Path(__file__).with_name("fuzz.mjs")
MAX_DEPTH = 40
SMALL = 200.0
"""Milliseconds of CPU time that say nothing about how a time grows."""


def _fuzz(mode: str, seed: int) -> list[dict[str, Any]]:
    try:
        command = node_command(FUZZ)
    except npm.Unavailable as error:
        pytest.skip(f"the page's sources cannot be built here: {error}")
    done = subprocess.run([*command, mode, str(seed)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_no_text_is_drawn_as_more_nodes_than_twice_its_characters_or_deeper_than_a_bound() -> None:
    found = _fuzz("counts", 1)
    assert len(found) > 400
    for text in found:
        assert text["nodes"] + text["output"] <= 2 * text["size"] + 20, text
        assert text["deepest"] <= MAX_DEPTH, text


def test_no_text_loses_letters_but_those_that_markdown_itself_leaves_out() -> None:
    # Cells that a table has no column for, and what defines a link.
    found = [text for text in _fuzz("counts", 2) if "|" not in text["name"] and "]:" not in text["name"]]
    assert [text for text in found if text["letters"] != text["written"]] == []


def test_a_long_text_of_one_kind_is_one_text(draw: Draw) -> None:
    """Parts that are read one after the other are no more to be seen."""
    paragraph = "A *sentence* of some length, with a [link].\n" * 20
    text = "\n".join([paragraph] * 40) + "\n[link]: https://example.com/\n"
    (nodes,) = draw(("markdown", text))
    assert [node[0] for node in nodes] == ["p"] * 40
    assert all(sum(child[0] == "a" for child in node[2] if isinstance(child, list)) == 20 for node in nodes)
    # Fenced code is never cut, however long.
    code = "```\n" + "# line\n\n" * 5000 + "```\n"
    (nodes,) = draw(("markdown", code))
    assert len(nodes) == 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_time_for_a_text_grows_no_faster_than_the_text(seed: int) -> None:
    """Measured as CPU time at four times the size; parts of up to 16,000 characters may cost more than their share."""
    slow = []
    for text in _fuzz("times", seed):
        _, middle, large = text["used"]
        if large > SMALL and large > 3 * 4 * max(middle, SMALL / 4):
            slow.append(text)
    assert slow == []
