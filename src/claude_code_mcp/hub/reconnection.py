"""The state machine of the connection to one server. No I/O, no clock and no tasks: it only decides.

It decides which moves are legal, when another attempt follows, when to stop trying, and whether a caller may wait for a
connection. `upstream.py` carries the decisions out: its owner task makes the attempts and reports how each ended with
`concluded`.

Two things are tracked. `state` is visible to users. `phase` is the progress of the owner task's current attempt; after
a connection is lost, disabled or reset the phase stays `ESTABLISHED` until the owner has closed the transport and
concluded the attempt, so that attempts never overlap.
"""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import NamedTuple

MAX_ERRORS = 3
"""After this many consecutive terminal errors, the connection is replaced."""
MAX_ATTEMPTS = 5
"""Maximum consecutive attempts without a caller; the next is made when a caller needs the server."""
LASTING = 10.0
"""Seconds after which a connection counts as successful: losing it restarts the count of attempts."""
_FIRST_PAUSE = 0.5
_MAX_PAUSE = 30.0
_LOST = "the connection closed"


class ConnectionState(StrEnum):
    """The state of a connection as users see it."""

    PENDING = "pending"
    """Not needed yet, connecting, or waiting to reconnect."""
    CONNECTED = "connected"
    FAILED = "failed"
    """Failed; the next caller starts a new attempt."""
    NEEDS_AUTH = "needs-auth"
    """A person must sign in first."""
    DISABLED = "disabled"


_S = ConnectionState
MOVES: dict[ConnectionState, frozenset[ConnectionState]] = {
    _S.PENDING: frozenset({_S.CONNECTED, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED}),
    _S.CONNECTED: frozenset({_S.PENDING, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED}),
    _S.FAILED: frozenset({_S.PENDING, _S.DISABLED}),
    _S.NEEDS_AUTH: frozenset({_S.PENDING, _S.DISABLED}),
    _S.DISABLED: frozenset({_S.PENDING}),
}


class Phase(Enum):
    """The progress of the owner task's current attempt."""

    IDLE = auto()
    CONNECTING = auto()
    ESTABLISHED = auto()
    """The handshake is done; lasts until the transport is closed."""


class NextStep(Enum):
    """The next step after the current attempt, as decided during it."""

    RECOVER = auto()
    """Restore a lost connection; do not repeat a failed attempt."""
    RECONNECT = auto()
    """Always make another attempt, with a reset count."""
    REST = auto()
    """Make no other attempt, unless a caller waits."""


class IllegalConnectionMove(ValueError):
    """A bug in the hub: the state machine has no such move."""


class Refusal(NamedTuple):
    """Why a caller may not wait for a connection."""

    state: str
    reason: str


class Conclusion(NamedTuple):
    """The decision after an attempt, or its connection, has ended."""

    connection: "Connection"
    refuse_callers: bool
    """Whether waiting callers get an error that the server is unavailable."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An immutable state of a connection. Every move returns a new one, or raises IllegalConnectionMove."""

    state: ConnectionState = ConnectionState.PENDING
    attempt: int = 0
    """Attempts since it last worked or was requested."""
    reason: str | None = None
    """Why it is not connected."""
    errors: int = 0
    """Consecutive terminal errors on this connection."""
    recovering: bool = False
    """Whether a lost connection is being restored."""
    phase: Phase = Phase.IDLE
    next_step: NextStep = NextStep.RECOVER
    established_at: float | None = None
    requested: bool = False
    """Whether the owner should make an attempt, now or after its pause."""
    closed: bool = False
    """Whether the hub is closing; nothing follows."""

    # -- decisions --------------------------------------------------------------------------------------------

    @property
    def attempt_due(self) -> bool:
        """Whether the owner should make an attempt."""
        return self.requested and self.state is _S.PENDING and not self.closed

    @property
    def attempt_continues(self) -> bool:
        """Whether the running attempt is still wanted."""
        return self.phase is Phase.CONNECTING and self.next_step is NextStep.RECOVER and not self.closed

    @property
    def may_retry(self) -> bool:
        """Whether another attempt follows without a caller: only to restore a lost connection."""
        return self.recovering and self.attempt < MAX_ATTEMPTS

    @property
    def has_too_many_errors(self) -> bool:
        """Whether the connection has had too many errors to be kept."""
        return self.errors >= MAX_ERRORS

    def refusal(self, *, sign_in_remembered: bool = False) -> Refusal | None:
        """Why a caller may not wait for a connection; None if it may.

        During an attempt, a remembered sign-in requirement does not count: the attempt will show whether it still
        applies.
        """
        if self.closed:
            return Refusal("closing", "the hub is closing")
        if self.state is _S.DISABLED:
            return Refusal(self.state.value, f"disabled: {self.reason}")
        if self.state is _S.NEEDS_AUTH and self.phase is Phase.IDLE and sign_in_remembered:
            return Refusal(self.state.value, f"needs a sign-in: {self.reason}")
        return None

    def pause(self, chance: float) -> float:
        """Seconds before the next attempt; `chance`, from 0 to 1, adds jitter."""
        longest = min(_FIRST_PAUSE * 2.0 ** max(0, self.attempt - 1), _MAX_PAUSE)
        return float(longest * (0.5 + chance / 2))

    # -- the course of an attempt -----------------------------------------------------------------------------

    def attempted(self) -> "Connection":
        """Note that the owner starts an attempt."""
        if self.phase is not Phase.IDLE:
            raise IllegalConnectionMove(f"an attempt begins while another is {self.phase.name}")
        return replace(
            self._to(_S.PENDING),
            attempt=self.attempt + 1,
            phase=Phase.CONNECTING,
            next_step=NextStep.RECOVER,
            established_at=None,
        )

    def connected(self, now: float) -> "Connection":
        """Note that the handshake is done. The count of attempts is kept until the connection has lasted."""
        if self.phase is not Phase.CONNECTING or self.next_step is not NextStep.RECOVER:
            raise IllegalConnectionMove(f"{self.state} -> connected while {self.phase.name}, {self.next_step.name}")
        return replace(
            self._to(_S.CONNECTED),
            reason=None,
            errors=0,
            recovering=False,
            phase=Phase.ESTABLISHED,
            established_at=now,
        )

    def error_counted(self) -> "Connection":
        """Note that a request failed in a way that casts doubt on the connection."""
        return replace(self, errors=self.errors + 1)

    def answered(self) -> "Connection":
        """Note that the server answered a request."""
        return replace(self, errors=0) if self.errors else self

    def lost(self, now: float) -> "Connection":
        """Note that the connection closed or was dropped; no change if the state is no longer `connected`."""
        if self.state is not _S.CONNECTED:
            return self
        return self._lost(_LOST, lasted=self._lasted(now))

    def concluded(self, reason: str, now: float, *, needs_auth: bool, caller_waits: bool) -> Conclusion:
        """Decide what follows after the owner has closed the transport. `reason` says why the attempt failed or the
        connection ended.

        Callers keep waiting while a lost or newly requested connection is being restored. They are refused when their
        attempt failed, or when no other follows.
        """
        idle = replace(
            self.lost(now), phase=Phase.IDLE, next_step=NextStep.RECOVER, established_at=None, requested=False
        )
        if self.closed or self.state is _S.DISABLED:
            return Conclusion(idle, refuse_callers=False)
        if self.next_step is NextStep.REST:
            # Callers since the reset need a new connection; the reason of the reset stays.
            return Conclusion(replace(idle, requested=caller_waits), refuse_callers=False)
        if needs_auth:
            return Conclusion(idle.needs_auth(reason), refuse_callers=True)
        reconnecting = self.next_step is NextStep.RECONNECT
        if reconnecting or self.phase is Phase.ESTABLISHED:
            idle = idle._lost(reason, lasted=reconnecting or self._lasted(now))
        if not idle.may_retry:
            failed = replace(idle._to(_S.FAILED), reason=reason, recovering=False)
            return Conclusion(failed, refuse_callers=True)
        retrying = replace(idle._to(_S.PENDING), reason=reason, requested=True)
        return Conclusion(retrying, refuse_callers=self.phase is Phase.CONNECTING and not reconnecting)

    # -- requests of users and callers -----------------------------------------------------------------------

    def requested_by_caller(self) -> "Connection":
        """Note that a caller needs a connection: resets the count of attempts. A running attempt continues."""
        if self.state is _S.DISABLED:
            raise IllegalConnectionMove("disabled -> requested")
        if self.phase is not Phase.IDLE:
            return self
        return replace(self._to(_S.PENDING), attempt=0, errors=0, requested=True)

    def reconnecting(self) -> "Connection":
        """Drop the connection or the running attempt for a new one."""
        requested = self.requested_by_caller()
        return requested if self.phase is Phase.IDLE else replace(requested, next_step=NextStep.RECONNECT)

    def at_rest(self, reason: str, *, caller_waits: bool) -> "Connection":
        """Close on purpose, and do not reconnect before a caller needs it."""
        rest = Connection(self._to(_S.PENDING).state, reason=reason, requested=caller_waits, closed=self.closed)
        return self._after_attempt(rest)

    def disabled(self, reason: str) -> "Connection":
        """Disable the connection; only `enabled` reverts this."""
        return self._after_attempt(Connection(self._to(_S.DISABLED).state, reason=reason, closed=self.closed))

    def enabled(self) -> "Connection":
        """Allow use again; connect when a caller needs it."""
        return replace(self._to(_S.PENDING), attempt=0, errors=0) if self.state is _S.DISABLED else self

    def needs_auth(self, reason: str) -> "Connection":
        """Note that a person has to sign in."""
        return replace(self._to(_S.NEEDS_AUTH), reason=reason, requested=False)

    def sign_in_remembered(self, reason: str) -> "Connection":
        """Note that the server recently required a sign-in, so that an attempt would be futile."""
        if self.state is _S.PENDING and self.phase is Phase.IDLE:
            return self.needs_auth(reason)
        return self

    def closing(self) -> "Connection":
        """Note that the hub closes: nothing follows the current attempt, and no caller may wait."""
        return replace(self, closed=True)

    # -- parts ------------------------------------------------------------------------------------------------

    def _to(self, state: ConnectionState) -> "Connection":
        if state is not self.state and state not in MOVES[self.state]:
            raise IllegalConnectionMove(f"{self.state} -> {state}")
        return replace(self, state=state)

    def _after_attempt(self, then: "Connection") -> "Connection":
        """A connection that starts over, except that an attempt under way still has to be concluded."""
        if self.phase is Phase.IDLE:
            return then
        return replace(then, phase=self.phase, established_at=self.established_at, next_step=NextStep.REST)

    def _lost(self, reason: str, *, lasted: bool) -> "Connection":
        attempt = 0 if lasted else self.attempt
        return replace(self._to(_S.PENDING), reason=reason, attempt=attempt, errors=0, recovering=True)

    def _lasted(self, now: float) -> bool:
        return self.established_at is not None and now - self.established_at > LASTING
