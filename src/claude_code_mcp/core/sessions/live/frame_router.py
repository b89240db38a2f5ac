"""Routes the frames of a process to the parts of its session: the log, the turn, the questions and the bridge to the
hub.

Every frame is first checked against the session's own knowledge (`frame_claims.py`); an impossible one ends the
process.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...claude.protocol import (
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
    describe,
)
from ...errors import PermissionDenied
from ...model.events import Output
from ...model.question import FileChange
from ...model.tool_names import plain_name
from ...policy.rules import Decision, Verdict
from ..callers.policy_enforcer import tool_behind
from ..file_changes import EDITING_TOOLS, changed_file, file_change
from ..verdicts import Occasion
from .frame_claims import CallClaim, ClaimContext, FalseClaim, FrameClaims
from .live_process import LiveProcess
from .session_traces import within_turn

if TYPE_CHECKING:
    from ..session import Session

log = logging.getLogger(__name__)

_MAX_COMPARISON = 5.0
"""Maximum seconds to compute the diff for a question; after that it is asked without one."""


class FrameRouter:
    """Handles the frames of a session's current process. Frames are logged before they have any effect."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._comparing: set[str] = set()
        """The ids of requests whose diff is being computed."""

    def frame_received(self, frame: Frame) -> None:
        """Check a frame, log it, then let it have its effect."""
        session = self._session
        session.stall_timer.touch()
        if frame.__class__ is StreamEvent:  # by far the most frequent, and only for display
            # Text fragments carry no costs, and almost all of these frames are fragments.
            if not session.activity.write_stream_event(frame):
                session.costs.streamed(frame.raw)
            return
        live, process, turns = session.process.live, session.process.process, session.turn_runner
        assert live is not None
        claims, in_turn = live.claims, turns.current is not None
        open_requests = process.open_requests if process is not None else 0
        try:
            counts = claims.check(
                frame, ClaimContext(in_turn, not in_turn and turns.last_interrupted, open_requests, live.why_taken)
            )
        except FalseClaim as claim:
            # Not logged: the log must contain only accepted frames.
            turns.end_for_violation(f"{claim} ({describe(frame)})")
            return
        replica = session.deps.replica
        if replica is not None and isinstance(frame, Other) and frame.raw.get("type") == "transcript_mirror":
            # Not logged: the log already has all of it.
            replica.mirror_received(claims.session_id, frame)
            return
        session.activity.write(frame)
        # Also for frames without any other effect: the tokens are paid for.
        if isinstance(frame, Conversation):
            session.costs.answer_received(frame)
        if not counts:
            if isinstance(frame, Result):
                turns.late_result(frame)
            return
        match frame:
            case Conversation():
                turns.answer_received(frame)
            case Result():
                turns.result_received(frame)
            case System() if frame.subtype == "init":
                # After `/clear` the process writes another conversation, and this frame has its id. Change the id
                # first: the turn is reported under it.
                if claims.session_id != session.id:
                    session.move_to(claims.session_id)
                turns.process_began_turn()
            case System() if frame.subtype == "compact_boundary":
                turns.conversation_compacted()
            case ControlRequest():
                self._request_received(frame, claims)
            case ControlCancel():
                self._comparing.discard(frame.id)
                session.open_questions.withdraw(frame.id)
            case Lifecycle():
                turns.message_reported(frame)
            case Other() if frame.raw.get("type") == "conversation_reset":
                live.conversation_reset = True

    def _request_received(self, frame: ControlRequest, claims: FrameClaims) -> None:
        session = self._session
        live, process = session.process.live, session.process.process
        assert live is not None
        assert process is not None
        tool = str(frame.request.get("tool_name"))
        match frame.subtype:
            # A malformed request is denied at once: otherwise Claude Code would wait minutes for an answer.
            case "hook_callback" if frame.unreadable:
                process.answer(frame.id, session.verdicts.hook_denial(tool, {}))
            case "can_use_tool" if frame.unreadable:
                denial = session.verdicts.give_up(Occasion.QUESTION, tool, {})
                process.answer(frame.id, {"behavior": "deny", "message": denial.message})
            case _ if frame.unreadable:
                process.refuse(frame.id, "the request cannot be read")
            case "hook_callback":
                process.answer(frame.id, session.verdicts.reply_to_hook(frame.request))
            case "mcp_message" if live.bridge is not None:
                self._mcp_message_received(frame, claims)
            case "can_use_tool":
                path = changed_file(tool, frame.request.get("input")) if tool in EDITING_TOOLS else None
                if path is None:
                    self._open_question(frame, None)
                else:
                    self._comparing.add(frame.id)
                    session.deps.start_task(self._compare_and_ask(live, frame, path))
            case _:
                process.refuse(frame.id, f"{frame.subtype} is not supported by this host")

    async def _compare_and_ask(self, live: LiveProcess, frame: ControlRequest, path: str) -> None:
        """Compute the change to the file, then ask. The session treats the request as if it had arrived after that."""
        session = self._session
        readable = partial(session.deps.enforcer.admission(session.owner).readable, "file_path", cwd=session.cwd)
        directories = (session.cwd, *session.options.additional_directories)
        tool, tool_input = str(frame.request.get("tool_name")), frame.request["input"]
        reading = session.deps.stores.threads.run(file_change, tool, tool_input, path, directories, readable)
        try:
            try:
                change = await asyncio.wait_for(reading, _MAX_COMPARISON)
            except Exception as error:  # the question is asked without the change
                if not isinstance(error, TimeoutError):
                    log.exception("the change to a file in session %s cannot be shown", session.id)
                change = None
            # No await from here on. In the meantime the request may have been withdrawn, or its process may have ended.
            if frame.id in self._comparing and session.process.live is live and session.process.process is not None:
                self._open_question(frame, change)
        finally:
            self._comparing.discard(frame.id)

    def _open_question(self, frame: ControlRequest, change: FileChange | None) -> None:
        session = self._session
        process, turn = session.process.process, session.turn_runner.current
        assert process is not None
        if turn is not None and turn.ending_as is not None:
            process.refuse(frame.id, "the turn is being ended")
            return
        if turn is None:  # the question comes from background work
            session.turn_runner.begin(None, question_only=True)
        session.open_questions.open(frame, change)
        session.turn_runner.wait_for_answers()

    # -- messages to the servers of the hub -----------------------------------------------------------------------

    def _mcp_message_received(self, frame: ControlRequest, claims: FrameClaims) -> None:
        """Forward a message to its server once it is permitted. The claim of a call is looked up right here: later
        frames may already concern the next call."""
        session = self._session
        live, process = session.process.live, session.process.process
        assert live is not None
        assert live.bridge is not None
        assert process is not None
        name, message = str(frame.request.get("server_name")), frame.request.get("message")
        # An empty method if it is not a JSON-RPC message.
        method, params = "", dict[str, Any]()
        if isinstance(message, dict):
            method, params = str(message.get("method") or ""), _mapping(message.get("params"))
        if method != "tools/call":
            with within_turn(session.id, params):
                permit = partial(self._permit_reading, name, method, params)
                session.deps.start_task(live.bridge.answer(process, frame, permit))
            return
        tool = plain_name(name, str(params.get("name")))
        try:
            claim = claims.call_claimed(tool, params)
        except FalseClaim as false:
            session.turn_runner.end_for_violation(f"{false} ({describe(frame)})")
            return
        failed = partial(claims.call_failed, params) if claim is CallClaim.ALLOWED else lambda: None
        # The task started for it keeps this context.
        with within_turn(session.id, params):
            answering = live.bridge.answer(process, frame, partial(self._permit_call, tool, params, claim), failed)
            session.deps.start_task(answering)

    async def _permit_reading(self, server: str, method: str, params: Raw) -> None:
        """Raise PermissionDenied if the policy denies what the message would read."""
        behind = tool_behind(server, method, params)
        if behind is None:
            return
        verdict = self._session.verdicts.verdict(Occasion.HUB, *behind)
        if verdict.decision is Decision.DENY:
            await self._ask(*behind, verdict)  # answered by the policy, visible to all observers

    async def _permit_call(self, tool: str, params: Raw, claim: CallClaim) -> None:
        """Return when a call may run; PermissionDenied if it may not. Asks now if the call was neither asked about nor
        allowed in advance by the policy or the session.

        A call that the conversation has announced may have been allowed in a way unknown here: by a settings file or a
        hook of the user, or by a model in mode `auto`. This is accepted where asking would protect nothing, because the
        session can act as the user of this server, and where the mode leaves the decision to Claude Code.
        """
        session, live = self._session, self._session.process.live
        arguments = _mapping(params.get("arguments"))
        verdict = session.verdicts.verdict(Occasion.HUB, tool, arguments)
        if verdict.decision is Decision.ALLOW:
            return
        if verdict.decision is Decision.ASK:
            if claim is CallClaim.ALLOWED:
                return
            as_user = live is not None and live.runs_as_user
            if claim is CallClaim.ANNOUNCED and (as_user or session.options.permission_mode == "auto"):
                return
            enforcer = session.deps.enforcer
            if enforcer.allowed_beforehand(session.owner, session.cwd, session.options, session.grants, tool):
                return
        await self._ask(tool, arguments, verdict)

    async def _ask(self, tool: str, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Ask whether a call may run, unless the verdict already decides; PermissionDenied if it may not."""
        session, turn = self._session, self._session.turn_runner.current
        if turn is not None and turn.ending_as is not None:
            raise PermissionDenied("The turn is being ended.")
        if turn is None:  # the call comes from background work
            session.turn_runner.begin(None, question_only=True)
        answered = session.open_questions.ask_about_call(tool, arguments, verdict)
        session.turn_runner.wait_for_answers()
        await answered

    def progress_reported(self, line: str) -> None:
        self._session.stall_timer.touch()
        self._session.log.append(Output(line, "progress"))

    async def form_requested(self, server: str, form: Raw) -> Raw:
        """Ask with the form of a server; cancelled at once if no turn is running."""
        session = self._session
        turn = session.turn_runner.current
        if turn is None or turn.ending_as is not None:
            return {"action": "cancel"}
        filled = session.open_questions.elicit(server, form)
        session.turn_runner.wait_for_answers()
        return await filled


def _mapping(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}
