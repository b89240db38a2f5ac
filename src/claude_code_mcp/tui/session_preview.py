"""A session that is shown beside the list while the person goes through it, and what was shown before."""

from collections.abc import Callable

from textual.screen import Screen
from textual.timer import Timer

_REST = 0.15
"""Seconds that a row must stay highlighted before its session is read."""


class SessionPreview:
    """`follow` shows a session. A message that is typed goes to the session that is on the screen, previewed or not."""

    def __init__(self, screen: Screen[None], follow: Callable[[str], None]) -> None:
        self._screen = screen
        self._follow = follow
        self._timer: Timer | None = None
        self.is_shown = False
        self.before: str | None = None
        """The session that was on the screen before the first preview."""

    def rest_on(self, session_id: str, current: str | None) -> None:
        """The highlight is on a session; it is shown once that lasts."""
        self._stop()
        if session_id != current:
            self._timer = self._screen.set_timer(_REST, lambda: self._show(session_id, current))

    def _show(self, session_id: str, current: str | None) -> None:
        if not self.is_shown:
            self.is_shown, self.before = True, current
        self._follow(session_id)

    def end(self) -> None:
        """What is on the screen stays there."""
        self._stop()
        self.is_shown, self.before = False, None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
