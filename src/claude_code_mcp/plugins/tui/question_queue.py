"""The open questions of all sessions, and which one is shown."""

from collections.abc import Callable
from typing import Any

from ...client.live_sessions import OpenQuestion
from ...core.model.text import visible
from .question_panel import QuestionPanel
from .server_updates import Pump

_CLOSED_SHOWN = 4.0
"""Seconds for which a question answered elsewhere stays on the screen."""


class QuestionQueue:
    """The open questions of all sessions, one of them in the panel."""

    def __init__(self, panel: QuestionPanel, pump: Pump, focus_input: Callable[[], None]) -> None:
        self._panel = panel
        self._pump = pump
        self._focus_input = focus_input
        self._wanted: str | None = None
        """The requested question of another session."""

    def choose(self) -> None:
        """Shows the requested question, otherwise the first of this session; never focuses the panel."""
        panel = self._panel
        if panel.closed_text:
            return
        shown = next((asked for asked in self._open() if asked.id == self._wanted), None) or next(
            (asked for asked in self._open() if self._is_here(asked)), None
        )
        if panel.is_entered and (shown is None or panel.asked is None or shown.id != panel.asked.id):
            self._focus_input()  # a key meant for one question must not answer another
        self._show(shown)

    def _open(self) -> list[OpenQuestion]:
        return self._pump.open_questions()

    def _is_here(self, asked: OpenQuestion) -> bool:
        conversation = self._pump.conversation
        return conversation is not None and asked.session.session_id == conversation.session_id

    def _show(self, asked: OpenQuestion | None) -> None:
        elsewhere = asked is not None and not self._is_here(asked)
        self._panel.show(asked, elsewhere=elsewhere, also_here=any(map(self._is_here, self._open())))

    def go_on(self) -> None:
        """Focuses the shown question or, from there, the next one of any session."""
        panel, asked = self._panel, self._open()
        if not asked:
            panel.app.notify("No open questions.")
            return
        ids = [entry.id for entry in asked]
        shown = panel.asked.id if panel.asked is not None and not panel.closed_text else ""
        if shown not in ids or panel.has_focus:
            at = (ids.index(shown) + 1) % len(ids) if shown in ids else 0
            panel.closed_text = ""
            self._wanted = ids[at]
            self._show(asked[at])
        panel.screen.set_focus(panel)  # at once: `focus` would leave keys that are pressed meanwhile to the input

    def leave(self) -> None:
        """Returns to the input, and to the questions of this session."""
        self._wanted = None
        panel = self._panel
        if panel.closed_text:
            panel.closed_text = ""
            panel.show(None)
        if panel.is_entered:
            self._focus_input()
        self.choose()

    def forget(self) -> None:
        """Another session is on the screen: drops the requested question."""
        self._wanted = None

    def closed(self, asked: OpenQuestion, how: str) -> None:
        """A question was answered elsewhere."""
        panel = self._panel
        if panel.asked is not None and panel.asked.id == asked.id:
            panel.close_with(f"Answered elsewhere: {how}" if how else "The question is no longer open.")
            panel.set_timer(_CLOSED_SHOWN, self._drop_closed)
        else:
            panel.app.notify(visible(f"{asked.question.description}: {how or 'no longer open'}"), markup=False)

    def _drop_closed(self) -> None:
        if self._panel.closed_text and not self._panel.has_focus:
            self.leave()

    async def answer(
        self, asked: OpenQuestion, decision: dict[str, Any], send: Callable[[OpenQuestion, dict[str, Any]], Any]
    ) -> None:
        """Sends an answer; a question whose answer is refused is offered again."""
        # Before any await: the list may be read meanwhile and must not offer the question again.
        self._pump.answered.add(asked.id)
        self._focus_input()  # before any await: the next key must not answer another question
        if await send(asked, decision) is None:
            self._pump.answered.discard(asked.id)
        else:
            self._wanted = None
            self._pump.list_again()
        self.choose()
