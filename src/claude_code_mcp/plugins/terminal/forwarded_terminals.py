"""Terminals of other machines: their servers report them over HTTP and receive the answers to their questions.

A terminal belongs to the caller whose token came with the report, and only its questions can be answered here. Its
files are on the other machine. That machine also checks the answers against the policy of its user.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...core.errors import InvalidArgument, LimitReached
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.question import Closure, Resolution
from ...core.model.states import State
from ...core.rate_limit import MinuteLimit
from ...core.service import Service
from ...core.sessions.outside_sessions import OutsideSession, RemotePlace
from ...server.transports.callers import Callers
from ...server.web_answers import BodyRoom, RequestRefused, answer, body_of, guarded
from .forwarding_messages import (
    MAX_REPORT,
    MAX_TERMINALS,
    PATH,
    POLL_SECONDS,
    ForwardedQuestion,
    ForwardedTerminal,
    RelayedAnswer,
    Report,
    ReportReply,
)

_LAPSE = 3 * POLL_SECONDS
"""Seconds without a report after which the terminals of a machine are gone."""
_MAX_MACHINES = 10
"""Maximum number of machines per caller."""
_QUESTIONS_PER_MINUTE = 60
"""Maximum number of new questions per caller: each has lines in the audit trail, and may be pushed."""
_STATES = {"running": State.RUNNING, "waiting": State.WAITING, "idle": State.IDLE}


class ForwardedTerminals:
    """The terminals that other servers report to this one."""

    def __init__(self, service: Service, callers: Callers) -> None:
        self._service = service
        self._callers = callers
        self._room = BodyRoom(2 * MAX_REPORT)
        self._new_questions = MinuteLimit(
            lambda _: _QUESTIONS_PER_MINUTE, sentence="You may forward {most} new questions per minute"
        )
        self._machines: dict[tuple[str, str], _Machine] = {}
        """By principal and by the sender's own id."""
        self._stopped = False

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(PATH, self._handle, methods=["POST"])]

    def stop(self) -> None:
        """End the waits of all senders."""
        self._stopped = True
        for machine in self._machines.values():
            machine.wake()

    def close(self) -> None:
        """Leave all sessions."""
        self.stop()
        for key in [*self._machines]:
            self._drop(key)

    async def _handle(self, request: Request) -> Response:
        return await guarded(self._reply(request), self._service.redaction.text)

    async def _reply(self, request: Request) -> Response:
        principal = await self._caller(request)
        with self._room.of(principal, request):
            try:
                report = Report.read(await body_of(request, MAX_REPORT))
            except ValueError as problem:
                raise InvalidArgument(f"{problem}.") from None
        # No await from here on until the machine waits: of two reports of a machine the later one counts.
        key = principal, report.client
        machine = self._machines.get(key)
        if report.terminals is None and (machine is None or machine.revision != report.revision):
            return answer(ReportReply(principal=principal, unknown=True).as_json())
        machine = machine or self._new_machine(key)
        try:
            if report.terminals is not None:
                self._check_room(key, len(report.terminals))
                machine.take(report)
            is_over = self._stopped or not machine.terminals
            answers = await machine.wait_for_answers(0.0 if is_over else POLL_SECONDS)
        finally:
            machine.expire_after(_LAPSE, partial(self._lapse, key, machine))
        return answer(ReportReply(answers=answers, principal=principal).as_json())

    async def _caller(self, request: Request) -> str:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = await self._callers.by_token(token.strip()) if scheme.casefold() == "bearer" else None
        if found is None or not self._callers.required:
            self._service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))
            raise RequestRefused(401, "UNAUTHORIZED", "A token is required.", {"WWW-Authenticate": "Bearer"})
        return found.principal

    def _new_machine(self, key: tuple[str, str]) -> "_Machine":
        if sum(principal == key[0] for principal, _ in self._machines) >= _MAX_MACHINES:
            raise LimitReached(f"Terminals of at most {_MAX_MACHINES} machines can be shown.")
        machine = self._machines[key] = _Machine(self._service, self._new_questions, *key)
        return machine

    def _check_room(self, key: tuple[str, str], wanted: int) -> None:
        known = self._machines.items()
        others = sum(len(machine.terminals) for each, machine in known if each[0] == key[0] and each != key)
        if others + wanted > MAX_TERMINALS:
            raise LimitReached(f"At most {MAX_TERMINALS} terminals of one caller can be shown.")

    def _lapse(self, key: tuple[str, str], machine: "_Machine") -> None:
        if self._machines.get(key) is machine:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._machines.pop(key).close()


class _Machine:
    """One server that reports its terminals."""

    def __init__(self, service: Service, new_questions: MinuteLimit, principal: str, client: str) -> None:
        self._service = service
        self._new_questions = new_questions
        self._principal = principal
        self._client = client
        self.revision = ""
        self.terminals: dict[str, _Terminal] = {}
        self._waiting: asyncio.Event | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """End the wait of the last report."""
        if self._waiting is not None:
            self._waiting.set()

    def close(self) -> None:
        """Leave all sessions."""
        if self._expiry is not None:
            self._expiry.cancel()
        for terminal in self.terminals.values():
            terminal.leave()
        self.terminals.clear()
        self.revision = ""

    def take(self, report: Report) -> None:
        """Show exactly the contents of a report."""
        reported = {terminal.session_id: terminal for terminal in report.terminals or ()}
        for session_id in self.terminals.keys() - reported.keys():
            self.terminals.pop(session_id).leave()
        for session_id, terminal in reported.items():
            known = self.terminals.get(session_id)
            if known is None:
                own_id, count = self._own_id(session_id), partial(self._new_questions.take, self._principal)
                known = _Terminal(self._service, self._principal, own_id, session_id, self.wake, count)
                self.terminals[session_id] = known
            known.take(terminal, report.machine)
        self.revision = report.revision

    def _own_id(self, session_id: str) -> str:
        """The id of a session here: an id that the caller chooses could belong to another caller's session."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, repr((self._principal, self._client, session_id))))

    async def wait_for_answers(self, seconds: float) -> list[RelayedAnswer]:
        """The answers to open questions, at once if there are any. An earlier report of this machine waits no
        longer."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.wake()
        mine = self._waiting = asyncio.Event()
        if not self._answers():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(mine.wait(), seconds)
        return self._answers() if self._waiting is mine else []

    def _answers(self) -> list[RelayedAnswer]:
        return [relayed for terminal in self.terminals.values() for relayed in terminal.answers.values()]

    def expire_after(self, seconds: float, expire: Callable[[], None]) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(seconds, expire)


class _Terminal:
    """One session in a terminal of another machine."""

    def __init__(
        self,
        service: Service,
        principal: str,
        own_id: str,
        session_id: str,
        answered: Callable[[], None],
        count_question: Callable[[], None],
    ) -> None:
        """`count_question` raises RateLimited if there are too many new questions."""
        self._session_id = session_id
        self._answered = answered
        self._count_question = count_question
        self._attended = False
        self._questions: dict[str, str] = {}
        """The open questions: their ids here, by key."""
        self.answers: dict[str, RelayedAnswer] = {}
        """By key, until a report no longer has the question."""
        place = RemotePlace("", "")
        self._outside: OutsideSession = service.outside.join_remote(own_id, principal, place, lambda: self._attended)

    def take(self, reported: ForwardedTerminal, machine: str) -> None:
        """Show a report's data about this terminal."""
        self._attended = reported.attended
        self._outside.remote = RemotePlace(machine, reported.directory)
        self._outside.permission_mode = reported.permission_mode
        self._outside.session.first_prompt = reported.title or None
        asked = {question.key: question for question in reported.questions}
        self.answers = {key: relayed for key, relayed in self.answers.items() if key in asked}
        for key in self._questions.keys() - asked.keys():
            self._outside.withdraw(self._questions.pop(key), "it was answered elsewhere")
        for key, question in asked.items():
            if key not in self._questions and key not in self.answers:
                self._count_question()
                self._questions[key] = self._open(question)
        self._outside.report_state(_STATES[reported.state])

    def _open(self, asked: ForwardedQuestion) -> str:
        def settled(resolution: Resolution, _: dict[str, Any] | None) -> None:
            self._questions.pop(asked.key, None)
            if resolution.closure is Closure.ANSWERED and resolution.answer is not None:
                self.answers[asked.key] = RelayedAnswer.of(self._session_id, asked.key, resolution, resolution.answer)
                self._answered()

        return self._outside.ask_without_policy(
            asked.tool,
            asked.input,
            settled,
            suggestions=asked.suggestions,
            modes=asked.modes,
            mode_after=asked.mode_after,
            reason=asked.reason,
        ).id

    def leave(self) -> None:
        self._outside.leave("the terminal has left the session")
