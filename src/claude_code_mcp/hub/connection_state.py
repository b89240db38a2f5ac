"""The state of the connection to one server: where it stands, why, and which moves are legal. No I/O."""

from dataclasses import dataclass, replace
from enum import StrEnum

TOLERATED_ERRORS = 3
"""So many terminal errors one after another, and the connection is made anew."""
MOST_ATTEMPTS = 5
"""So many attempts that nobody asked for, one after another; the next is made when somebody needs the server."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class ConnectionState(StrEnum):
    """Where a connection stands."""

    PENDING = "pending"
    """Not yet wanted, being made, or to be made again after a pause."""
    CONNECTED = "connected"
    FAILED = "failed"
    NEEDS_AUTH = "needs-auth"
    """Somebody has to sign in first."""
    DISABLED = "disabled"


_S = ConnectionState
MOVES: dict[ConnectionState, frozenset[ConnectionState]] = {
    _S.PENDING: frozenset({_S.CONNECTED, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED}),
    _S.CONNECTED: frozenset({_S.PENDING, _S.FAILED, _S.NEEDS_AUTH, _S.DISABLED}),
    _S.FAILED: frozenset({_S.PENDING, _S.DISABLED}),
    _S.NEEDS_AUTH: frozenset({_S.PENDING, _S.DISABLED}),
    _S.DISABLED: frozenset({_S.PENDING}),
}


class IllegalConnectionMove(ValueError):
    """A bug in the hub: the state machine was asked for a move that it does not have."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A moment in the life of a connection. Every move gives a new one."""

    state: ConnectionState = ConnectionState.PENDING
    attempt: int = 0
    """Attempts since it was last connected or asked for."""
    reason: str | None = None
    """Why it is not connected."""
    errors: int = 0
    """Terminal errors one after another on this connection."""
    recovering: bool = False
    """Whether there was a connection that is to be made again."""

    def wanted(self) -> "Connection":
        """Somebody needs it: attempts are counted from the beginning."""
        return replace(self._to(ConnectionState.PENDING), attempt=0, errors=0)

    def attempted(self) -> "Connection":
        """An attempt begins."""
        return replace(self._to(ConnectionState.PENDING), attempt=self.attempt + 1)

    def connected(self) -> "Connection":
        """The attempts still count: a connection that does not last is no better than none."""
        return replace(self._to(ConnectionState.CONNECTED), reason=None, errors=0, recovering=False)

    def failed(self, reason: str) -> "Connection":
        """An attempt came to nothing, and no other follows until somebody needs the server."""
        return replace(self._to(ConnectionState.FAILED), reason=reason, recovering=False)

    def lost(self, reason: str, *, lasted: bool = True) -> "Connection":
        """It was closed, or given up after too many errors; it is to be made again."""
        attempt = 0 if lasted else self.attempt
        return replace(self._to(ConnectionState.PENDING), reason=reason, attempt=attempt, errors=0, recovering=True)

    def retrying(self, reason: str) -> "Connection":
        """An attempt came to nothing, and another follows."""
        return replace(self._to(ConnectionState.PENDING), reason=reason)

    def needs_auth(self, reason: str) -> "Connection":
        return replace(self._to(ConnectionState.NEEDS_AUTH), reason=reason)

    def disabled(self, reason: str) -> "Connection":
        return Connection(self._to(ConnectionState.DISABLED).state, reason=reason)

    def at_rest(self, reason: str) -> "Connection":
        """Given up on purpose, and not to be made again before somebody needs it."""
        return Connection(self._to(ConnectionState.PENDING).state, reason=reason)

    def troubled(self) -> "Connection":
        """One more terminal error."""
        return replace(self, errors=self.errors + 1)

    def healthy(self) -> "Connection":
        """The server answered."""
        return replace(self, errors=0) if self.errors else self

    @property
    def worn_out(self) -> bool:
        """Whether it has had too many errors to be kept."""
        return self.errors >= TOLERATED_ERRORS

    @property
    def may_retry(self) -> bool:
        """Whether another attempt may follow that nobody asked for: only to get back what was there."""
        return self.recovering and self.attempt < MOST_ATTEMPTS

    def pause(self, chance: float) -> float:
        """Seconds before the next attempt; `chance`, from 0 to 1, spreads those of many servers."""
        longest = min(_FIRST_PAUSE * 2.0 ** max(0, self.attempt - 1), _LONGEST_PAUSE)
        return float(longest * (0.5 + chance / 2))

    def _to(self, state: ConnectionState) -> "Connection":
        if state is not self.state and state not in MOVES[self.state]:
            raise IllegalConnectionMove(f"{self.state} -> {state}")
        return replace(self, state=state)
