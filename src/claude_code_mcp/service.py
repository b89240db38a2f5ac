"""The façade: everything that a frontend, or a program that uses this package as a library, does with sessions.

    from claude_code_mcp import Service, SessionOptions

    async with Service() as service:
        turn = await service.create("Fix the failing test", SessionOptions(cwd="/src/app"))
        outcome = await turn.outcome()

All frontends share one service, so a session made by one is visible to all. The parts behind the façade (the broker of
questions, the enforcer of the policy, the redactor, the logs of sessions) are its own: what others need of them has a
method here, or is a read-only view (`redaction`, `Session.events`).
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .claude.user_config import config_directory
from .config import Settings, load_settings
from .errors import InvalidArgument, SessionBusy, SessionNotFound
from .model.events import AuditEvent, AuditKind, Event
from .model.options import SessionOptions
from .model.question import Answer, Question
from .model.states import State
from .policy.policy import Policy
from .processes.environment import for_nested_servers
from .processes.leftovers import sweep_stale
from .processes.spawn import prepare
from .questions.broker import Broker, Channel, Settle
from .questions.cli_reply import put_back
from .questions.presentation import Redacts
from .redaction import Redactor
from .secret_shapes import MARK
from .sessions.dependencies import BackgroundTasks, SessionDeps
from .sessions.launcher import Launcher, default_directory
from .sessions.mcp_bridge import McpServerHost, expand_prompt
from .sessions.messages import WhenBusy
from .sessions.observation import Bookkeeper, Observer, ObserverList
from .sessions.pending_turn import InterruptResult, MessageAcceptance, PendingTurn
from .sessions.policy_enforcer import PolicyEnforcer
from .sessions.record_writer import RecordWriter
from .sessions.registry import SessionListing, Sessions
from .sessions.session import Session
from .sessions.slots import Slots
from .store.catalogue import Catalogue, CatalogueEntries
from .store.event_log import Subscription
from .store.session_records import LOCAL, Aliases, Leases, SessionRecords
from .store.spending import Spending
from .store.transcripts import Transcripts, is_session_id

log = logging.getLogger(__name__)


__all__ = ["LOCAL", "InterruptResult", "Observer", "PendingTurn", "Service"]


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
        """`settings` are read from the environment and the configuration file unless given. Without a policy, callers
        may do everything. `redactor` is taught every secret that passes by; `host` has the MCP servers that all
        sessions share, such as a `Hub`."""
        self.settings = settings or load_settings()
        self._environment = dict(os.environ if environment is None else environment)
        self._redactor = redactor or Redactor()
        self._redactor.learn(self._environment)
        self._observers = ObserverList()
        self._host = host
        default = default_directory(self.settings)
        self.own_addresses: list[str] = []
        """Where this service is offered over HTTP, as patterns of Claude Code's: sessions must not call back to it."""
        self._enforcer = PolicyEnforcer(policy or Policy(), default, Spending(self.settings.state_dir))
        self._tasks = BackgroundTasks()

    async def __aenter__(self) -> "Service":
        settings, config_dir = self.settings, config_directory(self._environment)
        self._recorder = RecordWriter(SessionRecords(settings.state_dir, config_dir), self.start_task)
        self._broker = Broker(settings.permission_timeout, self._redactor.data)
        self._leases = Leases(settings.state_dir, config_dir)
        deps = SessionDeps(
            settings=settings,
            launcher=Launcher(
                self._environment,
                settings.claude_path,
                settings.start_timeout,
                for_nested_servers(self._environment, settings.max_depth, str(settings.state_dir)),
                self.own_addresses,
            ),
            broker=self._broker,
            leases=self._leases,
            transcripts=Transcripts(config_dir),
            aliases=Aliases(settings.state_dir, config_dir),
            recorder=self._recorder,
            slots=Slots(settings.max_sessions, settings.spawn_limit),
            gate=self._enforcer,
            start_task=self.start_task,
            host=self._host,
            redact=self._redactor.data,
            notice=self._on_event,
            moved=self._on_moved,
        )
        self._sessions = Sessions(deps)
        self._bookkeeper = Bookkeeper(self._sessions, deps)
        self._acceptance = MessageAcceptance(self._sessions, deps, self._redactor)
        self._listing = SessionListing(self._sessions, Catalogue(config_dir), deps)
        self.start_task(_sweep_quietly())
        self.start_task(prepare())
        self._cleaner = self.start_task(self._sessions.clean_up_regularly())
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        """Sessions are closed first, which is bounded by the steps of stopping a process; then the tasks end."""
        self._cleaner.cancel()
        await self._sessions.close()
        await self._tasks.close(self.settings.stop_timeout)

    def start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task of the service: kept until it is done, its failure logged, never a caller's to cancel."""
        return self._tasks.start(work)

    # -- observers --------------------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """From now on the observer hears of every event and every audited act."""
        self._observers.add(observer)

    def audit(self, act: AuditEvent) -> None:
        """Reports an act to every observer."""
        self._observers.act(act)

    def _on_event(self, session_id: str, owner: str, event: Event) -> None:
        self._bookkeeper.on_event(session_id, owner, event)
        self._observers.event(session_id, owner, event)

    def _on_moved(self, old: str, new: str) -> None:
        self._bookkeeper.on_moved(old, new)

    # -- messages to sessions ---------------------------------------------------------------------------------

    async def create(self, prompt: str, options: SessionOptions | None = None, *, owner: str = LOCAL) -> PendingTurn:
        """A new session with its first message. Returns at once; the id of the session is final."""
        _require_text("prompt", prompt)
        with self._observers.auditing_refusals(owner, "create"):
            made = self._sessions.create(options or SessionOptions(), owner)
            async with self._acceptance.admitted(made, owner) as session, self._acceptance.recorded(session):
                message = await session.send(await self._expanded(session, prompt))
                await self._acceptance.confirm(session, new=True)
        await self._recorder.saved(session.id)
        self._audit_message(AuditKind.SESSION_CREATED, session, prompt)
        return PendingTurn(session, message)

    async def _expanded(self, session: Session, text: str) -> str:
        """The message, or the prompt of a hub's server that it names."""
        if self._host is None:
            return text
        return await expand_prompt(self._host, text, session.options.hub_servers, f"session:{session.id}", session.cwd)

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
        with self._observers.auditing_refusals(owner, "send", session_id):
            timeout = self._enforcer.turn_time(timeout, owner)
            found = await self._owned(session_id, owner, options)
            if when_busy is WhenBusy.REFUSE:
                found.refuse_if_busy()  # before anything is done; what counts is decided when it is accepted
            await self._sessions.check_message(found.id, at_message)
            self._sessions.admit(found)
            async with self._acceptance.admitted(found, owner) as session:
                kind = AuditKind.MESSAGE_SENT if session.live else AuditKind.SESSION_RESUMED
                new = not session.turns
                before = await asyncio.to_thread(self._recorder.records.read, session.id) if new else None
                expanded = await self._expanded(session, text)
                message = await session.send(expanded, when_busy=when_busy, timeout=timeout, at_message=at_message)
                await self._acceptance.confirm(session, new=new, before=before)
        await self._recorder.saved(session.id)
        self._audit_message(kind, session, text)
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
        with self._observers.auditing_refusals(owner, "fork", session_id):
            timeout = self._enforcer.turn_time(timeout, owner)
            source = await self._owned(session_id, owner)
            source.refuse_if_cancelled()
            await self._sessions.check_message(source.id, at_message)
            fork = await self._sessions.fork(source, owner, at_message=at_message, options=options)
            async with self._acceptance.admitted(fork, owner) as session, self._acceptance.recorded(session):
                message = await session.send(text, timeout=timeout)
                await self._acceptance.confirm(session, new=True)
        await self._recorder.saved(session.id)
        self._audit_message(AuditKind.SESSION_FORKED, session, text, source=source.id)
        return PendingTurn(session, message)

    def _audit_message(self, kind: AuditKind, session: Session, prompt: str, **more: Any) -> None:
        details = {"prompt": prompt, "cwd": session.cwd, "mode": session.options.permission_mode, **more}
        self.audit(AuditEvent(kind, session.owner, session.id, details))

    async def interrupt(self, session_id: str, *, owner: str = LOCAL) -> InterruptResult:
        """Ends the running turn; the session stays usable. The messages that waited behind it are dropped."""
        session = await self._owned(session_id, owner)
        _refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.INTERRUPTED, owner, session_id))
        return InterruptResult(session, await session.interrupt())

    async def cancel(self, session_id: str, *, owner: str = LOCAL) -> Session:
        """Ends the session for good, also one of ours that is only on disk. That is on disk when this returns."""
        session = self._sessions.known(session_id) or await self._recorded_session(session_id, owner)
        if session.owner != owner:
            raise self._observers.foreign_session(session_id, owner)
        _refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.CANCELLED, owner, session_id))
        session.cancel()
        await self._recorder.save(session)
        return session

    async def _recorded_session(self, session_id: str, owner: str) -> Session:
        """A session of the owner's that has a record on disk. SessionNotFound if there is none, SessionBusy if another
        server runs it."""
        records = self._recorder.records
        mine = is_session_id(session_id) and await asyncio.to_thread(records.owned_by, owner, session_id)
        if mine and await asyncio.to_thread(records.read, session_id) is not None:
            if await asyncio.to_thread(self._leases.held, session_id):
                raise _elsewhere(session_id)
            return await self._owned(session_id, owner)
        return self.session(session_id, owner=owner)

    # -- looking at sessions ----------------------------------------------------------------------------------

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
            raise self._observers.foreign_session(session_id, owner)
        if session is None:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        return session

    async def find(self, session_id: str, *, owner: str = LOCAL) -> Session:
        """A session in memory or on disk; one from disk is at rest until it is sent a message."""
        session = await self._owned(session_id, owner)
        self._acceptance.learn_secrets(session)
        await self._recorder.saved(session_id)
        return session

    async def _owned(self, session_id: str, owner: str, options: SessionOptions | None = None) -> Session:
        known = self._sessions.known(session_id) is not None
        # Asked before anything is said about it: what is somebody else's does not exist.
        if not known and not await asyncio.to_thread(self._recorder.records.owned_by, owner, session_id):
            raise self._observers.foreign_session(session_id, owner)
        session = await self._sessions.find(session_id, owner, options)
        if session.owner != owner:
            raise self._observers.foreign_session(session_id, owner)
        return session

    async def saved(self, session_id: str) -> None:
        """Waits until what is known of a session is on disk."""
        await self._recorder.saved(session_id)

    def sessions(self, *, owner: str | None = LOCAL) -> list[Session]:
        """Those in memory, most recently used first; of one owner, or of all."""
        return self._listing.in_memory(owner)

    def watch(self, session_id: str, *, owner: str = LOCAL, after: int | None = None) -> Subscription:
        """The events of a session as they happen, from behind `after` on."""
        return self.session(session_id, owner=owner).events.subscribe(after)

    async def catalogue(
        self, *, owner: str = LOCAL, project: str | None = None, limit: int = 50, text: str | None = None
    ) -> CatalogueEntries:
        """Every session of the owner on this machine, newest first, those without a transcript yet included."""
        return await self._listing.entries(owner, project, limit, text)

    async def last_states(self, session_ids: Iterable[str], *, owner: str = LOCAL) -> dict[str, State]:
        """Where sessions of ours stand that are only on disk; others are left out."""
        return await self._listing.last_states(session_ids, owner)

    # -- questions --------------------------------------------------------------------------------------------

    def questions(self, session_id: str, *, owner: str = LOCAL) -> list[Question]:
        """The open questions of a session, oldest first."""
        return self.session(session_id, owner=owner).questions

    def respond(
        self, session_id: str, question_id: str, answer: Answer, *, owner: str = LOCAL, by: str = "respond"
    ) -> Session:
        """Answers a question on behalf of the owner. QuestionClosed tells who was faster; PermissionDenied for a
        changed input or a mode that the policy refuses, which leaves the question open."""
        session = self.session(session_id, owner=owner)
        question = next((question for question in session.questions if question.id == question_id), None)
        if question is not None and answer.updated_input is not None:
            shown = self._redactor.data(question.tool_input)
            updated = put_back(answer.updated_input, shown, question.tool_input, MARK)
            answer = replace(answer, updated_input=updated)
            with self._observers.auditing_refusals(owner, "respond", session_id):
                self._enforcer.check_call(owner, session.cwd, question.tool_name, updated)
        if answer.mode is not None:
            with self._observers.auditing_refusals(owner, "respond", session_id):
                self._enforcer.check_mode(owner, answer.mode)
        self.answer_question(session.id, question_id, answer, by)
        return session

    def add_channel(self, channel: Channel) -> None:
        """From now on the channel is offered every question, those that are open first."""
        self._broker.add_channel(channel)

    def remove_channel(self, channel: Channel) -> None:
        """The channel hears nothing more; its questions stay open for the others."""
        self._broker.remove_channel(channel)

    def pending_questions(self, asker: str | None = None) -> list[Question]:
        """The open questions, oldest first; of all, or of one asker: the id of a session, or what `open_question` was
        given."""
        return self._broker.pending(asker)

    def answer_question(self, asker: str, question_id: str, answer: Answer, by: str) -> None:
        """The answer of a channel, which has shown the question to a person. QuestionClosed tells who was faster;
        InvalidArgument leaves the question open."""
        self._broker.answer(asker, question_id, answer, by)

    def open_question(
        self,
        asker: str,
        tool: str,
        arguments: Mapping[str, Any],
        settle: Settle,
        *,
        suggestions: Sequence[Mapping[str, Any]] = (),
    ) -> Question:
        """Asks all channels about a call that no session makes; `settle` is called once, when the question closes."""
        return self._broker.open(asker, tool, arguments, settle, suggestions=suggestions)

    def withdraw_question(self, question_id: str, detail: str) -> None:
        """Nobody needs an answer any more; a no-op for a question that is closed."""
        self._broker.withdraw(question_id, detail)

    # -- policy and secrets -----------------------------------------------------------------------------------

    def policy_answer(self, principal: str, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
        """What the policy says of a call that no session makes; None if a person must be asked."""
        return self._enforcer.answer(principal, self.settings.default_cwd or "", tool, arguments)

    def bypass_possible(self, principal: str) -> bool:
        """Whether permission checks may be switched off at all for this caller."""
        return self._enforcer.bypass_possible(principal)

    def bypass_on(self, principal: str) -> bool:
        """Whether they are switched off for this caller."""
        return self._enforcer.bypass_on(principal)

    def set_bypass(self, principal: str, on: bool, *, by: str = "") -> None:
        """Lets this caller's sessions skip permission checks, or no longer. `by` is the channel of the confirmation."""
        with self._observers.auditing_refusals(principal, "bypass"):
            self._enforcer.set_bypass(principal, on)
        self.audit(AuditEvent(AuditKind.BYPASS_SWITCHED, principal, details={"on": on, "by": by}))

    @contextlib.contextmanager
    def steering(self, principal: str, action: str, server: str) -> Iterator[None]:
        """Around a change to a server of the hub: PermissionDenied if the caller may make none. Audited either way."""
        with self._observers.auditing_refusals(principal, f"{action} {server}"):
            self._enforcer.check_steering(principal)
            yield
        self.audit(AuditEvent(AuditKind.HUB_STEERED, principal, details={"action": action, "server": server}))

    @property
    def redaction(self) -> Redacts:
        """Takes everything out of texts and data that must not leave this process."""
        return self._redactor

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Values that `redaction` takes out from now on."""
        self._redactor.add(secrets)


def _refuse_elsewhere(session: Session) -> None:
    if session.runs_elsewhere:
        raise _elsewhere(session.id)


def _elsewhere(session_id: str) -> SessionBusy:
    return SessionBusy(f"Session {session_id} is run by another server on this machine.", session_id=session_id)


async def _sweep_quietly() -> None:
    with contextlib.suppress(OSError):
        ended = await sweep_stale()
        if ended:
            log.warning("ended %d processes that a killed server had left behind", ended)


def _require_text(field: str, text: str) -> None:
    if not text.strip():
        raise InvalidArgument(f"{field} must not be empty.", field=field)
