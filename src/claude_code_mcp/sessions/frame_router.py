"""What a process says, handed to the part of the session that it concerns: the log, the turn, questions, the bridge."""

from collections.abc import Callable
from typing import Protocol

from ..claude.frames import (
    ControlCancel,
    ControlRequest,
    Conversation,
    Frame,
    Lifecycle,
    Other,
    Raw,
    Result,
    StreamEvent,
    System,
)
from ..model.events import Output
from ..model.session_ids import is_session_id
from ..store.event_log import EventLog
from .policy_enforcer import PolicyEnforcer
from .turn import SessionParts, TurnRunner


class FrameSession(Protocol):
    """The session whose frames these are."""

    id: str
    cwd: str
    owner: str
    log: EventLog


class FrameRouter:
    """The `FrameReceiver` of a session's processes. Frames are written to the log before they have any effect."""

    def __init__(
        self,
        session: FrameSession,
        turns: TurnRunner,
        parts: SessionParts,
        enforcer: PolicyEnforcer,
        move_to: Callable[[str], None],
    ) -> None:
        """`move_to` has the session go on under another id."""
        self._session = session
        self._turns = turns
        self._events = parts.events
        self._costs = parts.costs
        self._stall_timer = parts.stall_timer
        self._questions = parts.questions
        self._process = parts.process
        self._enforcer = enforcer
        self._move_to = move_to

    def frame_received(self, frame: Frame) -> None:
        self._stall_timer.touch()
        self._events.write(frame)
        if frame.__class__ is StreamEvent:  # by far the most frequent, and only for the log
            return
        match frame:
            case Conversation():
                self._costs.answer_received(frame)
                self._turns.answer_received(frame)
            case Result():
                self._turns.result_received(frame)
            case System() if frame.subtype == "init":
                # After `/clear` the process writes another conversation, and this is the frame that names it.
                session_id = frame.raw.get("session_id")
                if isinstance(session_id, str) and session_id != self._session.id and is_session_id(session_id):
                    self._move_to(session_id)
                self._turns.process_began_turn()
            case ControlRequest():
                self._request_received(frame)
            case ControlCancel():
                self._questions.withdraw(frame.id)
            case Lifecycle():
                self._turns.message_reported(frame)
            case Other() if frame.raw.get("type") == "conversation_reset" and self._process.live is not None:
                self._process.live.conversation_reset = True

    def _request_received(self, frame: ControlRequest) -> None:
        live, process, turn = self._process.live, self._process.process, self._turns.current
        assert live is not None
        assert process is not None
        if frame.subtype == "hook_callback":
            process.answer(frame.id, self._enforcer.vet(self._session.owner, self._session.cwd, frame.request))
        elif frame.subtype == "mcp_message" and live.bridge is not None:
            live.bridge.forward(process, frame)
        elif frame.subtype != "can_use_tool":
            process.refuse(frame.id, f"{frame.subtype} is not supported by this host")
        elif turn is not None and turn.ending_as is not None:
            process.refuse(frame.id, "the turn is being ended")
        else:
            if turn is None:
                self._turns.begin(None, question_only=True)
            self._questions.open(frame)
            self._turns.wait_for_answers()

    def progress_reported(self, line: str) -> None:
        self._stall_timer.touch()
        self._session.log.append(Output(line, "progress"))

    async def form_requested(self, server: str, form: Raw) -> Raw:
        """Puts the form to whoever may answer; cancelled at once when no turn runs that could wait for it."""
        turn = self._turns.current
        if turn is None or turn.ending_as is not None:
            return {"action": "cancel"}
        filled = self._questions.elicit(server, form)
        self._turns.wait_for_answers()
        return await filled
