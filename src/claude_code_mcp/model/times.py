"""Times as callers read them: ISO 8601, in UTC, to the millisecond, with a `Z` at the end."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(seconds: float) -> str:
    """A Unix time as text, such as `2026-11-15T16:31:14.000Z`; one outside the calendar is moved to its edge."""
    return f"{_moment(seconds).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def _moment(seconds: float) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # a file from elsewhere can hold any number, also one that is none
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else _EPOCH
