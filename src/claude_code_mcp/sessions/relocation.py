"""What a machine of a fleet does with a session that comes from another machine, or goes on there."""

from ..model.caller import Caller
from .dependencies import ClientEnvironments, SessionDeps
from .registry import Sessions
from .session import Session


class SessionRelocation:
    """The sessions of this machine, for whoever brings one here or takes one away."""

    def __init__(self, sessions: Sessions, environments: ClientEnvironments) -> None:
        self._sessions = sessions
        self._environments = environments

    def environment_of(self, caller: Caller) -> SessionDeps:
        """What the sessions of a caller use on this machine."""
        return self._environments.of(caller)

    async def let_go(self, session_id: str) -> None:
        """Forgets a session that another machine goes on with; its files stay. SessionBusy while it is at work."""
        await self._sessions.release(session_id)

    async def lose(self, session_id: str, detail: str) -> None:
        """Another machine has taken a session: its turn ends with `machine_lost`, and it is forgotten here; its files
        stay. The turn has ended when this first waits."""
        session = self._sessions.known(session_id)
        if session is not None:
            session.lose(detail)
            await session.closed()
            await self._sessions.release(session_id)


def record_key(session: Session) -> None:
    """The key of a message was accepted: another machine must know of it, as of all that the record holds."""
    session.deps.stores.recorder.changed(session)
