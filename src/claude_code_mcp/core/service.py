"""The façade: all operations on sessions for front ends and for programs that use this package as a library.

    from claude_code_mcp import Service, SessionOptions

    async with Service() as service:
        turn = await service.create("Fix the failing test", SessionOptions(cwd="/src/app"))
        outcome = await turn.outcome()

All front ends share one service, so a session created by one is visible to all. The parts behind the façade (the policy
enforcer, the redactor, the session logs) are private: others use a method here or in `CallerPolicy`, or a read-only
view (`redaction`, `Session.events`). Questions are in the `broker`, which channels use directly.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from .errors import InvalidArgument, PermissionDenied, SessionNotFound
from .model.caller import LOCAL, LOCAL_CALLER, Caller, ClientEnvironment
from .model.events import AuditEvent, AuditKind, Event, QuestionOpened, QuestionSettled, UsageReported, WaitChanged
from .model.options import SessionOptions
from .model.question import Answer, Question
from .model.session_id import is_session_id
from .model.usage_limits import OnLimit
from .policy.rules import Decision
from .processes.child import prepare
from .processes.leftovers import sweep_quietly
from .questions.edited_input import restore_redacted
from .redaction import MARK
from .service_parts import ServiceParts
from .sessions.background_tasks import StartTask
from .sessions.callers.caller_policy import CallerPolicy
from .sessions.callers.session_access import Access
from .sessions.keyed_messages import Accepting, KeyedMessage, ReadStateUnknown
from .sessions.live.mcp_bridge import SessionHub
from .sessions.messages import BusyMode, UserMessage
from .sessions.observers import Observer
from .sessions.pending_turn import (
    InterruptResult,
    PendingTurn,
    is_in_transcript,
    message_state,
    turn_of_accepted_message,
)
from .sessions.session import Session
from .sessions.session_deps import SessionDeps
from .sessions.verdicts import Occasion, answer_of_rules, verdict_on
from .state.state_directory import check_quietly
from .transcripts.event_log import Subscription

log = logging.getLogger(__name__)

_SWEEP_DELAY = 1.0
"""Seconds before searching for processes of killed servers: the search reads a file of every process on the machine and
would delay the first call. A leftover that blocks a session is ended when that session is resumed."""

__all__ = ["InterruptResult", "Observer", "PendingTurn", "Service"]


class Service(ServiceParts):
    """Runs sessions between `__aenter__` and `__aexit__`, which ends every process it started."""

    _entered = False

    async def __aenter__(self) -> "Service":
        await asyncio.to_thread(self.state.open)  # StateUnavailable before anything is started
        await self._isolation.prepare()
        await self.access.refresh()
        self._entered = True
        self.observe(self.peers, (QuestionOpened, QuestionSettled), frozenset())
        self.observe(self.plan_usages, (UsageReported,), frozenset())
        self.observe(self._limit_waits, (WaitChanged,), frozenset())
        self.start_task(asyncio.to_thread(check_quietly, self.state))
        self.start_task(prepare())
        self.start_task(_sweep_later(self.start_task), endless=True)
        watch = self._tasks.watch
        watch(partial(self.peers.serve_requests, self._sessions.release_if_idle))
        watch(self.access.follow)
        watch(self._sessions.clean_up_regularly)
        watch(partial(self._environments.clean_up_records_regularly, self._enforcer.limits.spending))
        watch(self._slots.watch_memory)
        watch(partial(self._limit_waits.run, self._continue_stopped))
        self.start_task(self._bookkeeper.announce_left_over(), endless=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        """Close the sessions first, bounded by the steps of stopping a process; then end the tasks."""
        # First: clean-up and memory watch must not park sessions that are being closed.
        self._tasks.cancel_endless()
        await self._sessions.close()
        # After the sessions, which accept no more messages: pending messages are refused and end.
        await self._keyed.close(self.settings.stop_timeout)
        await self._tasks.close(self.settings.stop_timeout)
        # Last: until then other servers see which sessions this server has.
        await self.peers.close()

    def start_task(self, work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
        """Start a task that the service owns: it is kept until done, its failure is logged, and callers cannot cancel
        it. An `endless` one is cancelled when the service closes; others get a moment to finish."""
        return self._tasks.start(work, endless)

    # -- observers and secrets --------------------------------------------------------------------------------

    def observe(
        self,
        observer: Observer,
        events: tuple[type[Event], ...] = (Event,),
        acts: Container[AuditKind] = frozenset(AuditKind),
    ) -> None:
        """Add an observer of every event and every audited act, or of these kinds."""
        self._observers.add(observer, events, acts)

    def audit(self, act: AuditEvent) -> None:
        """Report an act to every observer of its kind."""
        self._observers.act(act)

    def add_secrets(self, values: Iterable[str]) -> None:
        """Add values for `redaction` to remove from now on."""
        self._redactor.add(values)

    # -- callers ----------------------------------------------------------------------------------------------

    @property
    def hubs_by_principal(self) -> Mapping[str, SessionHub]:
        """The separate hubs of callers, by principal."""
        return self._callers.hubs

    @property
    def has_principal_hubs(self) -> bool:
        """Whether clients with a separate environment may have a separate hub."""
        return self._callers.hub_for is not None

    def hub_for(self, client: ClientEnvironment) -> AbstractAsyncContextManager[SessionHub | None]:
        """Context with the hub for a client with this environment."""
        return self._environments.hub_for(client)

    def connected(self, client: ClientEnvironment | None) -> AbstractContextManager[None]:
        """Context for the connection of a client with this environment: its secrets are redacted."""
        return self._environments.connected(client)

    async def admit(self, principal: str, groups: Collection[str]) -> str | None:
        """Why a caller in these groups cannot be served before a restart; None if it can."""
        return await self._isolation.admit(principal, groups)

    def assign(self, principal: str, groups: Collection[str]) -> None:
        """Set a caller's groups; its permissions change at once."""
        self.access.change_groups(principal, groups, self._isolation.assign)

    async def why_restart_for(self, principal: str) -> str | None:
        """Why a caller who was added after the start cannot be served before a restart; None if it can."""
        reason, open_hub = await self._isolation.objection(principal), self._callers.open_hub
        return await open_hub(principal) if reason is None and open_hub is not None else reason

    # -- messages to sessions ---------------------------------------------------------------------------------

    async def create(
        self,
        prompt: str,
        options: SessionOptions | None = None,
        *,
        caller: Caller = LOCAL_CALLER,
        timeout: float | None = None,
        images: Sequence[str] = (),
        key: str | None = None,
    ) -> PendingTurn:
        """Create a session with its first message. Returns at once; the session id is final. It runs in the environment
        of its `caller`, here and in the other methods; without one, in this service's. `timeout` applies only to this
        turn. `images` accompany the message: paths that the session could read, or `data:` URLs. Calls of one caller
        with the same `key` create one session, and all return it."""
        self._check_message("prompt", prompt, images)

        async def accept(keyed: KeyedMessage) -> PendingTurn:
            who, limits = caller.principal, self._enforcer.limits
            with self._observers.auditing_refusals(who, "create"):
                deps = self._environments.of(caller)
                # The policy is read once: it decides what the rest of this call may do.
                admission = deps.enforcer.admission(who)
                turn_seconds = admission.turn_time(timeout)
                limits.new_sessions.take_for(admission.limits.sessions_per_minute, who)
                # Exited in reverse order: reservation and record are undone before the worktree is removed.
                async with (
                    self._sessions.creating(options or SessionOptions(), who, deps, admission) as made,
                    self._acceptance.admitted(made, who, prompt, [admission]) as session,
                    self._acceptance.recorded(session, prompt),
                ):
                    message = await self._acceptance.deliver(
                        session, prompt, images, new=True, timeout=turn_seconds, message_id=keyed.message_id
                    )
            await self._acceptance.conclude(AuditKind.SESSION_CREATED, session, prompt, who)
            live = session.process.live
            # No other session matches one in a worktree.
            if self.spares.limit and live is not None and not session.options.worktree:
                self.spares.prepare_for(session, live.start_settled)
            return PendingTurn(session, message)

        return await self._once(accept, key, caller, "", (prompt, *images))

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        caller: Caller = LOCAL_CALLER,
        options: SessionOptions | None = None,
        busy_mode: BusyMode = BusyMode.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
        images: Sequence[str] = (),
        key: str | None = None,
        on_limit: OnLimit | None = None,
    ) -> PendingTurn:
        """Send a message to a session in any state: running, finished, parked, crashed, or only on disk.

        `options` apply to a session that is only on disk and override its recorded options field by field; one in
        memory keeps its own. RecordUnreadable if the session's record is damaged, since its limits are unknown.
        `busy_mode` decides what happens to the message if the session is busy when it would be accepted. `at_message`
        first rewinds the conversation to that message; the session must be idle. A turn that starts with this message
        runs in the environment of its `caller`, unless the session is stored in a different configuration directory
        than that client's. Of messages of one caller to one session with the same `key` one is accepted, and all calls
        return it. A grantee's message to a shared session starts with their name. `on_limit` sets the session's
        behavior at usage limits from now on, unless the message is refused.
        """
        self._check_message("message", text, images)

        async def accept(keyed: KeyedMessage) -> PendingTurn:
            return await self._send(
                session_id,
                text,
                caller,
                keyed,
                options=options,
                busy_mode=busy_mode,
                timeout=timeout,
                at_message=at_message,
                images=images,
                on_limit=on_limit,
            )

        return await self._once(accept, key, caller, session_id, (text, *images))

    async def _send(
        self,
        session_id: str,
        text: str,
        caller: Caller,
        keyed: KeyedMessage,
        *,
        options: SessionOptions | None = None,
        busy_mode: BusyMode,
        timeout: float | None = None,
        at_message: str | None = None,
        images: Sequence[str] = (),
        on_limit: OnLimit | None = None,
        continues: str = "",
    ) -> PendingTurn:
        who = caller.principal
        with self._observers.auditing_refusals(who, "send", session_id):
            caller = self.access.acting(self.current_id(session_id), caller, Access.ANSWER)
            if caller.principal != who:
                if at_message is not None or on_limit is not None or (options and options.model_fields_set):
                    raise PermissionDenied(
                        f"Only the owner of the session, {caller.principal}, can change how it continues."
                    )
                text = f"[{who}] {text}"
            sender = self._environments.of(caller)
            found = await self._owned(session_id, caller.principal, sender, options)
            if keyed.orphaned:
                await found.end_leftover_process()  # before the look: it may be reading the message just now
                if await is_in_transcript(found, keyed.message_id):
                    return turn_of_accepted_message(found, keyed.message_id, text)
            await self.peers.refuse_elsewhere(found)
            if busy_mode is BusyMode.REFUSE:
                found.refuse_if_busy()  # an early check; the final one is made when it is accepted
            await self._sessions.check_message(found, at_message)
            # A client without a separate environment continues in the session's.
            adopted = sender if caller.environment is not None else found.deps
            # Which of the two environments the message runs in is known only when it is sent: both policies must admit
            # it.
            admissions = {deps: deps.enforcer.admission(found.owner) for deps in {adopted, found.deps}}
            timeout = admissions[adopted].turn_time(timeout)
            self._sessions.admit(found, admissions[adopted])
            async with self._acceptance.admitted(found, caller.principal, text, [*admissions.values()]) as session:
                # Before the message is sent, which starts its process.
                kind = AuditKind.MESSAGE_SENT if session.live else AuditKind.SESSION_RESUMED
                new = not session.turns
                if on_limit is not None:
                    on_limit = admissions[found.deps].on_limit(on_limit)
                records = session.recorder.records
                # Before the message is sent: this is put back if Claude Code refuses the options.
                before = await asyncio.to_thread(records.read, session.id) if new else None
                message = await self._acceptance.deliver(
                    session,
                    text,
                    images,
                    new=new,
                    before=before,
                    busy_mode=busy_mode,
                    timeout=timeout,
                    at_message=at_message,
                    sender=adopted if caller.environment is not None else None,
                    message_id=keyed.message_id,
                    continues=continues,
                    on_limit=on_limit,
                )
        await self._acceptance.conclude(kind, session, text, who)
        return PendingTurn(session, message)

    def _check_message(self, field: str, text: str, images: Sequence[str]) -> None:
        """Raise InvalidArgument for a message without text or images."""
        if not self._entered:
            raise RuntimeError("This service is not running. Use it within `async with Service() as service:`.")
        if not text.strip() and not images:
            raise InvalidArgument(f"{field} must not be empty.", field=field)

    async def _once(
        self, accept: Accepting, key: str | None, caller: Caller, session_id: str, parts: Sequence[str]
    ) -> PendingTurn:
        """Accept a message; with a key, only once."""
        if key is None:
            return await accept(KeyedMessage())
        find = partial(self.find, caller=caller)
        return await self._keyed.once(key, caller.principal, session_id, parts, accept, find)

    async def message_state(self, session_id: str, message_id: str, *, caller: Caller = LOCAL_CALLER) -> str:
        """The state of an accepted message: queued, taken, dropped or unknown."""
        return await message_state(await self._used(session_id, caller, Access.WATCH), message_id)

    async def fork(
        self,
        session_id: str,
        text: str,
        *,
        caller: Caller = LOCAL_CALLER,
        at_message: str | None = None,
        options: SessionOptions | None = None,
        timeout: float | None = None,
        images: Sequence[str] = (),
    ) -> PendingTurn:
        """Send a message to a copy of a session, which gets a new id; the original stays unchanged."""
        self._check_message("message", text, images)
        with self._observers.auditing_refusals(caller.principal, "fork", session_id):
            self.access.refuse_borrowed(self.current_id(session_id), caller.principal)
            deps = self._environments.of(caller)
            admission = deps.enforcer.admission(caller.principal)
            timeout = admission.turn_time(timeout)
            self._enforcer.limits.new_sessions.take_for(admission.limits.sessions_per_minute, caller.principal)
            source = await self._owned(session_id, caller.principal, deps)
            source.refuse_if_cancelled()
            await self._sessions.check_message(source, at_message)
            fork = await self._sessions.fork(source, caller.principal, deps, at_message=at_message, options=options)
            admission = fork.deps.enforcer.admission(caller.principal)
            async with (
                self._acceptance.admitted(fork, caller.principal, text, [admission]) as session,
                self._acceptance.recorded(session, text),
            ):
                message = await self._acceptance.deliver(session, text, images, new=True, timeout=timeout)
        await self._acceptance.conclude(AuditKind.SESSION_FORKED, session, text, caller.principal, source=source.id)
        return PendingTurn(session, message)

    async def interrupt(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> InterruptResult:
        """End the running turn; the session stays usable. Messages queued behind it are dropped."""
        session = await self._used(session_id, caller, Access.ANSWER)
        await self.peers.refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.INTERRUPTED, caller.principal, session_id))
        if session.continues_at is not None:
            session = await self._taken_over(session)
        dropped = await session.interrupt()
        if session.continues_at is not None:
            session.give_up_wait()
            await session.recorder.save(session)
        return InterruptResult(session, dropped)

    async def steer_limit(
        self, session_id: str, step: Literal["wait", "end", "now"], *, caller: Caller = LOCAL_CALLER
    ) -> Session:
        """Set the behavior at a usage limit: `wait` for the reset and continue automatically, or `end`. `now`
        immediately continues a message that a limit stopped. Recorded on return. InvalidArgument if there is nothing to
        continue."""
        session = await self._used(session_id, caller, Access.ANSWER)
        await self.peers.refuse_elsewhere(session)
        if step != "now":
            self.access.refuse_borrowed(session.id, caller.principal)
            with self._observers.auditing_refusals(caller.principal, "on_limit", session_id):
                session.deps.enforcer.admission(session.owner).on_limit(step)
        session = await self._taken_over(session)
        if step == "now":
            session.continue_now()
        else:
            session.set_on_limit(step)
        self.audit(AuditEvent(AuditKind.SESSION_MANAGED, caller.principal, session.id, {"action": f"limit_{step}"}))
        await session.recorder.save(session)
        return session

    @property
    def waits_for_limits(self) -> bool:
        """Whether a session is to continue automatically after a usage limit."""
        return self._limit_waits.any_planned

    async def _taken_over(self, session: Session) -> Session:
        """The session once no other server has it: a server that still runs its process would miss the changes made
        here. SessionBusy if another server is working on it."""
        await session.take_over()
        # It may have been brought into memory meanwhile, to continue.
        return self._sessions.known(session.id) or session

    async def _continue_stopped(self, session_id: str, owner: str) -> float | None:
        """Send a message that a usage limit stopped again, only once even if servers are killed, and wait until its
        turn has ended. Returns its due time if that is not now."""
        caller = Caller(owner)
        session = await self._owned(session_id, owner, self._environments.of(caller))
        wait = session.limit_wait
        if wait is None or not wait.on:
            return None
        if wait.continues_at > time.time():
            return wait.continues_at

        async def accept(keyed: KeyedMessage) -> PendingTurn:
            turn = await self._send(session.id, wait.text, caller, keyed, busy_mode=BusyMode.REFUSE, continues=wait.id)
            if not turn.repeated:
                await turn.outcome()
                left = turn.session.limit_wait
                if left is not None and left.id == wait.id:  # the server stops
                    raise ReadStateUnknown("The server is stopping.", session_id=session.id)
            return turn

        turn = await self._once(accept, f"limit:{wait.id}", caller, session.id, (wait.text,))
        if turn.repeated and turn.session.limit_wait is not None and turn.session.limit_wait.id == wait.id:
            # A server that died had sent it: its turn is over or was interrupted.
            turn.session.wait_is_over()
            await turn.session.recorder.save(turn.session)
        return None

    async def withdraw(self, session_id: str, message_id: str, *, caller: Caller = LOCAL_CALLER) -> UserMessage | None:
        """Withdraw a message queued behind the running turn; None if it was picked up or is not queued."""
        return await (await self._used(session_id, caller, Access.ANSWER)).withdraw(message_id)

    async def cancel(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> Session:
        """End a session permanently, in memory or only on disk. This is on disk on return."""
        self.access.refuse_borrowed(self.current_id(session_id), caller.principal)
        deps = self._environments.of(caller)
        session = self._sessions.known(session_id)
        if session is None:
            records, who = deps.stores.recorder.records, caller.principal
            mine = is_session_id(session_id) and await asyncio.to_thread(records.owned_by, who, session_id)
            if mine and await asyncio.to_thread(records.read, session_id) is not None:
                if await asyncio.to_thread(deps.stores.leases.held, session_id):
                    raise await self.peers.busy(session_id)
                session = await self._owned(session_id, who, deps)
            else:
                session = self.session(session_id, principal=who)
        if session.owner != caller.principal:
            raise self._observers.foreign_session(session_id, caller.principal)
        await self.peers.refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.CANCELLED, caller.principal, session_id))
        # A task of the service: a caller who leaves must not leave a half-cancelled session.
        await asyncio.shield(self._tasks.start(session.cancel()))
        await session.recorder.save(session)
        return session

    # -- looking at sessions ----------------------------------------------------------------------------------

    def sessions(self, *, principal: str | None = LOCAL) -> list[Session]:
        """The sessions in memory that have accepted a message, most recently used first; all of them, or those that one
        principal may watch."""
        return self.stored.in_memory(principal=principal)

    async def wait(
        self, session_id: str, timeout: float | None = None, *, principal: str = LOCAL, for_questions: bool = True
    ) -> Session:
        """Wait until the session is idle or has a question."""
        session = self.session(session_id, principal=principal)
        await session.wait(timeout, for_questions=for_questions)
        return session

    def session(self, session_id: str, *, principal: str = LOCAL, wanted: Access = Access.WATCH) -> Session:
        """A session in memory that is the principal's own or shared with them for this."""
        session = self._sessions.known(session_id)
        if session is not None:
            principal = self.access.owner_for(session.id, principal, wanted) or principal
        if session is not None and session.owner != principal:
            raise self._observers.foreign_session(session_id, principal)
        if session is None:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        return session

    async def find(self, session_id: str, *, caller: Caller = LOCAL_CALLER) -> Session:
        """A session in memory or on disk; one from disk is idle until it gets a message."""
        session = await self._used(session_id, caller, Access.WATCH)
        self._acceptance.learn_secrets(session)
        await session.saved()
        return session

    async def _used(self, session_id: str, caller: Caller, wanted: Access) -> Session:
        """A session in memory or on disk that is the caller's own or shared with them for this."""
        acting = self.access.acting(self.current_id(session_id), caller, wanted)
        return await self._owned(session_id, acting.principal, self._environments.of(acting))

    async def _owned(
        self, session_id: str, principal: str, deps: SessionDeps, options: SessionOptions | None = None
    ) -> Session:
        known = self._sessions.known(session_id) is not None
        # Checked before revealing anything: another caller's session does not exist.
        if not known and not await asyncio.to_thread(deps.stores.recorder.records.owned_by, principal, session_id):
            raise self._observers.foreign_session(session_id, principal)
        session = await self._sessions.find(session_id, principal, deps, options)
        if session.owner != principal:
            raise self._observers.foreign_session(session_id, principal)
        return session

    def current_id(self, session_id: str) -> str:
        """The current id of a session in memory, which changes when it is cleared."""
        session = self._sessions.known(session_id)
        return session.id if session is not None else session_id

    def watch(self, session_id: str, *, principal: str = LOCAL, after: int | None = None) -> Subscription:
        """The events of a session as they happen, starting after `after`."""
        return self.session(session_id, principal=principal).events.subscribe(after)

    # -- questions --------------------------------------------------------------------------------------------

    def questions(self, session_id: str, *, principal: str = LOCAL) -> list[Question]:
        """The open questions of a session, oldest first."""
        return self.session(session_id, principal=principal).questions

    def respond(
        self,
        session_id: str,
        question_id: str,
        answer: Answer,
        *,
        principal: str = LOCAL,
        by: str = "respond",
        client: str = "",
        person: bool = False,
    ) -> Session:
        """Answer a question on behalf of a principal, through the channel `by` of a `client`. `person` means that the
        channel vouches for a person who saw the question; tool arguments cannot set it. QuestionClosed names who
        answered first. PermissionDenied for an allowance that requires a person or, beyond the request itself, the
        owner, and for a changed input or mode that the policy refuses; the question then stays open."""
        session = self.session(session_id, principal=principal, wanted=Access.ANSWER)
        if session.owner != principal:
            client = ", ".join(filter(None, (principal, client)))
        with self._observers.auditing_refusals(principal, "respond", session_id):
            self.access.check_answer(session, principal, answer)
            # No await from this check to the answer: the question stays the one that was checked.
            question = self.broker.find(session.id, question_id)
            # Both principals: an agent may allow neither requests of its person's sessions nor of those shared with
            # that person.
            if question is not None and answer.allow and not person:
                self._enforcer.require_person(session.owner, principal)
            if question is not None and answer.updated_input is not None:
                shown = self._redactor.data(question.tool_input)
                updated = restore_redacted(answer.updated_input, shown, question.tool_input, MARK)
                answer = replace(answer, updated_input=updated)
            # Before the broker, which only knows that it was not offered, not that the policy is the reason.
            if answer.mode is not None:
                session.deps.enforcer.admission(session.owner).check_mode("permission_mode", answer.mode)
            self.broker.answer(session.id, question_id, answer, by, client, person=person)
        return session

    def needs_person(self, session_id: str, principal: str) -> bool:
        """Whether only a person may allow the requests of a session that this principal uses."""
        session = self._sessions.known(session_id)
        return self._enforcer.needs_person(principal if session is None else session.owner, principal)

    def answer_by_rule(self, principal: str, cwd: str, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
        """The rules' answer to a call made without a session; None if a person must be asked. A denial is audited."""
        return answer_of_rules(tool, verdict_on(self._own_deps, Occasion.CLIENT, principal, cwd, tool, arguments))

    def offers_tool(self, principal: str, cwd: str, tool: str) -> bool:
        """Whether to list a tool for this principal: not if the rules deny it for all arguments."""
        return self._enforcer.judge(principal, cwd, tool, {}).decision is not Decision.DENY

    def check_record_of_machine(
        self, principal: str, cwd: str, recorded: SessionOptions, known: SessionOptions | None
    ) -> None:
        """Raise PermissionDenied if a record written by another machine names a program."""
        self._enforcer.check_record_of_machine(principal, cwd, recorded, known)

    def policy_for(self, caller: Caller) -> CallerPolicy:
        """What the policy lets a caller do."""
        return CallerPolicy(caller, self._enforcer, self._environments, self._observers, self.hubs_by_principal)


async def _sweep_later(start_task: StartTask) -> None:
    """End processes that killed servers left behind, unless the service is closed before."""
    await asyncio.sleep(_SWEEP_DELAY)
    start_task(sweep_quietly())  # a separate task, which is not cancelled halfway
