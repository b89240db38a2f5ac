"""The broker holds all pending questions and offers each to all channels at once; the first answer counts.

A caller polls `pending`; other channels (a dialog in the client, the terminal, a chat) register themselves. `answer`
passes the reply to the process within the call, without an await. A question is offered one step of the event loop
after it was opened: the session is then waiting, so that a channel may answer at once.

A question that is not answered in time is denied, unless a person is expected to answer it: after a page has shown the
question (`seen`), or if an audience expects a person when the time is over, it stays open until no audience expects a
person any more.

An answer that does not fit its question raises InvalidArgument, and nothing is sent. From a valid answer, `kinds.py`
builds the body of the `can_use_tool` response.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from ..errors import QuestionClosed
from ..model.question import Answer, Closure, FileChange, Question, QuestionKind, Resolution, kind_of, rules_of
from ..model.text import count_of, cut
from .kinds import reply
from .presentation import describe

log = logging.getLogger(__name__)

_CLOSED_KEPT = 2000
_MAX_DETAIL = 500


class Channel(Protocol):
    """Shows questions to a person. `offer` and `withdraw` must not block; exceptions are logged and do not affect other
    channels."""

    @property
    def name(self) -> str: ...

    def offer(self, question: Question) -> None:
        """Show a question that was opened; the channel may answer it through the broker."""

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        """Stop showing a question that was closed, by this channel or otherwise. May be called for a question that was
        never offered here."""


@runtime_checkable
class Follower(Protocol):
    """A channel that shows only the questions of some sessions."""

    def session_moved(self, old: str, new: str) -> None:
        """Note that a session continues under another id."""


Audience = Callable[[Question], Awaitable[bool]]
"""Returns whether a person who can answer the question is present, or gets a notification about it."""

OnClosed = Callable[[Question, Resolution, dict[str, Any] | None], None]
"""Called once when a question closes; the last argument is the reply for the CLI, or None if it needs none."""

Check = Callable[[Question, Answer, dict[str, Any]], None]
"""Called with an answer and its reply. Raises InvalidArgument if the requester does not accept it."""


@dataclass(slots=True)
class _Pending:
    question: Question
    settle: OnClosed
    timer: asyncio.TimerHandle | None
    """Fires at the deadline, or for the next query of the audiences; None if the question has no time limit."""
    check: Check | None
    offered: bool = False


class Broker:
    """All pending questions of a server."""

    def __init__(
        self, timeout: float, redact: Callable[[Any], Any] = lambda data: data, *, endless: bool = False
    ) -> None:
        """`redact` removes secrets from inputs that are shown on one line. With `endless`, questions of sessions have
        no deadline."""
        self._timeout = timeout
        self._endless = endless
        self._audiences: tuple[Audience, ...] = ()
        self._waiting_for_audiences: set[asyncio.Task[None]] = set()
        self._redact = redact
        self._open: dict[str, _Pending] = {}
        self._by_session: dict[str, dict[str, _Pending]] = {}
        """The open questions by session id, then by question id."""
        # Session, reason, channel and detail of recently closed questions, without inputs and answers.
        self._closed: OrderedDict[str, tuple[str, Closure, str, str]] = OrderedDict()
        self._channels: tuple[Channel, ...] = ()

    def add_channel(self, channel: Channel) -> None:
        """Add a channel and offer it all open and all later questions."""
        self._channels = (*self._channels, channel)
        for pending in list(self._open.values()):
            if pending.offered:
                self._offer_to(channel, pending.question)

    def remove_channel(self, channel: Channel) -> None:
        """Remove a channel; its questions stay open for the others."""
        self._channels = tuple(other for other in self._channels if other is not channel)

    def add_audience(self, audience: Audience) -> None:
        """Add an audience: a question does not expire while an audience expects a person."""
        self._audiences = (*self._audiences, audience)

    def seen(self, *question_ids: str) -> None:
        """Note that a person sees these questions: they have no deadline until no audience expects a person any
        more."""
        for question_id in question_ids:
            pending = self._open.get(question_id)
            if pending is not None and pending.question.deadline is not None:
                self._start_timer(pending, has_deadline=False)

    def _start_timer(self, pending: _Pending, *, has_deadline: bool) -> None:
        """Set the question's deadline, or the time at which the audiences are queried again."""
        if pending.timer is not None:
            pending.timer.cancel()
        deadline = time.time() + self._timeout if has_deadline else None
        question = pending.question = replace(pending.question, deadline=deadline)
        pending.timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, question.id)

    def open(
        self,
        session_id: str,
        tool_name: str,
        tool_input: Mapping[str, Any],
        settle: OnClosed,
        *,
        cwd: str = "",
        tool_use_id: str | None = None,
        suggestions: Sequence[Mapping[str, Any]] = (),
        reason: str | None = None,
        blocked_path: str | None = None,
        change: FileChange | None = None,
        modes: Sequence[str] = (),
        mode_after: str | None = None,
        form: Mapping[str, str] | None = None,
        of_client: bool = False,
        check: Check | None = None,
        endless: bool = False,
    ) -> Question:
        """Open a question and offer it to every channel; `settle` is called once, when it closes. An answer that
        `check` rejects leaves it open. An `endless` question has no deadline."""
        now = time.time()
        endless = endless or (self._endless and not of_client)
        question = Question(
            id=f"q-{secrets.token_hex(8)}",
            session_id=session_id,
            kind=kind_of(tool_name) if form is None else QuestionKind.SERVER_FORM,
            tool_name=tool_name,
            tool_input=tool_input,
            description=describe(tool_name, self._redact(tool_input), cwd),
            tool_use_id=tool_use_id,
            suggestions=suggestions,
            session_rules=tuple(rules_of(self._redact([*suggestions]))) if suggestions else (),
            reason=reason,
            blocked_path=blocked_path,
            change=change,
            modes=modes,
            mode_after=mode_after,
            form=form,
            of_client=of_client,
            opened_at=now,
            deadline=None if endless else now + self._timeout,
        )
        loop = asyncio.get_running_loop()
        timer = None if endless else loop.call_later(self._timeout, self._expire, question.id)
        # Before the offer: a channel that answers at once must find it open.
        pending = _Pending(question, settle, timer, check)
        self._open[question.id] = self._by_session.setdefault(session_id, {})[question.id] = pending
        loop.call_soon(self._offer, question.id)
        return question

    def _offer(self, question_id: str) -> None:
        pending = self._open.get(question_id)
        if pending is not None:
            # Before the channels are called: if one of them adds another channel, `add_channel` offers it this
            # question.
            pending.offered = True
            for channel in self._channels:
                self._offer_to(channel, pending.question)

    def _offer_to(self, channel: Channel, question: Question) -> None:
        if question.id in self._open:  # an earlier channel may have answered it
            _notify(question.session_id, channel.offer, question)

    def moved(self, old: str, new: str) -> None:
        """Note that a session continues under another id: channels that follow the old id follow the new one."""
        for channel in self._channels:
            if isinstance(channel, Follower):
                _notify(new, channel.session_moved, old, new)

    def pending(self, session_id: str | None = None) -> list[Question]:
        """The open questions, oldest first, of one session or of all."""
        open_ones = self._open if session_id is None else self._by_session.get(session_id, {})
        return [pending.question for pending in open_ones.values()]

    def find(self, session_id: str, question_id: str) -> Question | None:
        """An open question of a session; None if it is not open."""
        found = self._open.get(question_id)
        return found.question if found is not None and found.question.session_id == session_id else None

    def answer(
        self, session_id: str, question_id: str, answer: Answer, by: str, client: str = "", *, person: bool = False
    ) -> Question:
        """Answer a question, through the channel `by` of a `client`, which may vouch for a `person`. Raises
        QuestionClosed, with the channel that answered it, if it is not open, and InvalidArgument if the answer does not
        fit; then it stays open."""
        found = self._open.get(question_id)
        if found is None or found.question.session_id != session_id:
            raise self.why_closed(session_id, question_id)
        # Everything that may refuse the answer comes before `_close`: a refused answer leaves the question open.
        body = reply(found.question, answer)
        if found.check is not None and answer.allow:
            found.check(found.question, answer, body)
        resolution = Resolution(Closure.ANSWERED, by, answer, at=time.time(), client=client, person=person)
        self._close(question_id, resolution, body)
        return found.question

    def withdraw(self, question_id: str, detail: str) -> None:
        """Close a question that needs no answer any more; a no-op if it is closed."""
        if question_id in self._open:
            self._close(question_id, Resolution(Closure.WITHDRAWN, "claude", None, detail, time.time()), None)

    def withdraw_all(self, session_id: str, detail: str) -> None:
        """Close all open questions of a session without an answer."""
        for question in self.pending(session_id):
            self.withdraw(question.id, detail)

    def _expire(self, question_id: str) -> None:
        if not self._audiences and self._open[question_id].question.deadline is not None:
            self._deny(question_id)
            return
        task = asyncio.ensure_future(self._ask_audiences(question_id))
        self._waiting_for_audiences.add(task)
        task.add_done_callback(self._waiting_for_audiences.discard)

    async def _ask_audiences(self, question_id: str) -> None:
        """Keep a question open while an audience expects a person. Otherwise start its time, or deny it if that is
        over."""
        # The task begins after `_expire` has returned: an answer may have come in between.
        found = self._open.get(question_id)
        if found is None:
            return
        question = found.question
        expected = [await _expects(audience, question) for audience in self._audiences]
        # It may have been answered or seen in the meantime.
        pending = self._open.get(question_id)
        if pending is None or pending.question is not question:
            return
        if any(expected):
            self._start_timer(pending, has_deadline=False)
        elif question.deadline is None:
            self._start_timer(pending, has_deadline=True)
        else:
            self._deny(question_id)

    def _deny(self, question_id: str) -> None:
        question = self._open[question_id].question
        # Not the limit: the question stayed open longer while a person was expected.
        seconds = round(question.deadline - question.opened_at, 2) if question.deadline else self._timeout
        number, unit = (round(seconds / 60, 1), "minute") if seconds >= 60 else (seconds, "second")
        waited = count_of(number, unit, "g")
        denial = Answer(allow=False, message=f"No answer within {waited}, so this was denied.")
        resolution = Resolution(Closure.EXPIRED, "deadline", denial, denial.message or "", time.time())
        self._close(question_id, resolution, reply(question, denial))

    def _close(self, question_id: str, resolution: Resolution, body: dict[str, Any] | None) -> None:
        # Removed before the calls below, so that a second answer from within `settle` finds the question closed.
        pending = self._open.pop(question_id)
        of_session = self._by_session[pending.question.session_id]
        del of_session[question_id]
        if not of_session:
            del self._by_session[pending.question.session_id]
        if pending.timer is not None:
            pending.timer.cancel()
        by, detail = cut(resolution.whose, _MAX_DETAIL), cut(resolution.detail, _MAX_DETAIL)
        self._closed[question_id] = (pending.question.session_id, resolution.closure, by, detail)
        if len(self._closed) > _CLOSED_KEPT:
            self._closed.popitem(last=False)
        try:
            pending.settle(pending.question, resolution, body)
        finally:
            # Also if `settle` fails: an open dialog would ask for an answer that is no longer accepted.
            for channel in self._channels if pending.offered else ():
                _notify(pending.question.session_id, channel.withdraw, pending.question, resolution)

    def why_closed(self, session_id: str, question_id: str) -> QuestionClosed:
        """The error that says why a question is not open."""
        owner, closure, by, detail = self._closed.get(question_id, ("", None, "", ""))
        if closure is None or owner != session_id:
            return QuestionClosed(f"Session {session_id} has no question {question_id!r}.", closed="unknown")
        reason = {
            Closure.ANSWERED: f"was already answered by {by}",
            Closure.EXPIRED: "expired and was denied",
            Closure.WITHDRAWN: f"was withdrawn: {detail}",
        }[closure]
        return QuestionClosed(f"Question {question_id!r} {reason}.", closed=str(closure), by=by)


async def _expects(audience: Audience, question: Question) -> bool:
    try:
        return await audience(question)
    except Exception:
        log.exception("%r failed on question %s of session %s", audience, question.id, question.session_id)
        return False


def _notify(session_id: str, callback: Callable[..., None], *arguments: object) -> None:
    """Call a channel; exceptions are logged."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("channel %s failed for session %s", getattr(callback, "__qualname__", callback), session_id)
