"""Where the conversation of a session comes from."""

from dataclasses import dataclass

from ..claude.argv import Opening
from ..store.transcripts import Transcripts


@dataclass(frozen=True, slots=True)
class Origin:
    """Another session's transcript, which counts until there is one of its own."""

    session_id: str
    at_message: str | None = None


def opening_of(
    session_id: str, transcripts: Transcripts, origin: Origin | None = None, at_message: str | None = None
) -> Opening:
    """How the next process is to begin, by what lies on disk. Blocks on it."""
    if transcripts.resumable(session_id):
        return Opening(session_id, session_id, at_message, transcripts.api_ms(session_id))
    if origin is not None:
        return Opening(session_id, origin.session_id, origin.at_message, transcripts.api_ms(origin.session_id))
    return Opening(session_id)
