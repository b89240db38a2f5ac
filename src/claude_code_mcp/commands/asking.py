"""An open question put to a person at a terminal, line by line: what is asked next, and what a typed line comes to.

Pure: `Asking` is given the lines that were typed. A line that is no answer changes nothing, and is never taken for a
yes.
"""

from typing import Any

from ..client.deciding import ACCEPT_EDITS, NoAnswer, decide
from ..client.live_sessions import OpenQuestion
from ..model.question import Choice, QuestionKind
from ..model.text import visible


class Asking:
    """One question while it is being answered. A question with several parts takes a line for each."""

    def __init__(self, asked: OpenQuestion) -> None:
        self.asked = asked
        self._answers: list[str | list[str]] = []

    @property
    def prompt(self) -> str:
        """What to type now."""
        match self.asked.question.kind:
            case QuestionKind.PERMISSION:
                session = ", [s]ession: do not ask for the like again" if self.asked.for_session else ""
                return f"[a]llow{session}, [d]eny and why? "
            case QuestionKind.PLAN_REVIEW:
                edits = ", approve and accept [e]dits" if ACCEPT_EDITS in self.asked.question.modes else ""
                return f"[a]pprove{edits}, [d]eny and what to change? "
            case QuestionKind.USER_QUESTION:
                return self._choice_prompt()

    def take(self, line: str) -> dict[str, Any] | None:
        """The arguments of `claude_respond` that a typed line comes to; None if another part is to be answered first.
        NoAnswer if it is none."""
        if self.asked.question.kind is QuestionKind.USER_QUESTION and self._choices:
            return self._choose(line)
        decision, _, text = line.strip().partition(" ")
        return decide(self.asked, decision.lower(), text.strip())

    # -- questions with choices -------------------------------------------------------------------------------

    @property
    def _choices(self) -> tuple[Choice, ...]:
        return self.asked.question.choices

    def _choice_prompt(self) -> str:
        if not self._choices:
            return "[d]eny? "
        choice = self._choices[len(self._answers)]
        options = "".join(f"  {number}  {visible(label)}\n" for number, label in enumerate(choice.labels, 1))
        several = "numbers, such as 1,3," if choice.several else "a number"
        how = f"{several} or text" if options else "text"
        return f"{visible(choice.question)}\n{options}{how}, or [d]eny? "

    def _choose(self, line: str) -> dict[str, Any] | None:
        text = line.strip()
        if not text:
            raise NoAnswer("An empty line is no answer.")
        if text.lower() in ("d", "deny"):
            return {"decision": "deny"}
        self._answers.append(_chosen(self._choices[len(self._answers)], text))
        return {"decision": "allow", "answers": self._answers} if len(self._answers) == len(self._choices) else None


def _chosen(choice: Choice, text: str) -> str | list[str]:
    """The labels that numbers stand for; any other text as it is."""
    numbers = [part.strip() for part in text.split(",")]
    if not choice.labels or not all(number.isascii() and number.isdigit() and len(number) < 4 for number in numbers):
        return text
    indices = [int(number) for number in numbers]
    if not all(1 <= index <= len(choice.labels) for index in indices) or (len(indices) > 1 and not choice.several):
        raise NoAnswer(f"There are the numbers 1 to {len(choice.labels)}{'' if choice.several else '; one of them'}.")
    labels = [choice.labels[index - 1] for index in indices]
    return labels if choice.several else labels[0]
