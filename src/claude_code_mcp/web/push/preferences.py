"""Where and when a principal wants to be told: receivers, kinds of news and quiet hours.

They are changed in transactions, so that two servers lose nothing of each other's.
"""

import logging
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, time, tzinfo
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ...errors import InvalidArgument, LimitReached, UpstreamUnavailable
from ...state.database import Database
from ...state.documents import Documents, JsonObject

log = logging.getLogger(__name__)

_MOST_RECEIVERS = 20
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")

News = Literal["question", "ended", "stalled"]
ALL_NEWS: tuple[News, ...] = ("question", "ended", "stalled")
Kind = Literal["webpush", "webhook", "ntfy"]


def _check_time(text: str) -> str:
    if _TIME.fullmatch(text) is None:
        raise ValueError("must be a time such as 22:00")
    return text


def _check_zone(name: str) -> str:
    zone_of(name)
    return name


def zone_of(name: str) -> tzinfo:
    """A time zone by its name; ValueError if there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise ValueError("is no time zone of this machine") from None


ClockTime = Annotated[str, AfterValidator(_check_time)]
Zone = Annotated[str, Field(max_length=64), AfterValidator(_check_zone)]


class QuietHours(BaseModel):
    """A part of every day in which nothing is told; over midnight if it ends before it begins."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)

    begins: ClockTime = Field(alias="from")
    ends: ClockTime = Field(alias="to")
    timezone: Zone = "UTC"

    def hold(self, moment: datetime) -> bool:
        """Whether they hold at this moment."""
        now = moment.astimezone(zone_of(self.timezone)).time()
        begins, ends = time.fromisoformat(self.begins), time.fromisoformat(self.ends)
        return begins <= now < ends if begins <= ends else now >= begins or now < ends


class Receiver(BaseModel):
    """Where news go to. The secrets in it leave the database only to be used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    kind: Kind
    url: str
    """The endpoint of a subscription, the address of a webhook, or that of a topic."""
    device: str = ""
    created_at: float
    secret: str = ""
    """What a webhook's requests are signed with."""
    token: str = ""
    """For a topic that needs one."""
    public_key: str = ""
    auth: str = ""
    """Of a subscription, in base64url."""


class Preferences(BaseModel):
    """All that one principal has chosen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    principal: str
    events: tuple[News, ...] = ALL_NEWS
    quiet_hours: QuietHours | None = None
    receivers: tuple[Receiver, ...] = ()

    def wants(self, news: str, moment: datetime) -> bool:
        """Whether news of this kind are to be told at this moment."""
        quiet = self.quiet_hours is not None and self.quiet_hours.hold(moment)
        return news in self.events and not quiet


class PreferenceStore:
    """Those in one state directory. Every method blocks on the disk."""

    def __init__(self, database: Database) -> None:
        self._documents = Documents(database, "push")

    def read(self, principal: str) -> Preferences:
        """What a principal has chosen; the defaults if there is nothing, or nothing that can be read."""
        try:
            return _preferences(principal, self._documents.read(principal))
        except (OSError, ValidationError) as error:
            log.error("the push receivers of %s cannot be read: %s", principal, type(error).__name__)
            return Preferences(principal=principal)

    def update(self, principal: str, change: Callable[[Preferences], Preferences]) -> Preferences:
        """Changes what a principal has chosen; on disk when this returns. OSError if that cannot be done; what cannot
        be read is never replaced."""
        changed: list[Preferences] = []

        def replace(document: JsonObject | None) -> JsonObject:
            try:
                current = _preferences(principal, document)
            except ValidationError:
                raise UpstreamUnavailable("What was kept of your push receivers is damaged.") from None
            changed.append(change(current))
            return changed[-1].model_dump(mode="json", by_alias=True)

        self._documents.update(principal, replace, durable=True)
        return changed[-1]

    def add(self, principal: str, receiver: Receiver) -> Preferences:
        """Adds a receiver, in place of one with the same address. LimitReached if there are too many."""

        def change(current: Preferences) -> Preferences:
            others = tuple(
                other for other in current.receivers if (other.kind, other.url) != (receiver.kind, receiver.url)
            )
            if len(others) >= _MOST_RECEIVERS:
                raise LimitReached(f"There are {_MOST_RECEIVERS} receivers already; remove one first.")
            return current.model_copy(update={"receivers": (*others, receiver)})

        return self.update(principal, change)

    def remove(self, principal: str, receiver_id: str) -> None:
        """Removes a receiver. InvalidArgument if there is none with this id."""

        def change(current: Preferences) -> Preferences:
            others = tuple(other for other in current.receivers if other.id != receiver_id)
            if len(others) == len(current.receivers):
                raise InvalidArgument("There is no such receiver.", field="id")
            return current.model_copy(update={"receivers": others})

        self.update(principal, change)


def _preferences(principal: str, document: JsonObject | None) -> Preferences:
    return Preferences(principal=principal) if document is None else Preferences.model_validate(document)


def new_id() -> str:
    return secrets.token_hex(8)
