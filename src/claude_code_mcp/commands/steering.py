"""`answer`, `interrupt` and `cancel`: what a person decides for the sessions of a running server."""

import argparse
import sys
from typing import Any

from ..client.deciding import NoAnswer, decide
from ..client.live_sessions import LiveSessions, OpenQuestion
from ..errors import InvalidArgument
from ..model.question import QuestionKind
from .asking import Asking
from .printing import print_question
from .verbs import add_session, add_verb, at_running_server, failed, print_outcome

_DECISIONS = {
    "allow": "yes, this once; approve a plan",
    "session": "yes, and do not ask for the like again in this session",
    "edits": "approve a plan and accept edits from then on",
    "deny": "no; TEXT is the reason, or what to change in a plan",
    "say": "answer a question of Claude's: a TEXT for each of its parts, a label or anything else",
}


def add_to(commands: Any) -> None:
    answer = add_verb(commands, "answer", "show an open question and answer it", at_running_server(_answer))
    answer.add_argument("question", metavar="ID", help="its id or the beginning of it, or a session that asks just one")
    listed = "; ".join(f"{name}: {summary}" for name, summary in _DECISIONS.items())
    answer.add_argument(
        "decision", nargs="?", choices=sorted(_DECISIONS), metavar="DECISION", help=f"{listed}. Unset, you are asked"
    )
    answer.add_argument("text", nargs="*", metavar="TEXT", help="for deny and say")
    interrupt = add_verb(commands, "interrupt", "stop the turn of a session and keep it", at_running_server(_interrupt))
    add_session(interrupt)
    cancel = add_verb(commands, "cancel", "end a session for good", at_running_server(_cancel))
    add_session(cancel)


def _answer(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    asked = sessions.question(arguments.question)
    print_question(asked, sys.stderr if arguments.json else sys.stdout)  # before anything is decided
    try:
        if arguments.decision is None:
            decision = _asked_at_terminal(asked)
        elif arguments.decision == "say":
            decision = _parts_answered(asked, arguments.text)
        else:
            decision = decide(asked, arguments.decision, " ".join(arguments.text))
    except NoAnswer as error:
        raise InvalidArgument(str(error)) from None
    if decision is None:
        return failed("nothing was answered.")
    report = sessions.answer(asked, decision)
    print_outcome(arguments, report, f"Answered: {decision['decision']}.")
    return 0


def _parts_answered(asked: OpenQuestion, texts: list[str]) -> dict[str, Any]:
    parts = len(asked.question.choices)
    if asked.question.kind is not QuestionKind.USER_QUESTION or len(texts) != parts:
        raise NoAnswer(f"say: this question has {parts} parts to answer.")
    return {"decision": "allow", "answers": texts}


def _asked_at_terminal(asked: OpenQuestion) -> dict[str, Any] | None:
    """Asks until there is an answer; None at the end of the input."""
    if not sys.stdin.isatty():
        raise InvalidArgument("Nobody can be asked here: say what the answer is.")
    asking = Asking(asked)
    while True:
        print(asking.prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return None
        try:
            decision = asking.take(line)
        except NoAnswer as error:
            print(error, file=sys.stderr)
            continue
        if decision is not None:
            return decision


def _interrupt(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    report = sessions.interrupt(sessions.find(arguments.session))
    print_outcome(arguments, report, f"{report['sessionId']}: {report['status']}")
    return 0


def _cancel(sessions: LiveSessions, arguments: argparse.Namespace) -> int:
    session_id = sessions.find(arguments.session)
    report = sessions.cancel(session_id)
    print_outcome(arguments, report, f"{session_id}: cancelled")
    return 0
