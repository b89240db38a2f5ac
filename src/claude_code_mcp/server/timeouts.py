"""What a caller is told of a turn that took too long: whose it was, what it had said until then, what it cost."""

from ..errors import TurnTimeout
from ..model.events import Output, TurnStarted
from ..model.turn import Outcome as TurnOutcome
from ..model.turn import OutcomeCode
from ..sessions.session import Session
from .status import OUTPUT_BUDGET, Problem
from .tool import Outcome


def timeout_error(session: Session, outcome: TurnOutcome, report: Outcome) -> TurnTimeout:
    """The error of a call whose turn ran out of time; `report` is what the call would have returned otherwise."""
    told = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    told["result"] = outcome.result or outcome_so_far(session)
    return TurnTimeout(_message(session, outcome), session_id=session.id, report=told)


def timeout_problem(session: Session, outcome: TurnOutcome) -> Problem | None:
    """The same for a result that has more to it than an error; None if the turn did not run out of time."""
    if outcome.code is not OutcomeCode.TIMEOUT:
        return None
    return Problem(code=TurnTimeout.code, message=_message(session, outcome))


def _message(session: Session, outcome: TurnOutcome) -> str:
    return f"{outcome.detail} Session {session.id} can be continued."


def outcome_so_far(session: Session) -> str:
    """The last lines that the session's newest turn has put out, as many as fit."""
    began = max((event.seq for event in session.log.latest(TurnStarted, 1)), default=0)
    lines: list[str] = []
    left = OUTPUT_BUDGET
    for event in reversed([one for one in session.log.after(began) if isinstance(one, Output)]):
        left -= len(event.line) + 1
        if left < 0 and lines:
            break
        lines.append(event.line[-OUTPUT_BUDGET:])
    return "\n".join(reversed(lines))
