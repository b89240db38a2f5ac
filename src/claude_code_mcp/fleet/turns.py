"""What a machine's lease does to its turns: they are paused before it ends, go on, or end because the session is
another machine's."""

import logging

from ..errors import SessionBusy
from ..processes import pausing
from ..service import Service
from .leases import Holding, Holdings
from .session_copy import FleetReplica

log = logging.getLogger(__name__)

_LOST = (
    "This machine was cut off from the fleet, and another one has taken the session. What the turn had done by then "
    "may be done; the session goes on there."
)


class MachineTurns:
    """The `Turns` of a machine that runs sessions. Until it is given a service nothing runs."""

    def __init__(self) -> None:
        self._service: Service | None = None
        self._holdings: Holdings | None = None
        self._replica: FleetReplica | None = None

    def bind(self, service: Service, holdings: Holdings, replica: FleetReplica) -> None:
        """From now on these sessions are paused and ended."""
        self._service, self._holdings, self._replica = service, holdings, replica

    @property
    def busy(self) -> int:
        """How many sessions are at work."""
        if self._service is None:
            return 0
        return sum(session.busy for session in self._service.sessions(principal=None))

    def pause(self) -> None:
        """Stops the processes of all sessions that this machine holds."""
        if self._service is None or self._holdings is None:
            return
        holdings = self._holdings
        sessions = [each for each in self._service.sessions(principal=None) if holdings.held(each.id) is not None]
        pausing.pause([pid for session in sessions if (pid := session.pid) is not None])

    async def resume(self, holding: Holding) -> None:
        """The processes of the session go on."""
        pid = self._pid(holding.session_id)
        if pid is not None:
            pausing.resume([pid])

    async def end(self, holding: Holding) -> None:
        """The session's processes are killed, its turn ends with `machine_lost`, and nothing of it is kept here."""
        await self._end(holding.session_id)

    def lost(self, session_id: str) -> None:
        """A write has shown that another machine has the session."""
        if self._service is not None:
            self._service.start_task(self._end(session_id))

    async def _end(self, session_id: str) -> None:
        service, replica = self._service, self._replica
        if service is None or replica is None:
            return
        pid = self._pid(session_id)
        if pid is not None:
            # First: not one command more. The end of the process is reported only after the turn has ended.
            pausing.kill([pid])
        try:
            await service.relocation.lose(session_id, _LOST)
        except SessionBusy as error:
            log.warning("%s", error.message)  # somebody waits to send it a message, and will be refused
        replica.forget(session_id)

    def _pid(self, session_id: str) -> int | None:
        if self._service is None:
            return None
        found = [each.pid for each in self._service.sessions(principal=None) if each.id == session_id]
        return found[0] if found else None
