"""What a process says and asks, handed to the part of the session that it concerns: the log, the turn, the bridge, and
the questions with the broker and its channels behind them.

Nothing is believed here: every frame is first compared with what this side knows (`frame_claims.py`), and one that
cannot be true ends the process.

A question is in the log before anything can answer it, and its end is in the log before the process gets the reply.
Answers of the policy's rules take the same path as those of people.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from ..claude.protocol import (
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
from ..errors import InvalidArgument, PermissionDenied
from ..model.events import Output, QuestionOpened, QuestionSettled
from ..model.options import SessionOptions
from ..model.question import Answer, Closure, FileChange, Question, QuestionKind, Resolution, kind_of
from ..model.tool_names import PREFIX, plain_name
from ..policy.rules import SHELL_TOOLS, Decision
from ..questions import presentation
from ..questions.broker import Broker, chosen_mode, labels_by_text
from ..questions.form_model import TOOL, GivenAnswer, check_answers, filled_in, heading_of, questions_of
from ..store.event_log import EventLog
from .background import DiskThreads, StartTask
from .dependencies import SessionDeps, SessionReplica, is_mirror, mirrored_entries
from .event_writer import ReadableLines
from .file_changes import EDITING_TOOLS, changed_file, file_change
from .frame_claims import CallClaim, FalseClaim, FrameClaims
from .launcher import within_turn
from .live_process import LiveProcess
from .policy_enforcer import BY, tool_behind
from .turn import SessionParts, TurnRunner

_USES_KEPT = 2000


class QuestionSource(Protocol):
    """The session whose questions these are."""

    id: str
    cwd: str
    owner: str
    deps: SessionDeps
    """Read at each use: a message of another client brings the policy of that client's directory and HOME with it."""
    log: EventLog
    readable_lines: ReadableLines

    def grant(self, updates: list[Mapping[str, Any]]) -> None:
        """Permission updates that were allowed for the whole session."""

    def plan_approved(self, mode: str | None) -> None:
        """A plan was approved; the session goes on in this mode, or in the CLI's own choice."""


class SessionQuestions:
    """Opens questions for requests and hands the replies back."""

    def __init__(
        self,
        session: QuestionSource,
        broker: Broker,
        reply: Callable[[str, Raw | None], None],
        use_answered: Callable[[str | None, str, Mapping[str, Any] | None], None],
    ) -> None:
        """`reply` takes the id of the request and the response for the CLI, None if there is no answer; `use_answered`
        before that the tool use, the tool and the input that it may run with, None if it may not."""
        self._session = session
        self._broker = broker
        self._reply = reply
        self._use_answered = use_answered
        self.on_settled: Callable[[], None] = lambda: None
        """Called after a question was settled and the CLI has its reply."""
        self._question_ids: dict[str, str] = {}
        """By the id of the CLI's request."""
        self._elsewhere: OrderedDict[str, str] = OrderedDict()
        """Tool uses of subagents that work in another directory than the session, with that directory. Only added to:
        no later frame takes it back."""
        self._agreed_directories: set[str] = set()
        """Of those, the ones in which somebody has let a command run."""

    @property
    def pending(self) -> list[Question]:
        """The open questions of the session, oldest first."""
        return self._broker.pending(self._session.id)

    def vet(self, request: Raw) -> Raw:
        """The policy's reply to a hook, which is shown a call before it is asked about. The request that may follow
        does not say where the call runs, so that is remembered under the tool use."""
        session, tool_use_id = self._session, request.get("tool_use_id")
        directory = self._session.deps.enforcer.directory_of_subagent(session.cwd, request)
        if directory in self._agreed_directories:
            directory = None
        if directory is not None and isinstance(tool_use_id, str):
            self._elsewhere[tool_use_id] = directory
            if len(self._elsewhere) > _USES_KEPT:
                self._elsewhere.popitem(last=False)
        return self._session.deps.enforcer.vet(session.owner, session.cwd, request, directory)

    def open(self, frame: ControlRequest, change: FileChange | None = None) -> None:
        """Offers a `can_use_tool` request to every channel, unless a rule answers it. `change` is what the call would
        do to a file."""
        request, session = frame.request, self._session
        tool_use_id = request.get("tool_use_id")
        tool = str(request.get("tool_name"))
        offered = request.get("permission_suggestions")
        enforcer = session.deps.enforcer
        admission = enforcer.admission(session.owner)
        is_plan = kind_of(tool) is QuestionKind.PLAN_REVIEW
        tool_input = self._tool_input(request, tool_use_id)
        modes, mode_after = admission.modes_after_plan() if is_plan else ((), None)
        question = self._broker.open(
            session.id,
            tool,
            tool_input,
            lambda question, resolution, body: self._settled(frame.id, question, resolution, body),
            cwd=session.cwd,
            tool_use_id=tool_use_id,
            suggestions=admission.offers(offered, tool, tool_input, session.cwd),
            reason=request.get("decision_reason"),
            blocked_path=request.get("blocked_path"),
            change=change,
            modes=modes,
            mode_after=mode_after,
        )
        self._question_ids[frame.id] = question.id
        session.log.append(QuestionOpened(question))
        elsewhere = self._elsewhere.get(str(tool_use_id))
        answer = enforcer.answer(session.owner, session.cwd, tool, question.tool_input, elsewhere)
        if answer is not None:
            self._broker.answer(session.id, question.id, answer, BY)

    def elicit(self, server: str, form: Raw) -> "asyncio.Future[Raw]":
        """Puts a form of an MCP server to every channel; the future has the form as it was filled in. An answer that
        the form does not take is refused, and the question stays open."""
        filled: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        session = self._session

        def check(question: Question, answer: Answer, body: Raw) -> None:
            check_answers(server, form, _answers_in(question, answer, body))

        def settle(question: Question, resolution: Resolution, body: Raw | None) -> None:
            session.log.append(QuestionSettled(question, resolution))
            # Who asked may be gone: a task that is cancelled cancels the future that it waits for.
            if not filled.done():
                filled.set_result(_form_result(server, form, question, resolution, body))
            self.on_settled()

        heading = heading_of(server, form)
        question = self._broker.open(
            session.id, TOOL, questions_of(server, form), settle, cwd=session.cwd, form=heading, check=check
        )
        session.log.append(QuestionOpened(question))
        return filled

    def ask_about_call(self, tool: str, arguments: Mapping[str, Any]) -> "asyncio.Future[None]":
        """Asks whether a call to a server of the hub may run that Claude Code has not asked about; the future ends with
        PermissionDenied if it may not. A rule of the policy may answer at once. The input cannot be changed: the call
        is on its way."""
        allowed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session = self._session

        def check(question: Question, answer: Answer, body: Raw) -> None:
            if answer.updated_input is not None and answer.updated_input != question.tool_input:
                raise InvalidArgument("updated_input: this call cannot be changed any more.", field="updated_input")

        def settle(question: Question, resolution: Resolution, body: Raw | None) -> None:
            session.log.append(QuestionSettled(question, resolution))
            # Who asked may be gone: a task that is cancelled cancels the future that it waits for.
            if not allowed.done():
                _finish(allowed, resolution)
            self.on_settled()

        question = self._broker.open(session.id, tool, arguments, settle, cwd=session.cwd, check=check)
        session.log.append(QuestionOpened(question))
        answer = session.deps.enforcer.answer(session.owner, session.cwd, tool, arguments)
        if answer is not None:
            self._broker.answer(session.id, question.id, answer, BY)
        return allowed

    def withdraw(self, request_id: str) -> None:
        """The CLI no longer wants an answer to this request."""
        self._broker.withdraw(self._question_ids.pop(request_id, ""), "Claude Code no longer needs an answer")

    def withdraw_all(self, detail: str) -> None:
        """Closes all open questions without an answer."""
        self._broker.withdraw_all(self._session.id, detail)

    def _tool_input(self, request: Raw, tool_use_id: str | None) -> Raw:
        """The input of the call. A plan that the CLI has left out of the request is taken from the model's own call."""
        tool_input = request.get("input")
        tool_input = tool_input if isinstance(tool_input, dict) else {}
        if request.get("tool_name") == "ExitPlanMode" and not tool_input.get("plan"):
            plan = self._session.readable_lines.plan_input(tool_use_id).get("plan")
            return {**tool_input, "plan": plan} if plan else tool_input
        return tool_input

    def _settled(self, request_id: str, question: Question, resolution: Resolution, body: Raw | None) -> None:
        session, answer = self._session, resolution.answer
        self._question_ids.pop(request_id, None)
        if body is not None and isinstance(updates := body.get("updatedPermissions"), list):
            session.grant(updates)
        session.log.append(QuestionSettled(question, resolution))
        if answer is not None and answer.allow and question.kind is QuestionKind.PLAN_REVIEW:
            session.plan_approved(chosen_mode(question, answer))
        if answer is not None and answer.updated_input is not None and answer.updated_input != question.tool_input:
            changed = presentation.describe(question.tool_name, answer.updated_input, session.cwd)
            session.readable_lines.input_changed(question.tool_use_id, changed)
        elsewhere = self._elsewhere.get(question.tool_use_id or "")
        # Of other tools the directory is not asked about, and says nothing to whoever allows them.
        if elsewhere and answer is not None and answer.allow and question.tool_name in SHELL_TOOLS:
            self._agreed_directories.add(elsewhere)
        denied = body is not None and body.get("behavior") == "deny"
        if denied:  # a permission, a plan or an answer: the CLI calls each an error, and none of them has failed
            session.readable_lines.mark_denied(question.tool_use_id)
        if body is not None and question.tool_name.startswith(PREFIX):
            updated = body.get("updatedInput")
            granted = None if denied else updated if isinstance(updated, Mapping) else question.tool_input
            # Before the reply: the call that it allows may be the very next frame.
            self._use_answered(question.tool_use_id, question.tool_name, granted)
        self._reply(request_id, body)
        self.on_settled()


def _finish(allowed: "asyncio.Future[None]", resolution: Resolution) -> None:
    answer = resolution.answer
    if answer is not None and answer.allow:
        allowed.set_result(None)
    else:
        reason = answer.message if answer is not None else resolution.detail
        allowed.set_exception(PermissionDenied(reason or "The call was denied."))


def _form_result(server: str, form: Raw, question: Question, resolution: Resolution, body: Raw | None) -> Raw:
    if resolution.closure is not Closure.ANSWERED or resolution.answer is None or body is None:
        return {"action": "cancel"}
    if body.get("behavior") != "allow":
        return {"action": "decline"}
    return filled_in(server, form, _answers_in(question, resolution.answer, body))


def _answers_in(question: Question, answer: Answer, body: Raw) -> Mapping[str, GivenAnswer]:
    """The answers by the text of their question, several labels apart: joined they could be read in another way."""
    if answer.answers is not None:
        return labels_by_text(question, answer.answers)
    answers = body["updatedInput"].get("answers")
    return answers if isinstance(answers, dict) else {}


# -- frames ------------------------------------------------------------------------------------------------------------


_LONGEST_COMPARISON = 5.0
"""Seconds after which a question is asked without a look at the file that it is about."""


class FrameSession(Protocol):
    """The session whose frames these are."""

    id: str
    cwd: str
    owner: str
    deps: SessionDeps
    options: SessionOptions
    grants: tuple[Mapping[str, Any], ...]
    log: EventLog


class FrameRouter:
    """The `FrameReceiver` of a session's processes. Frames are written to the log before they have any effect."""

    def __init__(
        self,
        session: FrameSession,
        turns: TurnRunner,
        questions: SessionQuestions,
        parts: SessionParts,
        move_to: Callable[[str], None],
        start_task: StartTask,
        threads: DiskThreads,
        replica: SessionReplica | None = None,
    ) -> None:
        """`move_to` has the session go on under another id; `threads` read the files that questions are about;
        `replica` gets what the process writes to its transcripts."""
        self._session = session
        self._turns = turns
        self._events = parts.events
        self._costs = parts.costs
        self._stall_timer = parts.stall_timer
        self._questions = questions
        self._process = parts.process
        self._move_to = move_to
        self._start_task = start_task
        self._threads = threads
        self._replica = replica
        self._comparing: set[str] = set()
        """Requests that are asked once the file is read that they would change."""

    # -- what this side knows, for the claims --------------------------------------------------------------------

    @property
    def in_turn(self) -> bool:
        return self._turns.current is not None

    @property
    def after_interruption(self) -> bool:
        return self._turns.current is None and self._turns.last_interrupted

    @property
    def open_requests(self) -> int:
        process = self._process.process
        return process.open_requests if process is not None else 0

    def why_taken(self, session_id: str) -> str | None:
        live = self._process.live
        return live.why_taken(session_id) if live is not None else "there is no process"

    # -- frames ---------------------------------------------------------------------------------------------------

    def frame_received(self, frame: Frame) -> None:
        self._stall_timer.touch()
        if frame.__class__ is StreamEvent:  # by far the most frequent, and only for what is shown
            # A fragment of text says nothing of costs, and all but a few of these frames are one.
            if not self._events.write_stream_event(frame):
                self._costs.streamed(frame.raw)
            return
        live = self._process.live
        assert live is not None
        try:
            counts = live.claims.check(frame, self)
        except FalseClaim as claim:
            self._reject_frame(claim, frame)
            return
        if self._replica is not None and is_mirror(frame):
            # Not in the log, which has all of it already.
            self._replicate(self._replica, frame, live.claims.session_id)
            return
        self._events.write(frame)
        # Also of frames that have no other effect: what the model has used is paid for.
        if isinstance(frame, Conversation):
            self._costs.answer_received(frame)
        if counts:
            self._act_on(frame, live.claims)
        elif isinstance(frame, Result):
            self._turns.late_result(frame)

    def _replicate(self, replica: SessionReplica, frame: Other, session_id: str) -> None:
        mirrored = mirrored_entries(frame, session_id)
        if mirrored is not None:
            replica.entries_written(session_id, *mirrored, frame.size)

    def _act_on(self, frame: Frame, claims: FrameClaims) -> None:
        match frame:
            case Conversation():
                self._turns.answer_received(frame)
            case Result():
                self._turns.result_received(frame)
            case System() if frame.subtype == "init":
                # After `/clear` the process writes another conversation, and this is the frame that names it.
                # First the new id: the turn is reported under it.
                if claims.session_id != self._session.id:
                    self._move_to(claims.session_id)
                self._turns.process_began_turn()
            case ControlRequest():
                self._request_received(frame, claims)
            case ControlCancel():
                self._comparing.discard(frame.id)
                self._questions.withdraw(frame.id)
            case Lifecycle():
                self._turns.message_reported(frame)
            case Other() if frame.raw.get("type") == "conversation_reset" and self._process.live is not None:
                self._process.live.conversation_reset = True

    def _reject_frame(self, claim: FalseClaim, frame: Frame) -> None:
        """The frame has no effect but the end of the process, and is not in the log: it would be read as true there."""
        self._turns.end_for_violation(f"{claim} ({describe(frame)})")

    def _request_received(self, frame: ControlRequest, claims: FrameClaims) -> None:
        live, process = self._process.live, self._process.process
        assert live is not None
        assert process is not None
        if frame.subtype == "hook_callback":
            process.answer(frame.id, self._questions.vet(frame.request))
        elif frame.subtype == "mcp_message" and live.bridge is not None:
            self._mcp_message_received(frame, claims)
        elif frame.subtype != "can_use_tool":
            process.refuse(frame.id, f"{frame.subtype} is not supported by this host")
        else:
            tool = str(frame.request.get("tool_name"))
            path = changed_file(tool, frame.request.get("input")) if tool in EDITING_TOOLS else None
            if path is None:
                self._open_question(frame, None)
            else:
                self._comparing.add(frame.id)
                self._start_task(self._compare_and_ask(live, frame, path))

    async def _compare_and_ask(self, live: LiveProcess, frame: ControlRequest, path: str) -> None:
        """Asks with the change to the file. For the session it is as if the request had come when the file was read."""
        session = self._session
        readable = partial(self._session.deps.enforcer.admission(session.owner).readable, "file_path", cwd=session.cwd)
        directories = (session.cwd, *session.options.additional_directories)
        tool, tool_input = str(frame.request.get("tool_name")), frame.request["input"]
        reading = self._threads.run(file_change, tool, tool_input, path, directories, readable)
        try:
            try:
                change = await asyncio.wait_for(reading, _LONGEST_COMPARISON)
            except TimeoutError:
                change = None
            # Nothing is awaited from here on. Meanwhile the request may have been withdrawn, or its process be gone.
            if frame.id in self._comparing and self._process.live is live and self._process.process is not None:
                self._open_question(frame, change)
        finally:
            self._comparing.discard(frame.id)

    def _open_question(self, frame: ControlRequest, change: FileChange | None) -> None:
        process, turn = self._process.process, self._turns.current
        assert process is not None
        if turn is not None and turn.ending_as is not None:
            process.refuse(frame.id, "the turn is being ended")
            return
        self._begin_asking()
        self._questions.open(frame, change)
        self._turns.wait_for_answers()

    def _begin_asking(self) -> None:
        """Without a turn a question is that of work in the background."""
        if self._turns.current is None:
            self._turns.begin(None, question_only=True)

    # -- messages to the servers of the hub -----------------------------------------------------------------------

    def _mcp_message_received(self, frame: ControlRequest, claims: FrameClaims) -> None:
        """Passes a message on to its server, once it is permitted. What is known of a call is looked up right here:
        frames behind this one may already speak of the next call."""
        live, process = self._process.live, self._process.process
        assert live is not None
        assert live.bridge is not None
        assert process is not None
        name, message = str(frame.request.get("server_name")), frame.request.get("message")
        method, params = _method_of(message)
        if method != "tools/call":
            with within_turn(self._session.id, params):
                live.bridge.forward(process, frame, partial(self._permit_reading, name, method, params))
            return
        tool = plain_name(name, str(params.get("name")))
        try:
            claim = claims.call_claimed(tool, params)
        except FalseClaim as false:
            self._reject_frame(false, frame)
            return
        failed = partial(claims.call_failed, params) if claim is CallClaim.ALLOWED else None
        # The task that is begun for it keeps this context.
        with within_turn(self._session.id, params):
            live.bridge.forward(process, frame, partial(self._permit_call, tool, params, claim), failed)

    async def _permit_reading(self, server: str, method: str, params: Raw) -> None:
        """Raises PermissionDenied where the policy denies what the message would read."""
        behind = tool_behind(server, method, params)
        session = self._session
        if (
            behind is not None
            and self._session.deps.enforcer.judge(session.owner, session.cwd, *behind).decision is Decision.DENY
        ):
            await self._ask(*behind)  # which the policy answers, for everybody to see

    async def _permit_call(self, tool: str, params: Raw, claim: CallClaim) -> None:
        """Returns when a call may run; PermissionDenied if it may not. One that nobody was asked about, and that
        neither the policy nor the session allows beforehand, is asked about now."""
        session, arguments = self._session, _mapping(params.get("arguments"))
        decision = self._session.deps.enforcer.judge(session.owner, session.cwd, tool, arguments).decision
        if decision is Decision.DENY or (decision is Decision.ASK and not self._was_allowed(tool, claim)):
            await self._ask(tool, arguments)

    def _was_allowed(self, tool: str, claim: CallClaim) -> bool:
        """Whether a call that the rules would have asked needs no asking.

        One that the conversation has announced may have been allowed in a way that is not known here: by a settings
        file or a hook of the user, or in mode `auto` by a model. That is believed where it protects nothing, of a
        session that could do as the user of this server itself, and where the mode leaves the decision to Claude Code.
        """
        session, live = self._session, self._process.live
        if claim is CallClaim.ALLOWED:
            return True
        as_user = live is not None and live.runs_as_user
        if claim is CallClaim.ANNOUNCED and (as_user or session.options.permission_mode == "auto"):
            return True
        return self._session.deps.enforcer.allowed_beforehand(
            session.owner, session.cwd, session.options, session.grants, tool
        )

    async def _ask(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Asks whether a call may run, the policy first; PermissionDenied if it may not."""
        if self._turns.current is not None and self._turns.current.ending_as is not None:
            raise PermissionDenied("The turn is being ended.")
        self._begin_asking()
        answered = self._questions.ask_about_call(tool, arguments)
        self._turns.wait_for_answers()
        await answered

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


def _method_of(message: object) -> tuple[str, Raw]:
    """The method of a JSON-RPC message and its parameters; no method for what is none."""
    if not isinstance(message, dict):
        return "", {}
    return str(message.get("method") or ""), _mapping(message.get("params"))


def _mapping(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}
