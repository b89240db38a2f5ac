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
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .claude_home import config_directory
from .config import Settings, load_settings
from .errors import InvalidArgument, QuestionClosed, SessionNotFound
from .model.events import AuditEvent, AuditKind, Event
from .model.image import Image
from .model.options import SessionOptions
from .model.origin import ClientOrigin
from .model.question import Answer, Question
from .model.session_ids import is_session_id
from .model.states import State
from .policy.policy import Policy
from .processes.leftovers import sweep_quietly
from .processes.spawn import prepare
from .questions.broker import Broker, Channel, Settle
from .questions.cli_reply import put_back
from .questions.presentation import Redacts
from .redaction import Redactor
from .secret_shapes import MARK
from .sessions.dependencies import BackgroundTasks, SessionDeps, Stores
from .sessions.homes import Home, Homes
from .sessions.images import allowed_path, read_images
from .sessions.mcp_bridge import McpServerHost, expand_prompt, usable_servers
from .sessions.messages import WhenBusy
from .sessions.neighbours import Neighbours
from .sessions.observation import Bookkeeper, Observer, ObserverList
from .sessions.pending_turn import InterruptResult, MessageAcceptance, PendingTurn
from .sessions.policy_enforcer import PolicyEnforcer
from .sessions.registry import SessionListing, Sessions
from .sessions.session import Session
from .sessions.session_work import SessionWork
from .sessions.slots import Slots
from .sessions.stored_sessions import StoredSessions
from .sessions.working_directory import default_directory
from .sessions.workplaces import HostOf, Workplaces, make_launcher
from .state.session_records import LOCAL
from .state.spending import Spending
from .state.state_directory import check_quietly, database_in
from .store.catalogue import CatalogueEntries
from .store.event_log import Subscription
from .store.transcripts import ProjectFolders

log = logging.getLogger(__name__)

_SWEEP_DELAY = 1.0
"""Seconds before the processes of killed servers are looked for: it reads a file of every process of the machine, and
the first call would wait. What stands in the way of a session is ended when that session is resumed."""
_OWN_SERVERS = "each caller signs in to the MCP servers for itself"

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
        host_of: HostOf | None = None,
        hosts: Mapping[str, McpServerHost] | None = None,
        principals: Collection[str] = (),
        spares: int = 0,
    ) -> None:
        """`settings` are read from the environment and the configuration file unless given. Without a policy, callers
        may do everything. `redactor` is taught every secret that passes by; `host` has the MCP servers that all
        sessions share, such as a `Hub`, and `host_of` those for each client with an environment of its own, which are
        the same ones unless it is given; `hosts` are those of callers who share them with nobody, by name.
        `principals` are the callers with a token of their own: each of several has a Claude Code directory of its own.
        `spares` is how many processes are kept ready for new sessions where the settings do not say."""
        self.settings = settings or load_settings()
        self._environment = dict(os.environ if environment is None else environment)
        self._redactor = redactor or Redactor()
        self._redactor.learn(self._environment)
        self._host_of = host_of
        self.hosts = dict(hosts or {})
        self._observers = ObserverList()
        self._host = host
        self._spares = spares
        default = default_directory(self.settings)
        self.own_addresses: list[str] = []
        """Where this service is offered over HTTP, as patterns of Claude Code's: sessions must not call back to it."""
        policy = policy or Policy()
        self.state = database_in(self.settings.state_dir)
        guarded = (str(config_directory(self._environment)), str(self.settings.state_dir))
        self._enforcer = PolicyEnforcer(policy, default, Spending(self.state), guarded)
        self._homes = Homes(self.settings, self._environment, policy, principals, self.audit)
        self._linked_folders = not principals and policy.profile(LOCAL).isolation == "none"
        self._tasks = BackgroundTasks()

    async def __aenter__(self) -> "Service":
        await asyncio.to_thread(self.state.open)  # StateUnavailable before anything is started
        await self._homes.prepare()
        settings, self._broker = self.settings, Broker(self.settings.permission_timeout, self._redactor.data)
        launcher = make_launcher(settings, Home.of_user(self._environment), self.own_addresses)
        projects = ProjectFolders.below(launcher.config_dir, linked=self._linked_folders)
        self._slots = Slots.of(settings)
        self.neighbours = Neighbours(self.state, self.start_task, self._redactor.data)
        deps = SessionDeps(
            settings=settings,
            launcher=launcher,
            stores=Stores.below(launcher.config_dir, settings, self.start_task, self._redactor.data, projects),
            broker=self._broker,
            slots=self._slots,
            gate=self._enforcer,
            start_task=self.start_task,
            neighbours=self.neighbours,
            hosted=lambda: contextlib.nullcontext(self._host),
            redact=self._redactor.data,
            notice=self._on_event,
            moved=self._on_moved,
            known=lambda session_id: self._sessions.known(session_id) is not None,
        )
        self._workplaces = Workplaces(deps, self._redactor, self.own_addresses, self._homes, self._host_of, self.hosts)
        spares = self._spares if settings.spare_processes is None else settings.spare_processes
        self._sessions = Sessions(deps, lambda: self._workplaces.all_stores, spares)
        self._bookkeeper = Bookkeeper(self._sessions, deps)
        self._acceptance = MessageAcceptance(self._sessions, deps, self._redactor)
        self._listing = SessionListing(self._sessions)
        self.stored = StoredSessions(self._sessions, self._workplaces, self._observers, self._redactor.data)
        self.work = SessionWork(self._sessions, self._workplaces, self.stored)
        self.start_task(asyncio.to_thread(check_quietly, self.state))
        self.start_task(prepare())
        self.start_task(self._sweep_later(), endless=True)
        self.start_task(self.neighbours.serve_requests(self._sessions.give_way), endless=True)
        self.start_task(self._sessions.clean_up_regularly(), endless=True)
        self.start_task(self._slots.watch_memory(), endless=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        """Sessions are closed first, which is bounded by the steps of stopping a process; then the tasks end."""
        self._tasks.cancel_endless()
        await self._sessions.close()
        await self._tasks.close(self.settings.stop_timeout)
        await self.neighbours.close()

    async def _sweep_later(self) -> None:
        """A service that is closed before its sweep has begun does without; one that has begun is a task of its own."""
        await asyncio.sleep(_SWEEP_DELAY)
        self.start_task(sweep_quietly())

    def start_task(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]":
        """A task of the service: kept until it is done, its failure logged, never a caller's to cancel. An `endless`
        one is cancelled when the service closes; others have a moment to end by themselves."""
        return self._tasks.start(work, endless)

    @property
    def has_hosts(self) -> bool:
        """Whether clients with an origin may have MCP servers of their own."""
        return self._host_of is not None

    def hosted(self, origin: ClientOrigin) -> contextlib.AbstractAsyncContextManager[McpServerHost | None]:
        """The MCP servers that the sessions of a client share, there within this context."""
        return self._workplaces.of(origin, LOCAL).hosted()

    @contextlib.contextmanager
    def connected(self, origin: ClientOrigin | None) -> Iterator[None]:
        """Within this context a client is connected, and its secrets are redacted everywhere; longer, if sessions of
        its environment run on. A client that is gone loses neither its sessions nor its questions."""
        kept = self._workplaces.of(origin, LOCAL)
        yield
        del kept

    async def why_restart_for(self, principal: str) -> str | None:
        """Why a caller who was not there when this began cannot be served before a restart; None if it can."""
        return _OWN_SERVERS if self.hosts else await self._homes.objection(principal)

    # -- observers --------------------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> None:
        """From now on the observer hears of every event and every audited act."""
        self._observers.add(observer)

    def audit(self, act: AuditEvent) -> None:
        """Reports an act to every observer."""
        self._observers.act(act)

    def _on_event(self, session_id: str, owner: str, event: Event) -> None:
        self._bookkeeper.on_event(session_id, owner, event)
        self.neighbours.on_event(session_id, event)
        self._observers.event(session_id, owner, event)

    def _on_moved(self, old: str, new: str) -> None:
        self._bookkeeper.on_moved(old, new)

    # -- messages to sessions ---------------------------------------------------------------------------------

    async def create(
        self,
        prompt: str,
        options: SessionOptions | None = None,
        *,
        owner: str = LOCAL,
        timeout: float | None = None,
        origin: ClientOrigin | None = None,
        images: Sequence[str] = (),
    ) -> PendingTurn:
        """A new session with its first message. Returns at once; the id of the session is final. It runs in the
        environment of its `origin`, here and in the other methods; without one, in that of this service. `timeout`
        ends this turn and no later one. `images` go with the message: paths that the session could read, or `data:`
        URLs."""
        _require_text("prompt", prompt)
        with self._observers.auditing_refusals(owner, "create"):
            timeout = self._enforcer.turn_time(timeout, owner)
            deps = self._workplaces.of(origin, owner)
            async with (
                self._sessions.creating(options or SessionOptions(), owner, deps) as made,
                self._acceptance.admitted(made, owner, prompt) as session,
                self._acceptance.recorded(session),
            ):
                shown = await _images(session, images)
                message = await session.send(await self._expanded(session, prompt), timeout=timeout, images=shown)
                await self._acceptance.confirm(session, new=True)
        await session.saved()
        self._audit_message(AuditKind.SESSION_CREATED, session, prompt)
        self._sessions.prepare_spare(session)
        return PendingTurn(session, message)

    async def _expanded(self, session: Session, text: str) -> str:
        """The message, or the prompt of a hub's server that it names: whose text the policy must allow too."""
        async with session.deps.hosted() as host:
            if host is None:
                return text
            caller = f"session:{session.id}"
            servers = usable_servers(host, session.options.hub_servers, session.deps.gate, session.owner)
            expanded = await expand_prompt(host, text, servers, caller, session.cwd)
        if expanded != text:
            session.deps.gate.check_prompt(expanded, session.cwd, session.owner)
        return expanded

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
        origin: ClientOrigin | None = None,
        images: Sequence[str] = (),
    ) -> PendingTurn:
        """A message to a session, wherever it is: running, finished, parked, crashed, or only on disk.

        `options` apply to a session that is only on disk, field by field over what is recorded of it; one in memory
        keeps its own. RecordUnreadable for a session of ours of which is not known any more what it may do.
        `when_busy` says what becomes of the message if the session is at work at the moment it would be accepted.
        `at_message` takes the conversation back to that message first; the session must be at rest. A turn that begins
        with this message runs in the environment of its `origin`, unless the session is kept below a configuration
        directory that is not that client's.
        """
        _require_text("message", text)
        with self._observers.auditing_refusals(owner, "send", session_id):
            timeout = self._enforcer.turn_time(timeout, owner)
            sender = self._workplaces.of(origin, owner)
            found = await self._owned(session_id, owner, sender, options)
            await self.neighbours.refuse_elsewhere(found)
            if when_busy is WhenBusy.REFUSE:
                found.refuse_if_busy()  # before anything is done; what counts is decided when it is accepted
            await self._sessions.check_message(found, at_message)
            self._sessions.admit(found, sender if origin is not None else None)
            async with self._acceptance.admitted(found, owner, text) as session:
                kind = AuditKind.MESSAGE_SENT if session.live else AuditKind.SESSION_RESUMED
                new = not session.turns
                records = session.deps.stores.recorder.records
                before = await asyncio.to_thread(records.read, session.id) if new else None
                shown = await _images(session, images)
                message = await session.send(
                    await self._expanded(session, text),
                    when_busy=when_busy,
                    timeout=timeout,
                    at_message=at_message,
                    sender=sender if origin is not None else None,
                    images=shown,
                )
                await self._acceptance.confirm(session, new=new, before=before)
        await session.saved()
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
        origin: ClientOrigin | None = None,
        images: Sequence[str] = (),
    ) -> PendingTurn:
        """A message to a copy of a session, which gets an id of its own; the original stays as it is."""
        _require_text("message", text)
        with self._observers.auditing_refusals(owner, "fork", session_id):
            timeout = self._enforcer.turn_time(timeout, owner)
            deps = self._workplaces.of(origin, owner)
            source = await self._owned(session_id, owner, deps)
            source.refuse_if_cancelled()
            await self._sessions.check_message(source, at_message)
            fork = await self._sessions.fork(source, owner, deps, at_message=at_message, options=options)
            async with self._acceptance.admitted(fork, owner, text) as session, self._acceptance.recorded(session):
                shown = await _images(session, images)
                message = await session.send(await self._expanded(session, text), timeout=timeout, images=shown)
                await self._acceptance.confirm(session, new=True)
        await session.saved()
        self._audit_message(AuditKind.SESSION_FORKED, session, text, source=source.id)
        return PendingTurn(session, message)

    def _audit_message(self, kind: AuditKind, session: Session, prompt: str, **more: Any) -> None:
        details = {
            "prompt": prompt,
            "cwd": session.cwd,
            "mode": session.options.permission_mode,
            "isolation": session.deps.launcher.home.isolation,
            **more,
        }
        self.audit(AuditEvent(kind, session.owner, session.id, details))

    async def interrupt(
        self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> InterruptResult:
        """Ends the running turn; the session stays usable. The messages that waited behind it are dropped."""
        session = await self._owned(session_id, owner, self._workplaces.of(origin, owner))
        await self.neighbours.refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.INTERRUPTED, owner, session_id))
        return InterruptResult(session, await session.interrupt())

    async def cancel(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> Session:
        """Ends the session for good, also one of ours that is only on disk. That is on disk when this returns."""
        deps = self._workplaces.of(origin, owner)
        session = self._sessions.known(session_id) or await self._recorded_session(session_id, owner, deps)
        if session.owner != owner:
            raise self._observers.foreign_session(session_id, owner)
        await self.neighbours.refuse_elsewhere(session)
        self.audit(AuditEvent(AuditKind.CANCELLED, owner, session_id))
        session.cancel()
        await session.deps.stores.recorder.save(session)
        return session

    async def _recorded_session(self, session_id: str, owner: str, deps: SessionDeps) -> Session:
        """A session of the owner's that has a record on disk. SessionNotFound if there is none, SessionBusy if another
        server runs it."""
        records = deps.stores.recorder.records
        mine = is_session_id(session_id) and await asyncio.to_thread(records.owned_by, owner, session_id)
        if mine and await asyncio.to_thread(records.read, session_id) is not None:
            if await asyncio.to_thread(deps.stores.leases.held, session_id):
                raise await self.neighbours.busy(session_id)
            return await self._owned(session_id, owner, deps)
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

    async def find(self, session_id: str, *, owner: str = LOCAL, origin: ClientOrigin | None = None) -> Session:
        """A session in memory or on disk; one from disk is at rest until it is sent a message."""
        session = await self._owned(session_id, owner, self._workplaces.of(origin, owner))
        self._acceptance.learn_secrets(session)
        await session.saved()
        return session

    async def _owned(
        self, session_id: str, owner: str, deps: SessionDeps, options: SessionOptions | None = None
    ) -> Session:
        known = self._sessions.known(session_id) is not None
        # Asked before anything is said about it: what is somebody else's does not exist.
        if not known and not await asyncio.to_thread(deps.stores.recorder.records.owned_by, owner, session_id):
            raise self._observers.foreign_session(session_id, owner)
        session = await self._sessions.find(session_id, owner, deps, options)
        if session.owner != owner:
            raise self._observers.foreign_session(session_id, owner)
        return session

    def current_id(self, session_id: str) -> str:
        """The id under which a session in memory goes on, which is another one after it was cleared."""
        session = self._sessions.known(session_id)
        return session.id if session is not None else session_id

    def sessions(self, *, owner: str | None = LOCAL) -> list[Session]:
        """Those in memory, most recently used first; of one owner, or of all."""
        return self._listing.in_memory(owner)

    @property
    def spares_ready(self) -> int:
        """How many spare processes can be taken by new sessions now."""
        return self._sessions.spares.ready

    async def spares_settled(self) -> None:
        """Waits until no spare process is being started."""
        await self._sessions.spares.settled()

    def watch(self, session_id: str, *, owner: str = LOCAL, after: int | None = None) -> Subscription:
        """The events of a session as they happen, from behind `after` on."""
        return self.session(session_id, owner=owner).events.subscribe(after)

    async def catalogue(
        self,
        *,
        owner: str = LOCAL,
        project: str | None = None,
        limit: int = 50,
        offset: int = 0,
        text: str | None = None,
        whole: bool = False,
        archived: bool = False,
        active: bool = False,
        origin: ClientOrigin | None = None,
    ) -> CatalogueEntries:
        """Every session of the owner on this machine, pinned ones first, then the newest, those without a transcript
        yet included. `text` is looked for in titles and prompts or, with `whole`, in all conversations. With `active`,
        only those in memory."""
        deps = self._workplaces.of(origin, owner)
        if project is not None and deps.directory is not None:
            project = os.path.join(deps.directory, project)
        return await self._listing.entries(
            owner, deps.stores, project, limit, text, offset=offset, whole=whole, archived=archived, active=active
        )

    async def last_states(
        self, session_ids: Iterable[str], *, owner: str = LOCAL, origin: ClientOrigin | None = None
    ) -> dict[str, State]:
        """Where sessions of ours stand that are only on disk; others are left out."""
        return await self._listing.last_states(session_ids, owner, self._workplaces.of(origin, owner).stores)

    # -- questions --------------------------------------------------------------------------------------------

    def questions(self, session_id: str, *, owner: str = LOCAL) -> list[Question]:
        """The open questions of a session, oldest first."""
        return self.session(session_id, owner=owner).questions

    def respond(
        self,
        session_id: str,
        question_id: str,
        answer: Answer,
        *,
        owner: str = LOCAL,
        by: str = "respond",
        client: str = "",
    ) -> Session:
        """Answers a question on behalf of the owner, through the channel `by` of a `client`. QuestionClosed tells who
        was faster; PermissionDenied for a changed input or a mode that the policy refuses, which leaves the question
        open."""
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
        self.answer_question(session.id, question_id, answer, by, client)
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

    def answer_question(self, asker: str, question_id: str, answer: Answer, by: str, client: str = "") -> None:
        """The answer of a channel, which has shown the question to a person at a client. QuestionClosed tells who was
        faster; InvalidArgument leaves the question open."""
        self._broker.answer(asker, question_id, answer, by, client)

    def why_closed(self, asker: str, question_id: str) -> QuestionClosed:
        """What became of a question that is no longer open."""
        return self._broker.why_closed(asker, question_id)

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
        return self._broker.open(asker, tool, arguments, settle, suggestions=suggestions, of_client=True)

    def withdraw_question(self, question_id: str, detail: str) -> None:
        """Nobody needs an answer any more; a no-op for a question that is closed."""
        self._broker.withdraw(question_id, detail)

    # -- policy and secrets -----------------------------------------------------------------------------------

    def policy_answer(self, principal: str, tool: str, arguments: Mapping[str, Any]) -> Answer | None:
        """What the policy says of a call that no session makes; None if a person must be asked."""
        return self._enforcer.answer(principal, self.settings.default_cwd or "", tool, arguments)

    def modes(self, principal: str) -> tuple[str, ...]:
        """The permission modes that this caller may choose, the most careful first."""
        return self._enforcer.modes(principal)

    def directories(self, principal: str, *, origin: ClientOrigin | None = None) -> list[str]:
        """Where this caller's sessions may work, or do by default if they may work anywhere. Blocks on the disk."""
        return self._workplaces.of(origin, principal).gate.directories(principal)

    def may_work_in(self, path: str, principal: str, *, origin: ClientOrigin | None = None) -> bool:
        """Whether this caller's sessions may work in a directory. Blocks on the disk."""
        return self._workplaces.of(origin, principal).gate.may_work_in(path, principal)

    def bypass_possible(self, principal: str) -> bool:
        """Whether permission checks may be switched off at all for this caller."""
        return self._enforcer.bypass_possible(principal)

    def bypass_on(self, principal: str, *, origin: ClientOrigin | None = None) -> bool:
        """Whether they are switched off for this caller, at the client from there."""
        return self._workplaces.of(origin, principal).gate.bypass_on(principal)

    def set_bypass(self, principal: str, on: bool, *, by: str = "", origin: ClientOrigin | None = None) -> None:
        """Lets this caller's sessions skip permission checks, or no longer: those of clients with the same environment
        and directory. `by` is the channel of the confirmation."""
        with self._observers.auditing_refusals(principal, "bypass"):
            self._workplaces.of(origin, principal).gate.set_bypass(principal, on)
        self.audit(AuditEvent(AuditKind.BYPASS_SWITCHED, principal, details={"on": on, "by": by}))

    @contextlib.contextmanager
    def steering(self, principal: str, action: str, server: str) -> Iterator[None]:
        """Around a change to a server of the hub: PermissionDenied if the caller may make none. Audited either way.
        Whoever shares the servers with nobody may always sign in: it changes nothing for others."""
        with self._observers.auditing_refusals(principal, f"{action} {server}"):
            if not (action == "authenticate" and principal in self.hosts):
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


async def _images(session: Session, sources: Sequence[str]) -> tuple[Image, ...]:
    return await asyncio.to_thread(read_images, sources, lambda path: allowed_path(session, path)) if sources else ()


def _require_text(field: str, text: str) -> None:
    if not text.strip():
        raise InvalidArgument(f"{field} must not be empty.", field=field)
