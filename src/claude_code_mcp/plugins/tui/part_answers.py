"""The answers to a question with several parts."""

from typing import Any

from ...client.live_sessions import OpenQuestion
from ...core.model.question import Choice


class PartAnswers:
    """The answers to a question with several parts, in order: the current part, its marked options, and the answers so
    far."""

    def __init__(self, asked: OpenQuestion) -> None:
        self._choices = asked.question.choices
        self._answers: list[str | list[str]] = []
        self.cursor = 0
        self.marked: set[int] = set()

    @property
    def part(self) -> Choice | None:
        """The current part; None if the question has none."""
        return self._choices[len(self._answers)] if len(self._answers) < len(self._choices) else None

    @property
    def progress(self) -> str:
        return f"{len(self._answers) + 1} of {len(self._choices)}" if len(self._choices) > 1 else ""

    def move(self, step: int) -> None:
        if self.part is not None and self.part.labels:
            self.cursor = (self.cursor + step) % len(self.part.labels)

    def mark(self, number: int | None = None) -> None:
        """Marks or unmarks an option; a part with a single choice has at most one mark."""
        number = self.cursor if number is None else number
        if self.part is None or not 0 <= number < len(self.part.labels):
            return
        self.cursor = number
        self.marked = self.marked ^ {number} if self.part.several else {number}

    def confirm(self) -> dict[str, Any] | None:
        """Answers the current part with the marked options or, for a single choice without a mark, with the option at
        the cursor. Returns the arguments of `claude_respond` after the last part; None before it, or if nothing is
        marked."""
        part = self.part
        if part is None or not part.labels:
            return None
        if part.several:
            chosen = [part.labels[number] for number in sorted(self.marked)]
            return self._answered(chosen) if chosen else None
        return self._answered(part.labels[min(self.marked, default=self.cursor)])

    def say(self, text: str) -> dict[str, Any] | None:
        """Answers the current part with a text."""
        return self._answered(text.strip()) if text.strip() and self.part is not None else None

    def _answered(self, answer: str | list[str]) -> dict[str, Any] | None:
        self._answers.append(answer)
        self.cursor, self.marked = 0, set()
        return None if self.part is not None else {"decision": "allow", "answers": self._answers}
