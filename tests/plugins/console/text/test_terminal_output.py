"""What a command has printed, as the page shows it; and characters that are not to be seen."""

import pytest

from .page_text import Draw


def _shown(nodes: list[object]) -> str:
    return "".join(node if isinstance(node, str) else node[2][0] for node in nodes)  # type: ignore[index]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("abcdef\rxy", "xycdef"),
        ("abcdef\r\u001b[Kxy", "xy"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("ab\bc", "ac"),
        ("\u001b]0;title\u0007text", "text"),
        ("\u001b[2J\u001b[Htext", "text"),
        ("a\u001b", "a"),
        ("\u001b[31mred\u202e\u001b[0m", "red⟨U+202E⟩"),
    ],
)
def test_an_output_is_shown_as_a_terminal_would(draw: Draw, printed: str, shown: str) -> None:
    (nodes,) = draw(("output", printed))
    assert _shown(nodes) == shown


def test_colors_become_classes_and_nothing_else(draw: Draw) -> None:
    (nodes,) = draw(
        ("output", "\u001b[1;31mbad\u001b[22m still\u001b[0m \u001b[38;5;2mgood\u001b[39m \u001b[38;2;1;2;3mx")
    )
    assert nodes == [
        ["span", {"class": "ansi-bold ansi-red"}, ["bad"]],
        ["span", {"class": "ansi-red"}, [" still"]],
        " ",
        ["span", {"class": "ansi-green"}, ["good"]],
        " x",
    ]


def test_a_plain_output_is_left_alone(draw: Draw) -> None:
    assert draw(("output", "plain\ntext\t1")) == [None]


@pytest.mark.parametrize(
    "text",
    [
        "👩‍💻",
        "👨‍👩‍👧",
        "❤️‍🔥",
        "☀️",
        "1️⃣",
        "می‌خواهم",
        "क्‍ष",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    ],
)
def test_joiners_that_belong_to_a_character_stay(draw: Draw, text: str) -> None:
    assert draw(("visible", text)) == [text]


@pytest.mark.parametrize(
    "character", ["\u202e", "\u2066", "\u200b", "\u200c", "\u200d", "\ufe0f", "\u00ad", "\ufeff", "\U000e0041"]
)
def test_deceptive_characters_are_shown_as_codes(draw: Draw, character: str) -> None:
    assert draw(("visible", f"rm{character}x")) == [f"rm⟨U+{ord(character):04X}⟩x"]
    (nodes,) = draw(("markdown", f"a{character}b `a{character}b`"))
    assert character not in str(nodes)
