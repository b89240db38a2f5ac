"""The broker: holds every pending question and offers it to all channels at once; the first answer wins.

The queue that a caller polls is `pending`; other channels (a dialog in the client, the terminal, a chat) register
themselves. `answer` hands the reply to the process within the call, without awaiting anything; only the offer comes
one step of the event loop after the opening, so that a channel may answer at once and still finds the session waiting.

A question that nobody answers in time counts as denied. The time begins when it opens, or later, when a person is first
shown it (`seen`): as long as some audience expects a person who has not seen it, it stays open, up to a day.

An answer that does not fit its question is refused with InvalidArgument, and nothing is sent; `reply` makes the body of
the `can_use_tool` response of one that does. It is pure.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from ..errors import InvalidArgument, QuestionClosed
from ..model.question import Answer, Closure, FileChange, Question, QuestionKind, Resolution, Scope, kind_of, rules_of
from ..model.text import count_of, cut, one_line
from .presentation import describe, refuse_cut

_DENIALS = {
    QuestionKind.PERMISSION: "The user denied this.",
    QuestionKind.PLAN_REVIEW: "The user did not approve the plan.",
    QuestionKind.USER_QUESTION: "The user chose not to answer; go on with your best judgement.",
}
_LONGEST_QUESTION = 200
_REQUIRED = {
    "Agent": ("description", "prompt"),
    "Bash": ("command",),
    "Edit": ("file_path", "old_string", "new_string"),
    "Glob": ("pattern",),
    "Grep": ("pattern",),
    "MultiEdit": ("file_path", "edits"),
    "NotebookEdit": ("notebook_path", "new_source"),
    "Read": ("file_path",),
    "Skill": ("skill",),
    "Task": ("description", "prompt"),
    "WebFetch": ("url", "prompt"),
    "WebSearch": ("query",),
    "Write": ("file_path", "content"),
}
"""The fields without which Claude Code's own tools do not run."""


def reply(question: Question, answer: Answer) -> dict[str, Any]:
    """The response for the CLI; InvalidArgument if the answer does not fit the question."""
    if not answer.allow:
        return _denial(question, answer)
    body: dict[str, Any] = {"behavior": "allow", "updatedInput": _updated_input(question, answer)}
    if answer.scope is Scope.SESSION:
        body["updatedPermissions"] = _session_permissions(question)
    mode = chosen_mode(question, answer)
    if mode is not None:
        change = {"type": "setMode", "mode": mode, "destination": "session"}
        body["updatedPermissions"] = [*body.get("updatedPermissions", ()), change]
    return body


def chosen_mode(question: Question, answer: Answer) -> str | None:
    """The permission mode that an allowance leads to; None leaves it as it is, or to Claude Code."""
    if answer.mode is not None and question.kind is not QuestionKind.PLAN_REVIEW:
        raise InvalidArgument(
            "permission_mode: only the approval of a plan comes with a mode.", field="permission_mode"
        )
    if answer.mode is not None and answer.mode not in question.modes:
        choices = f"it can be {', '.join(question.modes)}" if question.modes else "none can be chosen here"
        raise InvalidArgument(f"permission_mode: {answer.mode!r} cannot follow; {choices}.", field="permission_mode")
    return answer.mode or (question.mode_after if question.kind is QuestionKind.PLAN_REVIEW else None)


def _denial(question: Question, answer: Answer) -> dict[str, Any]:
    if answer.updated_input is not None or answer.answers is not None or answer.mode is not None:
        raise InvalidArgument("A denial takes a reason, not an updated input, answers or a mode.")
    body = {"behavior": "deny", "message": answer.message or _DENIALS[question.kind]}
    return {**body, "interrupt": True} if answer.interrupt else body


def _session_permissions(question: Question) -> list[dict[str, Any]]:
    # The CLI would write some of its suggestions into the project's settings; what was allowed for a session
    # must not outlive it.
    suggestions = [rule for rule in question.suggestions if isinstance(rule, Mapping)]
    if not suggestions:
        raise InvalidArgument(
            "Claude Code offers no rule that would allow this for the whole session; allow it once instead."
        )
    return [{**rule, "destination": "session"} for rule in suggestions]


def _updated_input(question: Question, answer: Answer) -> dict[str, Any]:
    if answer.updated_input is not None:
        if not answer.updated_input and question.kind is QuestionKind.PERMISSION and question.tool_input:
            # Claude Code takes an empty object for "unchanged" and would run what was asked.
            raise InvalidArgument("updated_input: must not be empty; deny the call instead.", field="updated_input")
        refuse_cut(answer.updated_input, question.tool_input)
        if question.kind is QuestionKind.PERMISSION:
            _refuse_partial(question, answer.updated_input)
    edited = dict(question.tool_input if answer.updated_input is None else answer.updated_input)
    if question.kind is not QuestionKind.PERMISSION:
        # A plan or a set of questions is edited in part: what is left out stays as it was.
        edited = {**question.tool_input, **edited}
    answers: object = answer.answers
    if answers is None and question.kind is QuestionKind.USER_QUESTION:
        answers = (answer.updated_input or {}).get("answers")
    by_text = answers_by_text(question, answers) if answers is not None else {}
    if not any(by_text.values()) and _needs_answers(question):
        asked = "; ".join(one_line(choice.question, _LONGEST_QUESTION) for choice in question.choices)
        raise _misfit(f"answers: required to allow this question ({asked}); deny it to leave it unanswered.")
    return edited if answers is None else {**edited, "answers": by_text}


def _refuse_partial(question: Question, updated: Mapping[str, Any]) -> None:
    """Claude Code would take such an input for the answer, and fail the call: the question would be used up."""
    required = _REQUIRED.get(question.tool_name, ())
    # Only fields that the call itself has: another version of the CLI may name them differently.
    missing = [name for name in required if name in question.tool_input and name not in updated]
    if missing:
        raise InvalidArgument(
            f"updated_input: {', '.join(missing)} is missing; it must be the whole input of {question.tool_name}.",
            field="updated_input",
        )


def _needs_answers(question: Question) -> bool:
    """Whether to allow it says nothing by itself. Not so for a form of which no field has to be filled in."""
    return any(choice.field is None or choice.field.get("required") for choice in question.choices)


def answers_by_text(question: Question, answers: object) -> dict[str, str]:
    """Answers keyed by question text, several labels joined, from a mapping or a list in order.

    A mapping goes by the text of a question, its header or its number from 1. A text alone answers a question
    that is the only one.
    """
    return {text: _joined(value) for text, value in labels_by_text(question, answers).items()}


def labels_by_text(question: Question, answers: object) -> dict[str, str | Sequence[str]]:
    """Answers keyed by question text like `answers_by_text`, but with several labels still in a list."""
    if question.kind is not QuestionKind.USER_QUESTION:
        raise _misfit(f"Answers fit a user question; this is a {question.kind}.")
    if isinstance(answers, Mapping):
        return _from_mapping(question, answers)
    if isinstance(answers, str) and len(question.choices) == 1:
        answers = [answers]
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise _misfit("Answers are a mapping from question to answer, or a list in the order of the questions.")
    if len(answers) > len(question.choices):
        raise _misfit(f"{len(answers)} answers for {len(question.choices)} question(s).")
    return {choice.question: _labels(value) for choice, value in zip(question.choices, answers, strict=False)}


def _from_mapping(question: Question, answers: Mapping[Any, object]) -> dict[str, str | Sequence[str]]:
    by_text: dict[str, str | Sequence[str]] = {}
    for key, value in answers.items():
        text = _question_text(question, str(key))
        if text in by_text:
            raise _misfit(f"{text!r} is answered twice.")
        by_text[text] = _labels(value)
    return by_text


def _question_text(question: Question, key: str) -> str:
    """The text of the part of a question that is meant by its text, its header or its number."""
    texts = [choice.question for choice in question.choices]
    headers = {choice.header: choice.question for choice in reversed(question.choices) if choice.header}
    numbers = {str(number): text for number, text in enumerate(texts, 1)}
    if key in texts:
        return key
    if key in headers or key in numbers:
        return headers.get(key) or numbers[key]
    raise _misfit(f"There is no question {key!r}; there is {', '.join(map(repr, texts))}.")


def _labels(value: object) -> str | Sequence[str]:
    """A label or free text, or several labels."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence) or not all(isinstance(label, str) for label in value):
        raise _misfit(f"An answer is a text or a list of labels, not {value!r}.")
    return value


def _joined(value: str | Sequence[str]) -> str:
    """An answer as the CLI takes it: several labels separated by commas."""
    return value if isinstance(value, str) else ", ".join(value)


def _misfit(why: str) -> InvalidArgument:
    return InvalidArgument(why, field="answers")


def put_back(updated: Any, shown: Any, original: Any, mark: str) -> Any:
    """The input that a caller edited on the basis of a redacted one, with the secrets back in it.

    Every part that is still as it was `shown` becomes the `original` again; the items of a list that got longer or
    shorter are found by what they are. InvalidArgument if the caller changed or added a text and left the `mark` of a
    secret in it: what belongs there is not known, and the tool would be run with the mark itself.
    """
    # Compared as a whole first: a part that was not touched becomes the original with its secrets.
    if updated == shown:
        return original
    if isinstance(updated, Mapping) and isinstance(shown, Mapping) and isinstance(original, Mapping):
        return {
            key: put_back(value, shown[key], original[key], mark)
            if key in shown and key in original
            else _without_mark(value, mark, hidden=shown != original)
            for key, value in updated.items()
        }
    if isinstance(updated, list) and isinstance(shown, list) and isinstance(original, list | tuple):
        if len(updated) == len(shown) == len(original):
            return [put_back(*items, mark) for items in zip(updated, shown, original, strict=True)]
        return _items_put_back(updated, shown, original, mark)
    return _without_mark(updated, mark, hidden=shown != original)


def _items_put_back(updated: list[Any], shown: list[Any], original: Sequence[Any], mark: str) -> list[Any]:
    """Of a list with more or fewer items, where the places say nothing any more."""
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for at, item in enumerate(shown[: len(original)]):
        places[json.dumps(item, sort_keys=True)].append(at)
    hidden = shown != list(original)
    found = []
    for item in updated:
        same = places.get(json.dumps(item, sort_keys=True))
        found.append(original[same.popleft()] if same else _without_mark(item, mark, hidden=hidden))
    return found


def _without_mark(value: Any, mark: str, *, hidden: bool) -> Any:
    """The value, unless the mark of a secret is in it where one was hidden: InvalidArgument then."""
    # The mark has nothing in it that JSON would escape.
    if hidden and mark in json.dumps(value, ensure_ascii=False):
        raise InvalidArgument(
            f"updatedInput changes a text in which {mark} stands for a secret that was not shown. "
            "Leave that text as it is, or write it whole.",
            field="updatedInput",
        )
    return value


# -- the broker --------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_CLOSED_KEPT = 2000
_LONGEST_DETAIL = 500
_LONGEST_UNSEEN = 86_400.0
"""Seconds after which a question that nobody has seen is denied, whoever is expected."""


class Channel(Protocol):
    """Something that puts questions to a person. `offer` and `withdraw` must not block; if they raise, that is logged
    and the other channels go on."""

    @property
    def name(self) -> str: ...

    def offer(self, question: Question) -> None:
        """A question opened; the channel may answer it through the broker."""

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        """The question is closed, by this channel or otherwise. May come for one that was never offered here."""


@runtime_checkable
class Follower(Protocol):
    """A channel that shows the questions of some sessions only."""

    def session_moved(self, old: str, new: str) -> None:
        """The session goes on under another id."""


Audience = Callable[[Question], Awaitable[bool]]
"""Whether a person who can answer the question may still come to see it."""

Settle = Callable[[Question, Resolution, dict[str, Any] | None], None]
"""Called once when a question closes; the last argument is the reply for the CLI, None if it wants none."""

Check = Callable[[Question, Answer, dict[str, Any]], None]
"""Called with an answer and the reply that it would be; InvalidArgument if the asker cannot take it."""


@dataclass(slots=True)
class _Pending:
    question: Question
    settle: Settle
    timer: asyncio.TimerHandle | None
    """None for a question that waits as long as its session."""
    check: Check | None
    offered: bool = False
    seen: bool = False


class Broker:
    """All pending questions of a server."""

    def __init__(
        self, timeout: float, redact: Callable[[Any], Any] = lambda data: data, *, endless: bool = False
    ) -> None:
        """`redact` takes secrets out of an input before it is put in one line. With `endless` the questions of sessions
        have no deadline."""
        self._timeout = timeout
        self._endless = endless
        self._audiences: tuple[Audience, ...] = ()
        self._waiting_for_audiences: set[asyncio.Task[None]] = set()
        self._redact = redact
        self._open: dict[str, _Pending] = {}
        # Session, reason, channel and detail of the latest closed questions: no inputs, no answers.
        self._closed: OrderedDict[str, tuple[str, Closure, str, str]] = OrderedDict()
        self._channels: tuple[Channel, ...] = ()

    def add_channel(self, channel: Channel) -> None:
        """From now on the channel is offered every question, those that are open first."""
        self._channels = (*self._channels, channel)
        for pending in list(self._open.values()):
            if pending.offered:
                self._offer_to(channel, pending.question)

    def remove_channel(self, channel: Channel) -> None:
        """The channel gets nothing more; questions that it was offered stay open for the others."""
        self._channels = tuple(other for other in self._channels if other is not channel)

    def add_audience(self, audience: Audience) -> None:
        """From now on a question does not expire while this expects somebody who has not seen it."""
        self._audiences = (*self._audiences, audience)

    def seen(self, *question_ids: str) -> None:
        """A person is shown these questions: the time of each begins now, the first time that this happens."""
        for question_id in question_ids:
            pending = self._open.get(question_id)
            if pending is None or pending.seen:
                continue
            pending.seen = True
            if pending.timer is not None:
                pending.timer.cancel()
                self._begin_time(pending)

    def _begin_time(self, pending: _Pending) -> None:
        """The question has the whole time from now on."""
        question = replace(pending.question, deadline=time.time() + self._timeout)
        pending.question = question
        pending.timer = asyncio.get_running_loop().call_later(self._timeout, self._expire, question.id)

    def open(
        self,
        session_id: str,
        tool_name: str,
        tool_input: Mapping[str, Any],
        settle: Settle,
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
    ) -> Question:
        """Opens a question, to be offered to every channel; `settle` is called once, when it closes. An answer that
        `check` refuses leaves it open."""
        now = time.time()
        endless = self._endless and not of_client
        question = Question(
            id=f"q-{secrets.token_hex(8)}",
            session_id=session_id,
            kind=kind_of(tool_name),
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
        self._open[question.id] = _Pending(question, settle, timer, check)
        loop.call_soon(self._offer, question.id)
        return question

    def _offer(self, question_id: str) -> None:
        pending = self._open.get(question_id)
        if pending is not None:
            # Before the channels are called: one that is added by another
            # is offered it by `add_channel`, which looks at this.
            pending.offered = True
            for channel in self._channels:
                self._offer_to(channel, pending.question)

    def _offer_to(self, channel: Channel, question: Question) -> None:
        if question.id in self._open:  # a channel before this one may have answered it
            _notify(question.session_id, channel.offer, question)

    def moved(self, old: str, new: str) -> None:
        """A session goes on under another id: channels that follow the old one follow the new one."""
        for channel in self._channels:
            if isinstance(channel, Follower):
                _notify(new, channel.session_moved, old, new)

    def pending(self, session_id: str | None = None) -> list[Question]:
        """The open questions, oldest first; of one session or of all."""
        questions = (pending.question for pending in self._open.values())
        return [question for question in questions if session_id in (None, question.session_id)]

    def find(self, session_id: str, question_id: str) -> Question | None:
        """An open question of a session; None if it is not open."""
        found = self._open.get(question_id)
        return found.question if found is not None and found.question.session_id == session_id else None

    def answer(self, session_id: str, question_id: str, answer: Answer, by: str, client: str = "") -> Question:
        """Answers a question, through the channel `by` of a `client`. QuestionClosed if it is not open, with who
        answered it; InvalidArgument if the answer does not fit, which leaves it open."""
        found = self._open.get(question_id)
        if found is None or found.question.session_id != session_id:
            raise self.why_closed(session_id, question_id)
        # Everything that may refuse the answer comes before `_close`: a refused answer leaves the question open.
        body = reply(found.question, answer)
        if found.check is not None and answer.allow:
            found.check(found.question, answer, body)
        self._close(question_id, Resolution(Closure.ANSWERED, by, answer, at=time.time(), client=client), body)
        return found.question

    def withdraw(self, question_id: str, detail: str) -> None:
        """Closes a question that needs no answer any more; a no-op for one that is closed."""
        if question_id in self._open:
            self._close(question_id, Resolution(Closure.WITHDRAWN, "claude", None, detail, time.time()), None)

    def withdraw_all(self, session_id: str, detail: str) -> None:
        """Withdraws every open question of a session."""
        for question in self.pending(session_id):
            self.withdraw(question.id, detail)

    def _expire(self, question_id: str) -> None:
        pending = self._open[question_id]
        late = time.time() - pending.question.opened_at > _LONGEST_UNSEEN
        if pending.seen or late or not self._audiences:
            self._deny(question_id)
            return
        task = asyncio.ensure_future(self._ask_audiences(question_id))
        self._waiting_for_audiences.add(task)
        task.add_done_callback(self._waiting_for_audiences.discard)

    async def _ask_audiences(self, question_id: str) -> None:
        """Denies an unseen question that nobody is expected to see; else looks again after as long as before."""
        # The task begins after `_expire` has returned: an answer may have come in between.
        unseen = self._open.get(question_id)
        if unseen is None:
            return
        question = unseen.question
        expected = [await _expects(audience, question) for audience in self._audiences]
        # It may have been answered or seen meanwhile.
        pending = self._open.get(question_id)
        if pending is None or pending.seen:
            return
        if not any(expected):
            self._deny(question_id)
            return
        self._begin_time(pending)

    def _deny(self, question_id: str) -> None:
        question = self._open[question_id].question
        # Not the limit: a question that somebody was expected to see has stayed open for several times that.
        seconds = round(question.deadline - question.opened_at, 2) if question.deadline else self._timeout
        number, unit = (round(seconds / 60, 1), "minute") if seconds >= 60 else (seconds, "second")
        waited = count_of(number, unit, "g")
        denial = Answer(allow=False, message=f"Nobody answered within {waited}, so this was denied.")
        resolution = Resolution(Closure.EXPIRED, "deadline", denial, denial.message or "", time.time())
        self._close(question_id, resolution, reply(question, denial))

    def _close(self, question_id: str, resolution: Resolution, body: dict[str, Any] | None) -> None:
        # Removed before anybody is called, so that a second answer from within `settle` finds the question closed.
        pending = self._open.pop(question_id)
        if pending.timer is not None:
            pending.timer.cancel()
        by, detail = cut(resolution.whose, _LONGEST_DETAIL), cut(resolution.detail, _LONGEST_DETAIL)
        self._closed[question_id] = (pending.question.session_id, resolution.closure, by, detail)
        if len(self._closed) > _CLOSED_KEPT:
            self._closed.popitem(last=False)
        try:
            pending.settle(pending.question, resolution, body)
        finally:
            # Also if `settle` fails: a dialog that stayed open would ask for an answer that nobody can give any more.
            for channel in self._channels if pending.offered else ():
                _notify(pending.question.session_id, channel.withdraw, pending.question, resolution)

    def why_closed(self, session_id: str, question_id: str) -> QuestionClosed:
        """What became of a question that is not open."""
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
    """Calls a channel; what it raises is logged and concerns nobody else."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("channel %s failed for session %s", getattr(callback, "__qualname__", callback), session_id)
