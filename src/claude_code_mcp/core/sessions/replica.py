"""A copy of each session elsewhere, from which another machine can go on with it.

Without a fleet there is none, and nothing of this is called.
"""

from collections.abc import Collection
from typing import Protocol

from ..claude.protocol import Other
from ..state.session_records import SessionRecord
from ..transcripts.transcripts import Transcripts


class SessionReplica(Protocol):
    """Takes everything that another machine needs to go on with a session. Only `admit`, `caught_up` and `remove`
    wait."""

    async def admit(self, session_id: str, owner: str, *, stays: bool = False) -> None:
        """Before a session is given a message: raises ClaudeCodeError unless this machine may write the session. One
        that `stays` on this machine is not copied, and needs nobody's leave but that of the machine itself."""

    def check_held(self, session_id: str) -> None:
        """With the acceptance of a message, nothing awaited in between: raises SessionBusy if the session was given
        away since `admit`, while the message waited."""

    def process_started(self, session_id: str, transcripts: Transcripts, cwd: str) -> None:
        """A process writes the session from now on, to a transcript among these, in this working directory."""

    def mirror_received(self, session_id: str, frame: Other) -> None:
        """The session's process reports what it has just written to its transcripts. The frame is a claim: a command of
        the session can write one too, so of all that it says nothing but the session it came from is certain."""

    def process_gone(self, session_id: str) -> None:
        """The process has ended. It may have written more than it has reported."""

    def record_written(self, record: SessionRecord) -> None:
        """The record of a session has changed on this machine's disk."""

    def behind(self, session_id: str) -> bool:
        """Whether the copy lacks something that was reported."""

    def elsewhere(self) -> Collection[str]:
        """Sessions with files on this machine that another one goes on with: what they cost is counted there."""

    async def remove(self, session_id: str, owner: str) -> None:
        """Before a session is deleted on this machine's disk: nobody can go on with the copy any more. Raises
        ClaudeCodeError if that cannot be done now; then the session is not deleted."""

    async def caught_up(self, session_id: str) -> None:
        """Waits until the copy has everything that was reported, or is certain to get the rest later: a turn ends after
        this. Never raises."""
