"""Lets a fleet move sessions to and from this machine."""

from collections.abc import Awaitable, Callable

from ...model.caller import Caller
from ...model.outcome import Outcome, OutcomeCode
from ..callers.client_environments import ClientEnvironments
from ..limit_waits import LimitWaits
from ..registry import Sessions
from ..session_deps import SessionDeps


class SessionRelocation:
    """Access to this machine's sessions for a fleet."""

    release_for_move: Callable[..., Awaitable[object]] | None = None
    """`SessionMover.give` of `plugins/fleet/handover.py`; None on a machine that belongs to no fleet."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments, limit_waits: LimitWaits) -> None:
        self._sessions = sessions
        self._environments = environments
        self._limit_waits = limit_waits

    def environment_of(self, caller: Caller) -> SessionDeps:
        """The dependencies of a caller's sessions on this machine."""
        return self._environments.of(caller)

    async def arrived(self) -> None:
        """Note that a session has arrived: if it waits for a usage limit, it continues here."""
        await self._limit_waits.find_left_over()

    async def forget_moved_session(self, session_id: str) -> None:
        """Forget a session that another machine continues; its files stay. SessionBusy while it is busy."""
        await self._sessions.release(session_id)

    async def lose(self, session_id: str, detail: str) -> None:
        """Forget a session that another machine has taken over: its turn ends with `machine_lost`, its files stay. The
        turn has ended before the first await."""
        session = self._sessions.known(session_id)
        if session is not None:
            session.release(Outcome(OutcomeCode.MACHINE_LOST, detail=detail))
            await session.closed()
            await self._sessions.release(session_id)
