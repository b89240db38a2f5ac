"""The replica of each session, from which another machine can continue it.

Used only in a fleet.
"""

from collections.abc import Collection
from typing import Protocol

from ...claude.protocol import Other
from ...state.session_records import SessionRecord
from ...transcripts.transcripts import Transcripts


class SessionReplica(Protocol):
    """Receives everything that another machine needs to continue a session. Only `admit`, `caught_up` and `remove`
    wait."""

    async def admit(self, session_id: str, owner: str, *, stays: bool = False) -> None:
        """Called before a message: raises ClaudeCodeError unless this machine may write the session. A session that
        `stays` on this machine is not copied and needs no permission from the fleet."""

    def check_held(self, session_id: str) -> None:
        """Called with the acceptance of a message, without an await in between: raises SessionBusy if the session was
        handed over since `admit`."""

    def process_started(self, session_id: str, transcripts: Transcripts, cwd: str) -> None:
        """A process now writes the session to one of these transcripts, in this working directory."""

    def mirror_received(self, session_id: str, frame: Other) -> None:
        """The session's process reports new transcript entries. The frame is a claim: a command of the session can
        write one too, so only the session that it came from is certain."""

    def process_gone(self, session_id: str) -> None:
        """The process has ended. It may have written more than it reported."""

    def record_written(self, record: SessionRecord) -> None:
        """The record of a session has changed on this machine's disk."""

    def behind(self, session_id: str) -> bool:
        """Whether the copy is missing reported entries."""

    def elsewhere(self) -> Collection[str]:
        """Sessions with files on this machine that another machine continues and whose costs are counted there."""

    async def remove(self, session_id: str, owner: str) -> None:
        """Called before a session is deleted on this machine's disk: removes the copy. Raises ClaudeCodeError if that
        is not possible now; then the session is not deleted."""

    async def caught_up(self, session_id: str) -> None:
        """Wait until the copy has everything reported, or is certain to get the rest later. A turn ends after this.
        Never raises."""
