"""The façade: everything that a frontend does with sessions goes through here.

    async with Service() as service:
        turn = await service.create("Fix the failing test", SessionOptions(cwd="/src/app"))
        outcome = await turn.outcome()

All frontends share one service, so a session made by one is visible to all.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from .claude.user_config import config_directory
from .config import Settings, load_settings
from .errors import (
    ClaudeCodeError,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SessionBusy,
    SessionNotFound,
    UpstreamUnavailable,
)
from .model.audit_events import AuditEvent, AuditKind
from .model.events import Event, QuestionSettled, Spent, StateChanged, TurnEnded, TurnStarted
from .model.options import SessionOptions
from .model.question import Answer, Question
from .model.states import State
from .policy.policy import Policy
from .processes.environment import for_nested_servers
from .processes.leftovers import sweep_stale
from .processes.spawn import prepare
from .questions.broker import Broker
from .questions.cli_reply import put_back
from .redaction import Redactor
from .secret_shapes import MARK
from .sessions.dependencies import SessionDeps
from .sessions.launcher import Launcher, default_directory, needs_confirmation
from .sessions.mcp_bridge import McpServerHost
from .sessions.messages import WhenBusy
from .sessions.pending_turn import InterruptResult, PendingTurn
from .sessions.policy_enforcer import PolicyEnforcer
from .sessions.record_writer import RecordWriter
from .sessions.registry import Sessions
from .sessions.session import Session
from .sessions.slots import Slots
from .store.catalogue import Catalogue, CatalogueEntries, Entry
from .store.event_log import Subscription
from .store.lease import Leases
from .store.session_records import LOCAL, Aliases, SessionRecords, Summary
from .store.spending import Spending
from .store.transcripts import Transcripts, is_session_id

log = logging.getLogger(__name__)


__all__ = ["LOCAL", "InterruptResult", "Observer", "PendingTurn", "Service"]


_LAST_WORK = 1.0
"""Seconds that tasks have to come to their end by themselves when the service closes."""


class Observer(Protocol):
    """Whoever watches a service. The methods must not block; if they raise, only the observer loses."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Something happened in a session. Fragments of text are not told."""

    def act(self, act: AuditEvent) -> None:
        """Somebody did something."""


class Service:
    """Runs sessions between `__aenter__` and `__aexit__`, which ends every process it started."""

    def __init__(
        self,
        settings: Settings | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        policy: Policy | None = None,
        redactor: Redactor | None = None,
        host: McpServerHost | None = None,
    ) -> None:
        """Without a policy, callers may do everything. `redactor` is taught every secret that passes by; `host` has the
        MCP servers that all sessions share."""
        self.settings = settings or load_settings()
        self._environment = dict(os.environ if environment is None else environment)
        self.redactor = redactor or Redactor()
        self.redactor.learn(self._environment)
        self._observers: tuple[Observer, ...] = ()
        self._host = host
        default = default_directory(self.settings)
        self.own_addresses: list[str] = []
        """Where this service is offered over HTTP, as patterns of Claude Code's: sessions must not call back to it."""
        self.gate = PolicyEnforcer(policy or Policy(), default, Spending(self.settings.state_dir))
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Service":
        settings, config_dir = self.settings, config_directory(self._environment)
        self._recorder = RecordWriter(SessionRecords(settings.state_dir, config_dir), self.start_task)
        self.broker = Broker(settings.permission_timeout, self.redactor.data)
        self._around = SessionDeps(
            settings=settings,
            launcher=Launcher(
                self._environment,
                settings.claude_path,
                settings.start_timeout,
                for_nested_servers(self._environment, settings.max_depth, str(settings.state_dir)),
                self.own_addresses,
            ),
            broker=self.broker,
            leases=Leases(settings.state_dir, config_dir),
            transcripts=Transcripts(config_dir),
            aliases=Aliases(settings.state_dir),
            recorder=self._recorder,
            slots=Slots(settings.max_sessions, settings.spawn_limit),
            gate=self.gate,
            start_task=self.start_task,
            host=self._host,
            redact=self.redactor.data,
            notice=self._notice,
            moved=self._moved,
        )
        self._sessions = Sessions(self._around)
        self._catalogue = Catalogue(config_dir)
        self.start_task(_sweep_quietly())
        self.start_task(prepare())
        self._cleaner = self.start_task(self._sessions.clean_up_regularly())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        """Sessions are closed first, which is bounded by the steps of stopping a process. What else is at work may come
        to its end if that is near, such as a note about a cost; what waits for the world, such as a person who was
        sent to sign in, is called off."""
        self._cleaner.cancel()
        await self._sessions.close()
        if self._tasks:
            _, waiting = await asyncio.wait(self._tasks, timeout=_LAST_WORK)
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting, timeout=self.settings.stop_timeout)

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task of the service: kept until it is done, its failure logged, never a caller's to cancel."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the service failed", exc_info=task.exception())

    # -- observers --------------------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """From now on the observer is told of everything."""
        self._observers = (*self._observers, observer)

    def tell(self, act: AuditEvent) -> None:
        """Tells every observer what somebody did."""
        for observer in self._observers:
            try:
                observer.act(act)
            except Exception:
                log.exception("an observer failed")

    def _notice(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, TurnEnded | Spent):
            self._count(owner, event)
        if _is_recorded(event):
            self._note_change(session_id)
        for observer in self._observers:
            try:
                observer.event(session_id, owner, event)
            except Exception:
                log.exception("an observer failed")

    def _note_change(self, session_id: str) -> None:
        session = self._sessions.known(session_id)
        if session is not None:
            self._recorder.changed(session)

    def _count(self, owner: str, event: TurnEnded | Spent) -> None:
        usd = (event.outcome.usage if isinstance(event, TurnEnded) else event.usage).cost_usd
        if usd > 0 and self.gate.counts(owner):
            self.gate.spending.note(owner, usd)
            self.start_task(asyncio.to_thread(self.gate.spending.write, owner, usd))

    def _moved(self, old: str, new: str) -> None:
        """A session goes on under another id. It is written down before anybody can hear of the new one."""
        self._sessions.moved(old, new)
        self.broker.moved(old, new)
        session, records = self._sessions.known(new), self._recorder.records
        try:
            record = session.record() if session is not None else None
            if record is not None:
                records.write(record)
            left = records.read(old)
            if left is not None:  # its turn goes on elsewhere, and was not cut short
                records.write(left.model_copy(update={"running_since": None}))
            self._around.aliases.point(old, new)
        except (OSError, ClaudeCodeError) as error:
            log.error("that session %s goes on as %s could not be written down: %s", old, new, error)

    @contextlib.contextmanager
    def _refusals_told(self, owner: str, what: str, session_id: str | None = None) -> Iterator[None]:
        try:
            yield
        except (PermissionDenied, LimitReached) as error:
            about = {"what": what, "code": error.code, "reason": error.message, "field": error.data.get("field")}
            self.tell(AuditEvent(AuditKind.REFUSED, owner, session_id, about))
            raise

    def _foreign(self, session_id: str, caller: str) -> SessionNotFound:
        """The same words as for a session that does not exist."""
        about = {"what": "use", "code": SessionNotFound.code, "reason": "somebody else's session"}
        self.tell(AuditEvent(AuditKind.REFUSED, caller, session_id, about))
        return SessionNotFound(f"There is no session {session_id}.", session_id=session_id)

    def _learn_secrets(self, session: Session) -> None:
        self.redactor.learn(session.options.env, owner=session)
        self.redactor.learn_from(session.options.mcp_servers, owner=session)

    @contextlib.asynccontextmanager
    async def _admitted(self, session: Session, owner: str) -> AsyncIterator[Session]:
        """A session that may be given a message now, within what its owner may have."""
        if self.gate.counts(owner):
            await asyncio.to_thread(self.gate.spending.refresh)
        self.gate.check_budget(owner)
        self._learn_secrets(session)
        working = [one.id for one in self.sessions(owner=owner) if one.busy]
        with self.gate.room(session.id, owner, working), self._sessions.keeping(session) as kept:
            yield kept

    @contextlib.asynccontextmanager
    async def _recorded(self, session: Session) -> AsyncIterator[None]:
        """What a new session may do is on disk before anything of it runs, and gone again if nothing comes of it."""
        await self._recorder.save(session)
        try:
            yield
        except BaseException:
            if not session.turns or self._sessions.known(session.id) is None:
                await asyncio.shield(self._recorder.remove(session.id))
            raise

    # -- sessions ---------------------------------------------------------------------------------------------

    async def create(self, prompt: str, options: SessionOptions | None = None, *, owner: str = LOCAL) -> PendingTurn:
        """A new session with its first message. Returns at once; the id is final."""
        _require_text("prompt", prompt)
        with self._refusals_told(owner, "create"):
            made = self._sessions.create(options or SessionOptions(), owner)
            async with self._admitted(made, owner) as session, self._recorded(session):
                message = await session.send(prompt)
                await self._confirm(session, new=True)
        await self._recorder.saved(session.id)
        self._tell_of(AuditKind.SESSION_CREATED, session, prompt)
        return PendingTurn(session, message)

    async def _confirm(self, session: Session, *, new: bool) -> None:
        """Where only Claude Code can tell whether it takes the options, waits for its word, which comes before it is
        given the message. Raises its refusal, after which nothing is left of a `new` session."""
        if not needs_confirmation(session.options):
            return
        try:
            await session.start_settled()
        except asyncio.CancelledError:
            self.start_task(_interrupted(session))
            raise
        refusal = session.start_error
        if isinstance(refusal, InvalidArgument | UpstreamUnavailable):
            if new:
                await self._sessions.drop(session)
            raise refusal

    def _tell_of(self, kind: AuditKind, session: Session, prompt: str, **more: Any) -> None:
        about = {"prompt": prompt, "cwd": session.cwd, "mode": session.options.permission_mode, **more}
        self.tell(AuditEvent(kind, session.owner, session.id, about))

    async def send(
        self,
        session_id: str,
        text: str,
        *,
        owner: str = LOCAL,
        options: SessionOptions | None = None,
        when_busy: WhenBusy = WhenBusy.JOIN,
        timeout: float | None = None,
        at_message: str | None = None,
    ) -> PendingTurn:
        """A message to a session, wherever it is: running, finished, parked, crashed, or only on disk.

        `options` apply to a session that is only on disk, field by field over what is recorded of it; one in memory
        keeps its own. RecordUnreadable for a session of ours of which is not known any more what it may do.
        `when_busy` says what becomes of the message if the session is at work at the moment it would be accepted.
        `at_message` takes the conversation back to that message first; the session must be at rest.
        """
        _require_text("message", text)
        with self._refusals_told(owner, "send", session_id):
            timeout = self.gate.turn_time(timeout, owner)
            found = await self._owned(session_id, owner, options)
            if when_busy is WhenBusy.REFUSE:
                found.refuse_if_busy()  # before anything is done; what counts is decided when it is accepted
            await self._sessions.check_message(found.id, at_message)
            self._sessions.admit(found)
            async with self._admitted(found, owner) as session:
                kind = AuditKind.MESSAGE_SENT if session.live else AuditKind.SESSION_RESUMED
                new = not session.turns
                message = await session.send(text, when_busy=when_busy, timeout=timeout, at_message=at_message)
                await self._confirm(session, new=new)
        await self._recorder.saved(session.id)
        self._tell_of(kind, session, text)
        return PendingTurn(session, message)

    async def fork(
        self,
        session_id: str,
        text: str,
        *,
        owner: str = LOCAL,
        at_message: str | None = None,
        options: SessionOptions | None = None,
        timeout: float | None = None,
    ) -> PendingTurn:
        """A message to a copy of a session, which gets an id of its own; the original stays as it is."""
        _require_text("message", text)
        with self._refusals_told(owner, "fork", session_id):
            timeout = self.gate.turn_time(timeout, owner)
            source = await self._owned(session_id, owner)
            await self._sessions.check_message(source.id, at_message)
            fork = await self._sessions.fork(source, owner, at_message=at_message, options=options)
            async with self._admitted(fork, owner) as session, self._recorded(session):
                message = await session.send(text, timeout=timeout)
                await self._confirm(session, new=True)
        await self._recorder.saved(session.id)
        self._tell_of(AuditKind.SESSION_FORKED, session, text, source=source.id)
        return PendingTurn(session, message)

    async def interrupt(self, session_id: str, *, owner: str = LOCAL) -> InterruptResult:
        """Ends the running turn; the session stays usable. The messages that waited behind it are dropped."""
        session = await self._owned(session_id, owner)
        _refuse_elsewhere(session)
        self.tell(AuditEvent(AuditKind.INTERRUPTED, owner, session_id))
        return InterruptResult(session, await session.interrupt())

    async def cancel(self, session_id: str, *, owner: str = LOCAL) -> Session:
        """Ends the session for good, also one of ours that is only on disk. That is on disk when this returns."""
        session = self._sessions.known(session_id) or await self._recorded_session(session_id, owner)
        if session.owner != owner:
            raise self._foreign(session_id, owner)
        _refuse_elsewhere(session)
        self.tell(AuditEvent(AuditKind.CANCELLED, owner, session_id))
        session.cancel()
        await self._recorder.save(session)
        return session

    async def _recorded_session(self, session_id: str, owner: str) -> Session:
        records = self._recorder.records
        mine = is_session_id(session_id) and await asyncio.to_thread(records.owned_by, owner, session_id)
        if mine and await asyncio.to_thread(records.read, session_id) is not None:
            if await asyncio.to_thread(self._around.leases.held, session_id):
                raise _elsewhere(session_id)
            return await self._owned(session_id, owner)
        return self.session(session_id, owner=owner)  # or SessionNotFound

    async def wait(
        self, session_id: str, timeout: float | None = None, *, owner: str = LOCAL, for_questions: bool = True
    ) -> Session:
        """Waits until the session is at rest or has a question."""
        session = self.session(session_id, owner=owner)
        await session.wait(timeout, for_questions=for_questions)
        return session

    def session(self, session_id: str, *, owner: str = LOCAL) -> Session:
        """A session in memory."""
        session = self._sessions.known(session_id)
        if session is not None and session.owner != owner:
            raise self._foreign(session_id, owner)
        if session is None:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        return session

    async def find(self, session_id: str, *, owner: str = LOCAL) -> Session:
        """A session in memory or on disk; one from disk is at rest until it is sent a message."""
        session = await self._owned(session_id, owner)
        self._learn_secrets(session)
        await self._recorder.saved(session_id)
        return session

    async def saved(self, session_id: str) -> None:
        """Waits until what is known of a session is on disk."""
        await self._recorder.saved(session_id)

    def sessions(self, *, owner: str | None = LOCAL) -> list[Session]:
        """Those in memory, most recently used first; of one owner, or of all."""
        return [session for session in self._sessions.all() if owner in (None, session.owner)]

    def watch(self, session_id: str, *, owner: str = LOCAL, after: int | None = None) -> Subscription:
        """The events of a session as they happen, from behind `after` on."""
        return self.session(session_id, owner=owner).log.subscribe(after)

    async def catalogue(
        self, *, owner: str = LOCAL, project: str | None = None, limit: int = 50, text: str | None = None
    ) -> CatalogueEntries:
        """Every session of the owner on this machine, newest first, those without a transcript yet included."""
        only = None if owner == LOCAL else frozenset(await self._summaries(owner))
        listed = await asyncio.to_thread(self._catalogue.list, project=project, limit=limit, text=text, only=only)
        known = {entry.session_id for entry in listed}
        fresh = [one for one in self.sessions(owner=owner) if one.id not in known and _matches(one, project, text)]
        found = await asyncio.to_thread(lambda: [self._catalogue.find(session.id) for session in fresh])
        untold = [_entry(session) for session, entry in zip(fresh, found, strict=True) if entry is None]
        return sorted([*untold, *listed], key=lambda entry: entry.last_used, reverse=True)[:limit]

    async def _summaries(self, owner: str) -> dict[str, Summary]:
        told = await asyncio.to_thread(self._recorder.records.summaries)
        return {one: summary for one, summary in told.items() if owner in (LOCAL, summary.owner)}

    async def last_states(self, session_ids: Iterable[str], *, owner: str = LOCAL) -> dict[str, State]:
        """Where sessions of ours stand that are only on disk; others are left out."""
        summaries = await self._summaries(owner)
        wanted = {one: summaries[one] for one in session_ids if one in summaries and not self._sessions.known(one)}
        return await asyncio.to_thread(lambda: {one: self._last_state(one, told) for one, told in wanted.items()})

    def _last_state(self, session_id: str, told: Summary) -> State:
        if told.running and not told.cancelled:
            return State.RUNNING if self._around.leases.held(session_id) else State.INTERRUPTED
        return told.state

    async def _owned(self, session_id: str, owner: str, options: SessionOptions | None = None) -> Session:
        known = self._sessions.known(session_id) is not None
        # Asked before anything is said about it: what is somebody else's does not exist.
        if not known and not await asyncio.to_thread(self._recorder.records.owned_by, owner, session_id):
            raise self._foreign(session_id, owner)
        session = await self._sessions.find(session_id, owner, options)
        if session.owner != owner:
            raise self._foreign(session_id, owner)
        return session

    def bypass_possible(self, principal: str) -> bool:
        """Whether permission checks may be switched off at all for this caller."""
        return self.gate.bypass_possible(principal)

    def bypass_on(self, principal: str) -> bool:
        """Whether they are switched off for this caller."""
        return self.gate.bypass_on(principal)

    def set_bypass(self, principal: str, on: bool, *, by: str = "") -> None:
        """Lets this caller's sessions skip permission checks, or no longer. `by` is the channel of the confirmation."""
        with self._refusals_told(principal, "bypass"):
            self.gate.set_bypass(principal, on)
        self.tell(AuditEvent(AuditKind.BYPASS_SWITCHED, principal, details={"on": on, "by": by}))

    @contextlib.contextmanager
    def steering(self, principal: str, action: str, server: str) -> Iterator[None]:
        """Around a change to a server of the hub: PermissionDenied if the caller may make none. Told either way."""
        with self._refusals_told(principal, f"{action} {server}"):
            self.gate.check_steering(principal)
            yield
        self.tell(AuditEvent(AuditKind.HUB_STEERED, principal, details={"action": action, "server": server}))

    # -- questions --------------------------------------------------------------------------------------------

    def questions(self, session_id: str, *, owner: str = LOCAL) -> list[Question]:
        """The open questions of a session, oldest first."""
        return self.session(session_id, owner=owner).questions

    def respond(
        self, session_id: str, question_id: str, answer: Answer, *, owner: str = LOCAL, by: str = "respond"
    ) -> Session:
        """Answers a question through the queue."""
        session = self.session(session_id, owner=owner)
        question = next((one for one in session.questions if one.id == question_id), None)
        if question is not None and answer.updated_input is not None:
            shown = self.redactor.data(question.tool_input)
            updated = put_back(answer.updated_input, shown, question.tool_input, MARK)
            answer = replace(answer, updated_input=updated)
            with self._refusals_told(owner, "respond", session_id):
                self.gate.check_call(owner, session.cwd, question.tool_name, updated)
        if answer.mode is not None:
            with self._refusals_told(owner, "respond", session_id):
                self.gate.check_mode(owner, answer.mode)
        self.broker.answer(session.id, question_id, answer, by)
        return session


async def _interrupted(session: Session) -> None:
    await session.interrupt()


def _is_recorded(event: Event) -> bool:
    """Whether the record of a session is no longer true after it."""
    match event:
        case TurnStarted() | TurnEnded() | Spent():
            return True
        case StateChanged():
            return event.state is State.CANCELLED
        case QuestionSettled():
            return event.resolution.answer is not None and event.resolution.answer.allow
    return False


def _refuse_elsewhere(session: Session) -> None:
    if session.runs_elsewhere:
        raise _elsewhere(session.id)


def _elsewhere(session_id: str) -> SessionBusy:
    return SessionBusy(f"Session {session_id} is run by another server on this machine.", session_id=session_id)


def _matches(session: Session, project: str | None, text: str | None) -> bool:
    here = project is None or os.path.realpath(project) == os.path.realpath(session.cwd)
    return here and (not text or text.casefold() in f"{session.first_prompt} {session.cwd}".casefold())


def _entry(session: Session) -> Entry:
    """A session that has no transcript yet."""
    return Entry(session.id, session.cwd, None, session.first_prompt, session.used_at, None, 0)


async def _sweep_quietly() -> None:
    with contextlib.suppress(OSError):
        ended = await sweep_stale()
        if ended:
            log.warning("ended %d processes that a killed server had left behind", ended)


def _require_text(field: str, text: str) -> None:
    if not text.strip():
        raise InvalidArgument(f"{field} must not be empty.", field=field)
