"""Notification preferences: what, where and when. They are changed in transactions, so that two servers do not
overwrite each other."""

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, tzinfo
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ...core.errors import InvalidArgument, LimitReached, UpstreamUnavailable
from ...core.model.events import BudgetWarned, Event, QuestionOpened, Stalled, TurnEnded, WaitChanged
from ...core.model.outcome import OutcomeCode
from ...core.model.text import clip_line, iso
from ...core.questions.kinds import kind_class
from ...core.redaction import Redactor
from ...core.state.database import Database
from ...core.state.documents import Documents, JsonObject

_MAX_RECEIVERS = 20
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")

News = Literal["question", "ended", "stalled", "budget"]
ALL_NEWS: tuple[News, ...] = ("question", "ended", "stalled", "budget")
_FIRST_NEWS = ("question", "ended", "stalled")
"""The kinds that existed before preferences recorded which kinds there were."""


def _check_time(text: str) -> str:
    if _TIME.fullmatch(text) is None:
        raise ValueError("must be a time such as 22:00")
    return text


def _check_zone(name: str) -> str:
    zone_of(name)
    return name


def zone_of(name: str) -> tzinfo:
    """A time zone by name. Raises ValueError if unknown."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError("is not a known time zone") from None


ClockTime = Annotated[str, AfterValidator(_check_time)]
Zone = Annotated[str, Field(max_length=64), AfterValidator(_check_zone)]


class QuietHours(BaseModel):
    """A part of every day in which nothing is sent; it spans midnight if it ends before it begins."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)

    begins: ClockTime = Field(alias="from")
    ends: ClockTime = Field(alias="to")
    timezone: Zone = "UTC"

    def hold(self, moment: datetime) -> bool:
        """Whether they apply at this moment."""
        now = moment.astimezone(zone_of(self.timezone)).time()
        begins, ends = time.fromisoformat(self.begins), time.fromisoformat(self.ends)
        return begins <= now < ends if begins <= ends else now >= begins or now < ends


class Receiver(BaseModel):
    """A receiver of notifications. Its secrets leave the database only to be used. A receiver of a later version is
    kept unchanged, with fields that only that version knows; it is skipped when sending."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str
    kind: str
    """A name in `KINDS` of `receivers.py`, or one of a later version."""
    url: str
    """The endpoint of a subscription, or the address of a webhook or topic."""
    device: str = ""
    created_at: float
    secret: str = ""
    """The key for signing a webhook's requests."""
    token: str = ""
    """For a topic that requires one."""
    public_key: str = ""
    auth: str = ""
    """Of a subscription, in base64url."""


class Preferences(BaseModel):
    """The preferences of one principal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    principal: str
    events: tuple[News, ...] = ALL_NEWS
    chosen_from: tuple[str, ...] = ALL_NEWS
    """The kinds that existed when `events` was chosen: newer kinds were not refused."""
    quiet_hours: QuietHours | None = None
    receivers: tuple[Receiver, ...] = ()

    @property
    def pushes_questions(self) -> bool:
        """Whether questions are pushed to a receiver."""
        return bool(self.receivers) and "question" in self.events

    def wants(self, news: str, moment: datetime) -> bool:
        """Whether a notification of this kind should be sent now."""
        quiet = self.quiet_hours is not None and self.quiet_hours.hold(moment)
        return news in self.events and not quiet


class PreferenceStore:
    """The preferences in one state directory. Every method blocks on the disk."""

    def __init__(self, database: Database) -> None:
        self._documents = Documents(database, "push")

    def read(self, principal: str) -> Preferences:
        """A principal's preferences; the defaults without any. Raises OSError if they cannot be read now,
        UpstreamUnavailable if they are damaged or from a later version."""
        try:
            return preferences_in(principal, self._documents.read(principal))
        except ValueError:
            raise _damaged() from None

    def principals(self) -> list[str]:
        """Everyone with preferences. Raises OSError."""
        return self._documents.keys()

    def update(self, principal: str, change: Callable[[Preferences], Preferences]) -> Preferences:
        """Changes a principal's preferences; on disk on return. Raises OSError; unreadable preferences are never
        replaced."""
        changed: list[Preferences] = []

        def replace(document: JsonObject | None) -> JsonObject:
            try:
                current = preferences_in(principal, document)
            except ValidationError:
                # Not the defaults: they would replace all stored receivers, which are only unreadable.
                raise _damaged() from None
            changed.append(change(current))
            return changed[-1].model_dump(mode="json", by_alias=True)

        self._documents.update(principal, replace, durable=True)
        return changed[-1]

    def add(self, principal: str, receiver: Receiver) -> Preferences:
        """Like `update`, with `with_receiver`."""
        return self.update(principal, lambda current: with_receiver(current, receiver))


def with_receiver(current: Preferences, receiver: Receiver) -> Preferences:
    """With one more receiver, which replaces one with the same address. Raises LimitReached if there are too many."""
    others = tuple(other for other in current.receivers if (other.kind, other.url) != (receiver.kind, receiver.url))
    if len(others) >= _MAX_RECEIVERS:
        raise LimitReached(f"You already have {_MAX_RECEIVERS} receivers; remove one first.")
    return current.model_copy(update={"receivers": (*others, receiver)})


def without_receiver(current: Preferences, receiver_id: str) -> Preferences:
    """Without a receiver. Raises InvalidArgument for an unknown id."""
    others = tuple(other for other in current.receivers if other.id != receiver_id)
    if len(others) == len(current.receivers):
        raise InvalidArgument("There is no such receiver.", field="id")
    return current.model_copy(update={"receivers": others})


def preferences_in(principal: str, document: JsonObject | None) -> Preferences:
    """The stored preferences of a principal; the defaults without any. Raises ValidationError."""
    if document is None:
        return Preferences(principal=principal)
    known = document.get("chosen_from", _FIRST_NEWS)
    if "events" in document:
        newer = [kind for kind in ALL_NEWS if kind not in known and kind not in document["events"]]
        document = {**document, "events": [*document["events"], *newer]}
    return Preferences.model_validate({**document, "chosen_from": ALL_NEWS})


def _damaged() -> UpstreamUnavailable:
    return UpstreamUnavailable("Your stored push receivers are damaged. Remove them and add them again.")


def new_id() -> str:
    return secrets.token_hex(8)


# -- news -------------------------------------------------------------------------------------------------------------


_MAX_TITLE = 80
_MAX_BODY = 300
_BY_A_PERSON = frozenset({OutcomeCode.INTERRUPTED, OutcomeCode.CANCELLED, OutcomeCode.DROPPED})
_NOT_ANNOUNCED = _BY_A_PERSON | {OutcomeCode.LIMIT_REACHED}
"""A usage limit is announced with the following `WaitChanged`, which says when the session continues."""
_HOUR = 3600.0
_DAY = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification: what happened, in which session, and until when it is relevant."""

    kind: str
    session_id: str
    title: str
    body: str
    at: float
    expires_at: float
    """When it is no longer relevant."""
    question_id: str | None = None

    @property
    def tag(self) -> str:
        """An id shared by notifications of which the newest replaces the others."""
        # Of two budgets that are low at the same time, neither notification replaces the other.
        subject = self.body if self.kind == "budget" else self.kind
        return hashlib.sha256(f"{self.session_id} {subject}".encode()).hexdigest()[:32]

    @property
    def path(self) -> str:
        """The page's path where it can be answered, after signing in."""
        if self.kind == "budget":
            return "#/costs"
        if not self.session_id:
            return "#/"
        question = f"/questions/{self.question_id}" if self.question_id else ""
        return f"#/sessions/{self.session_id}{question}"

    def fields(self, base: str) -> dict[str, Any]:
        """For receivers that accept data; `base` is the address of the page."""
        return {
            "kind": self.kind,
            "title": self.title,
            "body": self.body,
            "sessionId": self.session_id or None,
            "questionId": self.question_id,
            "url": base + self.path,
            "tag": self.tag,
            "at": iso(self.at),
        }


def notice_of(session_id: str, event: Event, title: Callable[[], str], redactor: Redactor) -> Notice | None:
    """The notification for an event; None for an event without one, such as a turn that the person interrupted."""

    def notice(kind: str, body: str, expires_at: float, question_id: str | None = None) -> Notice:
        clean = (redactor.text(title()), redactor.text(body))
        shown = (clip_line(clean[0], _MAX_TITLE) or "A session", clip_line(clean[1], _MAX_BODY))
        return Notice(kind, session_id, *shown, event.at, expires_at, question_id)

    match event:
        case QuestionOpened(question=question):
            body = kind_class(question.kind).push_text(question)
            return notice("question", body, event.at + _HOUR, question.id)
        case WaitChanged(wait=wait, stopped=True) if wait is not None:
            return notice("ended", f"Stopped: {wait.sentence}", event.at + _DAY)
        case TurnEnded(outcome=outcome) if outcome.code not in _NOT_ANNOUNCED:
            body = f"Finished: {outcome.result}" if outcome.ok else f"Failed ({outcome.code}): {outcome.detail}"
            return notice("ended", body, event.at + _HOUR)
        case Stalled(seconds=seconds):
            return notice("stalled", f"No output for {seconds:.0f} seconds.", event.at + _HOUR)
        case BudgetWarned(line=line):
            return notice("budget", line, event.at + _DAY)
    return None


def trial_notice(at: float) -> Notice:
    """A test notification."""
    return Notice("test", "", "Claude Code", "This is a test notification.", at, at + 60)
