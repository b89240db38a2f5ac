"""The sessions of this machine, for a fleet that brings one here or takes one away."""

from collections.abc import Awaitable, Callable

from ..model.caller import Caller
from ..model.outcome import Outcome, OutcomeCode
from .client_environments import ClientEnvironments
from .limit_waits import LimitWaits
from .registry import Sessions
from .session_wiring import SessionDeps


class SessionRelocation:
    """The sessions of this machine, for whoever brings one here or takes one away."""

    give_away: Callable[..., Awaitable[object]] | None = None
    """`SessionMover.give` of `plugins/fleet/handover.py`; None on a machine that belongs to no fleet."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments, limit_waits: LimitWaits) -> None:
        self._sessions = sessions
        self._environments = environments
        self._limit_waits = limit_waits

    def environment_of(self, caller: Caller) -> SessionDeps:
        """What the sessions of a caller use on this machine."""
        return self._environments.of(caller)

    async def arrived(self) -> None:
        """To be called when a session has come here: if it waits for a usage limit, it continues here."""
        await self._limit_waits.find_left_over()

    async def let_go(self, session_id: str) -> None:
        """Forgets a session that another machine goes on with; its files stay. SessionBusy while it is at work."""
        await self._sessions.release(session_id)

    async def lose(self, session_id: str, detail: str) -> None:
        """Another machine has taken a session: its turn ends with `machine_lost`, and it is forgotten here; its files
        stay. The turn has ended when this first waits."""
        session = self._sessions.known(session_id)
        if session is not None:
            session.release(Outcome(OutcomeCode.MACHINE_LOST, detail=detail))
            await session.closed()
            await self._sessions.release(session_id)
