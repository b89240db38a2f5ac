"""When the turns of a conversation ran, and when they waited for a person.

The times of turns come from the lines of the transcript, which are claims: a value that is not a time, or an end before
its beginning, is ignored. The exact times of questions, and who answered, are in the event log and in the audit trail.
The transcript shows the times of plans and of questions that the model asks, from the call to its result; it does not
say which other calls waited. Linear in the input; blocks on the disk.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..model.events import QuestionSettled
from ..model.question import POLICY_CHANNEL, Question
from ..model.text import clip_line
from .conversation import read_turn_lines
from .event_log import EventLog
from .outline import Outline
from .transcript_lines import interrupted_by, message_blocks, seconds_of, typed

_MAX_TURNS = 200
_MAX_WAITS = 500
_MAX_PROMPT = 80
_ASKING_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode"})
"""Tools whose calls always wait for a person."""


@dataclass(frozen=True, slots=True)
class TurnTime:
    """One turn; times are Unix seconds."""

    number: int
    at: float
    until: float | None
    """The time of its last answer or result; None without one."""
    prompt: str
    """The beginning of the prompt."""


@dataclass(frozen=True, slots=True)
class WaitTime:
    """One wait for a person."""

    at: float
    until: float | None
    """None while it is open."""
    tool: str = ""
    """The tool of the call."""
    decision: str = ""
    """`allow`, `deny`, `expired` or `withdrawn`; empty if it is open or not known."""
    by: str = ""
    """The channel and the client of the answer, such as `web (bob, Chrome on Linux)`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The last turns of a conversation and their waits, oldest first."""

    turns: tuple[TurnTime, ...] = ()
    waits: tuple[WaitTime, ...] = ()


def logged_waits(events: EventLog, questions: Iterable[Question]) -> dict[str, WaitTime]:
    """The waits for settled questions in the event log and for open `questions`, by the id of the call, or of the
    question if it is not about a call. Nobody waited for an answer of a rule."""
    waits = {}
    for event in events.latest(QuestionSettled, _MAX_WAITS):
        assert isinstance(event, QuestionSettled)
        asked, ending = event.question, event.resolution
        if 0 < asked.opened_at <= event.at and ending.by != POLICY_CHANNEL:
            wait = WaitTime(asked.opened_at, event.at, asked.tool_name, ending.decision, ending.whose)
            waits[asked.tool_use_id or asked.id] = wait
    return waits | {
        asked.tool_use_id or asked.id: WaitTime(asked.opened_at, None, asked.tool_name) for asked in questions
    }


def read_timeline(
    path: str, outline: Outline, logged: Mapping[str, WaitTime], redact: Callable[[Any], Any]
) -> Timeline:
    """The timeline of a conversation; `logged` are waits with exact times, by the id of the call. Raises OSError if it
    cannot be read."""
    turns: list[TurnTime] = []
    waits: dict[str, WaitTime] = {}
    count = len(outline.turns)
    for number in range(max(1, count - _MAX_TURNS + 1), count + 1):
        turn, asked = turn_time(number, read_turn_lines(path, outline.turns[number - 1]), redact)
        waits |= asked
        if turn is not None:
            turns.append(turn)
    known = sorted((waits | dict(logged)).values(), key=lambda wait: wait.at)
    return Timeline(tuple(turns), tuple(known[-_MAX_WAITS:]))


def turn_time(
    number: int, lines: Iterable[Mapping[str, Any]], redact: Callable[[Any], Any]
) -> tuple[TurnTime | None, dict[str, WaitTime]]:
    """The times of the turn in these lines, None if it has none, and its waits by the id of the call. Pure."""
    start = end = prompt = None
    called: dict[str, tuple[float, str]] = {}
    answered: dict[str, float] = {}
    for line in lines:
        at = seconds_of(line.get("timestamp"))
        if prompt is None:
            prompt = typed(line, of_subagent=bool(line.get("isSidechain")))
        if at is None:
            continue
        start = at if start is None else start
        blocks = message_blocks(line)
        results = [str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result"]
        # Other lines, such as the output of a local command, may come long after the turn.
        if at >= start and (line.get("type") == "assistant" or results or interrupted_by(line)):
            end = at if end is None else max(end, at)
        for block in blocks if line.get("type") == "assistant" else ():
            if block.get("type") == "tool_use" and block.get("name") in _ASKING_TOOLS:
                called.setdefault(str(block.get("id")), (at, str(block.get("name"))))
        for call in results:
            answered.setdefault(call, at)
    both = ((call, at, answered[call], name) for call, (at, name) in called.items() if call in answered)
    waits = {call: WaitTime(at, until, name) for call, at, until, name in islice(both, _MAX_WAITS) if at <= until}
    if start is None:
        return None, waits
    # Redact first: half of a secret would not be recognized.
    return TurnTime(number, start, end, clip_line(str(redact(prompt or "")), _MAX_PROMPT)), waits
