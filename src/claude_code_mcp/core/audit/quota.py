"""Limits how many lines of the audit trail one caller can cause. Pure: the clock is a parameter.

The trail has a limited size. A caller who repeats an act must not be able to hide an act among many others, nor to push
out the lines that a later investigation needs.

- Each caller has a number of lines for each kind of act in `QUOTAS`; it fills up again slowly.
- Acts of one kind are grouped by their subject (`_GROUPED_BY`), and by session if its commands can cause them. For
  example, a refused directory and an unknown session are in different groups. The first act of a group in each minute
  always has a line.
- An act that equals the previous one in its group has no line, except for a failed authentication.
- Acts without a line are counted. Once a minute, the `count` is written with the details of the last one.
- All other kinds of acts are important: each act has a line.

These quotas refill within minutes, so a caller who never stops fills the trail within hours. Therefore the lines of
`ESSENTIAL` acts are also written to a second file, where each caller has few lines of each act per day.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..model.events import AuditEvent, AuditKind

_MINUTE = 60.0
_MINUTES_OF_DAY = 24 * 60
_MAX_GROUPS = 50
"""Maximum groups per caller and kind; further acts share one group."""
_GROUPED_BY = ("code", "field", "action", "on", "decision", "rule", "occasion", "access")

_OF_SESSIONS = frozenset({AuditKind.CALL_DENIED, AuditKind.NETWORK_REFUSED, AuditKind.CREDENTIAL_USED})
"""Kinds that a session's command can cause: grouped by session, so that one session cannot hide the acts of another.
Session ids of other kinds may be any text from the caller."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How many lines a caller can have at once, and how many are added per minute."""

    lines: float
    per_minute: float
    folds: bool = True
    """Whether an act equal to the previous one gets no line."""


QUOTAS: Mapping[AuditKind, Quota] = {
    AuditKind.AUTH_FAILED: Quota(20, 20, folds=False),  # they have no details that differ
    AuditKind.REFUSED: Quota(200, 20),
    AuditKind.CALL_DENIED: Quota(200, 20),
    AuditKind.NETWORK_REFUSED: Quota(200, 20),
    AuditKind.CREDENTIAL_USED: Quota(200, 60),
    AuditKind.HUB_CALLED: Quota(1000, 60),
    AuditKind.SESSION_MANAGED: Quota(200, 60),
    **dict.fromkeys(
        (
            AuditKind.INTERRUPTED,
            AuditKind.CANCELLED,
            AuditKind.BYPASS_SWITCHED,
            AuditKind.SESSION_SHARED,
            AuditKind.SESSION_UNSHARED,
            AuditKind.HUB_STEERED,
            AuditKind.GRANT_STOLEN,
            AuditKind.SIGNED_IN,
            AuditKind.SIGNED_OUT,
            AuditKind.TICKET_GIVEN,
            AuditKind.PUSH_CHANGED,
        ),
        Quota(60, 10),
    ),
}
"""The kinds of acts that a caller, or a session's command, can repeat at will."""

ESSENTIAL: Mapping[str, float] = {
    **dict.fromkeys(
        (
            AuditKind.SERVER_STARTED,
            AuditKind.SERVER_STOPPED,
            AuditKind.CALLERS_CHANGED,
            AuditKind.CALLER_ENDED,
            AuditKind.TOKENS_UNUSABLE,
            AuditKind.BUDGET_WARNED,
        ),
        math.inf,
    ),
    **dict.fromkeys(
        (
            AuditKind.CALL_DENIED,
            AuditKind.BYPASS_SWITCHED,
            AuditKind.SESSION_SHARED,
            AuditKind.SESSION_UNSHARED,
            AuditKind.HUB_STEERED,
            AuditKind.SIGNED_IN,
            AuditKind.SIGNED_OUT,
            AuditKind.TICKET_GIVEN,
            AuditKind.CLIENT_ALLOWED,
            AuditKind.PASSKEY_ADDED,
            AuditKind.GRANT_STOLEN,
            "protocol_violation",
        ),
        100,
    ),
    **dict.fromkeys(("question_answered", "question_expired"), 1000),
}
"""Verdicts, denials by rule, grants, sign-ins and administrative acts, with the lines of each caller per day in the
second file. Only acts that no caller can repeat at will are unlimited."""

_Group = tuple[object, ...]


class _Bucket:
    """A caller's remaining lines for one kind of act."""

    def __init__(self, quota: Quota, now: float) -> None:
        self._quota = quota
        self._left, self._at = quota.lines, now

    def take(self, now: float) -> bool:
        earned = (now - self._at) * self._quota.per_minute / _MINUTE
        self._left, self._at = min(self._quota.lines, self._left + earned), now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class EssentialQuota:
    """Decides which lines of the trail are also written to the file of essential lines. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def has_line(self, act: str, who: str) -> bool:
        lines = ESSENTIAL.get(act, 0.0)
        if not lines or math.isinf(lines):
            return bool(lines)
        now = self._clock()
        bucket = self._buckets.setdefault((act, who), _Bucket(Quota(lines, lines / _MINUTES_OF_DAY), now))
        return bucket.take(now)


@dataclass(slots=True)
class _Minute:
    """The acts of one group within about a minute after the first."""

    since: float
    written: AuditEvent
    last: AuditEvent
    counted: int = 0


class AuditQuotas:
    """Decides which acts get a line and which are counted. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[tuple[AuditKind, str], _Bucket] = {}
        self._minutes: dict[tuple[AuditKind, str], dict[_Group, _Minute]] = {}
        self._next_end = math.inf
        """When the first of these minutes ends."""

    def has_line(self, act: AuditEvent) -> bool:
        """Whether the act gets a line now; otherwise it is counted. Call `due` first, so that finished minutes are
        closed."""
        quota = QUOTAS.get(act.kind)
        if quota is None:
            return True
        now, whose = self._clock(), (act.kind, act.who)
        groups = self._minutes.setdefault(whose, {})
        group = _group(act)
        if group not in groups and len(groups) >= _MAX_GROUPS:
            group = ()
        bucket = self._buckets.setdefault(whose, _Bucket(quota, now))
        minute = groups.get(group)
        if minute is None:
            bucket.take(now)
            groups[group] = _Minute(now, act, act)
            self._next_end = min(self._next_end, now + _MINUTE)
            return True
        minute.last = act
        repeats = quota.folds and act == minute.written
        if not repeats and bucket.take(now):
            minute.written = act
            return True
        minute.counted += 1
        return False

    def due(self, *, at_end: bool = False) -> Iterator[AuditEvent]:
        """The counted acts of finished minutes: the last of each group, with the `count` of all."""
        now = self._clock()
        if now < self._next_end and not at_end:
            return
        for whose, groups in list(self._minutes.items()):
            for group, minute in list(groups.items()):
                if now - minute.since < _MINUTE and not at_end:
                    continue
                del groups[group]
                if minute.counted:
                    yield replace(minute.last, details={**minute.last.details, "count": minute.counted})
            if not groups:
                del self._minutes[whose]
        begun = (minute.since for groups in self._minutes.values() for minute in groups.values())
        self._next_end = min(begun, default=math.inf) + _MINUTE


def _group(act: AuditEvent) -> _Group:
    details = act.details
    texts = [str(details.get(name, ""))[:200] for name in _GROUPED_BY]
    # Only the first word of `what`: it may be followed by a server name, which a caller chooses.
    what = str(details.get("what", "")).partition(" ")[0][:100]
    return (what, *texts, act.session_id if act.kind in _OF_SESSIONS else None)
