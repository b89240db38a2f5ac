"""Forwards the terminals of this machine to the server that their user chose, and applies the answers from there.

It is an observer: a question is open here before it is forwarded, and nothing waits for the other server. An answer
from there passes through `Service.respond` like one from any channel, so the policy of the local user applies.

If hooks report to several servers, the server that holds a lock forwards.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...core import json_text
from ...core.errors import ClaudeCodeError, QuestionClosed
from ...core.model.events import AuditEvent, Event, QuestionOpened, QuestionSettled, StateChanged
from ...core.model.question import Question
from ...core.model.states import State
from ...core.model.text import clip_line, visible
from ...core.service import Service
from ...core.sessions.outside_sessions import OutsideSession
from ...core.transcripts.watched_files import WatchedFile, facts_of
from ...hub.auth.file_locks import file_lock
from .forwarding_messages import (
    MAX_QUESTIONS,
    MAX_REPORT,
    MAX_TERMINALS,
    ForwardedQuestion,
    ForwardedTerminal,
    RelayedAnswer,
    Report,
    ReportReply,
)
from .forwarding_target import ForwardingPlace, ForwardingTarget, machine_name

if TYPE_CHECKING:
    from .forwarding_connection import ForwardingConnection

log = logging.getLogger(__name__)

_NEWS = (QuestionOpened, QuestionSettled, StateChanged)
_CHANNEL = "forwarded"
_FIRST_PAUSE, _MAX_PAUSE = 1.0, 30.0
_LOOK_AGAIN = 5.0
_MAX_TITLE = 200
_MAX_PROBLEM = 300
_MAX_REFUSALS = 5
"""How many answers to one question may be refused. Then it can be answered only here: each refusal is audited."""
_QUICK = 1.0
"""Seconds. A reply without an answer to an open question should take longer."""
_UNDISTURBED = 0.5
"""Seconds for which a report is not given up for a newer one. Otherwise frequent changes would let no reply arrive."""
_GOODBYE = 2.0
_SETTLE = 0.05
"""Seconds during which further changes go into the same report."""


class Forwarder:
    """Sends reports as long as there is a target. An observer of the service."""

    def __init__(
        self, service: Service, place: ForwardingPlace, terminals: Callable[[], Iterable[OutsideSession]]
    ) -> None:
        self._service = service
        self._place = place
        self._terminals = terminals
        self._changed = asyncio.Event()
        self._refused: dict[str, tuple[int, str]] = {}
        """How many answers to an open question were refused, and why the last one was, by question id."""
        self._shown: dict[str, tuple[ForwardedQuestion, int]] = {}
        """What the target gets of each open question, and its size, by key: removing the secrets of a large input takes
        seconds, and a report has all questions."""
        self.target: ForwardingTarget | None = None
        self.problem: str | None = None
        """Why nothing arrives at the target."""

    # -- events of this machine ---------------------------------------------------------------------------------------

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, _NEWS) and any(outside.session.id == session_id for outside in self._terminals()):
            self._changed.set()

    def act(self, act: AuditEvent) -> None:
        """Audit events are ignored."""

    def _report(self, revision: str, target: ForwardingTarget) -> Report:
        self._refused = {asked.id: self._refused[asked.id] for asked in self._open() if asked.id in self._refused}
        keys = {self._key(asked) for asked in self._open()}
        self._shown = {key: shown for key, shown in self._shown.items() if key in keys}
        terminals, size = [], 0
        for outside in [*self._terminals()][:MAX_TERMINALS]:
            terminal = self._terminal(outside)
            for asked in outside.session.questions[:MAX_QUESTIONS]:
                if self._refused.get(asked.id, (0, ""))[0] >= _MAX_REFUSALS:
                    continue
                try:
                    question, length = self._question(asked)
                except (ValueError, RecursionError) as error:
                    log.info("a question can be answered only here: %s", type(error).__name__)
                    continue
                if size + length <= MAX_REPORT // 2:  # a smaller one may still fit
                    terminal.questions.append(question)
                    size += length
            terminals.append(terminal)
        return Report(client=target.client, revision=revision, machine=machine_name(), terminals=terminals)

    def _open(self) -> list[Question]:
        return [asked for outside in self._terminals() for asked in outside.session.questions]

    def _terminal(self, outside: OutsideSession) -> ForwardedTerminal:
        """A terminal without its questions."""
        session, redaction = outside.session, self._service.redaction
        working = session.state in (State.RUNNING, State.WAITING)
        return ForwardedTerminal(
            session_id=session.id,
            directory=visible(redaction.text(outside.directory))[:4096],
            title=clip_line(visible(redaction.text(session.first_prompt or "")), _MAX_TITLE),
            state="waiting" if session.questions else "running" if working else "idle",
            permission_mode=outside.permission_mode,
            attended=outside.attended(),
        )

    def _question(self, asked: Question) -> tuple[ForwardedQuestion, int]:
        """What the target gets of a question, and its size. Raises ValueError or RecursionError if it cannot be
        sent."""
        key, (_, refused) = self._key(asked), self._refused.get(asked.id, (0, None))
        if key in self._shown:
            return self._shown[key]

        def clean(value: Any) -> Any:
            return json_text.sound(self._service.redaction.data(value))

        question = ForwardedQuestion.of(asked, key, clean, refused)
        self._shown[key] = question, len(json_text.encode(question.as_json()))
        return self._shown[key]

    def _key(self, asked: Question) -> str:
        # A new key after a refusal: the other server treats it as a new question.
        return f"{asked.id}.{self._refused.get(asked.id, (0, ''))[0]}"

    def _take(self, answers: Iterable[RelayedAnswer], target: ForwardingTarget) -> bool:
        """Apply the decisions of the other server; a refusal is shown there with the question. Returns whether one was
        about an open question."""
        asked_as = {(asked.session_id, self._key(asked)): asked for asked in self._open()}
        found = False
        for relayed in answers:
            asked = asked_as.pop((relayed.session_id, relayed.key), None)
            if asked is None:
                continue
            found = True
            by = clip_line(f"{target.host}, {relayed.by}", _MAX_TITLE)
            try:
                self._service.respond(
                    asked.session_id, asked.id, relayed.answer(), by=_CHANNEL, client=by, person=relayed.person
                )
            except QuestionClosed:
                continue
            except ClaudeCodeError as error:
                self._refuse(asked, error.message)
            except Exception:
                log.exception("an answer from %s could not be applied", target.host)
                self._refuse(asked, "It could not be applied.")
        return found

    def _refuse(self, asked: Question, reason: str) -> None:
        count, _ = self._refused.get(asked.id, (0, ""))
        self._refused[asked.id] = count + 1, self._service.redaction.text(reason)
        self._changed.set()

    # -- the other server ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Never returns."""
        async with WatchedFile(str(self._place.file), lambda: None) as watched:
            while True:
                watched.clear()
                await watched.watch_again()
                facts = await self._facts()
                is_read = await self._read()
                forwarding = asyncio.ensure_future(self._forward(self.target))
                try:
                    await watched.wait()
                    # Without a reported change it returns at intervals: the file system may report none.
                    while is_read and not watched.is_noted and facts == await self._facts():
                        await watched.wait()
                finally:
                    forwarding.cancel()
                    await asyncio.gather(forwarding, return_exceptions=True)

    async def _facts(self) -> object:
        return await asyncio.to_thread(facts_of, self._place.file)

    async def _read(self) -> bool:
        """Returns whether the file could be read. If not, nothing is forwarded."""
        self.target = None
        try:
            self.target = await asyncio.to_thread(self._place.read)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self._fail(f"{self._place.file} cannot be used: {getattr(error, 'strerror', None) or type(error).__name__}")
            return False
        self.problem = None
        return True

    async def _forward(self, target: ForwardingTarget | None) -> None:
        if target is None:
            return
        # Imported here because it takes a while, and most people forward nothing.
        from .forwarding_connection import ForwardingConnection  # noqa: PLC0415

        self._service.add_secrets(filter(None, (target.token,)))
        while True:
            try:
                async with (
                    file_lock(self._place.lock, 0),
                    ForwardingConnection(self._place, target) as connection,
                ):
                    await self._forward_by(connection, target)
            except TimeoutError:
                await asyncio.sleep(_LOOK_AGAIN)  # another server of this user forwards
            except Exception as error:
                log.exception("the terminals of this machine could not be forwarded")
                self._fail(type(error).__name__)
                await asyncio.sleep(_MAX_PAUSE)

    async def _forward_by(self, connection: "ForwardingConnection", target: ForwardingTarget) -> None:
        """Send a report whenever something has changed, and wait for answers meanwhile."""
        clock, pause, revision = asyncio.get_running_loop().time, _FIRST_PAUSE, ""
        self._shown.clear()  # more secrets may be known than for an earlier target
        sent: list[ForwardedTerminal] | None = None
        try:
            while True:
                self._changed.clear()
                report = self._report(revision, target)
                if not report.terminals and not sent:
                    await self._wait_for_change(_LOOK_AGAIN)
                    continue
                if revision and report.terminals == sent:
                    report.terminals = None
                else:
                    sent, report.revision = report.terminals, uuid.uuid4().hex
                began = clock()
                try:
                    relay = await self._send(connection, report)
                except ClaudeCodeError as error:
                    self._fail(error.message)
                    revision = ""
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE)
                    continue
                revision, is_useless = report.revision, False
                if relay is not None:
                    revision, self.problem = "" if relay.unknown else revision, None
                    is_useless = not self._take(relay.answers, target) and clock() - began < _QUICK
                if is_useless:
                    # Limits the rate, however fast a server that does not wait answers.
                    await self._wait_for_change(pause)
                pause = min(2 * pause, _MAX_PAUSE) if is_useless else _FIRST_PAUSE
                await asyncio.sleep(_SETTLE)
        finally:
            if sent:
                goodbye = Report(client=target.client, revision=uuid.uuid4().hex, terminals=[])
                with contextlib.suppress(ClaudeCodeError, TimeoutError):
                    await asyncio.wait_for(connection.send(goodbye), _GOODBYE)

    async def _send(self, connection: "ForwardingConnection", report: Report) -> ReportReply | None:
        """The answer to a report; None if something changes before it arrives. Raises ClaudeCodeError."""
        sending = asyncio.ensure_future(connection.send(report))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((sending,), timeout=_UNDISTURBED)
            await asyncio.wait((sending, changing), return_when=asyncio.FIRST_COMPLETED)
            return sending.result() if sending.done() else None
        finally:
            sending.cancel()
            changing.cancel()
            # If the answer is lost here, it is repeated with the next report.
            await asyncio.gather(sending, changing, return_exceptions=True)

    async def _wait_for_change(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _fail(self, problem: str) -> None:
        problem = clip_line(visible(problem), _MAX_PROBLEM)
        if problem != self.problem:
            log.warning("terminals are not forwarded: %s", problem)
        self.problem = problem
