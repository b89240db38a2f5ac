"""Print lines while they are written, on a stream that can only be appended to: a terminal or a pipe. Pure.

The server sends an unfinished line repeatedly, each time from its beginning, and at last as a whole line.
`PrintedLines` returns only the new part of it. A line that does not continue the printed text is printed whole on a
new line: for example, Claude Code repeats an answer after an error of the API.
"""

from ..core.model.text import visible

_JOINERS = "\r\u200c\u200d\ufe0f"
"""Characters at the end of a text whose meaning depends on what follows."""


class PrintedLines:
    """Returns the text to print next, with control characters made visible."""

    def __init__(self) -> None:
        self._open = ""
        """The printed part of a line that is not whole yet."""
        self._is_broken = False
        """Whether a line break was printed after that part, because something else had to be printed."""

    @property
    def is_open(self) -> bool:
        """Whether the last line that was printed has no line break yet."""
        return bool(self._open) and not self._is_broken

    def writing(self, text: str) -> str:
        """The rest of the line that is being written."""
        shown = visible(text.rstrip(_JOINERS))
        # Nothing is new, or the server holds the end back because it may be a secret.
        return "" if self._open.startswith(shown) else self._rest(shown)

    def line(self, line: str) -> str:
        """The rest of a whole line of the answer, with the line break."""
        rest = self._rest(visible(line))
        ended = "" if self._is_broken else "\n"
        self._open, self._is_broken = "", False
        return f"{rest}{ended}"

    def other_line(self, line: str) -> str:
        """A whole line that is not part of the answer."""
        return f"{self.break_line()}{visible(line)}\n"

    def break_line(self) -> str:
        """Ends an open line; the rest of it is printed on the next one."""
        if not self.is_open:
            return ""
        self._is_broken = True
        return "\n"

    def new_answer(self) -> str:
        """Ends an open line; the next text does not continue it."""
        ended = self.break_line()
        self._open, self._is_broken = "", False
        return ended

    def _rest(self, shown: str) -> str:
        """The part of the line that is not printed yet."""
        begun, self._open = self._open, shown
        if shown == begun:
            return ""
        separator = "" if shown.startswith(begun) or self._is_broken else "\n"
        self._is_broken = False
        return separator + shown.removeprefix(begun)
