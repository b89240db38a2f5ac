"""The moving picture of the README, as a file: `make pictures` makes it from the demo."""

import re
from xml.etree import ElementTree

from .story_picture import StoryFrame, moving_picture

FONT = "<style>@font-face { src: url(https://x) }</style>"
DRAWN = f'<svg viewBox="0 0 900 500.5" xmlns="http://www.w3.org/2000/svg">{FONT}</svg>'


def test_one_frame_is_shown_at_any_moment_and_nothing_is_fetched() -> None:
    drawn = moving_picture(
        [StoryFrame(DRAWN, f"Step {number}", seconds) for number, seconds in enumerate((1, 2, 5))], 1
    )
    root = ElementTree.fromstring(drawn)
    captions = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert captions == ["Step 0", "Step 1", "Step 2"]
    assert "https://x" not in drawn
    shown = re.findall(r"@keyframes f(\d) \{ (.*?\}) \}", drawn)
    places = [(number, re.findall(r"([\d.]+)% \{ visibility: (\w+) \}", rules)) for number, rules in shown]
    assert places == [
        ("0", [("0.000", "visible"), ("12.500", "hidden")]),
        ("1", [("0", "hidden"), ("12.500", "visible"), ("37.500", "hidden")]),
        ("2", [("0", "hidden"), ("37.500", "visible")]),
    ]
    still = re.findall(r"\.f(\d) \{ visibility: visible", drawn)
    assert still == ["1"]
