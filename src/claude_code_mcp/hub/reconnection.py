"""The state machine of the connection to one server. No I/O, no clock and no tasks: it only decides.

It decides which moves are legal, when another attempt follows and when the server is given up, and whether a caller
may wait for a connection. `upstream.py` carries the decisions out: its owner task makes the attempts and reports how
each ended with `concluded`.

Two things are tracked side by side. `state` is what users see. `phase` is how far the owner task is with its current
attempt; after a connection is lost, disabled or reset the phase stays `ESTABLISHED` until the owner has closed the
transport and concluded the attempt, so that no second attempt begins beside it.
"""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import NamedTuple

MAX_ERRORS = 3
"""After so many terminal errors one after another, the connection is made anew."""
MAX_ATTEMPTS = 5
"""So many attempts are made without a caller, one after another; the next is made when a caller needs the server."""
LASTING = 10.0
"""Seconds after which a connection counts as one that worked: losing it starts the count of attempts again."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LOST = "the connection closed"


class ConnectionState(StrEnum):
    """What users see of a connection."""

    PENDING = "pending"
    """Not yet needed, being made, or to be made again after a pause."""
    CONNECTED = "connected"
    FAILED = "failed"
    """Given up; the next caller starts a new attempt."""
    NEEDS_AUTH = "needs-auth"
    """A person has to sign in first."""
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
    """How far the owner task is with its current attempt."""

    IDLE = auto()
    CONNECTING = auto()
    ESTABLISHED = auto()
    """The handshake is done; lasts until the transport is closed."""


class Afterwards(Enum):
    """What follows the current attempt, as decided while it was under way."""

    RECOVER = auto()
    """A connection that was lost is made again; an attempt that failed is not repeated."""
    RECONNECT = auto()
    """Another attempt follows in any case, counted from the beginning."""
    REST = auto()
    """None follows, unless a caller waits."""


class IllegalConnectionMove(ValueError):
    """A bug in the hub: the state machine was asked for a move that it does not have."""


class Refusal(NamedTuple):
    """Why a caller may not wait for a connection."""

    state: str
    reason: str


class Conclusion(NamedTuple):
    """What follows when an attempt, or the connection that came of it, has ended."""

    connection: "Connection"
    refuse_callers: bool
    """Whether callers that wait are told that the server is unavailable."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A moment in the life of a connection. Every move gives a new one, or raises IllegalConnectionMove."""

    state: ConnectionState = ConnectionState.PENDING
    attempt: int = 0
    """Attempts since it last worked or was asked for."""
    reason: str | None = None
    """Why it is not connected."""
    errors: int = 0
    """Terminal errors one after another on this connection."""
    recovering: bool = False
    """Whether there was a connection that is to be made again."""
    phase: Phase = Phase.IDLE
    afterwards: Afterwards = Afterwards.RECOVER
    established_at: float | None = None
    requested: bool = False
    """Whether the owner is to make an attempt, now or after its pause."""
    closed: bool = False
    """Whether the hub is closing; nothing follows."""

    # -- decisions --------------------------------------------------------------------------------------------

    @property
    def attempt_due(self) -> bool:
        """Whether the owner is to make an attempt."""
        return self.requested and self.state is _S.PENDING and not self.closed

    @property
    def attempt_goes_on(self) -> bool:
        """Whether the attempt under way is still wanted: nobody has given it up meanwhile."""
        return self.phase is Phase.CONNECTING and self.afterwards is Afterwards.RECOVER and not self.closed

    @property
    def may_retry(self) -> bool:
        """Whether another attempt follows without a caller: only to get back a connection that there was."""
        return self.recovering and self.attempt < MAX_ATTEMPTS

    @property
    def worn_out(self) -> bool:
        """Whether it has had too many errors to be kept."""
        return self.errors >= MAX_ERRORS

    def refusal(self, *, sign_in_remembered: bool = False) -> Refusal | None:
        """Why a caller may not wait for a connection; None if it may.

        While an attempt is under way, a remembered need to sign in does not count: the attempt will show.
        """
        if self.closed:
            return Refusal("closing", "the hub is closing")
        if self.state is _S.DISABLED:
            return Refusal(self.state.value, f"disabled: {self.reason}")
        if self.state is _S.NEEDS_AUTH and self.phase is Phase.IDLE and sign_in_remembered:
            return Refusal(self.state.value, f"needs a sign-in: {self.reason}")
        return None

    def pause(self, chance: float) -> float:
        """Seconds before the next attempt; `chance`, from 0 to 1, spreads those of many servers."""
        longest = min(_FIRST_PAUSE * 2.0 ** max(0, self.attempt - 1), _LONGEST_PAUSE)
        return float(longest * (0.5 + chance / 2))

    # -- the course of an attempt -----------------------------------------------------------------------------

    def attempted(self) -> "Connection":
        """The owner begins an attempt."""
        if self.phase is not Phase.IDLE:
            raise IllegalConnectionMove(f"an attempt begins while another is {self.phase.name}")
        return replace(
            self._to(_S.PENDING),
            attempt=self.attempt + 1,
            phase=Phase.CONNECTING,
            afterwards=Afterwards.RECOVER,
            established_at=None,
        )

    def connected(self, now: float) -> "Connection":
        """The handshake is done. The attempts still count: a connection that does not last is no better than none."""
        if self.phase is not Phase.CONNECTING or self.afterwards is not Afterwards.RECOVER:
            raise IllegalConnectionMove(f"{self.state} -> connected while {self.phase.name}, {self.afterwards.name}")
        return replace(
            self._to(_S.CONNECTED),
            reason=None,
            errors=0,
            recovering=False,
            phase=Phase.ESTABLISHED,
            established_at=now,
        )

    def error_counted(self) -> "Connection":
        """A request failed in a way that casts doubt on the connection."""
        return replace(self, errors=self.errors + 1)

    def answered(self) -> "Connection":
        """The server answered a request."""
        return replace(self, errors=0) if self.errors else self

    def lost(self, now: float) -> "Connection":
        """The connection closed or was given up; nothing changes where the state is no longer `connected`."""
        if self.state is not _S.CONNECTED:
            return self
        return self._lost(_LOST, lasted=self._lasted(now))

    def concluded(self, reason: str, now: float, *, needs_auth: bool, caller_waits: bool) -> Conclusion:
        """The owner has closed the transport: the attempt failed with `reason`, or the connection ended with it.

        Callers keep waiting where a connection that there was, or one that was asked for anew, is being made again.
        They are refused when an attempt failed (they were waiting for that one), or when no other follows.
        """
        idle = replace(
            self.lost(now), phase=Phase.IDLE, afterwards=Afterwards.RECOVER, established_at=None, requested=False
        )
        if self.closed or self.state is _S.DISABLED:
            return Conclusion(idle, refuse_callers=False)
        if self.afterwards is Afterwards.REST:
            # Those who came since the reset need a new connection; the reason of the reset stays.
            return Conclusion(replace(idle, requested=caller_waits), refuse_callers=False)
        if needs_auth:
            return Conclusion(idle.needs_auth(reason), refuse_callers=True)
        reconnecting = self.afterwards is Afterwards.RECONNECT
        if reconnecting or self.phase is Phase.ESTABLISHED:
            idle = idle._lost(reason, lasted=reconnecting or self._lasted(now))
        if not idle.may_retry:
            failed = replace(idle._to(_S.FAILED), reason=reason, recovering=False)
            return Conclusion(failed, refuse_callers=True)
        retrying = replace(idle._to(_S.PENDING), reason=reason, requested=True)
        return Conclusion(retrying, refuse_callers=self.phase is Phase.CONNECTING and not reconnecting)

    # -- what users and callers ask for -----------------------------------------------------------------------

    def requested_by_caller(self) -> "Connection":
        """A caller needs a connection: attempts are counted from the beginning. One that is under way goes on."""
        if self.state is _S.DISABLED:
            raise IllegalConnectionMove("disabled -> requested")
        if self.phase is not Phase.IDLE:
            return self
        return replace(self._to(_S.PENDING), attempt=0, errors=0, requested=True)

    def reconnecting(self) -> "Connection":
        """The connection, or the attempt that is under way, is given up for a new one."""
        requested = self.requested_by_caller()
        return requested if self.phase is Phase.IDLE else replace(requested, afterwards=Afterwards.RECONNECT)

    def at_rest(self, reason: str, *, caller_waits: bool) -> "Connection":
        """Given up on purpose, and not made again before a caller needs it."""
        rest = Connection(self._to(_S.PENDING).state, reason=reason, requested=caller_waits, closed=self.closed)
        return self._after_attempt(rest)

    def disabled(self, reason: str) -> "Connection":
        """Not to be used; only `enabled` leads out of it."""
        return self._after_attempt(Connection(self._to(_S.DISABLED).state, reason=reason, closed=self.closed))

    def enabled(self) -> "Connection":
        """May be used again; nothing is connected before a caller needs it."""
        return replace(self._to(_S.PENDING), attempt=0, errors=0) if self.state is _S.DISABLED else self

    def needs_auth(self, reason: str) -> "Connection":
        """A person has to sign in."""
        return replace(self._to(_S.NEEDS_AUTH), reason=reason, requested=False)

    def sign_in_remembered(self, reason: str) -> "Connection":
        """The server wanted a sign-in a short while ago, so that an attempt would be in vain."""
        if self.state is _S.PENDING and self.phase is Phase.IDLE:
            return self.needs_auth(reason)
        return self

    def closing(self) -> "Connection":
        """The hub closes: nothing follows the current attempt, and no caller may wait."""
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
        return replace(then, phase=self.phase, established_at=self.established_at, afterwards=Afterwards.REST)

    def _lost(self, reason: str, *, lasted: bool) -> "Connection":
        attempt = 0 if lasted else self.attempt
        return replace(self._to(_S.PENDING), reason=reason, attempt=attempt, errors=0, recovering=True)

    def _lasted(self, now: float) -> bool:
        return self.established_at is not None and now - self.established_at > LASTING
