"""Where the interactive client reads and writes: a terminal with a prompt, or plain pipes."""

import sys

from .lines import Lines
from .shown import clean

_ERASE = "\r\x1b[K"


class Screen:
    """News may come at any time; in a terminal it goes above the prompt."""

    def __init__(self) -> None:
        self.terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.errors = 0
        self._lines = Lines()
        self._prompt = ""

    def tell(self, text: str) -> None:
        self._erase()
        print(clean(text) if self.terminal else text, flush=True)
        self._show()

    def complain(self, text: str) -> None:
        self.errors += 1
        self._erase()
        print(f"error: {' '.join(clean(text).split())}", file=sys.stderr, flush=True)
        self._show()

    async def next_line(self, prompt: str) -> str | None:
        """The next line; None when there are no more."""
        self._prompt = prompt if self.terminal else ""
        self._show()
        try:
            return await self._lines.next()
        finally:
            self._prompt = ""

    def _erase(self) -> None:
        """The prompt, or the line that shows how far a call is."""
        if self.terminal:
            print(_ERASE, end="")

    def _show(self) -> None:
        if self._prompt:
            print(self._prompt, end="", flush=True)
