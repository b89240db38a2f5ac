"""Usage limits: what Claude Code reports about them, and when a stopped session continues automatically.

Pure: no I/O and no clock; the caller supplies the time (Unix seconds). `core/sessions/limit_waits.py` sleeps and
continues. Claude Code reports the limits of a subscription with `rate_limit_event` frames. With an API key it sends
none: then only status 429 shows that a limit is reached, and the reset time is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .text import iso

OnLimit = Literal["end", "wait"]
"""What a session does at a usage limit: the turn ends, or it ends and continues automatically after the reset."""

MARGIN = 1.0
"""Seconds after the reset, because the API's clock may differ from ours."""
MAX_SPREAD = 120.0
"""Seconds over which sessions that wait for the same reset are spread; for a short wait, a tenth of it."""
MAX_WAIT = 8 * 86_400.0
"""Later reset times are not believed. The longest window of a plan is a week."""
MAX_ATTEMPTS = 20
"""How often a message is sent again if each attempt ends at a limit; then the session stays at the limit."""
MAX_TEXT = 256 << 10
"""How many characters of a message are kept. A longer one is replaced by a short message that asks Claude to
continue."""
_FIRST_PAUSE = 60.0
_MAX_PAUSE = 1800.0
_MAX_WINDOWS = 20
_MAX_NAME = 40
_LATEST = 4e9
_NAMES = {
    "five_hour": "5-hour",
    "seven_day": "weekly",
    "seven_day_opus": "weekly Opus",
    "seven_day_sonnet": "weekly Sonnet",
    "overage": "extra usage",
}
_RESUMED = (
    "[A usage limit stopped the turn of the message below. It has reset. The work before it is in this conversation: "
    "continue with the rest.]\n\n"
)
_CONTINUE = "Continue where the usage limit stopped you."


# -- reports ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """The usage of one window of a plan."""

    utilization: float | None = None
    """From 0 to 1, or a little more."""
    resets_at: float | None = None


@dataclass(frozen=True, slots=True)
class PlanUsage:
    """The limits of a plan, as Claude Code last reported them."""

    status: str
    """`allowed`, `allowed_warning` or `rejected`."""
    kind: str | None = None
    """The window that `status` refers to, such as `five_hour`."""
    resets_at: float | None = None
    windows: Mapping[str, UsageWindow] = field(default_factory=dict)

    @property
    def rejected(self) -> bool:
        return self.status == "rejected"

    def as_json(self) -> dict[str, Any]:
        """For every interface: fractions and ISO times."""
        windows = {
            name: _present(used=window.utilization, resetsAt=iso_or_none(window.resets_at))
            for name, window in self.windows.items()
        }
        return _present(
            status=self.status, limitType=self.kind, resetsAt=iso_or_none(self.resets_at), windows=windows or None
        )

    @property
    def line(self) -> str:
        """Human-readable: `5-hour 92 %, weekly 40 %`; empty if nothing is known."""
        parts = [
            f"{limit_name(name)} {window.utilization:.0%}"
            for name, window in self.windows.items()
            if window.utilization is not None
        ]
        return ", ".join(parts)


def read_plan_usage(info: object) -> PlanUsage | None:
    """The plan's usage from the `rate_limit_info` of a frame; None if it cannot be parsed. Never raises."""
    if not isinstance(info, Mapping) or not isinstance(info.get("status"), str):
        return None
    raw = info.get("unifiedWindows")
    windows = [*raw.items()][:_MAX_WINDOWS] if isinstance(raw, Mapping) else []
    return PlanUsage(
        status=_name(info["status"]) or "unknown",
        kind=_name(info.get("rateLimitType")),
        resets_at=_time(info.get("resetsAt")),
        windows={
            name: UsageWindow(_fraction(window.get("utilization")), _time(window.get("resetsAt")))
            for name, window in windows
            if _name(name) and isinstance(window, Mapping)
        },
    )


def limit_name(kind: str | None) -> str:
    """The human-readable name of a limit: `5-hour`, `weekly`."""
    return "usage" if kind is None else _NAMES.get(kind, kind.replace("_", " "))


def limit_sentence(kind: str | None, resets_at: float | None) -> str:
    """`The 5-hour limit is reached. It resets at 2026-11-18T17:00Z.`"""
    name = f"{limit_name(kind)} limit"
    when = "" if resets_at is None else f" It resets at {iso(resets_at)[:16]}Z."
    return f"The {name} is reached.{when}"


# -- the wait --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitWait:
    """A message that a usage limit stopped, and when it continues, if it continues automatically. Every transition
    returns a new object."""

    id: str
    """Identifies this wait: the key with which its message is accepted once."""
    text: str
    """The message that is sent again."""
    since: float
    continues_at: float
    resets_at: float | None = None
    kind: str | None = None
    attempt: int = 1
    """How often a limit has stopped the message."""
    on: bool = True
    """Whether it continues automatically."""

    @property
    def sentence(self) -> str:
        """The limit, its reset time, and what follows."""
        follows = f"The session continues automatically at {iso(self.continues_at)[:16]}Z." if self.on else ""
        return f"{limit_sentence(self.kind, self.resets_at)} {follows}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """For every interface."""
        at = self.continues_at if self.on else None
        return _present(type=self.kind, resetsAt=iso_or_none(self.resets_at), continuesAt=iso_or_none(at))

    def continuing_now(self, now: float) -> "LimitWait":
        """The wait that continues now, at a caller's request."""
        return replace(self, continues_at=min(self.continues_at, now), on=True)

    def switched(self, on: bool) -> "LimitWait":
        """The wait with automatic continuation switched on or off at a caller's request."""
        return replace(self, on=on)

    def unread(self, now: float, chance: float, new_id: str) -> "LimitWait":
        """Claude Code could not be started, or ended before it had read the message: it is sent again later."""
        attempt = self.attempt + 1
        on = self.on and attempt <= MAX_ATTEMPTS
        return replace(self, id=new_id, attempt=attempt, on=on, continues_at=now + _pause(attempt, chance))


@dataclass(frozen=True, slots=True)
class StoppedTurn:
    """The turn that a limit has stopped."""

    text: str
    """The message that began it; empty if a background task began it."""
    worked: bool
    """Whether the model had answered in it, so that a part of the work may be done."""
    continued: bool
    """Whether the message was sent because a wait was over."""


def wait_after(
    turn: StoppedTurn,
    before: LimitWait | None,
    kind: str | None,
    resets_at: float | None,
    now: float,
    chance: float,
    *,
    wanted: bool,
    new_id: str,
) -> LimitWait:
    """What follows a turn that a limit has stopped; off unless that is `wanted` and makes sense.

    `before` is the wait that there was already: either the turn continued it, or the turn belonged to a message that
    came while the one before waited, and then both are sent. `chance`, from 0 to 1, spreads many sessions.
    """
    attempt = before.attempt + 1 if before is not None and turn.continued else 1
    sensible = attempt <= MAX_ATTEMPTS and (resets_at is None or resets_at - now <= MAX_WAIT)
    delay = 0.0 if resets_at is None else max(0.0, resets_at + MARGIN - now)
    delay += chance * min(MAX_SPREAD, delay / 10)
    if resets_at is None or attempt > 1:
        # The reset is unknown, or was not one.
        delay = max(delay, _pause(attempt, chance))
    return LimitWait(
        id=new_id,
        text=_text_to_send(turn, before),
        since=before.since if before is not None else now,
        continues_at=now + delay,
        resets_at=resets_at,
        kind=kind,
        attempt=attempt,
        on=wanted and sensible,
    )


def _text_to_send(turn: StoppedTurn, before: LimitWait | None) -> str:
    if before is not None and turn.continued:
        text = before.text
    else:
        text = turn.text or _CONTINUE
        if before is not None and before.on and text not in before.text:
            text = f"{before.text}\n\n{text}"
    if len(text) > MAX_TEXT:
        return _CONTINUE  # the conversation has it
    return _RESUMED + text if turn.worked and not text.startswith(_RESUMED) else text


def _pause(attempt: int, chance: float) -> float:
    longest = min(_FIRST_PAUSE * 2.0 ** min(attempt - 1, 10), _MAX_PAUSE)
    return float(longest * (0.5 + chance / 2))


def _name(value: object) -> str | None:
    """A word of the report. Commands of a session can write frames too, and people are shown this."""
    return value if isinstance(value, str) and len(value) <= _MAX_NAME and value.isidentifier() else None


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST:
        return None
    return float(value)


def _fraction(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 100:
        return None
    return float(value)


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
