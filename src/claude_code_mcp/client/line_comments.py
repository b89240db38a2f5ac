"""Comments on lines of a diff, and the message that they are sent as. Pure.

The message reads as the console's does (`web/src/comments.ts`): file, line and its text for each comment.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .question_view import Style

MOST = 50
LONGEST = 1000
_LONGEST_QUOTE = 300
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


class LinePlace(NamedTuple):
    """A line that can be commented on."""

    file: str
    line: int
    """As it is now; as it was before the change, where it was removed."""
    is_removed: bool
    quote: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' (removed)' if self.is_removed else ''}"


class DiffRow(NamedTuple):
    """A line of a diff as git writes it, not yet made visible; `place` where it is a line of a file."""

    text: str
    style: Style
    place: LinePlace | None = None


def diff_rows(diff: str) -> Iterator[DiffRow]:
    """The lines of what `git diff` has printed. What belongs to a hunk is known by its counts: a removed line may look
    like the head of a file."""
    file = ""
    before = after = old_left = new_left = 0
    for text in diff.split("\n"):
        sign, content = text[:1], text[1:].removesuffix("\r")
        if (old_left or new_left) and sign in " -+":
            is_removed = sign == "-"
            line = before if is_removed else after
            old_left, before = (old_left - 1, before + 1) if sign != "+" else (old_left, before)
            new_left, after = (new_left - 1, after + 1) if sign != "-" else (new_left, after)
            style = Style.REMOVED if is_removed else Style.ADDED if sign == "+" else Style.SAME
            yield DiffRow(text, style, LinePlace(file, line, is_removed, content[:_LONGEST_QUOTE]))
        elif hunk := _HUNK.match(text):
            before, old_left, after, new_left = (int(number or 1) for number in hunk.groups())
            yield DiffRow(text, Style.HEAD)
        elif text.startswith("\\"):
            yield DiffRow(text, Style.SAME)  # "No newline at end of file": the hunk may go on behind it
        else:
            old_left = new_left = 0
            if text.startswith("diff --git "):
                file = text.rpartition(" b/")[2]
            elif text.startswith(("--- a/", "+++ b/")):
                file = text[6:].rstrip("\t")
            is_head = text.startswith(("diff --git ", "--- ", "+++ "))
            yield DiffRow(text, Style.HEAD if is_head else Style.SAME)


class LineComments:
    """The comments on the changes of one session, until they are sent."""

    def __init__(self) -> None:
        self._texts: dict[LinePlace, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[tuple[LinePlace, str]]:
        """By file and line."""
        return iter(sorted(self._texts.items()))

    def at(self, place: LinePlace) -> str:
        """What is written about a line; empty if nothing is."""
        return self._texts.get(place, "")

    def write(self, place: LinePlace, text: str) -> str:
        """Writes a comment, anew where there is one; an empty text removes it. Returns why it cannot be written, or
        nothing."""
        text = text.strip()
        if not text:
            self._texts.pop(place, None)
        elif len(text) > LONGEST:
            return f"A comment has at most {LONGEST} characters; this one has {len(text)}."
        elif place not in self._texts and len(self._texts) >= MOST:
            return f"At most {MOST} comments go with one message."
        else:
            self._texts[place] = text
        return ""

    def remove(self, sent: Iterable[tuple[LinePlace, str]]) -> None:
        """Removes these comments, but not one that was written anew since."""
        for place, text in sent:
            if self._texts.get(place) == text:
                del self._texts[place]


def comments_message(comments: Iterable[tuple[LinePlace, str]]) -> str:
    """The comments as one message. What is quoted stays on its line: a carriage return within a line of a file must
    not let the file speak in the person's name."""
    parts = [
        f"{_quoted(place.file)}, line {place.line}{', as it was before the change' if place.is_removed else ''}:\n"
        f"> {_quoted(place.quote)}\n\n{text}"
        for place, text in comments
    ]
    head = "A comment on the changes:" if len(parts) == 1 else f"{len(parts)} comments on the changes:"
    return "\n\n".join([head, *parts])


def _quoted(text: str) -> str:
    return " ".join(text.splitlines())
